package backup

import (
	"context"
	"fmt"

	"example.com/mq/internal/vfs"
)

// Verify reads all of the backup in a folder and checks everything that can be checked: the manifest, the hashes, every frame
// of the log and that they follow each other, and that snapshot and log make a state. It changes nothing.
func Verify(ctx context.Context, fsys vfs.FS, p Progress) (*Report, error) {
	m, err := readManifest(fsys)
	if err != nil {
		return nil, err
	}
	return verify(ctx, m, folder{fsys}, p)
}

func verify(ctx context.Context, m *Manifest, from supply, p Progress) (*Report, error) {
	p.begun(m.Bytes())
	s := newShelf(ctx, m, from, p.Read)
	defer s.close()
	fold, err := s.fold()
	if err != nil {
		return nil, err
	}
	r := &Report{Manifest: m, Fold: fold}
	if err := s.log(p.counting(applying(fold, &r.Entries))); err != nil {
		return nil, err
	}
	return r, check(r)
}

// check compares the state with what the manifest says of it.
func check(r *Report) error {
	if m := r.Manifest; uint64(r.Fold.Applied()) != m.Index || r.Fold.TimeMS() != m.TimeMS {
		return fmt.Errorf("the state is that of entry %d at %d ms, and the manifest says entry %d at %d ms", r.Fold.Applied(), r.Fold.TimeMS(), m.Index, m.TimeMS)
	}
	if err := r.Fold.Verify(); err != nil {
		return fmt.Errorf("the state contradicts itself: %w", err)
	}
	return nil
}
