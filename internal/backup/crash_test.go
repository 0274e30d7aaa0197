package backup

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
)

// eachMoment runs do on fs, and calls check with what a power cut may leave of it, at all of its operations.
func eachMoment(t *testing.T, fs *memfs.FS, do func(), check func(what string, left *memfs.FS)) (moments int) {
	t.Helper()
	type cut struct {
		what string
		fs   *memfs.FS
	}
	var cuts []cut
	fs.OnOp(func(op memfs.Op) {
		moments++
		for number := range 4 { // 0: nothing survives that was not synced; 1: all does; else random
			if number > 1 && op.Kind == "write" && moments%5 > 0 {
				continue
			}
			cuts = append(cuts, cut{fmt.Sprintf("at %s %s done=%v, state %d", op.Kind, op.Name, op.Done, number), fs.Crash(uint64(moments), number).FS})
		}
	})
	do()
	fs.OnOp(nil)
	for _, c := range cuts {
		check(c.what, c.fs)
		if t.Failed() {
			t.Fatal(c.what)
		}
	}
	return moments
}

// Whatever a power cut leaves of a folder while its backup is renewed, it holds the old backup or the new one, whole, and
// the next one works.
func TestPowerCutWhileABackupIsTaken(t *testing.T) {
	w := newWorld(t, 21)
	w.act(120)
	dir := memfs.New()
	if _, err := w.node.Snapshot(); err != nil {
		t.Fatal(err)
	}
	old := w.take(dir).Manifest
	w.act(60)
	if _, err := w.node.Snapshot(); err != nil {
		t.Fatal(err)
	}
	var fresh *Manifest
	checked := 0
	n := eachMoment(t, dir, func() { fresh = w.take(dir).Manifest }, func(what string, left *memfs.FS) {
		r, err := Verify(context.Background(), left, Progress{})
		if err != nil || r.Manifest.Index != old.Index && r.Manifest.Index != fresh.Index {
			t.Fatalf("%s: the folder holds no backup: %v", what, err)
		}
		if checked++; checked%7 > 0 {
			return
		}
		w.take(left)
		if _, err := Verify(context.Background(), left, Progress{}); err != nil {
			t.Fatalf("%s: after the next backup: %v", what, err)
		}
	})
	if n < 30 {
		t.Errorf("only %d moments", n)
	}
}

// Whatever a power cut leaves of a restore, a node starts on all of it, or on none of it.
func TestPowerCutWhileABackupIsRestored(t *testing.T) {
	w := newWorld(t, 22)
	w.act(150)
	if _, err := w.node.Snapshot(); err != nil {
		t.Fatal(err)
	}
	dir := memfs.New()
	w.take(dir)
	data := memfs.New()
	begun, complete := 0, 0
	eachMoment(t, data, func() {
		if _, err := Restore(context.Background(), dir, RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); err != nil {
			t.Fatal(err)
		}
	}, func(what string, left *memfs.FS) {
		if names, err := left.List("log"); err != nil || len(names) == 0 {
			if names, err := left.List("."); err != nil || len(names) > 1 {
				t.Fatalf("%s: there is no log, but %v", what, names)
			}
			return // nothing is there
		}
		n, err := node.Open(configOn(left, w.clock))
		if errors.Is(err, node.ErrRestoring) {
			begun++
			return
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer n.Close()
		if err := n.Recover(); err != nil {
			t.Fatalf("%s: a node does not start: %v", what, err)
		}
		complete++
		w.facts.holds(t, n, nil)
	})
	if begun < 20 || complete == 0 {
		t.Errorf("%d times it was not finished, %d times complete", begun, complete)
	}
}

// An error of any operation on a disk is told, and leaves what a power cut would.
func TestDiskErrorsOfBackups(t *testing.T) {
	w := newWorld(t, 23)
	w.act(120)
	dir := memfs.New()
	old, known := w.take(dir).Manifest, w.facts.clone()
	w.act(60)
	kinds := []faultfs.Kind{faultfs.Sync, faultfs.Write, faultfs.Rename, faultfs.SyncDir, faultfs.Create, faultfs.Remove, faultfs.Read}
	for _, kind := range kinds {
		for k := 1; ; k++ {
			to := dir.Clone()
			disk := faultfs.New(to)
			hit := disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: k, Err: syscall.EIO})
			_, err := Take(context.Background(), w.source(), disk, Progress{})
			if len(hit.Hits()) == 0 {
				break
			}
			if err == nil {
				t.Fatalf("backup: no error with one at %s %d", kind, k)
			}
			if r, err := Verify(context.Background(), to, Progress{}); err != nil || r.Manifest.Index < old.Index {
				t.Fatalf("backup: with an error at %s %d: the folder holds no backup: %v", kind, k, err)
			}
			w.take(to)
			if k > 40 {
				break
			}
		}
		for k := 1; ; k++ {
			data := memfs.New()
			disk := faultfs.New(data)
			hit := disk.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: k, Err: syscall.EIO})
			_, err := Restore(context.Background(), dir, RestoreConfig{FS: disk, SegmentBytes: testSegment, Inline: true})
			if len(hit.Hits()) == 0 {
				break
			}
			_, lookErr := data.Size("log/restoring")
			if err != nil && lookErr == nil {
				refuses(t, data, w)
			} else if names, err := data.List("log"); err == nil && len(names) > 0 {
				// An error of the very last step, or of preparing room for later entries.
				n := openOn(t, data, w.clock)
				known.holds(t, n, nil)
				n.Close()
			}
			if k > 40 {
				break
			}
		}
	}
}
