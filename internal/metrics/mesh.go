package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/mq/internal/mesh"
)

// Mesh returns the functions that count what goes between this node of a cluster and the others, by the number of the
// other one. Nodes is how many the cluster has. It is called once.
func (m *Metrics) Mesh(nodes int) mesh.Observer {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "mq", Subsystem: "raft", Name: name, Help: help},
			append([]string{"peer"}, labels...))
		m.registry.MustRegister(c)
		return c
	}
	// byPeer makes the series ahead, so that a packet looks nothing up.
	byPeer := func(c *prometheus.CounterVec, labels ...string) []prometheus.Counter {
		list := make([]prometheus.Counter, nodes)
		for i := range list {
			list[i] = c.WithLabelValues(append([]string{strconv.Itoa(i)}, labels...)...)
		}
		return list
	}
	sent := byPeer(counter("sent_packets_total", "Packets sent to another node."))
	sentBytes := byPeer(counter("sent_bytes_total", "Bytes of packets sent to another node."))
	received := byPeer(counter("received_packets_total", "Packets of another node."))
	receivedBytes := byPeer(counter("received_bytes_total", "Bytes of packets of another node."))
	connected := byPeer(counter("streams_total", "Streams of packets to another node that were accepted."))
	refused := byPeer(counter("streams_refused_total", "Streams between the nodes that one of them refused."))
	called := byPeer(counter("calls_total", "Calls to another node that were answered."))
	calledBytes := byPeer(counter("call_answer_bytes_total", "Bytes of answers to calls to another node."))
	dropped := counter("dropped_packets_total", "Packets to another node that were not sent.", "reason")
	dropsBy := make(map[mesh.Drop][]prometheus.Counter)
	for _, why := range mesh.Drops() {
		dropsBy[why] = byPeer(dropped, string(why))
	}
	return mesh.Observer{
		Sent: func(peer, packets, bytes int) {
			sent[peer].Add(float64(packets))
			sentBytes[peer].Add(float64(bytes))
		},
		Received: func(peer, packets, bytes int) {
			received[peer].Add(float64(packets))
			receivedBytes[peer].Add(float64(bytes))
		},
		Dropped:   func(peer int, why mesh.Drop, count int) { dropsBy[why][peer].Add(float64(count)) },
		Connected: func(peer int) { connected[peer].Inc() },
		Refused:   func(peer int) { refused[peer].Inc() },
		Called: func(peer, _, answer int) {
			called[peer].Inc()
			calledBytes[peer].Add(float64(answer))
		},
	}
}

// PeerGauges are figures about the other nodes of a cluster, read when somebody asks for the metrics.
type PeerGauges interface {
	// PeerGauges calls set for each figure about the node with the number peer; names are without the prefix mq_.
	PeerGauges(set func(name string, peer int, value float64))
}

// WatchPeers adds gauges that g answers for, with the label peer.
func (m *Metrics) WatchPeers(g PeerGauges) { m.registry.MustRegister(peerGauges{g}) }

// peerGauges collects figures at the time of asking.
type peerGauges struct{ source PeerGauges }

func (peerGauges) Describe(chan<- *prometheus.Desc) {}

func (g peerGauges) Collect(out chan<- prometheus.Metric) {
	g.source.PeerGauges(func(name string, peer int, value float64) {
		desc := prometheus.NewDesc("mq_"+name, helpOf(name), []string{"peer"}, nil)
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, strconv.Itoa(peer))
	})
}
