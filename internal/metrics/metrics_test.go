package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
)

type figures struct{}

func (figures) Gauges(set func(string, float64)) {
	set("live_bytes", 7)
	set("disk_total_bytes", 8)
	set("cleaner_moved_bytes_total", 9)
}

// TestGauges: figures that are asked for show up under their names, and those that only rise as counters.
func TestGauges(t *testing.T) {
	m := New(nil)
	m.Watch(figures{})
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		"# HELP mq_live_bytes Bytes of keys and values of the records that are kept.", "# TYPE mq_live_bytes gauge", "mq_live_bytes 7", "# TYPE mq_disk_total_bytes gauge", "mq_disk_total_bytes 8",
		"# TYPE mq_cleaner_moved_bytes_total counter", "mq_cleaner_moved_bytes_total 9",
	} {
		if !strings.Contains(answer.Body.String(), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}
