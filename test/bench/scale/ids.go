package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync/atomic"

	"example.com/mq/api"
)

const (
	idsWanted = 5_000_000
	idsTopics = 100
)

// idsWindow is longer than the case takes, so that all request ids stay remembered.
var idsWindow = []string{"-request-id-window", "24h"}

// ids measures 5 million remembered request ids, against publishes with ids to a server that remembers few.
func ids(b *bench) error {
	n := b.of(idsWanted)
	few, err := b.newServer("few-ids")
	if err != nil {
		return err
	}
	many, err := b.newServer("ids")
	if err != nil {
		return err
	}
	if _, err := few.start("-request-id-window", "1s"); err != nil {
		return err
	}
	if _, err := many.start(idsWindow...); err != nil {
		return err
	}
	if err := many.fill(fmt.Sprintf("%d request ids", n), 256, n, func() func(*conn, int) error {
		return func(c *conn, i int) error { return publishAs(c, i) }
	}); err != nil {
		return err
	}
	if err := b.startsOf(many, goalOf{}, fmt.Sprintf("%d request ids", n), idsWindow...); err != nil {
		return err
	}
	left := fetches
	o, err := many.load(1, func() bool { return left == 0 }, func(int) operation {
		return func(c *conn) error {
			left--
			if err := publishAs(c, rand.IntN(n)); err != nil {
				return err
			}
			if !bytes.Contains(c.answer, []byte(`"duplicate":true`)) {
				return fmt.Errorf("a repeated publish is no duplicate: %s", c.answer)
			}
			return nil
		}
	})
	if err != nil {
		return err
	}
	b.row("a repeated publish is answered", "", "p50 %s, p99 %s", ms(o.at(0.5)), ms(o.at(0.99)))
	var next atomic.Int64
	next.Store(int64(n))
	fresh := func(int) operation {
		return func(c *conn) error { return publishAs(c, int(next.Add(1))) }
	}
	c, err := b.inTurn(
		func(stop func() bool) (*outcome, error) { return few.load(producers, stop, fresh) },
		func(stop func() bool) (*outcome, error) { return many.load(producers, stop, fresh) },
	)
	if err != nil {
		return err
	}
	b.compare("publish with a request id", "few are remembered", fmt.Sprintf("%d are", n), "", "", &c)
	b.row("memory after that", "", "%s", many.memory())
	return nil
}

// publishAs publishes with request id i.
func publishAs(c *conn, i int) error {
	_, err := c.call(api.PathPublish, fmt.Appendf(nil, `{"topic":"%s","value":"YQ==","request_id":"5f0c3a52-%d"}`, topicName(i%idsTopics), i))
	return err
}
