package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"example.com/mq/internal/replication/pair"
)

// Pair returns the functions that count what happens between the two nodes of a pair. It is called once.
func (m *Metrics) Pair() pair.Observer {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "mq", Subsystem: "pair", Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	sessions := counter("sessions_total", "Sessions with the other node.")
	sent := counter("sent_bytes_total", "Bytes of frames sent to the follower.")
	cut := counter("cut_entries_total", "Entries cut off this node's log, which the leader does not have.")
	history := counter("history_bytes_total", "Bytes of the history of full syncs, sent or received.")
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "mq", Subsystem: "pair", Name: "refused_total",
		Help: "Sessions refused, by either side."}, []string{"code"})
	m.registry.MustRegister(refused)
	byCode := make(map[pair.Code]prometheus.Counter)
	for _, code := range pair.Codes() {
		byCode[code] = refused.WithLabelValues(string(code))
	}
	other := refused.WithLabelValues("other") // what a newer version may say
	return pair.Observer{
		Session: sessions.Inc,
		Refused: func(code pair.Code) {
			if c := byCode[code]; c != nil {
				c.Inc()
			} else {
				other.Inc()
			}
		},
		Sent:   func(bytes int) { sent.Add(float64(bytes)) },
		Cut:    func(entries int) { cut.Add(float64(entries)) },
		Synced: func(bytes int64) { history.Add(float64(bytes)) },
	}
}
