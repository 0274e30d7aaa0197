package snapshot

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"syscall"
	"testing"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
)

// fetch imports a snapshot of which b are the bytes, in pieces.
func fetch(fsys vfs.FS, index entry.Index, b []byte, rng *rand.Rand) error {
	im, err := NewImport(fsys, dir, logID, index, int64(len(b)))
	if err != nil {
		return err
	}
	defer im.Close()
	for im.Have() < int64(len(b)) {
		rest := b[im.Have():]
		if err := im.Write(rest[:1+rng.IntN(len(rest))]); err != nil {
			return err
		}
	}
	return im.Finish()
}

// origin returns a snapshot, and its bytes.
func origin(t *testing.T) (Info, []byte) {
	m := newFS(t)
	info := write(t, m, grow(t, state.New(), 300))
	return info, readFile(t, m, info.Name)
}

// TestImport: a snapshot is what it was elsewhere, however it came, and a power cut leaves it whole or not at all.
func TestImport(t *testing.T) {
	info, b := origin(t)
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		m := newFS(t)
		if seed%2 == 1 { // a damaged one is there
			bad := slices.Clone(b)
			bad[rng.IntN(len(b))] ^= 1
			putFile(t, m, info.Name, bad)
		}
		part := 0
		if seed%3 == 0 { // and some of the new one
			im, err := NewImport(m, dir, logID, info.Index, info.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			part = 1 + rng.IntN(len(b)-1)
			if err := im.Write(b[:part]); err != nil {
				t.Fatal(err)
			}
			im.Close()
			if again, err := NewImport(m, dir, logID, info.Index, info.Bytes); err != nil || again.Have() != int64(part) {
				t.Fatalf("%d bytes came: %+v, %v", part, again, err)
			} else {
				again.Close()
			}
		}
		m.OnOp(func(op memfs.Op) {
			for c := range m.CrashStates(seed, 4) {
				files, err := Files(c.FS, dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range files {
					if _, err := Verify(c.FS, dir, logID, f.Index); err != nil && seed%2 == 0 {
						t.Fatalf("a damaged snapshot after a power cut at %+v: %v\n%v", op, err, c)
					}
				}
			}
		})
		err := fetch(m, info.Index, b, rng)
		m.OnOp(nil)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		after := m.Crash(seed, 0).FS
		if got, err := Verify(after, dir, logID, info.Index); err != nil || got != info {
			t.Errorf("seed %d: %+v, %v; want %+v", seed, got, err, info)
		}
		if files, err := Files(after, dir); err != nil || len(files) != 1 || files[0] != (File{info.Index, info.Bytes}) {
			t.Errorf("files %+v, %v", files, err)
		}
		if err := fetch(m, info.Index, b, rng); err != nil {
			t.Errorf("once more: %v", err)
		}
		if open := m.OpenFiles(); len(open) > 0 {
			t.Errorf("open: %v", open)
		}
	}
}

// TestImportDamage: what came damaged never gets a name, and is not kept.
func TestImportDamage(t *testing.T) {
	info, b := origin(t)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 300 {
		m := newFS(t)
		bad := slices.Clone(b)
		switch rng.IntN(3) {
		case 0:
			bad = bad[:rng.IntN(len(b))]
		default:
			bad[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
		}
		named := false
		m.OnOp(func(op memfs.Op) { named = named || op.Kind == "rename" })
		im, err := NewImport(m, dir, logID, info.Index, info.Bytes)
		if err == nil {
			err = im.Write(bad)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := im.Finish(); !errors.Is(err, ErrCorrupt) || named {
			t.Fatalf("damaged: %v, named %t", err, named)
		}
		if left := names(t, m); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
	}
	if _, err := Verify(newFS(t), dir, logID, 7); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none is there: %v", err)
	}
}

// TestImportErrors lets each operation fail. There is no damaged snapshot then, and it works the next time.
func TestImportErrors(t *testing.T) {
	info, b := origin(t)
	for _, kind := range append(faultfs.Changes(), faultfs.Read, faultfs.Open) {
		for _, done := range []bool{false, true} {
			for k := 1; ; k++ {
				rng := rand.New(rand.NewPCG(uint64(k), 1))
				m := newFS(t)
				f := faultfs.New(m)
				hit := f.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, At: k, Err: syscall.EIO, Done: done})
				err := fetch(f, info.Index, b, rng)
				if len(hit.Hits()) == 0 {
					break
				}
				if err == nil && slices.Contains([]faultfs.Kind{faultfs.Create, faultfs.Write, faultfs.Sync, faultfs.Rename, faultfs.SyncDir}, kind) {
					t.Errorf("%s %d: no error", kind, k)
				}
				if _, bad, err := List(m, dir, logID); err != nil || len(bad) > 0 {
					t.Errorf("%s %d: bad %v, %v", kind, k, bad, err)
				}
				if _, err := m.Size(path.Join(dir, info.Name+partSuffix)); kind == faultfs.Sync && err == nil {
					t.Errorf("%s %d: what could not be synced is there", kind, k)
				}
				f.Heal()
				if err := fetch(f, info.Index, b, rng); err != nil {
					t.Errorf("%s %d: again: %v", kind, k, err)
				}
			}
		}
	}
}

// TestDropImports removes what was begun, and nothing else.
func TestDropImports(t *testing.T) {
	m := newFS(t)
	info := write(t, m, grow(t, state.New(), 10))
	for _, index := range []entry.Index{5, 7} {
		im, err := NewImport(m, dir, logID, index, 100)
		if err != nil {
			t.Fatal(err)
		}
		im.Close()
	}
	putFile(t, m, "other.part", []byte("not ours"))
	if err := DropImports(m, dir); err != nil {
		t.Fatal(err)
	}
	if got := names(t, m); !slices.Equal(got, []string{info.Name, "other.part"}) {
		t.Errorf("left: %v", got)
	}
}
