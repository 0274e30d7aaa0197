package snapshot

import (
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

// A power cut at any moment of a Write or a Prune leaves good snapshots only: the one before until Write has
// returned, the new one from then on; and Write works on what is left.
func TestPowerCut(t *testing.T) {
	limit := 40
	if testing.Short() {
		limit = 10
	}
	for _, entries := range []int{20, 6000} { // one block; several
		m := newFS(t)
		hashes := map[entry.Index][32]byte{0: state.New().Hash()}
		s := state.New()
		atLeast := entry.Index(0) // what must be found
		states := 0
		m.OnOp(func(op memfs.Op) {
			at := fmt.Sprintf("%s %s, done %v", op.Kind, op.Name, op.Done)
			for crash := range m.CrashStates(uint64(states), limit) {
				states++
				got, info, bad, err := Load(crash.FS, dir, logID)
				if err != nil || len(bad) > 0 {
					t.Fatalf("%s: bad %v, %v\n%s", at, bad, err, crash)
				}
				if info.Index < atLeast || got.Hash() != hashes[info.Index] {
					t.Fatalf("%s: found index %d, want %d or later\n%s", at, info.Index, atLeast, crash)
				}
				if states%20 == 0 { // life goes on
					if _, err := Write(crash.FS, dir, logID, s.Freeze()); err != nil {
						t.Fatalf("%s: %v\n%s", at, err, crash)
					}
					kept, err := Prune(crash.FS, dir, logID, 2)
					if err != nil || kept[0].Index != s.Applied() {
						t.Fatalf("%s: kept %v, %v\n%s", at, kept, err, crash)
					}
					for _, name := range names(t, crash.FS) {
						if strings.HasSuffix(name, tmpSuffix) {
							t.Fatalf("%s: %s is left behind\n%s", at, name, crash)
						}
					}
				}
			}
		})
		for range 4 {
			grow(t, s, entries)
			hashes[s.Applied()] = s.Hash()
			write(t, m, s)
			atLeast = s.Applied()
			kept, err := Prune(m, dir, logID, 2)
			if err != nil || kept[0].Index != s.Applied() {
				t.Fatalf("kept %v, %v", kept, err)
			}
		}
		if states < 50 {
			t.Errorf("only %d states were looked at", states)
		}
		t.Logf("%d entries each: %d states", entries, states)
	}
}

// A full disk: the error says so, nothing is left of what did not fit, the snapshot before is still good, and
// all works again when there is room.
func TestDiskFull(t *testing.T) {
	m := newFS(t)
	s := state.New()
	write(t, m, grow(t, s, 10))
	older := grow(t, state.New(), 10)
	grow(t, s, 6000)
	usage := func() int64 {
		u, err := m.Usage()
		if err != nil {
			t.Fatal(err)
		}
		return u.TotalBytes - u.FreeBytes
	}
	used := usage()
	for free := int64(0); ; free += 10_000 {
		m.SetCapacity(used + free)
		if _, err := Write(m, dir, logID, s.Freeze()); err == nil {
			break
		} else if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
		if got := usage(); got != used || len(names(t, m)) != 1 {
			t.Fatalf("with %d bytes free: %d bytes used, were %d; %v", free, got, used, names(t, m))
		}
		loads(t, m, older)
	}
	if used == usage() {
		t.Fatal("the disk was never full")
	}
	loads(t, m, s)
}

// An error at any one call: it is returned, the call is not made again, and a good snapshot is there, the new
// one if Write returned without error.
func TestErrorAtEachCall(t *testing.T) {
	broken := errors.New("the disk is on fire")
	for k := 1; ; k++ {
		m := newFS(t)
		s := state.New()
		older := write(t, m, grow(t, s, 10))
		putFile(t, m, fileName(5), []byte("bad, and old"))
		oldHash := s.Hash()
		f := &faultyFS{FS: m, left: k, err: broken}

		grow(t, s, 6000)
		_, writeErr := Write(f, dir, logID, s.Freeze())
		_, pruneErr := Prune(f, dir, logID, 1)
		if f.left > 0 {
			if writeErr != nil || pruneErr != nil {
				t.Fatal(writeErr, pruneErr)
			}
			if k < 15 {
				t.Errorf("only %d calls were made", k-1)
			}
			return
		}
		if f.tolerated {
			continue // an error on reading: then Prune keeps more than it must
		}
		if !errors.Is(errors.Join(writeErr, pruneErr), broken) {
			t.Errorf("call %d, %s: errors %v, %v", k, f.failed, writeErr, pruneErr)
		}
		if writeErr != nil && !strings.Contains(writeErr.Error(), fileName(s.Applied())) {
			t.Errorf("call %d, %s: the error does not name the file: %v", k, f.failed, writeErr)
		}
		got, info, bad, err := Load(m, dir, logID)
		if err != nil || len(bad) > 0 {
			t.Fatalf("call %d, %s: bad %v, %v", k, f.failed, bad, err)
		}
		switch {
		case info.Index == s.Applied() && got.Hash() == s.Hash():
		case info.Index == older.Index && got.Hash() == oldHash && writeErr != nil:
		default:
			t.Fatalf("call %d, %s: found %+v", k, f.failed, info)
		}
		if open := m.OpenFiles(); len(open) > 0 {
			t.Errorf("call %d, %s: files are left open: %v", k, f.failed, open)
		}
	}
}

// faultyFS fails one call, and every later call on the same file if it was a Sync: nothing may be
// acknowledged after that.
type faultyFS struct {
	vfs.FS
	left      int // calls until the one that fails
	err       error
	failed    string // the call that failed
	tolerated bool   // it was one that may be ignored
}

func (f *faultyFS) fail(call, name string) error {
	if f.left--; f.left != 0 {
		return nil
	}
	f.failed = call + " " + path.Base(name)
	return f.err
}

// failRead is fail for calls whose error makes a file bad and is no error of Prune.
func (f *faultyFS) failRead(call, name string) error {
	err := f.fail(call, name)
	f.tolerated = f.tolerated || err != nil
	return err
}

func (f *faultyFS) Create(name string) (vfs.File, error) {
	if err := f.fail("create", name); err != nil {
		return nil, err
	}
	file, err := f.FS.Create(name)
	return &faultyFile{File: file, fs: f, name: name}, err
}

func (f *faultyFS) OpenRead(name string) (vfs.File, error) {
	if err := f.failRead("open", name); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenRead(name)
	return &faultyFile{File: file, fs: f, name: name, reading: true}, err
}

func (f *faultyFS) Rename(oldName, newName string) error {
	if err := f.fail("rename", oldName); err != nil {
		return err
	}
	return f.FS.Rename(oldName, newName)
}

func (f *faultyFS) Remove(name string) error {
	if err := f.fail("remove", name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

func (f *faultyFS) List(dir string) ([]string, error) {
	if err := f.fail("list", dir); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

func (f *faultyFS) SyncDir(dir string) error {
	if err := f.fail("syncdir", dir); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

type faultyFile struct {
	vfs.File
	fs      *faultyFS
	name    string
	reading bool
	synced  error // of the Sync that failed
}

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.fs.failRead("read", f.name); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultyFile) Size() (int64, error) {
	if err := f.fs.failRead("size", f.name); err != nil {
		return 0, err
	}
	return f.File.Size()
}

// WriteAt fails in the middle.
func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	if err := f.fs.fail("write", f.name); err != nil {
		n, _ := f.File.WriteAt(p[:len(p)/2], off)
		return n, err
	}
	return f.File.WriteAt(p, off)
}

func (f *faultyFile) Sync() error {
	if f.synced != nil {
		panic("Sync after a failed Sync")
	}
	if f.synced = f.fs.fail("sync", f.name); f.synced != nil {
		return f.synced
	}
	return f.File.Sync()
}

func (f *faultyFile) Close() error {
	err := f.File.Close()
	if f.reading {
		return err // nobody looks at it
	}
	return errors.Join(f.fs.fail("close", f.name), err)
}
