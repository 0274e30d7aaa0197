package main

import (
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"example.com/mq/api"
)

const (
	topicsWanted = 100_000
	perTopic     = 100 // records of each
	topicsBatch  = 10
	moveMax      = 5 * time.Minute
)

// topics measures 100,000 topics with records spread over them, against one topic with as many records.
func topics(b *bench) error {
	n := b.of(topicsWanted)
	one, err := b.newServer("one-topic")
	if err != nil {
		return err
	}
	many, err := b.newServer("topics")
	if err != nil {
		return err
	}
	for _, s := range []*server{one, many} {
		if _, err := s.start(); err != nil {
			return err
		}
	}
	if err := one.fillTopic(topicName(0), n*perTopic, recordSize); err != nil {
		return err
	}
	if err := many.fillTopics(n); err != nil {
		return err
	}
	if err := b.startsOf(many, goalOf{}, fmt.Sprintf("%d topics, %d records", n, n*perTopic)); err != nil {
		return err
	}
	if _, err := one.restart(1); err != nil {
		return err
	}
	many.quiet()
	if err := b.topicsCost("publish", one, many, n); err != nil {
		return err
	}
	b.row("memory under load", "", "%s", many.memory())
	if err := b.listed(many, api.PathTopicsList, "topics", n); err != nil {
		return err
	}
	return b.topicsPolicy(one, many, n)
}

// fillTopics publishes perTopic records to each of n topics, in such an order that each segment has records of all.
func (s *server) fillTopics(n int) error {
	return s.fill(fmt.Sprintf("%d topics", n), producers, n*perTopic/topicsBatch, func() func(*conn, int) error {
		at := 0
		publish := publisher(recordSize, topicsBatch, func() string { return topicName(at % n) })
		return func(c *conn, i int) error {
			at = i
			return publish(c)
		}
	})
}

// topicsCost compares publishes to any of n topics with publishes to one.
func (b *bench) topicsCost(what string, one, many *server, n int) error {
	c, err := b.inTurn(
		func(stop func() bool) (*outcome, error) {
			return one.load(producers, stop, func(int) operation { return publisher(recordSize, 1, anyOf(1)) })
		},
		func(stop func() bool) (o *outcome, err error) {
			err = many.profiled(what, int(b.measure.Seconds()), func() error {
				o, err = many.load(producers, stop, func(int) operation { return publisher(recordSize, 1, anyOf(n)) })
				return err
			})
			return o, err
		})
	if err != nil {
		return err
	}
	b.compare(what, "one topic", fmt.Sprintf("any of %d", n), "at most 1.3", "", &c)
	return nil
}

// topicsPolicy measures with limits on all topics, which move no start: what remains is what looking at them costs.
func (b *bench) topicsPolicy(one, many *server, n int) error {
	flags := []string{"-retention", "720h", "-retention-bytes", "1000000000", "-retention-records", "1000000000"}
	if err := b.startsOf(many, goalOf{}, "limits on all topics", flags...); err != nil {
		return err
	}
	if _, err := one.restart(1, flags...); err != nil {
		return err
	}
	if err := b.topicsCost("publish, limits on all topics", one, many, n); err != nil {
		return err
	}
	return b.topicsMove(one, many, n)
}

// topicsMove measures with limits that are exceeded: what it takes to move all starts, and what it costs publishers when
// each publish makes a start move.
func (b *bench) topicsMove(one, many *server, n int) error {
	const keep = perTopic / 2
	flags := []string{"-retention-records", strconv.Itoa(keep)}
	if _, err := many.restart(1, flags...); err != nil {
		return err
	}
	began, cpu := time.Now(), many.cpu()
	for live := float64(2 * n * keep); live > float64(n*keep+n/100+1); time.Sleep(20 * time.Millisecond) {
		var err error
		if live, err = many.gauge("mq_live_records"); err != nil {
			return err
		}
		if time.Since(began) > moveMax {
			return fmt.Errorf("%.0f records live after %v", live, moveMax)
		}
	}
	b.row("the starts of all topics moved by a limit", "", "%.1f s, processor %.1f s", time.Since(began).Seconds(), (many.cpu() - cpu).Seconds())
	many.quiet()
	b.row("memory after that", "", "%s", many.memory())
	if _, err := one.restart(1, flags...); err != nil {
		return err
	}
	one.quiet()
	return b.topicsCost("publish, all topics at their limit", one, many, n)
}

// listed asks for all pages of a list.
func (b *bench) listed(s *server, path, what string, atLeast int) error {
	var cursor string
	seen, done := 0, false
	began, cpu := time.Now(), s.cpu()
	o, err := s.load(1, func() bool { return done }, func(int) operation {
		return func(c *conn) error {
			body := fmt.Appendf(nil, `{"limit":%d}`, api.LimitMax)
			if cursor != "" {
				body = fmt.Appendf(nil, `{"limit":%d,"cursor":%q}`, api.LimitMax, cursor)
			}
			answer, err := c.call(path, body)
			if err != nil {
				return err
			}
			var page struct {
				Topics, Groups []struct{}
				Cursor         string
			}
			if err := json.Unmarshal(answer, &page); err != nil {
				return err
			}
			seen += len(page.Topics) + len(page.Groups)
			cursor = page.Cursor
			done = cursor == ""
			return nil
		}
	})
	if err == nil && seen < atLeast {
		err = fmt.Errorf("%d %s are listed, of %d", seen, what, atLeast)
	}
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("list of all %d %s, %d pages", seen, what, len(o.times)), "", "%s, processor %s; a page p50 %s, max %s",
		ms(time.Since(began)), ms(s.cpu()-cpu), ms(o.at(0.5)), ms(o.at(1)))
	return nil
}
