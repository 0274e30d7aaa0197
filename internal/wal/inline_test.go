package wal

import (
	"errors"
	"strings"
	"testing"

	"example.com/mq/internal/vfs/logfs"
)

// TestInline: with Config.Inline two runs do the same operations on files in the same order.
func TestInline(t *testing.T) {
	run := func() string {
		var trace strings.Builder
		cfg := testConfig(logfs.New(newMem(t), &trace))
		cfg.Inline = true
		l, _, _ := mustOpen(t, cfg, 0)
		b := newBook(8)
		for range 3 {
			mustGrow(t, b, l, 40)
			if _, err := l.DropBefore(l.Durable() / 2); err != nil {
				t.Fatal(err)
			}
			last := l.Last() - 15
			if err := l.Truncate(last); err != nil {
				t.Fatal(err)
			}
			b.cut(last)
		}
		if l.prep.started {
			t.Error("a goroutine was started")
		}
		l.Close()
		return trace.String()
	}
	a, b := run(), run()
	if a != b || strings.Count(a, "\n") < 200 {
		t.Errorf("two runs differ, or are too short: %d and %d bytes", len(a), len(b))
	}
}

// TestInlineFull: a full disk is noticed, said, and over when there is room, without a goroutine.
func TestInlineFull(t *testing.T) {
	mem := newMem(t)
	cfg := testConfig(mem)
	cfg.Inline = true
	l, _, _ := mustOpen(t, cfg, 0)
	mustPut(t, l, 3)
	mem.SetCapacity(used(t, mem) + testSegment/2)
	if l.Full() {
		t.Error("full before anything was refused")
	}
	last := fillUp(t, l)
	if !l.Full() || l.Err() != nil {
		t.Errorf("full %t, %v", l.Full(), l.Err())
	}
	if err := put(l, 1); !errors.Is(err, ErrFull) {
		t.Errorf("append: %v", err)
	}
	mem.SetCapacity(1 << 20)
	if l.Full() {
		t.Error("still full although there is room")
	}
	mustPut(t, l, 1)
	if l.Last() != last+1 {
		t.Errorf("last %d, want %d", l.Last(), last+1)
	}
}
