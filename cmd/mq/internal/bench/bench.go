// Package bench measures a broker from outside: how many records it acknowledges and hands out in a second,
// and how long that takes. It checks every answer, and any error fails the measurement.
//
// Load comes from closed loops: each producer sends its next request when the last one was answered. Each
// has its own connection. Requests are encoded afresh each time. The lean client takes about a third of the
// processor time of net/http, which matters where client and broker share the machine.
package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Config says what to measure. All fields must be set.
type Config struct {
	Target
	NetHTTP    bool // use package client, which is built on net/http, instead of the lean client
	Topic      string
	FreshTopic bool // nobody else publishes to Topic, and it is empty: then offsets are checked for gaps
	Size       int  // bytes of each value
	Warmup     time.Duration
	Duration   time.Duration
	RequestIDs bool // send a request id with each publish
}

// Result is one measurement.
type Result struct {
	Case      string  `json:"case"` // publish, fetch or latency
	Client    string  `json:"client"`
	Size      int     `json:"size_bytes"`
	Producers int     `json:"producers,omitempty"`
	Batch     int     `json:"batch,omitempty"`
	Records   uint64  `json:"records"`
	Seconds   float64 `json:"seconds"`
	Rate      float64 `json:"records_per_second"`
	MBRate    float64 `json:"megabytes_per_second"` // of values, 10^6 bytes
	P50       float64 `json:"p50_us,omitempty"`
	P99       float64 `json:"p99_us,omitempty"`
	P999      float64 `json:"p999_us,omitempty"`
	Max       float64 `json:"max_us,omitempty"`
	ClientCPU float64 `json:"client_cpu_us_per_record"`
}

// grace is how long an operation may take beyond the time of the measurement before all is given up.
const grace = 30 * time.Second

var errHung = errors.New("an operation took too long")

func (cfg *Config) deadline(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, cfg.Warmup+cfg.Duration+grace, errHung)
}

func (cfg *Config) result(name string, producers, batch int, l load) Result {
	r := Result{
		Case: name, Client: "lean", Size: cfg.Size, Producers: producers, Batch: batch,
		Records: l.calls * uint64(batch), Seconds: l.seconds,
		P50: micros(l.times.quantile(0.5)), P99: micros(l.times.quantile(0.99)),
		P999: micros(l.times.quantile(0.999)), Max: micros(l.times.largest),
	}
	if cfg.NetHTTP {
		r.Client = "net/http"
	}
	r.rates(l.cpu)
	return r
}

// rates computes what follows from Records, Seconds and Size.
func (r *Result) rates(cpu time.Duration) {
	if r.Seconds > 0 {
		r.Rate = float64(r.Records) / r.Seconds
		r.MBRate = r.Rate * float64(r.Size) / 1e6
	}
	if r.Records > 0 {
		r.ClientCPU = micros(cpu) / float64(r.Records)
	}
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

// makeValue returns text that hardly compresses.
func makeValue(size int) []byte {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	value := make([]byte, size)
	for i := range value {
		value[i] = letters[rand.IntN(len(letters))]
	}
	return value
}

func makeValues(n, size int) [][]byte {
	values := make([][]byte, n)
	for i := range values {
		values[i] = makeValue(size)
	}
	return values
}

// FreshTopic is a name that no topic has yet.
func FreshTopic() string {
	return fmt.Sprintf("bench-%s-%04x", time.Now().UTC().Format("20060102-150405"), rand.N(1<<16))
}
