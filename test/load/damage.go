package load

import (
	"context"
	"fmt"
	"net/http"

	"example.com/mq/test/history"
)

// Damaged reads all topics from their starts to their ends, by way of a client, and returns the offsets that are answered
// data_corrupt. The checker judges all others.
func (l *Load) Damaged(ctx context.Context, c *Client, topics ...string) (map[string][]uint64, error) {
	damaged := map[string][]uint64{}
	for _, topic := range topics {
		start, end := l.Checker.Bounds(topic)
		for from := start; from < end; {
			page, a := c.fetch(ctx, l.Checker, topic, from, 1000, 0)
			switch {
			case a.Status == http.StatusInternalServerError && a.Code == "data_corrupt" && a.First >= from && a.Last >= a.First:
				if a.First != from {
					return nil, fmt.Errorf("fetch of %q from %d: records from %d are called damaged", topic, from, a.First)
				}
				for off := a.First; off <= a.Last; off++ {
					damaged[topic] = append(damaged[topic], off)
				}
				from = a.Last + 1
			case a.Status == http.StatusGone && a.Start > from:
				from = a.Start
			case a.Outcome != Done || page.Next <= from:
				return nil, fmt.Errorf("fetch of %q from %d, whose end was %d: %v", topic, from, end, a)
			default:
				from = page.Next
			}
		}
	}
	return damaged, nil
}

// Kept returns the topics whose records stay until somebody asks to move the start.
func (l *Load) Kept() (topics []string) {
	for _, topic := range l.cfg.Topics {
		if l.Checker.StartMost(topic) != history.Any {
			topics = append(topics, topic)
		}
	}
	return topics
}
