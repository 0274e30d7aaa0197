package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// Report says what a backup holds.
type Report struct {
	Manifest *Manifest
	Restored entry.LogID // of the log that a restore has made
	Entries  uint64
	Fold     *state.State // at the last entry
}

// DamageError says that files of a backup, or of the broker that it is taken of, are not as they were written.
type DamageError struct{ Damage []wal.Damage }

func (e *DamageError) Error() string {
	var b strings.Builder
	b.WriteString("damaged log: ")
	for i, d := range e.Damage {
		if i == 3 {
			fmt.Fprintf(&b, "; and %d more places", len(e.Damage)-i)
			break
		}
		if i > 0 {
			b.WriteString("; ")
		}
		b.WriteString(d.String())
	}
	return b.String()
}

// log reads all segments of the shelf, in order, and checks every byte of them: the frames and what is between them, that
// they follow each other without a gap, and that they end as the manifest says. It calls visit for each entry.
func (s *shelf) log(visit func(*entry.Entry, entry.Position) error) error {
	last := &s.m.Segments[len(s.m.Segments)-1]
	in, err := wal.Inspect(s, node.LogDir, func(e *entry.Entry, p entry.Position) error {
		if uint64(e.Index) > s.m.Index {
			return damaged("the log goes on with entry %d", e.Index)
		}
		return visit(e, p)
	})
	if c := (*wal.CorruptionError)(nil); errors.As(err, &c) || errors.Is(err, errFarBack) {
		d := wal.Damage{Reason: err.Error()}
		if s.now != nil {
			d.Segment = entry.Index(s.now.file.First)
		}
		return &DamageError{Damage: []wal.Damage{d}}
	}
	if err != nil {
		return err
	}
	if id := s.m.logID(); in.LogID != id {
		return fmt.Errorf("the segments are of log %x, not of %x", in.LogID, id)
	}
	damage := in.Damage
	if n := len(damage); n > 0 && !last.Sealed {
		// The last segment was larger, and its unused end is left out: that is how it looks.
		if d := damage[n-1]; uint64(d.First) == s.m.Index+1 && d.Offset == last.Bytes && uint64(d.Segment) == last.First {
			damage = damage[:n-1]
		}
	}
	if t := in.Torn; t != nil {
		damage = append(damage, wal.Damage{Segment: t.Segment, Offset: t.Offset, First: t.Index, Last: t.Index, Reason: "the frame is torn"})
	}
	if len(damage) > 0 {
		return &DamageError{Damage: damage}
	}
	if uint64(in.Last) != s.m.Index {
		return &DamageError{Damage: []wal.Damage{{Segment: entry.Index(last.First), Offset: last.Bytes, First: in.Last + 1, Last: entry.Index(s.m.Index), Reason: "the log ends before"}}}
	}
	return s.complete()
}

// errSnapshot says that the snapshot is not as it was written.
var errSnapshot = errors.New("the snapshot is damaged")

// checkSnapshot reads the snapshot of the shelf, and checks its checksums.
func (s *shelf) checkSnapshot() error {
	if s.m.Snapshot == nil {
		return nil
	}
	_, err := snapshot.Verify(s, node.SnapshotDir, s.m.logID(), entry.Index(s.m.Snapshot.Last))
	if errors.Is(err, snapshot.ErrCorrupt) {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	return err
}

// fold restores the state in the snapshot of the shelf.
func (s *shelf) fold() (*state.State, error) {
	if s.m.Snapshot == nil {
		return state.New(), nil
	}
	fold, info, bad, err := snapshot.Load(s, node.SnapshotDir, s.m.logID())
	switch {
	case err != nil:
		return nil, err
	case len(bad) > 0:
		return nil, fmt.Errorf("the snapshot: %w", bad[0].Err)
	case uint64(info.Index) != s.m.Snapshot.Last:
		return nil, fmt.Errorf("the snapshot covers entry %d, and should cover %d", info.Index, s.m.Snapshot.Last)
	}
	return fold, nil
}

// applying applies the entries that the fold does not hold, and checks the records of all.
func applying(fold *state.State, entries *uint64) func(*entry.Entry, entry.Position) error {
	return func(e *entry.Entry, _ entry.Position) error {
		*entries++
		s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
		if err == nil && ok {
			err = s.Validate()
		}
		if err == nil && e.Index > fold.Applied() {
			_, err = fold.Apply(e)
		}
		if err != nil {
			return fmt.Errorf("entry %d: %w", e.Index, err)
		}
		return nil
	}
}

// folder supplies the files of a backup in a folder.
type folder struct{ fs vfs.FS }

func (d folder) open(f *File) (io.ReadCloser, error) {
	file, err := d.fs.OpenRead(f.Name)
	if err != nil {
		return nil, err
	}
	size, err := file.Size()
	if err != nil {
		file.Close()
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.NewSectionReader(file, 0, size), file}, nil
}

func (d folder) done(f *File, sum string) error {
	if sum != f.SHA256 {
		return errHash
	}
	return nil
}

var errHash = errors.New("it is damaged: its hash is not the one in the manifest")

// ErrNoBackup says that a folder holds no complete backup.
var ErrNoBackup = errors.New("the folder holds no complete backup: it has no " + ManifestFile)

// IsBackup reports whether a folder holds a complete backup, as far as its manifest tells.
func IsBackup(fsys vfs.FS) bool {
	_, err := readManifest(fsys)
	return err == nil
}

// readManifest reads the manifest of a folder. Without one the error wraps ErrNoBackup.
func readManifest(fsys vfs.FS) (*Manifest, error) {
	m, err := loadManifest(fsys)
	if errors.Is(err, errManifest) {
		return nil, fmt.Errorf("%w; to make the folder good again, remove %s and take the backup into the folder once more: what is good of its files is not fetched again", err, ManifestFile)
	}
	return m, err
}

func loadManifest(fsys vfs.FS) (*Manifest, error) {
	f, err := fsys.OpenRead(ManifestFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoBackup
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > manifestMax {
		return nil, damaged("it has %d bytes", size)
	}
	text := make([]byte, size)
	if n, err := f.ReadAt(text, 0); n < len(text) {
		return nil, fmt.Errorf("read %s: %w", ManifestFile, err)
	}
	return decodeManifest(text, true)
}
