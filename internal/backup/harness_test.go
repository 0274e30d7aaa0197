package backup

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

// world is a standalone node in memory, and what clients know of it.
type world struct {
	t     testing.TB
	fs    *memfs.FS
	clock *clock.Manual
	node  *node.Node
	rng   *rand.Rand
	facts known
}

// known is what was acknowledged.
type known struct {
	topics map[string]*topic
	groups map[[2]string]uint64 // group, topic
	ids    map[[2]string]uint64 // topic, request id: the offset
}

type topic struct {
	start   uint64
	base    uint64 // of the first of records
	records []string
}

func (k known) clone() known {
	c := known{topics: map[string]*topic{}, groups: map[[2]string]uint64{}, ids: map[[2]string]uint64{}}
	for name, t := range k.topics {
		one := *t
		c.topics[name] = &one
	}
	for key, v := range k.groups {
		c.groups[key] = v
	}
	for key, v := range k.ids {
		c.ids[key] = v
	}
	return c
}

const testSegment = 64 << 10

func newWorld(t testing.TB, seed uint64) *world {
	t.Helper()
	w := &world{t: t, fs: memfs.New(), clock: clock.NewManual(time.UnixMilli(1_700_000_000_000)), rng: rand.New(rand.NewPCG(seed, 7)), facts: known{}.clone()}
	w.node = openOn(t, w.fs, w.clock)
	t.Cleanup(func() { w.node.Close() })
	return w
}

func configOn(fsys vfs.FS, c clock.Clock) node.Config {
	return node.Config{FS: fsys, Clock: c, SegmentBytes: testSegment, SnapshotBytes: 3 * testSegment, Inline: true}
}

func openOn(t testing.TB, fsys vfs.FS, c clock.Clock) *node.Node {
	t.Helper()
	n, err := node.Open(configOn(fsys, c))
	if err == nil {
		err = n.Recover()
	}
	if err != nil {
		t.Fatalf("start a node: %v", err)
	}
	return n
}

// act does n random things.
func (w *world) act(n int) {
	w.t.Helper()
	for range n {
		w.clock.Advance(time.Duration(w.rng.IntN(20)) * time.Millisecond)
		name := fmt.Sprintf("topic-%d", w.rng.IntN(4))
		t := w.facts.topics[name]
		switch dice := w.rng.IntN(20); {
		case dice == 0 && t != nil && len(t.records) > 0:
			next := t.start + w.rng.Uint64N(t.base+uint64(len(t.records))-t.start+1)
			group := fmt.Sprintf("group-%d", w.rng.IntN(3))
			if _, err := w.node.CommitGroup([]byte(name), []byte(group), fact.Offset(next)); err != nil {
				w.t.Fatalf("commit: %v", err)
			}
			w.facts.groups[[2]string{group, name}] = next
		case dice == 1 && t != nil:
			start := t.start + w.rng.Uint64N((t.base+uint64(len(t.records))-t.start)/3+1)
			if _, err := w.node.Retain([]byte(name), fact.Offset(start)); err != nil {
				w.t.Fatalf("retain: %v", err)
			}
			t.start = start
		default:
			w.publish(name, 1+w.rng.IntN(4), w.rng.IntN(1500))
		}
	}
}

func (w *world) publish(name string, records, size int) {
	w.t.Helper()
	t := w.facts.topics[name]
	if t == nil {
		t = &topic{}
		w.facts.topics[name] = t
	}
	p := broker.Publish{Topic: []byte(name)}
	if w.rng.IntN(2) == 0 {
		p.RequestID = fmt.Appendf(nil, "id-%d", len(w.facts.ids))
	}
	next := t.base + uint64(len(t.records))
	for i := range records {
		p.Records = append(p.Records, record(name, next+uint64(i), size))
	}
	done, err := w.node.Publish(&p)
	if err != nil {
		w.t.Fatalf("publish: %v", err)
	}
	if len(t.records) == 0 {
		t.base = uint64(done.Base)
	}
	if uint64(done.Base) != t.base+uint64(len(t.records)) {
		w.t.Fatalf("%s: published at %d after %d", name, done.Base, t.base+uint64(len(t.records)))
	}
	for i := range p.Records {
		t.records = append(t.records, string(p.Records[i].Key)+"="+string(p.Records[i].Value))
	}
	if p.RequestID != nil {
		w.facts.ids[[2]string{name, string(p.RequestID)}] = uint64(done.Base)<<16 | uint64(records)<<12 | uint64(size)
	}
}

func record(name string, offset uint64, size int) fact.Record {
	return fact.Record{Key: fmt.Appendf(nil, "%s/%d", name, offset), Value: bytes.Repeat([]byte{byte('a' + offset%26)}, size)}
}

// source is the node as the source of backups. after, if not negative, is how many reads succeed.
type source struct {
	node  *node.Node
	after int
	err   error // then
	bytes int64 // read
}

func (w *world) source() *source { return &source{node: w.node, after: -1} }

func (s *source) BackupBegin(context.Context) (*api.BackupBegun, error) {
	info, err := s.node.BackupBegin()
	if err != nil {
		return nil, err
	}
	b := &api.BackupBegun{
		Backup: info.Backup, LogID: hex.EncodeToString(info.LogID[:]), Index: uint64(info.Index), TimeMS: info.TimeMS,
		Snapshot: api.BackupSnapshot{Index: uint64(info.Snapshot.Index), Bytes: info.Snapshot.Bytes},
	}
	for _, g := range info.Segments {
		b.Segments = append(b.Segments, api.BackupSegment{First: uint64(g.First), Last: uint64(g.Last), Bytes: g.Bytes, Sealed: g.Sealed})
	}
	return b, nil
}

func (s *source) BackupRead(_ context.Context, q api.BackupReadRequest) ([]byte, error) {
	if s.after == 0 {
		return nil, s.err
	}
	s.after--
	p := make([]byte, q.Bytes)
	n, err := s.node.BackupRead(q.Backup, entry.Index(q.Segment), q.Offset, p)
	if errors.Is(err, broker.ErrBackupGone) {
		err = fmt.Errorf("%w: %w", ErrOver, err)
	}
	s.bytes += int64(n)
	return p[:n], err
}

func (s *source) BackupEnd(_ context.Context, backup string) error { return s.node.BackupEnd(backup) }

func (w *world) take(to vfs.FS) *Taken {
	w.t.Helper()
	taken, err := Take(context.Background(), w.source(), to, Progress{})
	if err != nil {
		w.t.Fatalf("take a backup: %v", err)
	}
	return taken
}

// restored restores a backup and starts a node on it.
func (w *world) restored(from vfs.FS) (*memfs.FS, *node.Node) {
	w.t.Helper()
	data := memfs.New()
	if _, err := Restore(context.Background(), from, RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); err != nil {
		w.t.Fatalf("restore: %v", err)
	}
	n := openOn(w.t, data, w.clock)
	w.t.Cleanup(func() { n.Close() })
	return data, n
}

type sink func(offset fact.Offset, key, value []byte, timeMS int64)

func (f sink) Record(offset fact.Offset, key, value []byte, timeMS int64) {
	f(offset, key, value, timeMS)
}

// times returns the time of each record of a topic that a node has.
func times(t testing.TB, n *node.Node, name string, from, to uint64) (list []int64) {
	t.Helper()
	for from < to {
		page, err := n.Fetch(&broker.Fetch{Topic: []byte(name), Offset: fact.Offset(from), Limit: 100}, sink(func(_ fact.Offset, _, _ []byte, ms int64) { list = append(list, ms) }))
		if err != nil || page.Records == 0 {
			t.Fatalf("fetch %s at %d: %d records, %v", name, from, page.Records, err)
		}
		from = uint64(page.Next)
	}
	return list
}

// holds checks that a node that was restored has what was known, and no more.
func (k known) holds(t testing.TB, n *node.Node, original *node.Node) {
	t.Helper()
	for name, want := range k.topics {
		end := want.base + uint64(len(want.records))
		at := want.start
		for at < end {
			page, err := n.Fetch(&broker.Fetch{Topic: []byte(name), Offset: fact.Offset(at), Limit: 100}, sink(func(offset fact.Offset, key, value []byte, _ int64) {
				if got := string(key) + "=" + string(value); uint64(offset) != at || got != want.records[at-want.base] {
					t.Fatalf("%s: record %d is %.30q at %d, want %.30q", name, at, got, offset, want.records[at-want.base])
				}
				at++
			}))
			if err != nil || page.Records == 0 {
				t.Fatalf("fetch %s at %d: %d records, %v", name, at, page.Records, err)
			}
		}
		if original != nil {
			if a, b := times(t, n, name, want.start, end), times(t, original, name, want.start, end); fmt.Sprint(a) != fmt.Sprint(b) {
				t.Fatalf("%s: the times of the records differ", name)
			}
		}
		// What comes behind is refused, and tells where the records went on.
		var gone *broker.OffsetGoneError
		_, err := n.Fetch(&broker.Fetch{Topic: []byte(name), Offset: fact.Offset(end + 1), Limit: 1}, sink(func(fact.Offset, []byte, []byte, int64) { t.Fatal("a record in the gap") }))
		if !errors.As(err, &gone) || gone.Start != fact.RestoreStep || gone.RestoredEnd == nil || *gone.RestoredEnd != fact.Offset(end) {
			t.Fatalf("fetch %s at %d, beyond the end of the backup: %v, want gone up to %d, restored end %d", name, end+1, err, fact.Offset(fact.RestoreStep), end)
		}
	}
	for key, next := range k.groups {
		g, err := n.DescribeGroup([]byte(key[1]), []byte(key[0]))
		if want := max(next, k.topics[key[1]].start); err != nil || uint64(g.Next) != want && uint64(g.Next) != fact.RestoreStep {
			t.Fatalf("group %v is at %d, %v; want %d", key, g.Next, err, want)
		}
	}
	for key, packed := range k.ids {
		base, count, size := packed>>16, int(packed>>12&15), int(packed&4095)
		p := broker.Publish{Topic: []byte(key[0]), RequestID: []byte(key[1])}
		for i := range count {
			p.Records = append(p.Records, record(key[0], base+uint64(i), size))
		}
		done, err := n.Publish(&p)
		if err != nil || !done.Duplicate || uint64(done.Base) != base {
			t.Fatalf("%v published again: %+v, %v; want a duplicate at %d", key, done, err, base)
		}
	}
}
