package broker

import (
	"errors"
	"fmt"
	"sync"
	"testing"

	"example.com/mq/internal/fact"
)

// Lists, descriptions, seeks, and the policy see a fold that is whole, whatever is published, deleted and moved meanwhile.
func TestTellWhileAllChanges(t *testing.T) {
	r := newRig(t, nil)
	r.Broker.retention = fact.Retention{Records: 50, Bytes: 300}
	stop := make(chan struct{})
	var workers sync.WaitGroup
	loop := func(work func(i int) error) {
		workers.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				err := work(i)
				if err != nil && !errors.Is(err, ErrTopicNotFound) && !errors.Is(err, ErrGroupNotFound) && !errors.As(err, new(*OffsetRangeError)) {
					t.Error(err)
					return
				}
			}
		})
	}
	name := func(i int) []byte { return fmt.Append(nil, "topic-", i%5) }
	var published sync.WaitGroup
	for w := range 2 {
		published.Go(func() {
			for i := range 1500 {
				p := publishOf("", "", "x", "yy", "zzz")
				p.Topic = name(i + w)
				if _, err := r.Publish(p); err != nil {
					t.Error(err)
				}
			}
		})
	}
	loop(func(i int) error {
		_, err := r.DeleteTopic(name(i))
		for range 50 {
			r.CommitGroup(name(i), []byte("g"), r.endOf(string(name(i))))
		}
		return err
	})
	loop(func(int) error {
		page, _, err := r.ListTopics(&List{Limit: 3})
		for i := range page {
			if p := &page[i]; p.Records != uint64(p.End-p.Start) || (p.Records == 0) != (p.Bytes == 0) {
				return fmt.Errorf("listed as %+v", *p)
			}
		}
		return err
	})
	loop(func(int) error {
		page, _, err := r.ListGroups(&List{Limit: 3})
		for i := range page {
			if g := &page[i]; g.Next < g.Start || g.Next > g.End || g.Lag != uint64(g.End-g.Next) {
				return fmt.Errorf("listed as %+v", *g)
			}
		}
		return err
	})
	loop(func(i int) error {
		d, err := r.DescribeTopic(name(i), 1)
		if err == nil && d.Records > 0 && (d.OldestMS < 0 || d.NewestMS < 0) {
			r.view.RLock()
			now, ok := r.state.Topic(name(i))
			r.view.RUnlock()
			if ok && now.Start == d.Start { // else all was dropped while it was looked at, again and again
				return fmt.Errorf("described as %+v", d)
			}
		}
		return err
	})
	loop(func(i int) error {
		s, err := r.SeekGroup(&Seek{Topic: name(i), Group: []byte("s"), By: SeekBy(1 + i%3), TimeMS: testStart.UnixMilli()})
		if err == nil && s.Skipped > 0 && s.Repeated > 0 {
			return fmt.Errorf("sought as %+v", s)
		}
		return err
	})
	p := &policy{b: r.Broker}
	loop(func(int) error { p.pass(); return nil })
	published.Wait()
	close(stop)
	workers.Wait()
	p.pass()
	for i := range 5 {
		d, err := r.DescribeTopic(name(i), 1)
		if err != nil && !errors.Is(err, ErrTopicNotFound) || d.Records > 50 || d.Bytes > 300 {
			t.Errorf("topic %d: %+v, %v", i, d, err)
		}
	}
}
