package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"

	"example.com/mq/internal/mesh"
)

type peers struct{}

func (peers) PeerGauges(set func(string, int, float64)) { set("raft_peer_match_index", 2, 41) }

// TestMesh: what is observed shows up under its name, by peer.
func TestMesh(t *testing.T) {
	m := New(nil)
	o := m.Mesh(3)
	m.WatchPeers(peers{})
	o.Sent(1, 2, 300)
	o.Received(2, 1, 50)
	o.Dropped(2, mesh.DropFull, 7)
	o.Connected(1)
	o.Refused(2)
	o.Called(1, 10, 4000)
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{
		`mq_raft_sent_packets_total{peer="1"} 2`, `mq_raft_sent_bytes_total{peer="1"} 300`, `mq_raft_received_packets_total{peer="2"} 1`,
		`mq_raft_received_bytes_total{peer="2"} 50`, `mq_raft_dropped_packets_total{peer="2",reason="queue_full"} 7`,
		`mq_raft_dropped_packets_total{peer="1",reason="lost"} 0`, `mq_raft_streams_total{peer="1"} 1`, `mq_raft_streams_refused_total{peer="2"} 1`,
		`mq_raft_calls_total{peer="1"} 1`, `mq_raft_call_answer_bytes_total{peer="1"} 4000`, `mq_raft_peer_match_index{peer="2"} 41`,
	} {
		if !strings.Contains(answer.Body.String(), want+"\n") {
			t.Errorf("no %s", want)
		}
	}
}
