package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// restoreBatch is how many bytes of entries are written at once, unless a segment is small.
const restoreBatch = 1 << 20

// ErrUnfinished says that a restore has failed after it had begun: what is in the data folder is of no use.
var ErrUnfinished = errors.New("the restore was not finished: remove the folder, and restore again")

// RestoreConfig says where a backup is restored to. FS is required.
type RestoreConfig struct {
	FS     vfs.FS    // of the data folder, which must be empty
	Random io.Reader // of the new identity; nil for the system's
	// Above is an offset above which all topics go on, 0 for none: the highest one that another restore of the same backup has
	// given out. From the backup alone both would go on at the same one.
	Above fact.Offset
	// SegmentBytes is the size of the log's files; 0 for the default.
	SegmentBytes int64
	Progress     Progress
	// Inline is that of wal.Config.
	Inline bool
}

// Opened is a backup that can be restored, once.
type Opened struct {
	m    *Manifest
	from supply
	end  func() error // called before the data folder is declared complete
}

// Open opens the backup in a folder: its manifest is good, and its files are there, with their sizes.
func Open(from vfs.FS) (*Opened, error) {
	m, err := readManifest(from)
	if err != nil {
		return nil, err
	}
	for f := range m.files() {
		size, err := from.Size(f.Name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		if size != f.Bytes {
			return nil, fmt.Errorf("%s: it is damaged: it has %d bytes, and should have %d", f.Name, size, f.Bytes)
		}
	}
	return &Opened{m, folder{from}, func() error { return nil }}, nil
}

// OpenStream opens a backup that comes as a stream, and reads its beginning.
func OpenStream(r io.Reader) (*Opened, error) {
	t, err := openStream(r)
	if err != nil {
		return nil, err
	}
	return &Opened{t.m, t, t.end}, nil
}

// Restore makes a data folder of the backup in a folder. See Opened.Restore.
func Restore(ctx context.Context, from vfs.FS, cfg RestoreConfig) (*Report, error) {
	o, err := Open(from)
	if err != nil {
		return nil, err
	}
	return o.Restore(ctx, cfg)
}

// Restore makes a data folder of the backup: the same entries at the same indexes, in a log with a new identity.
// It checks all that Verify checks. Before it has returned without an error, no node starts on the data folder, and Restore
// refuses to go on in it. An error that wraps ErrUnfinished says that something is there.
func (o *Opened) Restore(ctx context.Context, cfg RestoreConfig) (*Report, error) {
	r, err := node.BeginRestore(cfg.FS, cfg.Random)
	if err != nil {
		return nil, err
	}
	out, err := o.fill(ctx, cfg, r)
	if err == nil {
		err = r.Finish(cfg.Above)
	}
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnfinished, err)
	}
	return out, nil
}

// fill writes the snapshot and the log.
func (o *Opened) fill(ctx context.Context, cfg RestoreConfig, r *node.Restoring) (_ *Report, err error) {
	m := o.m
	cfg.Progress.begun(m.Bytes())
	s := newShelf(ctx, m, o.from, cfg.Progress.Read)
	defer s.close()
	fold, err := s.fold()
	if err != nil {
		return nil, err
	}
	if m.Snapshot != nil {
		if _, err := snapshot.Write(cfg.FS, node.SnapshotDir, r.LogID(), fold.Freeze()); err != nil {
			return nil, err
		}
	}
	out := &Report{Manifest: m, Restored: r.LogID(), Fold: fold}
	w, err := newWriter(r.LogID(), entry.Index(m.Segments[0].First), &cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	apply := applying(fold, &out.Entries)
	if err := s.log(cfg.Progress.counting(func(e *entry.Entry, p entry.Position) error {
		if err := apply(e, p); err != nil {
			return err
		}
		return w.add(e)
	})); err != nil {
		return nil, err
	}
	if err := check(out); err != nil {
		return nil, err
	}
	if err := o.end(); err != nil {
		return nil, err
	}
	return out, w.finish()
}

// writer writes entries to a new log.
type writer struct {
	fs     vfs.FS
	log    *wal.Log
	frames wal.Frames
	batch  int        // bytes that are written at once
	term   entry.Term // of the entries in frames
}

func newWriter(id entry.LogID, first entry.Index, cfg *RestoreConfig) (*writer, error) {
	size := cmp.Or(cfg.SegmentBytes, node.DefaultSegmentBytes)
	log, _, err := wal.Open(wal.Config{
		FS: sparse{cfg.FS, cfg.Inline}, Dir: node.LogDir, LogID: id, Clock: clock.System{}, SegmentBytes: size, Inline: cfg.Inline,
		Create: true, Begin: &wal.Place{Segment: first, Size: size},
	}, first-1, nil)
	if err != nil {
		return nil, fmt.Errorf("begin the log: %w", err)
	}
	return &writer{fs: cfg.FS, log: log, batch: int(min(restoreBatch, size/8))}, nil
}

// add adds the next entry.
func (w *writer) add(e *entry.Entry) error {
	if w.frames.Len() > 0 && (e.Term != w.term || w.frames.Bytes()+len(e.Payload) > w.batch) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.term = e.Term
	w.frames.End(append(w.frames.Begin(e.Kind, e.TimeMS), e.Payload...))
	return nil
}

// flush writes what was added. All that comes before is committed.
func (w *writer) flush() error {
	if w.frames.Len() == 0 {
		return nil
	}
	_, err := w.log.Append(&w.frames, w.term, w.log.Last())
	w.frames.Reset()
	if err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}

// finish makes all that was added durable, and ends the writing.
func (w *writer) finish() error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.log.Sync(); err != nil {
		return err
	}
	list, end := w.log.Segments(), w.log.Next()
	if err := w.close(); err != nil {
		return err
	}
	return fillLast(w.fs, list[len(list)-1], end.Offset)
}

// close ends the writing. It may be called again.
func (w *writer) close() error {
	if w.log == nil {
		return nil
	}
	log := w.log
	w.log = nil
	return log.Close()
}
