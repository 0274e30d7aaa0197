package main

import (
	"fmt"
	"math/rand/v2"

	"example.com/mq/api"
)

const (
	groupsWanted = 100_000
	groupTopics  = 1000 // that they are spread over
	groupRecords = 32   // of each topic: one batch
)

// groups measures 100,000 groups, spread over 1,000 topics, against one group.
func groups(b *bench) error {
	n, in := b.of(groupsWanted), b.of(groupTopics)
	one, err := b.newServer("one-group")
	if err != nil {
		return err
	}
	many, err := b.newServer("groups")
	if err != nil {
		return err
	}
	for _, s := range []*server{one, many} {
		if _, err := s.start(); err != nil {
			return err
		}
		if err := s.fill("topics of groups", 16, in, func() func(*conn, int) error {
			at := 0
			publish := publisher(recordSize, groupRecords, func() string { return topicName(at) })
			return func(c *conn, i int) error {
				at = i
				return publish(c)
			}
		}); err != nil {
			return err
		}
	}
	if err := many.fill(fmt.Sprintf("%d groups", n), producers, n, func() func(*conn, int) error {
		return func(c *conn, i int) error { return commit(c, i, in, 1) }
	}); err != nil {
		return err
	}
	if err := b.startsOf(many, goalOf{}, fmt.Sprintf("%d groups", n)); err != nil {
		return err
	}
	anyGroup := func(n int) func(int) operation {
		return func(int) operation {
			return func(c *conn) error { return commit(c, rand.IntN(n), in, 1+rand.IntN(groupRecords)) }
		}
	}
	c, err := b.inTurn(
		func(stop func() bool) (*outcome, error) { return one.load(producers, stop, anyGroup(1)) },
		func(stop func() bool) (*outcome, error) { return many.load(producers, stop, anyGroup(n)) },
	)
	if err != nil {
		return err
	}
	b.compare("commit", "one group", fmt.Sprintf("any of %d", n), "", "", &c)
	b.row("memory after that", "", "%s", many.memory())
	if err := b.listed(many, api.PathGroupsList, "groups", n); err != nil {
		return err
	}
	for _, call := range []struct{ what, path string }{
		{"groups/describe", api.PathGroupsDescribe},
		{"topics/describe, of a topic with its groups", api.PathTopicsDescribe},
	} {
		left := fetches
		o, err := many.load(1, func() bool { return left == 0 }, func(int) operation {
			return func(c *conn) error {
				left--
				i := rand.IntN(n)
				body := fmt.Appendf(nil, `{"topic":"%s"}`, topicName(i%in))
				if call.path == api.PathGroupsDescribe {
					body = fmt.Appendf(nil, `{"topic":"%s","group":"%s"}`, topicName(i%in), groupName(i))
				}
				_, err := c.call(call.path, body)
				return err
			}
		})
		if err != nil {
			return err
		}
		b.row(call.what, "", "p50 %s, p99 %s, max %s", ms(o.at(0.5)), ms(o.at(0.99)), ms(o.at(1)))
	}
	return nil
}

func groupName(i int) string { return fmt.Sprintf("team-%02d.consumer-%06d", i%100, i) }

// commit moves group i, which reads one of so many topics.
func commit(c *conn, i, topics, next int) error {
	_, err := c.call(api.PathGroupsCommit, fmt.Appendf(nil, `{"group":"%s","topic":"%s","next_offset":%d}`, groupName(i), topicName(i%topics), next))
	return err
}
