package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
)

// storm is what the writers of TestStorm were told.
type storm struct {
	r *rig

	mu      sync.Mutex // guards the fields below
	done    map[string]fact.Offset
	notDone map[string]bool
	unknown map[string]bool
	groups  map[string]fact.Offset // last one told done, unless an unknown one followed
}

// A hundred writers while the role is suspended, leads again, and commits, in any order. Each write gets one answer,
// and it is true: what is done is in the fold at its offset, what is not done never is, and what is unknown goes on.
func TestStorm(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fails=%v", fails), func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 0))
			r, role := newHeldRig(t, nil)
			s := &storm{r: r, done: map[string]fact.Offset{}, notDone: map[string]bool{}, unknown: map[string]bool{},
				groups: map[string]fact.Offset{}}
			var writers sync.WaitGroup
			for w := range 100 {
				rnd := rand.New(rand.NewPCG(rnd.Uint64(), uint64(w)))
				writers.Go(func() { s.write(t, rnd, fmt.Sprintf("w%d", w)) })
			}
			ended := make(chan struct{})
			go func() {
				writers.Wait()
				close(ended)
			}()
			if !play(t, r, role, rnd, fails, ended) {
				return
			}
			r.inFlight(0)
			s.check(t, !fails)
		})
	}
}

// play is the role's part of the storm: it makes one random call after the other until the writers have ended, then
// commits the rest. With fails it fails after a while.
func play(t *testing.T, r *rig, role *heldRole, rnd *rand.Rand, fails bool, ended chan struct{}) bool {
	var waiting []entry.Index // proposed and not committed
	commit := func(n int) {
		if n = min(n, len(waiting)); n > 0 {
			r.Committed(waiting[n-1])
			waiting = waiting[n:]
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	for {
		for more := true; more; {
			select {
			case at := <-role.proposed:
				waiting = append(waiting, at)
			default:
				more = false
			}
		}
		switch rnd.IntN(8) {
		case 0:
			role.away(away)
			r.Suspend(away)
		case 1: // proposals may still slip through
			r.Suspend(away)
			runtime.Gosched()
			role.away(away)
		case 2:
			role.away("")
			r.Lead()
		case 3:
			r.Lead()
			runtime.Gosched()
			role.away("")
		case 4:
			role.unsure.Store(rnd.IntN(4) == 0)
		case 5, 6:
			commit(rnd.IntN(10))
		case 7:
			runtime.Gosched()
		}
		if fails && r.Applied() > 500 && r.Err() == nil {
			r.Failed(errors.New("fenced"))
		}
		select {
		case <-ended:
			role.away("")
			role.unsure.Store(false)
			r.Lead()
			for len(role.proposed) > 0 {
				waiting = append(waiting, <-role.proposed)
			}
			commit(len(waiting))
			return true
		default:
		}
		if time.Now().After(deadline) {
			t.Error("a writer hangs")
			return false
		}
	}
}

// write makes some requests one after the other, and again while their outcome is unknown, if they have a request id.
func (s *storm) write(t *testing.T, rnd *rand.Rand, name string) {
	s.r.Publish(publishOf(name, "", name+"-first")) // another topic each; the outcome does not matter
	s.manage(t, rnd, name)
	for i := range 20 {
		value, id := fmt.Sprintf("%s-%d", name, i), ""
		if rnd.IntN(3) > 0 {
			id = value
		}
		for attempt := 0; ; attempt++ {
			done, err := s.r.Publish(publishOf("a", id, value))
			if s.publish(t, value, done, err) || id == "" || attempt > 20 && !s.isUnknown(value) || s.r.Err() != nil {
				break
			}
			runtime.Gosched()
		}
		if rnd.IntN(4) == 0 {
			s.group(t, name, fact.Offset(rnd.IntN(20)))
		}
	}
}

// manage does what can be done to a topic to the writer's own one. The outcome does not matter, but there is one.
func (s *storm) manage(t *testing.T, rnd *rand.Rand, name string) {
	topic, group, limit := []byte(name), []byte("g"), fact.Limit(5)
	for range 20 {
		var err error
		switch rnd.IntN(7) {
		case 0:
			_, err = s.r.Publish(publishOf(name, "", "again", "again"))
		case 1:
			_, err = s.r.ConfigureTopic(&Configure{Topic: topic, RetentionRecords: &limit})
		case 2:
			_, err = s.r.DeleteTopic(topic)
		case 3:
			_, err = s.r.DeleteGroup(topic, group)
		case 4:
			_, err = s.r.CommitGroup(topic, group, fact.Offset(rnd.IntN(3)))
		case 5:
			_, err = s.r.Retain(topic, fact.Offset(rnd.IntN(5)))
		case 6:
			var k Keep
			k.add(name, 0, 0, fact.KeptRecord{TimeMS: 1, Record: fact.Record{Value: []byte(name + "-first")}})
			if page, ferr := s.r.Fetch(&Fetch{Topic: topic, Limit: 1}, &list{}); ferr == nil && page.Records > 0 { // it is committed
				err = s.r.Keep(&k)
			}
		}
		var un *UnavailableError
		var outside *OffsetRangeError
		if err != nil && !errors.As(err, &un) && !errors.As(err, &outside) && !errors.Is(err, ErrTopicNotFound) && !errors.Is(err, ErrGroupNotFound) {
			t.Errorf("topic %s: %v", name, err)
		}
	}
}

// publish notes an answer, and reports whether it was "done".
func (s *storm) publish(t *testing.T, value string, done Published, err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	var un *UnavailableError
	switch {
	case err == nil:
		s.done[value] = done.Base
		delete(s.notDone, value)
		return true
	case !errors.As(err, &un):
		t.Errorf("%s: %v", value, err)
	case un.Unknown:
		s.unknown[value] = true
	case s.unknown[value] && s.r.Err() == nil:
		t.Errorf("%s: not done after unknown: %v", value, err)
	default:
		s.notDone[value] = true
	}
	return false
}

func (s *storm) isUnknown(value string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unknown[value]
}

func (s *storm) group(t *testing.T, name string, next fact.Offset) {
	_, err := s.r.CommitGroup([]byte("a"), []byte(name), next)
	s.mu.Lock()
	defer s.mu.Unlock()
	var un *UnavailableError
	var outside *OffsetRangeError
	switch {
	case err == nil:
		s.groups[name] = next
	case errors.As(err, &un) && un.Unknown:
		delete(s.groups, name)
	case errors.As(err, &un), errors.As(err, &outside), errors.Is(err, ErrTopicNotFound):
	default:
		t.Errorf("group %s: %v", name, err)
	}
}

// check compares what the writers were told with the fold. all says that everything unknown was committed in the end.
func (s *storm) check(t *testing.T, all bool) {
	r := s.r
	stored := map[string]fact.Offset{}
	for from := fact.Offset(0); ; {
		records, page := r.fetch("a", from, 1000)
		for i, record := range records {
			_, value, _ := strings.Cut(record, ":")
			if _, twice := stored[value]; twice {
				t.Errorf("%s is stored twice", value)
			}
			stored[value] = from + fact.Offset(i)
		}
		if from = page.Next; from == page.End {
			break
		}
	}
	for value, base := range s.done {
		if at, ok := stored[value]; !ok || at != base {
			t.Errorf("%s was done at %d, and is at %d (%v)", value, base, at, ok)
		}
	}
	for value := range s.notDone {
		if at, ok := stored[value]; ok && !s.unknown[value] {
			t.Errorf("%s was not done, and is at %d", value, at)
		}
	}
	for value := range s.unknown {
		if _, ok := stored[value]; all && !ok {
			t.Errorf("%s was unknown, and is lost", value)
		}
	}
	r.View(func(fold *state.State) {
		topic, _ := fold.Topic([]byte("a"))
		for name, want := range s.groups {
			if got, _ := fold.Group(topic.ID, []byte(name)); got.Next != want {
				t.Errorf("group %s is at %d, want %d", name, got.Next, want)
			}
		}
	})
	if all && r.Applied() != r.log.Last() {
		t.Errorf("applied %d of %d", r.Applied(), r.log.Last())
	}
	t.Logf("%d done, %d not done, %d were unknown, %d stored", len(s.done), len(s.notDone), len(s.unknown), len(stored))
}
