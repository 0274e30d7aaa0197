package main

import (
	"fmt"
	"strconv"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
)

const (
	readingBytes = 10 << 30
	readingSize  = 1024 // of a record
	// pacedRate: where publishers are paced, all of them together publish so often a second.
	pacedRate = 5000
)

// reading measures one consumer that reads 10 GB, alone and while others publish.
func reading(b *bench) error {
	s, err := b.newServer("reading")
	if err != nil {
		return err
	}
	if _, err := s.start(); err != nil {
		return err
	}
	n := b.of(readingBytes/readingSize/batch) * batch
	if err := s.fillTopic("history", n, readingSize); err != nil {
		return err
	}
	if _, err := s.restart(1); err != nil {
		return err
	}
	s.quiet()
	if _, err := s.consume(n); err != nil { // so that the page cache is as warm as it gets
		return err
	}
	alone, err := s.consume(n)
	if err != nil {
		return err
	}
	megabytes := float64(n) * readingSize / 1e6
	b.row("one consumer, alone", "", "%.0f MB/s, %.1f s", megabytes/alone.Seconds(), alone.Seconds())
	for _, kind := range []struct {
		what  string
		every time.Duration // of each publisher; 0 for as fast as they can
	}{
		{"64 publishers in a closed loop", 0},
		{fmt.Sprintf("64 publishers, %d/s", pacedRate), time.Second * producers / pacedRate},
	} {
		before, err := s.publishing(kind.every, during(2*b.measure))
		if err != nil {
			return err
		}
		beside, o, most, err := s.readBeside(n, kind.every)
		if err != nil {
			return err
		}
		b.row(kind.what+": the consumer beside them", "at least 0.60", "%.0f MB/s, ratio %.2f", megabytes/beside.Seconds(), alone.Seconds()/beside.Seconds())
		b.row(kind.what+", alone", "", "%s", before)
		b.row(kind.what+", beside the consumer", "p99 at most 2", "%s; p50 and p99, ratios: %.2f and %.2f", o, p50(o)/p50(before), p99(o)/p99(before))
		b.row(kind.what+": RSS meanwhile, by fifths", "flat", "%s", list(most, mib))
	}
	return nil
}

// readBeside reads while others publish. It returns how long that took, what the publishers reached, and the most memory the
// server took in each fifth of the reading.
func (s *server) readBeside(n int, every time.Duration) (took time.Duration, o *outcome, most []int64, err error) {
	done := make(chan struct{})
	published := make(chan error, 1)
	go func() { // ended by done, awaited below
		var err error
		o, err = s.publishing(every, func() bool {
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		published <- err
	}()
	err = s.profiled("reading", 10, func() error {
		for fifth := range 5 {
			peak := s.watch()
			t, err := s.consumePart(n*fifth/5, n*(fifth+1)/5)
			most = append(most, peak().rss)
			took += t
			if err != nil {
				return err
			}
		}
		return nil
	})
	close(done)
	if failed := <-published; err == nil {
		err = failed
	}
	return took, o, most, err
}

// publishing has 64 publishers, each of which publishes once every so often.
func (s *server) publishing(every time.Duration, stop func() bool) (*outcome, error) {
	return s.load(producers, stop, func(i int) operation {
		publish := publisher(recordSize, 1, one("news"))
		if every == 0 {
			return publish
		}
		due := time.Now().Add(every * time.Duration(i) / producers)
		return func(c *conn) error {
			time.Sleep(time.Until(due))
			due, c.began = due.Add(every), time.Now()
			return publish(c)
		}
	})
}

func (s *server) consume(n int) (time.Duration, error) { return s.consumePart(0, n) }

// consumePart reads the records of the history between two offsets, and decodes them. It asks for the next page before it
// decodes the last, as mq bench does.
func (s *server) consumePart(from, to int) (time.Duration, error) {
	c, err := s.dial()
	if err != nil {
		return 0, err
	}
	defer c.close()
	var body []byte
	ask := func(at uint64) error {
		body = append(body[:0], `{"topic":"history","limit":1000,"offset":`...)
		return c.send(api.PathFetch, append(strconv.AppendUint(body, at, 10), '}'))
	}
	began := time.Now()
	var page client.Page
	at := uint64(from)
	if err := ask(at); err != nil {
		return 0, err
	}
	for at < uint64(to) {
		answer, err := c.receive()
		if err != nil {
			return 0, err
		}
		next, _, _, ok := client.Bounds(answer)
		if !ok || next <= at {
			return 0, fmt.Errorf("no record at %d: %.100s", at, answer)
		}
		if next < uint64(to) {
			if err := ask(next); err != nil {
				return 0, err
			}
		}
		if err := page.Decode(answer); err != nil {
			return 0, err
		}
		if page.NextOffset != next || uint64(len(page.Records)) != next-at || page.Records[0].Offset != at {
			return 0, fmt.Errorf("the records at %d are others", at)
		}
		at = next
	}
	return time.Since(began), nil
}
