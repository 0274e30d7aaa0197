package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication/cluster"
)

// Raft returns the functions that count what a node of a cluster does. It is called once.
func (m *Metrics) Raft() cluster.Observer {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "mq", Subsystem: "raft", Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	elected := counter("elected_total", "Elections won by this node.")
	lost := counter("lead_lost_total", "Times that this node ceased to lead.")
	confirmed := counter("lead_confirmed_total", "Rounds that confirmed the lead for reads.")
	stalled := counter("disk_stalled_total", "Times that the disk did not answer for longer than the election timeout.")
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "mq", Subsystem: "raft", Name: "refused_packets_total",
		Help: "Packets of other nodes that made no sense, or were not for this node."}, []string{"code"})
	m.registry.MustRegister(refused)
	return cluster.Observer{
		Elected:   func(entry.Term) { elected.Inc() },
		Lost:      func(entry.Term) { lost.Inc() },
		Confirmed: func(time.Duration, int) { confirmed.Inc() },
		Stalled:   func(time.Duration) { stalled.Inc() },
		Refused:   func(_ int, r *cluster.RefusedError) { refused.WithLabelValues(r.Code).Inc() },
	}
}
