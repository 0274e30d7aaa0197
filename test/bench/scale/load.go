package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/api"
)

// producers is how many clients publish at the same time, where nothing else is said.
const producers = 64

// operation does one thing over a connection of its own.
type operation func(c *conn) error

// outcome is what clients in a closed loop have reached.
type outcome struct {
	seconds float64
	times   []time.Duration // of each call, sorted
	cpu     time.Duration   // that the server used meanwhile
}

func (o *outcome) rate() float64 { return float64(len(o.times)) / o.seconds }

func (o *outcome) cpuPerCall() time.Duration { return o.cpu / time.Duration(max(1, len(o.times))) }

// at returns the time that a part of the calls took at most.
func (o *outcome) at(part float64) time.Duration {
	if len(o.times) == 0 {
		return 0
	}
	return o.times[min(int(part*float64(len(o.times))), len(o.times)-1)]
}

func (o *outcome) String() string {
	return fmt.Sprintf("%.0f/s, p50 %s, p99 %s, max %s", o.rate(), ms(o.at(0.5)), ms(o.at(0.99)), ms(o.at(1)))
}

// load has so many clients, each of which repeats its operation, until stop says so. The first error ends all.
func (s *server) load(clients int, stop func() bool, operationOf func(client int) operation) (*outcome, error) {
	var (
		running sync.WaitGroup
		failed  atomic.Bool
		times   = make([][]time.Duration, clients)
		errs    = make([]error, clients)
	)
	cpu, began := s.cpu(), time.Now()
	for i := range clients {
		running.Go(func() { // awaited below
			c, err := s.dial()
			if err != nil {
				errs[i] = err
				failed.Store(true)
				return
			}
			defer c.close()
			do := operationOf(i)
			for !failed.Load() && !stop() {
				c.began = time.Now()
				if err := do(c); err != nil {
					errs[i] = err
					failed.Store(true)
					return
				}
				times[i] = append(times[i], time.Since(c.began))
			}
		})
	}
	running.Wait()
	o := &outcome{seconds: time.Since(began).Seconds(), cpu: s.cpu() - cpu, times: slices.Concat(times...)}
	slices.Sort(o.times)
	return o, errors.Join(errs...)
}

// during returns a stop for some time from now on.
func during(d time.Duration) func() bool {
	end := time.Now().Add(d)
	return func() bool { return !time.Now().Before(end) }
}

// share gives the numbers below n out to clients, each once.
type share struct {
	next atomic.Int64
	n    int64
}

func (s *share) take() (int, bool) {
	i := s.next.Add(1) - 1
	return int(i), i < s.n
}

func (s *share) stop() bool { return s.next.Load() >= s.n }

// fill calls do once for each number below n.
func (s *server) fill(what string, clients, n int, operationOf func() func(c *conn, i int) error) error {
	numbers := &share{n: int64(n)}
	o, err := s.load(clients, numbers.stop, func(int) operation {
		do := operationOf()
		return func(c *conn) error {
			i, ok := numbers.take()
			if !ok {
				return nil
			}
			return do(c, i)
		}
	})
	if err != nil {
		return fmt.Errorf("fill %s: %w", what, err)
	}
	s.b.say("%s: %d calls in %.1f s, %s", what, n, o.seconds, o)
	return nil
}

// publisher returns an operation that publishes records of one size to topics that topic chooses, one by one, or count of
// them as a batch.
func publisher(size, count int, topic func() string) operation {
	path, rest := api.PathPublish, singleTail(size)
	if count > 1 {
		path, rest = api.PathPublishBatch, batchTail(count, size)
	}
	var body []byte
	return func(c *conn) error {
		body = append(append(body[:0], `{"topic":"`...), topic()...)
		body = append(append(body, '"'), rest...)
		_, err := c.call(path, body)
		return err
	}
}

// one is a topic that does not change.
func one(topic string) func() string { return func() string { return topic } }

// anyOf is a topic at random of n that topicName names.
func anyOf(n int) func() string { return func() string { return topicName(rand.IntN(n)) } }

// topicName is as long as names are in practice.
func topicName(i int) string { return fmt.Sprintf("service-%03d.events-%06d", i%1000, i) }

// compared are two loads that took turns.
type compared struct{ a, b []*outcome }

// inTurn measures two loads in turn, after a warm-up of each, so that what else the machine does hits both.
func (b *bench) inTurn(first, second func(stop func() bool) (*outcome, error)) (c compared, err error) {
	for round := range b.rounds + 1 {
		d := b.measure
		if round == 0 {
			d = b.measure / 2
		}
		x, err := first(during(d))
		if err != nil {
			return c, err
		}
		y, err := second(during(d))
		if err != nil {
			return c, err
		}
		if round > 0 {
			c.a, c.b = append(c.a, x), append(c.b, y)
		}
	}
	return c, nil
}

// ratio returns the median of what is b's to a's in each round.
func (c *compared) ratio(of func(*outcome) float64) float64 {
	var all []float64
	for i := range c.a {
		all = append(all, of(c.b[i])/of(c.a[i]))
	}
	return median(all)
}

// middle returns the round of the median rate.
func middle(all []*outcome) *outcome {
	sorted := slices.Clone(all)
	slices.SortFunc(sorted, func(a, b *outcome) int { return int(a.rate() - b.rate()) })
	return sorted[len(sorted)/2]
}

func p50(o *outcome) float64 { return o.at(0.5).Seconds() }
func p99(o *outcome) float64 { return o.at(0.99).Seconds() }
func cost(o *outcome) float64 {
	return o.cpuPerCall().Seconds()
}
func pace(o *outcome) float64 { return 1 / o.rate() }

// compare adds the lines of a comparison: goals are for the ratios of time by rate, p50, p99 and processor time.
func (b *bench) compare(what, nameA, nameB, goalCost, goalP99 string, c *compared) {
	for _, side := range []struct {
		name string
		all  []*outcome
	}{{nameA, c.a}, {nameB, c.b}} {
		o := middle(side.all)
		b.row(what+", "+side.name, "", "%s, processor %s a call", o, us(o.cpuPerCall()))
	}
	b.row(what+", time per call by rate, ratio", goalCost, "%.2f", c.ratio(pace))
	b.row(what+", processor time, ratio", goalCost, "%.2f", c.ratio(cost))
	b.row(what+", p50 and p99, ratios", goalP99, "%.2f and %.2f", c.ratio(p50), c.ratio(p99))
}
