package fault

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/history"
	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// TestPolicyKeepsRoom writes more to a small file system than it holds. With -retention-bytes no publish is ever refused.
// MQ_FULL_MB says how much is written.
func TestPolicyKeepsRoom(t *testing.T) {
	const limit = 4 << 20
	im := newImage(t, 64)
	target := int64(process.Count(t, "MQ_FULL_MB", 60)) << 20
	// Few publishers: starts are moved once a second, and what comes in a second needs its room.
	l := load.New(load.Config{Seed: process.Seed(t), Quiet: true, Publishers: 3, Consumers: -1, Readers: 1, Large: 100, ValueMax: 250 << 10, Topics: []string{"one", "two"}})
	for _, topic := range []string{"one", "two"} {
		l.Checker.Configuring(topic, history.Policy{Bytes: limit})
	}
	node := process.NewNode(t, process.Config{
		Binary: process.Binary(t), Data: filepath.Join(im.Dir, "data"),
		Args: []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576", "-retention-bytes", fmt.Sprint(limit)},
	})
	p := node.StartReady()
	before, least, began := im.free(), im.free(), time.Now()
	written := 0.0
	during(t, l, p, func(ctx context.Context) {
		for written < float64(target) && ctx.Err() == nil {
			wait(t, p, 10*time.Millisecond)
			least = min(least, im.free())
			var err error
			if written, err = p.Metric("log_bytes_total"); err != nil {
				t.Error(err)
				return
			}
			if n := l.Statuses()[http.StatusInsufficientStorage]; n > 0 {
				t.Errorf("%d publishes were refused; free: %d\n%s", n, im.free(), p.Stderr())
				return
			}
		}
	})
	if err := l.Err(); err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
	if written < float64(target) {
		t.Errorf("%.0f bytes were written, want %d", written, target)
	}
	finish(t, l, node, p)
	t.Logf("%.0f MB were written in %v to a disk with %d MB free, of which %d MB stayed free; %v",
		written/1e6, time.Since(began).Round(time.Millisecond), before/1e6, least/1e6, l.Checker.Report())
}

// TestPolicyGivesRoom fills the disk, and lets a policy alone give room again: its fact, the snapshot and the cleaner need what
// was set aside. Before all that the operator is warned.
func TestPolicyGivesRoom(t *testing.T) {
	const givesMax = 15 * time.Second // a policy looks once a second, and then it takes snapshots
	im := newImage(t, 96)
	l := load.New(load.Config{Seed: process.Seed(t), Quiet: true, Large: 50, ValueMax: 200 << 10})
	node := process.NewNode(t, process.Config{
		Binary: process.Binary(t), Data: filepath.Join(im.Dir, "data"), Args: []string{"-segment-bytes", "2097152", "-snapshot-bytes", "2097152"},
	})
	f := &filling{t: t, im: im, load: l, node: node}
	f.start()
	f.spare()
	f.awaitReserve()
	f.run(func(context.Context) { wait(t, f.p, 300*time.Millisecond) })
	f.warned()
	f.untilRefused()
	f.whileFull()
	if err := l.Configure(t.Context(), f.p.URL, 50); err != nil {
		t.Fatalf("with a full disk: %v\n%s", err, f.p.Stderr())
	}
	began := time.Now()
	c := load.NewClient(f.p.URL)
	defer c.Close()
	for a := l.Probe(t.Context(), c, 0); a.Outcome != load.Done; a = l.Probe(t.Context(), c, 0) {
		if time.Since(began) > givesMax {
			t.Fatalf("publish %v after topics were told to keep 50 records: %v; free: %d\n%s", time.Since(began), a, im.free(), f.p.Stderr())
		}
		wait(t, f.p, time.Millisecond)
	}
	t.Logf("publishes came back %v after topics were told to keep 50 records", time.Since(began).Round(time.Millisecond))
	f.run(func(context.Context) { wait(t, f.p, 200*time.Millisecond) })
	finish(t, l, node, f.p)
}

// warned fills the disk until it is low, and not full, and waits for the warning.
func (f *filling) warned() {
	f.t.Helper()
	const warnMax = 5 * time.Second
	f.im.fill("filler", 7<<20) // low is less than 4 segments
	for began := time.Now(); ; wait(f.t, f.p, 10*time.Millisecond) {
		low, err := f.p.Metric("storage_low")
		if err != nil {
			f.t.Fatal(err)
		}
		full, err := f.p.Metric("storage_full")
		if err != nil {
			f.t.Fatal(err)
		}
		if low == 1 && full == 0 && strings.Contains(f.p.Stderr(), "nearly full") {
			return
		}
		if time.Since(began) > warnMax {
			f.t.Fatalf("storage_low %v, storage_full %v with %d bytes free\n%s", low, full, f.im.free(), f.p.Stderr())
		}
	}
}
