// Package metrics holds the counters and histograms of one node and renders them for Prometheus. It is told
// of events through the Observer interfaces of other packages, which know nothing of Prometheus. Each node
// has its own registry; there are no globals.
package metrics

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"example.com/mq/internal/wal"
)

// Metrics is one node's set.
type Metrics struct {
	registry *prometheus.Registry

	requests    map[string]*route
	groupCommit prometheus.Histogram
	entries     prometheus.Counter
	published   prometheus.Counter
	logBytes    prometheus.Counter
	duplicates  prometheus.Counter
	fetched     prometheus.Counter
	fetchBytes  prometheus.Counter
	corrupt     prometheus.Counter
	sync        prometheus.Histogram
	syncBytes   prometheus.Histogram
	rolls       prometheus.Counter
	prepare     prometheus.Histogram
}

// route holds the series of one path, made ahead so that a request looks nothing up.
type route struct {
	seconds prometheus.Observer
	status  map[int]prometheus.Counter
}

// times are the buckets of everything that takes a sync or a request: 50 µs to 13 s, in factors of 2.
var times = prometheus.ExponentialBuckets(50e-6, 2, 19)

// Gauges are read when somebody asks for the metrics.
type Gauges interface {
	// Gauges calls set for each figure; names are those of docs/operations.md without the prefix mq_. One that ends in
	// _total only rises.
	Gauges(set func(name string, value float64))
}

// New returns the metrics of a node. Routes are the paths that requests are counted by.
func New(routes []string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), requests: make(map[string]*route)}
	m.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Namespace: "mq", Name: name, Help: help})
		m.registry.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: "mq", Name: name, Help: help, Buckets: buckets})
		m.registry.MustRegister(h)
		return h
	}
	m.groupCommit = histogram("group_commit_entries", "Entries that shared one sync.", prometheus.ExponentialBuckets(1, 2, 13))
	m.entries = counter("log_entries_total", "Entries committed.")
	m.published = counter("published_records_total", "Records committed.")
	m.logBytes = counter("log_bytes_total", "Bytes of committed frames.")
	m.duplicates = counter("publish_duplicates_total", "Publishes answered from their request id.")
	m.fetched = counter("fetched_records_total", "Records read for fetches.")
	m.fetchBytes = counter("fetched_bytes_total", "Bytes of keys and values read for fetches.")
	m.corrupt = counter("corrupt_reads_total", "Fetches that met damaged records.")
	m.sync = histogram("log_sync_seconds", "Time of one sync of the log.", times)
	m.syncBytes = histogram("log_sync_bytes", "Bytes made durable by one sync.", prometheus.ExponentialBuckets(256, 4, 9))
	m.rolls = counter("log_segments_begun_total", "Segments begun.")
	m.prepare = histogram("log_prepare_seconds", "Time to zero-fill a segment ahead.", times)

	seconds := prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: "mq", Name: "request_seconds",
		Help: "Time from a request's header to its answer, waits included.", Buckets: times}, []string{"path"})
	count := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "mq", Name: "requests_total",
		Help: "Requests answered."}, []string{"path", "status"})
	m.registry.MustRegister(seconds, count)
	for _, path := range append(routes, "other") {
		r := &route{seconds: seconds.WithLabelValues(path), status: make(map[int]prometheus.Counter)}
		for _, status := range []int{200, 307, 400, 401, 403, 404, 405, 409, 410, 413, 500, 503, 507} {
			r.status[status] = count.WithLabelValues(path, strconv.Itoa(status))
		}
		m.requests[path] = r
	}
	return m
}

// Watch adds gauges that g answers for.
func (m *Metrics) Watch(g Gauges) { m.registry.MustRegister(gauges{g}) }

// Handler serves the metrics as Prometheus text.
func (m *Metrics) Handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
}

// Request counts an answered request. Paths that New was not given are counted as "other".
func (m *Metrics) Request(path string, status int, took time.Duration) {
	r := m.requests[path]
	if r == nil {
		r = m.requests["other"]
	}
	r.seconds.Observe(took.Seconds())
	if c := r.status[status]; c != nil {
		c.Inc()
	}
}

// Committed counts a group commit (broker.Observer).
func (m *Metrics) Committed(entries, records int, logBytes int64, _ bool) {
	m.groupCommit.Observe(float64(entries))
	m.entries.Add(float64(entries))
	m.published.Add(float64(records))
	m.logBytes.Add(float64(logBytes))
}

// Duplicate counts a repeated publish (broker.Observer).
func (m *Metrics) Duplicate() { m.duplicates.Inc() }

// Read counts records read (broker.Observer).
func (m *Metrics) Read(records int, bytes int64) {
	m.fetched.Add(float64(records))
	m.fetchBytes.Add(float64(bytes))
}

// Corrupt counts a read that met damage (broker.Observer).
func (m *Metrics) Corrupt() { m.corrupt.Inc() }

// Disk returns the functions that count the log's disk work.
func (m *Metrics) Disk() wal.Observer {
	return wal.Observer{
		Synced: func(took time.Duration, bytes int) {
			m.sync.Observe(took.Seconds())
			m.syncBytes.Observe(float64(bytes))
		},
		Rolled:   m.rolls.Inc,
		Prepared: func(took time.Duration) { m.prepare.Observe(took.Seconds()) },
	}
}

// gauges collects figures at the time of asking. It describes nothing ahead: their names come with them.
type gauges struct{ source Gauges }

func (gauges) Describe(chan<- *prometheus.Desc) {}

func (g gauges) Collect(out chan<- prometheus.Metric) {
	g.source.Gauges(func(name string, value float64) {
		kind := prometheus.GaugeValue
		if strings.HasSuffix(name, "_total") {
			kind = prometheus.CounterValue
		}
		out <- prometheus.MustNewConstMetric(prometheus.NewDesc("mq_"+name, helpOf(name), nil, nil), kind, value)
	})
}
