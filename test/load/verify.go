package load

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
)

// ReadBack reads what the broker must have after a restart: every topic to its end, from its start when
// all is set and else from a little before where the last ReadBack ended, and the offset of every group.
// The checker judges the answers; the error says that there was none.
func (l *Load) ReadBack(ctx context.Context, url string, all bool) error {
	c := NewClient(url)
	defer c.Close()
	return l.ReadBackBy(ctx, c, all)
}

// ReadBackBy is ReadBack by way of a client.
func (l *Load) ReadBackBy(ctx context.Context, c *Client, all bool) error {
	var (
		topics sync.WaitGroup
		mu     sync.Mutex
		errs   []error
	)
	for _, topic := range l.cfg.Topics {
		topics.Go(func() {
			if err := l.readBackTopic(ctx, c, topic, all, true); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	topics.Wait()
	if l.churner != nil {
		for _, t := range l.churner.own {
			if err := l.readBackTopic(ctx, c, t.topic, all, false); err != nil {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

func (l *Load) readBackTopic(ctx context.Context, c *Client, topic string, all, groups bool) error {
	from, end := l.Checker.Bounds(topic)
	const overlap = 100
	if verified := l.Verified(topic); !all && verified > from+overlap {
		from = verified - overlap
	}
	for {
		page, a := c.fetch(ctx, l.Checker, topic, from, 1000, 0)
		l.note(a)
		switch {
		case a.Status == http.StatusNotFound && (end == 0 || !groups): // the checker knows whether it may be missing
			return nil
		case a.Status == http.StatusGone && a.Start > from:
			// A retain that was sent to the process before, and not answered, was done.
			from = a.Start
			continue
		case a.Outcome != Done:
			return fmt.Errorf("read back %q from %d: %v", topic, from, a)
		}
		if page.Next == page.End {
			l.mu.Lock()
			l.verified[topic] = page.End
			l.mu.Unlock()
			break
		}
		if len(page.Records) == 0 {
			return fmt.Errorf("read back %q from %d: the answer goes on at %d of %d without a record", topic, from, page.Next, page.End)
		}
		from = page.Next
	}
	for _, g := range l.consumers {
		if !groups {
			break
		}
		if _, a := c.groupFetch(ctx, l.Checker, g.group, topic, 1, 0); l.note(a).Outcome != Done {
			return fmt.Errorf("read back group %s of %q: %v", g.group, topic, a)
		}
	}
	return nil
}

// Settle lets every publisher find out what became of its publish, and repeats some that are done.
func (l *Load) Settle(ctx context.Context, url string) error {
	c := NewClient(url)
	defer c.Close()
	return l.SettleBy(ctx, c)
}

// SettleBy is Settle by way of a client.
func (l *Load) SettleBy(ctx context.Context, c *Client) error {
	var (
		publishers sync.WaitGroup
		mu         sync.Mutex
		errs       []error
	)
	for _, p := range l.publishers {
		publishers.Go(func() {
			err := p.settle(ctx, c)
			for range min(len(p.old), 8) {
				if err == nil {
					err = p.mayRepeat(ctx, c)
				}
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	publishers.Wait()
	if l.churner != nil {
		errs = append(errs, l.churner.settle(ctx, c))
	}
	return errors.Join(errs...)
}

// Consume lets every group read a little of every topic and commit it. Every call must be answered 200.
func (l *Load) Consume(ctx context.Context, url string) error {
	c := NewClient(url)
	defer c.Close()
	for _, g := range l.consumers {
		for _, topic := range l.cfg.Topics {
			page, a := c.groupFetch(ctx, l.Checker, g.group, topic, 10, 0)
			if l.note(a).Outcome != Done {
				return fmt.Errorf("fetch of group %s of %q: %v", g.group, topic, a)
			}
			if a := l.note(c.commit(ctx, l.Checker, g.group, topic, page.Next)); a.Outcome != Done {
				return fmt.Errorf("commit of group %s of %q: %v", g.group, topic, a)
			}
		}
	}
	return nil
}

// Retain moves the start of every topic to where the last ReadBack ended. Every call must be answered 200.
func (l *Load) Retain(ctx context.Context, url string) error {
	c := NewClient(url)
	defer c.Close()
	for _, topic := range l.cfg.Topics {
		if to := l.Verified(topic); to > 0 {
			if a := l.note(c.retain(ctx, l.Checker, topic, to)); a.Outcome != Done {
				return fmt.Errorf("retain of %q from %d: %v", topic, to, a)
			}
		}
	}
	return nil
}

// Lasting moves the start of the topic that keeps everything up, by hand, so that it keeps so many records.
func (l *Load) Lasting(ctx context.Context, c *Client, keep uint64) Answer {
	topic := l.cfg.Prefix + lasting
	start, _ := l.Checker.Bounds(topic)
	if to := l.Verified(topic); to > start+keep {
		return l.note(c.retain(ctx, l.Checker, topic, to-keep))
	}
	return Answer{}
}
