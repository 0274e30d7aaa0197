package main

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
)

const (
	recordsWanted = 50_000_000
	recordSize    = 100
	batch         = 32
	starts        = 5
	idleFor       = 10 * time.Second
	loadFor       = 10 * time.Second
	fetches       = 5000
)

// records measures one topic with 50 million records of 100 bytes.
func records(b *bench) error {
	s, err := b.newServer("records")
	if err != nil {
		return err
	}
	if _, err := s.start(); err != nil {
		return err
	}
	n := b.of(recordsWanted/batch) * batch
	if err := s.fillTopic("records", n, recordSize); err != nil {
		return err
	}
	if err := b.startsOf(s, goalOf{"at most 1 s", "RSS at most 300 MiB"}, fmt.Sprintf("%d records", n)); err != nil {
		return err
	}
	for _, limit := range []int{1, 100} {
		o, err := s.fetchAnywhere("records", n, limit)
		if err != nil {
			return err
		}
		b.row(fmt.Sprintf("fetch of %d at any offset, %d times", limit, len(o.times)), "p99 at most 5 ms", "p50 %s, p99 %s, max %s",
			ms(o.at(0.5)), ms(o.at(0.99)), ms(o.at(1)))
	}
	most := s.watch()
	err = s.profiled("load", int(loadFor.Seconds()), func() error { return s.recordsLoad(n) })
	b.row("memory under load", "RSS at most 512 MiB", "RSS %s at most, then %s", mib(most().rss), s.memory())
	return err
}

// fillTopic publishes n records to a topic.
func (s *server) fillTopic(topic string, n, size int) error {
	return s.fill(fmt.Sprintf("%d records of %d B", n, size), producers, n/batch, func() func(*conn, int) error {
		publish := publisher(size, batch, one(topic))
		return func(c *conn, _ int) error { return publish(c) }
	})
}

// goalOf are the goals of a case; the others are measured in the same way and have none.
type goalOf struct{ start, idle string }

// startsOf kills and starts a server, and measures how long that takes and what memory it has when idle afterwards.
func (b *bench) startsOf(s *server, goal goalOf, with string, flags ...string) error {
	took, err := s.restart(1, flags...) // after a load, with as much log behind the snapshot as the load left
	if err != nil {
		return err
	}
	b.row("start after kill -9 under load, until the first acknowledged publish, "+with, goal.start, "%s", ms(took[0]))
	if took, err = s.restart(starts, flags...); err != nil {
		return err
	}
	b.row("the same again", goal.start, "%s", list(took, ms))
	time.Sleep(idleFor)
	b.row("memory when idle after that", goal.idle, "%s", s.memory())
	s.quiet()
	before := s.cpu()
	err = s.profiled("idle", int(idleFor.Seconds()), func() error {
		time.Sleep(idleFor)
		return nil
	})
	b.row("processor when idle", "", "%.1f %%", 100*float64(s.cpu()-before)/float64(idleFor))
	return err
}

// fetchAnywhere reads from random offsets of a topic with n records, one after the other.
func (s *server) fetchAnywhere(topic string, n, limit int) (*outcome, error) {
	left := fetches
	return s.load(1, func() bool { return left == 0 }, func(int) operation {
		var page client.Page
		return func(c *conn) error {
			left--
			at := rand.Uint64N(uint64(n))
			answer, err := c.call(api.PathFetch, fmt.Appendf(nil, `{"topic":"%s","offset":%d,"limit":%d}`, topic, at, limit))
			if err == nil {
				err = page.Decode(answer)
			}
			if err == nil && (len(page.Records) == 0 || page.Records[0].Offset != at || len(page.Records[0].Value) == 0) {
				err = fmt.Errorf("fetch at %d: %.100s", at, answer)
			}
			return err
		}
	})
}

// recordsLoad publishes, and reads at full speed from random places, at the same time.
func (s *server) recordsLoad(n int) error {
	stop := during(loadFor)
	published := make(chan error, 1)
	go func() { // awaited below
		o, err := s.load(producers, stop, func(int) operation { return publisher(recordSize, 1, one("records")) })
		s.b.say("64 publishers beside 16 readers: %s", o)
		published <- err
	}()
	_, err := s.load(16, stop, func(int) operation {
		var body []byte
		at := rand.Uint64N(uint64(n))
		return func(c *conn) error {
			body = append(body[:0], `{"topic":"records","limit":1000,"offset":`...)
			body = append(strconv.AppendUint(body, at, 10), '}')
			answer, err := c.call(api.PathFetch, body)
			if err != nil {
				return err
			}
			next, _, _, ok := client.Bounds(answer)
			if at = next; !ok || at >= uint64(n) {
				at = rand.Uint64N(uint64(n))
			}
			return nil
		}
	})
	if failed := <-published; err == nil {
		err = failed
	}
	return err
}

// watch looks at the memory of the server from now on, and returns what ends that and tells the most it was.
func (s *server) watch() (most func() memory) {
	end, result := make(chan struct{}), make(chan memory)
	go func() { // ended and awaited by most
		m := s.memory()
		for {
			select {
			case <-end:
				result <- m
				return
			case <-time.After(100 * time.Millisecond):
			}
			now := s.memory()
			m = memory{max(m.rss, now.rss), max(m.pss, now.pss), now.peak}
		}
	}()
	return func() memory {
		close(end)
		return <-result
	}
}
