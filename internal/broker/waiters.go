package broker

import (
	"slices"
	"sync"
	"sync/atomic"

	"example.com/mq/internal/state"
)

// waiters are the fetches that wait for a record, by topic.
type waiters struct {
	count atomic.Int64 // so that a commit nobody waits for costs no lock
	mu    sync.Mutex   // guards the field below
	by    map[state.TopicID][]chan struct{}
}

// add registers a fetch. The channel receives a value at the next commit to the topic; the caller must look
// again after add and before it waits, and must call remove.
func (w *waiters) add(id state.TopicID) chan struct{} {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count.Add(1)
	if w.by == nil {
		w.by = make(map[state.TopicID][]chan struct{})
	}
	w.by[id] = append(w.by[id], c)
	return c
}

func (w *waiters) remove(id state.TopicID, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.count.Add(-1)
	left := slices.DeleteFunc(w.by[id], func(x chan struct{}) bool { return x == c })
	if len(left) == 0 {
		delete(w.by, id)
		return
	}
	w.by[id] = left
}

// wake tells the fetches that wait for these topics to look again.
func (w *waiters) wake(topics []state.TopicID) {
	if w.count.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, id := range topics {
		for _, c := range w.by[id] {
			select {
			case c <- struct{}{}:
			default: // it has been told and has not looked yet
			}
		}
	}
}
