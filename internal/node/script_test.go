package node

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
)

// script drives a node with random calls from a seed, one at a time, and remembers what it was told. It is
// the oracle of the crash and fault tests: what was acknowledged must be there, what was refused must not,
// and of what is unknown, all or nothing.
type script struct {
	rand *rand.Rand
	mu   sync.Mutex // guards history, for hooks that look while a call runs
	history
}

// history is what a client knows.
type history struct {
	acked   int // calls acknowledged
	topics  [3]topicHistory
	unknown *call // the last call, if its outcome is unknown; there is none after it
}

type topicHistory struct {
	records []string // acknowledged, by offset
	ids     map[string]idHistory
	start   fact.Offset
	group   fact.Offset
	moved   bool // the group was committed at least once
}

type idHistory struct {
	base   fact.Offset
	values []string
}

// call is one request.
type call struct {
	kind   string // publish, group, retain, snapshot
	topic  int
	id     string
	values []string
	offset fact.Offset
}

func newScript(seed uint64) *script {
	s := &script{rand: rand.New(rand.NewPCG(seed, 1))}
	for i := range s.topics {
		s.topics[i].ids = map[string]idHistory{}
	}
	return s
}

func topicName(i int) []byte { return fmt.Appendf(nil, "topic-%d", i) }

// snapshotOf returns what is known now, and the call under way, if any, as of unknown outcome.
func (s *script) now() history {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.history
	for i := range h.topics {
		t := &h.topics[i]
		t.records = t.records[:len(t.records):len(t.records)]
		ids := make(map[string]idHistory, len(t.ids))
		for id, v := range t.ids {
			ids[id] = v
		}
		t.ids = ids
	}
	return h
}

// next makes up a call that is valid.
func (s *script) next(i int) call {
	c := call{topic: s.rand.IntN(len(s.topics))}
	t := &s.topics[c.topic]
	end := fact.Offset(len(t.records))
	switch k := s.rand.IntN(20); {
	case k == 0:
		c.kind = "snapshot"
	case k == 1 && end > 0:
		c.kind, c.offset = "retain", t.start+fact.Offset(s.rand.IntN(int(end-t.start)+1))
	case k < 5 && end > 0:
		c.kind, c.offset = "group", t.start+fact.Offset(s.rand.IntN(int(end-t.start)+1))
	default:
		c.kind = "publish"
		n := 1
		if s.rand.IntN(3) == 0 {
			n = 1 + s.rand.IntN(fact.BatchMax)
		}
		large := s.rand.IntN(25) == 0 // larger than a segment
		if large {
			n = fact.BatchMax
		}
		for j := range n {
			size := s.rand.IntN(200)
			if large {
				size = 2000
			}
			if s.rand.IntN(10) == 0 {
				size = s.rand.IntN(6000)
			}
			c.values = append(c.values, fmt.Sprintf("%d.%d.%s", i, j, bytes.Repeat([]byte{'a' + byte(i%26)}, size)))
		}
		if s.rand.IntN(2) == 0 {
			c.id = fmt.Sprintf("id-%d", i)
		}
	}
	return c
}

func (c *call) request() *broker.Publish {
	p := &broker.Publish{Topic: topicName(c.topic), RequestID: []byte(c.id)}
	for _, v := range c.values {
		p.Records = append(p.Records, fact.Record{Key: []byte("key"), Value: []byte(v)})
	}
	return p
}

// step makes one call and notes the answer. It returns the error of the node.
func (s *script) step(n *Node, i int) error {
	c := s.next(i)
	s.mu.Lock()
	s.unknown = &c
	s.mu.Unlock()
	err := s.do(n, c)
	if now, ok := n.cfg.Clock.(*clock.Manual); ok && i%3 == 0 {
		now.Advance(time.Second) // what is done in the background goes on, too
	}
	var un *broker.UnavailableError
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.As(err, &un) && un.Unknown {
		return err
	}
	s.unknown = nil
	if err == nil {
		s.acked++
	}
	return err
}

func (s *script) do(n *Node, c call) error {
	switch c.kind {
	case "snapshot":
		_, err := n.Snapshot()
		return err
	case "retain":
		_, err := n.Retain(topicName(c.topic), c.offset)
		if err == nil {
			s.mu.Lock()
			s.topics[c.topic].start = c.offset
			s.mu.Unlock()
		}
		return err
	case "group":
		_, err := n.CommitGroup(topicName(c.topic), []byte("g"), c.offset)
		if err == nil {
			s.mu.Lock()
			s.topics[c.topic].group, s.topics[c.topic].moved = c.offset, true
			s.mu.Unlock()
		}
		return err
	}
	done, err := n.Publish(c.request())
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &s.topics[c.topic]
	if done.Base != fact.Offset(len(t.records)) || done.Count != len(c.values) || done.Duplicate {
		return fmt.Errorf("publish got %+v, want base %d", done, len(t.records))
	}
	t.records = append(t.records, c.values...)
	if c.id != "" {
		t.ids[c.id] = idHistory{done.Base, c.values}
	}
	return nil
}

// verify opens a node on fsys and checks it against what the client knows.
func (h history) verify(t *testing.T, fsys vfs.FS) {
	t.Helper()
	n := openNode(t, fsys)
	defer n.Close()
	for i := range h.topics {
		h.verifyTopic(t, n, i)
	}
	if err := n.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func (h history) verifyTopic(t *testing.T, n *Node, i int) {
	t.Helper()
	want := h.topics[i]
	maybe := h.unknown
	if maybe != nil && maybe.topic != i {
		maybe = nil
	}
	got, page, err := readAll(n, i)
	if errors.Is(err, broker.ErrTopicNotFound) && len(want.records) == 0 {
		return
	}
	if err != nil {
		t.Fatalf("topic %d: %v", i, err)
	}
	start := want.start
	if maybe != nil && maybe.kind == "retain" && page.Start == maybe.offset {
		start = maybe.offset
	}
	if page.Start != start {
		t.Fatalf("topic %d starts at %d, want %d", i, page.Start, start)
	}
	records := want.records
	if maybe != nil && maybe.kind == "publish" && page.End != fact.Offset(len(records)) {
		records = append(records[:len(records):len(records)], maybe.values...)
	}
	if page.End != fact.Offset(len(records)) {
		t.Fatalf("topic %d ends at %d, want %d (lost, or part of a batch)", i, page.End, len(records))
	}
	for j, v := range records[start:] {
		if got[j] != v {
			t.Fatalf("topic %d offset %d: got %.40q, want %.40q", i, int(start)+j, got[j], v)
		}
	}
	// Retries give the original outcome.
	for id, v := range want.ids {
		c := call{kind: "publish", topic: i, id: id, values: v.values}
		done, err := n.Publish(c.request())
		if err != nil || !done.Duplicate || done.Base != v.base {
			t.Fatalf("topic %d: retry of %s: %+v %v, want base %d", i, id, done, err, v.base)
		}
	}
	if want.moved || maybe != nil && maybe.kind == "group" {
		var sink sinkFunc = func(fact.Offset, []byte, []byte, int64) {}
		page, err := n.Fetch(&broker.Fetch{Topic: topicName(i), Group: []byte("g"), Limit: 1}, sink)
		at := page.Next - fact.Offset(page.Records)
		wantAt := max(want.group, start)
		if err != nil || at != wantAt && !(maybe != nil && maybe.kind == "group" && at == max(maybe.offset, start)) {
			t.Fatalf("topic %d: group is at %d (%v), want %d", i, at, err, wantAt)
		}
	}
	// The first write after a start is larger than a segment: it has to roll at once.
	after := call{topic: i, values: []string{"after"}}
	if i == 0 {
		for range fact.BatchMax - 1 {
			after.values = append(after.values, strings.Repeat("x", 2000))
		}
	}
	done, err := n.Publish(after.request())
	if err != nil || done.Base != fact.Offset(len(records)) {
		t.Fatalf("topic %d: publish after recovery: %+v %v", i, done, err)
	}
	if got, page, err := readAll(n, i); err != nil || int(page.End-start) != len(got) || got[len(got)-1] != after.values[len(after.values)-1] {
		t.Fatalf("topic %d: read of what was published after recovery: %d records, %+v, %v", i, len(got), page, err)
	}
}

type sinkFunc func(offset fact.Offset, key, value []byte, timeMS int64)

func (f sinkFunc) Record(offset fact.Offset, key, value []byte, timeMS int64) {
	f(offset, key, value, timeMS)
}

// readAll returns the values of a topic from its start on.
func readAll(n *Node, topic int) ([]string, broker.Page, error) {
	var values []string
	next := fact.Offset(0)
	for {
		var sink sinkFunc = func(offset fact.Offset, key, value []byte, _ int64) {
			if offset != next || string(key) != "key" {
				values = append(values, fmt.Sprintf("BAD offset %d key %q", offset, key))
			}
			values = append(values, string(value))
			next++
		}
		page, err := n.Fetch(&broker.Fetch{Topic: topicName(topic), Offset: next, Limit: 1000}, sink)
		var gone *broker.OffsetGoneError
		if errors.As(err, &gone) && next == 0 {
			next = gone.Start
			continue
		}
		if err != nil || page.Next == page.End {
			return values, page, err
		}
	}
}

const testWindow = 24 * time.Hour

func testConfig(fsys vfs.FS) Config {
	return Config{FS: fsys, Clock: clock.NewManual(time.UnixMilli(1_700_000_000_000)), Random: rand.NewChaCha8([32]byte{7}),
		RequestIDWindow: testWindow, SegmentBytes: 32 << 10, SnapshotBytes: 48 << 10}
}

func openNode(t *testing.T, fsys vfs.FS) *Node {
	t.Helper()
	n, err := Open(testConfig(fsys))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	if err := n.Recover(); err != nil {
		n.Close()
		t.Fatalf("recover: %v", err)
	}
	return n
}
