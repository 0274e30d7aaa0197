package catchup

import (
	"context"
	"errors"
	"fmt"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

const (
	// fileTries is how often a file is fetched that arrives damaged.
	fileTries = 3
	// manifestTries is how often Full begins with a new manifest because a file has vanished at the peer, or the begin of
	// the log does not fit any more.
	manifestTries = 5
)

// Sink is a data folder whose log is not whole: it gets everything from a peer. One goroutine at a time calls it.
type Sink interface {
	// LogID is that of the log, zero when there is none.
	LogID() entry.LogID
	// Log is the log that an earlier Reset began, nil when there is none.
	Log() *wal.Log
	// Reset forgets everything, and begins a log at a place. That the folder is not whole is durable before.
	Reset(id entry.LogID, begin wal.Place) error
	// Forget removes what an earlier Full has brought of entries before one that are not part of the history any more.
	Forget(before entry.Index) error
	// Snapshot and Segment begin to receive a file, or go on where an earlier process stopped. wal.ErrMismatch says that
	// another file is there already in its place.
	Snapshot(index entry.Index, bytes int64) (Import, error)
	Segment(first, last entry.Index, bytes int64) (Import, error)
	// Whole says that all is there: the snapshot, the segments before the log, and the log up to an entry at or behind
	// the snapshot. It returns once the folder is whole.
	Whole() error
}

// Import receives one file, from front to back. What was received before a restart is still there.
type Import interface {
	// Have is how many bytes are there.
	Have() int64
	// Write adds what comes next. It does not keep p.
	Write(p []byte) error
	// Finish checks the whole file and puts it in its place. An error that is a *wal.CorruptionError, or wraps ErrDamaged,
	// says that the file was thrown away and must be received again.
	Finish() error
	// Close keeps what is there for the next time. It may be called after Finish.
	Close()
}

// FullOptions say where Full fetches from.
type FullOptions struct {
	Demand
	// Progress, if not nil, is called with the bytes of files that are there, and of all of them.
	Progress func(done, total int64)
	// Inline is that of ExtendOptions.
	Inline bool
}

// Full fetches everything from a peer: the newest snapshot and the sealed segments as files, the rest as frames, up to the
// peer's last entry. It goes on with what an earlier Full has brought, from whatever peer. c.LogID may be zero: then the
// log is that of the peer.
//
// Errors are those of Extend, of the Sink, or wrap ErrDamaged: a file arrived damaged several times. All but those of the
// Sink leave what has come, and Full may be called again.
func Full(ctx context.Context, c Client, sink Sink, opt FullOptions) (Result, error) {
	for try := 1; ; try++ {
		result, err := full(ctx, c, sink, opt)
		if moved := errors.Is(err, ErrGone) || errors.Is(err, ErrDiffers); !moved || try == manifestTries {
			return result, err
		}
	}
}

func full(ctx context.Context, c Client, sink Sink, opt FullOptions) (Result, error) {
	m, err := c.Manifest(ctx)
	if err == nil {
		err = opt.Demand.check(&m.Standing)
	}
	if err != nil {
		return Result{}, err
	}
	c.LogID = m.LogID
	if _, err := m.cover(); err != nil {
		return Result{}, err
	}
	w := &whole{c: c, sink: sink, opt: opt, m: &m}
	if err := w.begin(ctx); err != nil {
		return Result{}, err
	}
	snapshot, err := w.files(ctx)
	if err != nil {
		return Result{}, err
	}
	result, err := Extend(ctx, c, sink.Log(), w.extend(nil))
	if err != nil {
		return result, err
	}
	if result.Last.Index < snapshot {
		return result, malformed("a log that ends with entry %d, and a snapshot at %d", result.Last.Index, snapshot)
	}
	return result, sink.Whole()
}

// cover returns the snapshots from which, with the segments, everything can be made: none when the log begins with entry 1
// and there is none.
func (m *Manifest) cover() ([]SnapshotInfo, error) {
	var list []SnapshotInfo
	head := m.Segments[0].First
	for _, s := range m.Snapshots {
		if s.Index+1 >= head {
			list = append(list, s)
		}
	}
	if len(list) == 0 && head > 1 {
		return nil, fmt.Errorf("%w: its log begins with entry %d, and no snapshot reaches it", ErrUnavailable, head)
	}
	return list, nil
}

// whole is one attempt at a full sync.
type whole struct {
	c    Client
	sink Sink
	opt  FullOptions
	m    *Manifest

	done, total int64
}

func (w *whole) extend(upto func(Standing) entry.Index) ExtendOptions {
	return ExtendOptions{Demand: w.opt.Demand, Upto: upto, Inline: w.opt.Inline}
}

// begin makes sure that the sink has a log which begins at a segment of the peer that has nothing but committed entries
// before it, and holds nothing but what the peer has.
func (w *whole) begin(ctx context.Context) error {
	if log := w.sink.Log(); log != nil && w.sink.LogID() == w.m.LogID && log.Err() == nil && w.fits(log) {
		_, err := Extend(ctx, w.c, log, w.extend(func(Standing) entry.Index { return 0 }))
		if !errors.Is(err, ErrDiffers) && !errors.Is(err, ErrGone) && !errors.Is(err, ErrBehind) {
			return err
		}
	}
	return w.sink.Reset(w.m.LogID, w.m.Start)
}

// fits reports whether a log begins with one of the segments up to the start.
func (w *whole) fits(log *wal.Log) bool {
	list := log.Segments()
	for _, g := range w.m.Segments {
		if len(list) > 0 && g.First == list[0].First {
			return g.First <= w.m.Start.Segment
		}
	}
	return false
}

// files fetches the snapshot and the segments before the log. It returns the index of the snapshot, 0 without one.
func (w *whole) files(ctx context.Context) (entry.Index, error) {
	list := w.sink.Log().Segments()
	if len(list) == 0 {
		return 0, wal.ErrClosed
	}
	var segments []SegmentInfo
	for _, g := range w.m.Segments {
		if g.First < list[0].First {
			segments = append(segments, g)
			w.total += g.Bytes
		}
	}
	if err := w.sink.Forget(w.m.Segments[0].First); err != nil {
		return 0, err
	}
	at, err := w.snapshot(ctx)
	if err != nil {
		return 0, err
	}
	for _, g := range segments {
		f := fetch{kind: kindSegment, file: g.First, size: g.Bytes}
		if err := w.file(ctx, f, func() (Import, error) { return w.sink.Segment(g.First, g.Last, g.Bytes) }); err != nil {
			return 0, fmt.Errorf("fetch the segment of entry %d: %w", g.First, err)
		}
	}
	return at, nil
}

// snapshot fetches the newest snapshot that does not arrive damaged.
func (w *whole) snapshot(ctx context.Context) (entry.Index, error) {
	list, err := w.m.cover()
	for _, s := range list {
		w.total += s.Bytes
		f := fetch{kind: kindSnapshot, file: s.Index, size: s.Bytes}
		err = w.file(ctx, f, func() (Import, error) { return w.sink.Snapshot(s.Index, s.Bytes) })
		if err == nil {
			return s.Index, nil
		}
		err = fmt.Errorf("fetch the snapshot at entry %d: %w", s.Index, err)
		if !errors.Is(err, ErrDamaged) {
			return 0, err
		}
		w.total -= s.Bytes
	}
	return 0, err
}

// file fetches one file, again if it arrives damaged.
func (w *whole) file(ctx context.Context, f fetch, open func() (Import, error)) error {
	f.c, f.demand, f.inline = w.c, w.opt.Demand, w.opt.Inline
	before := w.done
	for try := 1; ; try++ {
		w.done = before
		err := w.once(ctx, f, open)
		corrupt := errors.As(err, new(*wal.CorruptionError))
		if corrupt && !errors.Is(err, ErrDamaged) {
			err = fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if !errors.Is(err, ErrDamaged) || try == fileTries {
			if err != nil {
				w.done = before
			}
			return err
		}
	}
}

// once fetches what is missing of a file, and checks it.
func (w *whole) once(ctx context.Context, f fetch, open func() (Import, error)) error {
	im, err := open()
	if err != nil {
		return err
	}
	defer im.Close()
	f.from = im.Have()
	w.progress(f.from)
	if _, err := f.run(ctx, func(p []byte) error {
		if err := im.Write(p); err != nil {
			return err
		}
		w.progress(int64(len(p)))
		return nil
	}); err != nil {
		return err
	}
	return im.Finish()
}

func (w *whole) progress(n int64) {
	w.done += n
	if w.opt.Progress != nil {
		w.opt.Progress(w.done, w.total)
	}
}
