package broker

import (
	"errors"
	"testing"
	"time"

	"example.com/mq/internal/fact"
)

// Each way to name a place leads there, and what is skipped or repeated is counted exactly; with DryRun nothing is logged.
func TestSeek(t *testing.T) {
	at := func(s int) int64 { return testStart.UnixMilli() + int64(s)*1000 }
	const floor = fact.RestoreStep
	for _, c := range []struct {
		what string
		seek Seek
		from fact.Offset // where the group stands; 0 for a new group
		want Sought
	}{
		{"to the start", Seek{By: SeekToStart}, 7, Sought{Next: 2, Previous: 7, Repeated: 5}},
		{"to the end", Seek{By: SeekToEnd}, 7, Sought{Next: floor + 2, Previous: 7, Skipped: 5}},
		{"a new group to the end", Seek{By: SeekToEnd}, 0, Sought{Next: floor + 2, Previous: 2, Skipped: 10}},
		{"a new group to the start", Seek{By: SeekToStart}, 0, Sought{Next: 2, Previous: 2}},
		{"from below the start", Seek{By: SeekByOffset, Offset: 4}, 1, Sought{Next: 4, Previous: 2, Skipped: 2}},
		{"to an offset", Seek{By: SeekByOffset, Offset: 4}, 7, Sought{Next: 4, Previous: 7, Repeated: 3}},
		{"to where it is", Seek{By: SeekByOffset, Offset: 7}, 7, Sought{Next: 7, Previous: 7}},
		{"to an offset behind the gap", Seek{By: SeekByOffset, Offset: floor + 1}, 9, Sought{Next: floor + 1, Previous: 9, Skipped: 2}},
		{"to where the gap begins", Seek{By: SeekByOffset, Offset: 10}, 9, Sought{Next: floor, Previous: 9, Skipped: 1}},
		{"from where the gap begins", Seek{By: SeekByOffset, Offset: 9}, 10, Sought{Next: 9, Previous: floor, Repeated: 1}},
		{"to a time", Seek{By: SeekByTime, TimeMS: at(50)}, 7, Sought{Next: 5, Previous: 7, Repeated: 2}},
		{"to a time between two records", Seek{By: SeekByTime, TimeMS: at(50) + 1}, 7, Sought{Next: 6, Previous: 7, Repeated: 1}},
		{"to a time before all", Seek{By: SeekByTime, TimeMS: -5}, 7, Sought{Next: 2, Previous: 7, Repeated: 5}},
		{"to a time behind the gap", Seek{By: SeekByTime, TimeMS: at(91)}, 7, Sought{Next: floor, Previous: 7, Skipped: 3}},
		{"to a time after all", Seek{By: SeekByTime, TimeMS: at(1000)}, 7, Sought{Next: floor + 2, Previous: 7, Skipped: 5}},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, nil)
			r.publishTen("a")
			if c.from > 0 {
				if _, err := r.CommitGroup([]byte("a"), []byte("g"), c.from); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := r.Retain([]byte("a"), 2); err != nil {
				t.Fatal(err)
			}
			r.clock.Step(time.Second)
			r.restore(floor)
			r.publish("a", "", "x", "x")
			q := c.seek
			q.Topic, q.Group, q.DryRun = []byte("a"), []byte("g"), true
			before := r.Applied()
			if got, err := r.SeekGroup(&q); err != nil || got != c.want {
				t.Fatalf("dry run: got %+v, %v, want %+v", got, err, c.want)
			}
			if r.Applied() != before {
				t.Fatal("a dry run has logged something")
			}
			q.DryRun = false
			if got, err := r.SeekGroup(&q); err != nil || got != c.want {
				t.Fatalf("got %+v, %v, want %+v", got, err, c.want)
			}
			if g, err := r.DescribeGroup(q.Topic, q.Group); err != nil || g.Next != c.want.Next {
				t.Fatalf("the group is at %d, %v, want %d", g.Next, err, c.want.Next)
			}
		})
	}
}

func TestSeekRefuses(t *testing.T) {
	r := newRig(t, nil)
	r.publishTen("a")
	if _, err := r.Retain([]byte("a"), 2); err != nil {
		t.Fatal(err)
	}
	r.restore(fact.RestoreStep)
	for _, off := range []fact.Offset{0, 1, 11, fact.RestoreStep - 1, fact.RestoreStep + 1, fact.OffsetMax} {
		for _, dry := range []bool{true, false} {
			var outside *OffsetRangeError
			_, err := r.SeekGroup(&Seek{Topic: []byte("a"), Group: []byte("g"), By: SeekByOffset, Offset: off, DryRun: dry})
			if !errors.As(err, &outside) || *outside != (OffsetRangeError{Start: 2, End: fact.RestoreStep}) {
				t.Fatalf("to %d, dry run %v: %v", off, dry, err)
			}
		}
	}
	for _, by := range []SeekBy{SeekByOffset, SeekByTime, SeekToStart, SeekToEnd} {
		if _, err := r.SeekGroup(&Seek{Topic: []byte("b"), Group: []byte("g"), By: by}); !errors.Is(err, ErrTopicNotFound) {
			t.Fatalf("in a topic that is not there: %v", err)
		}
	}
	if _, err := r.DescribeGroup([]byte("a"), []byte("g")); !errors.Is(err, ErrGroupNotFound) {
		t.Fatalf("a refused seek has made a group: %v", err)
	}
}

// A seek whose place is retained between the look and the move looks again.
func TestSeekWhileRetained(t *testing.T) {
	r := newRig(t, nil)
	r.publishTen("a")
	s := &Seek{Topic: []byte("a"), Group: []byte("g"), By: SeekToStart}
	q, err := r.sought(s)
	if err != nil || q.Next != 0 {
		t.Fatalf("got %+v, %v", q, err)
	}
	if _, err := r.Retain([]byte("a"), 4); err != nil {
		t.Fatal(err)
	}
	if _, err := r.CommitGroup(s.Topic, s.Group, q.Next); !errors.As(err, new(*OffsetRangeError)) {
		t.Fatalf("the place is gone: %v", err)
	}
	log := r.sicken()
	log.hook = func() { // the search by time reads once the topic has been looked up
		log.hook = nil
		if _, err := r.Retain([]byte("a"), 6); err != nil {
			t.Error(err)
		}
	}
	s.By, s.TimeMS = SeekByTime, testStart.UnixMilli()+41_000
	if got, err := r.SeekGroup(s); err != nil || got.Next != 6 || got.Previous != 6 {
		t.Fatalf("got %+v, %v", got, err)
	}
}
