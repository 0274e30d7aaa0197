package wal

import (
	"errors"
	"fmt"
	"path"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Open opens the log, and creates it if it is empty and Config.Create says so. after is the index that the
// newest good snapshot covers, 0 for none: Open calls visit, in order, for every entry in the segments that
// hold entries beyond after, and always in the last one; so it may begin with entries up to after. The
// entry and its payload are valid only during the call. What visit saw counts only if Open returns no error.
//
// If entries beyond after are damaged, or missing, Open returns a *CorruptionError and changes nothing.
// Damage up to after is reported in Recovered. A torn tail is cut off, durably. Every entry that Open saw
// is durable when it returns.
//
// A log that begins as Config.Begin says has no entries before, whatever after is; it must not be beyond.
func Open(cfg Config, after entry.Index, visit func(e *entry.Entry, p entry.Position) error) (*Log, Recovered, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, Recovered{}, err
	}
	if cfg.Create {
		if err := cfg.FS.Mkdir(cfg.Dir); err != nil {
			return nil, Recovered{}, fmt.Errorf("make the log folder: %w", err)
		}
	}
	list, err := listSegments(cfg.FS, cfg.Dir)
	if err != nil {
		return nil, Recovered{}, err
	}
	for len(list) > 0 && list[0].first < cfg.From {
		list = list[1:]
	}
	if cfg.From > after+1 && len(list) > 0 {
		return nil, Recovered{}, fmt.Errorf("open the log in %s from entry %d on: entries after %d are needed: %w", cfg.Dir, cfg.From, after, ErrMismatch)
	}
	l := &Log{cfg: cfg, seed: seedOf(cfg.LogID), imported: make(map[entry.Index]importPoint)}
	l.prep = newPreparer(l)
	if len(list) == 0 {
		begin := Place{Segment: 1}
		if cfg.Begin != nil {
			begin = *cfg.Begin
		}
		if !cfg.Create || after >= begin.Segment {
			return nil, Recovered{}, fmt.Errorf("open the log in %s: %w", cfg.Dir, ErrEmpty)
		}
		if err := l.create(begin); err != nil {
			l.Close()
			return nil, Recovered{}, fmt.Errorf("create the log: %w", err)
		}
		return l, Recovered{First: begin.Segment, Last: begin.Segment - 1}, nil
	}
	if l.mark, err = readMark(cfg.FS, cfg.Dir, cfg.LogID); err != nil {
		return nil, Recovered{}, fmt.Errorf("open the log: %w", err)
	}
	r := &recovery{walker: walker{seed: l.seed}, fs: cfg.FS, id: cfg.LogID, segments: list, after: after, proven: cfg.Proven,
		mark: l.mark, visit: visit, progress: cfg.Progress}
	if err := r.run(); err != nil {
		return nil, Recovered{}, err
	}
	if err := l.settle(r); err != nil {
		l.Close()
		return nil, Recovered{}, fmt.Errorf("open the log: %w", err)
	}
	return l, r.found, nil
}

// create makes the first segment. Its name, and that of the folder, are durable afterwards.
func (l *Log) create(begin Place) error {
	if err := l.cfg.FS.SyncDir(path.Dir(l.cfg.Dir)); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	last := begin.Segment - 1
	l.last.Store(uint64(last))
	l.durable.Store(uint64(last))
	l.prep.start()
	if err := l.roll(max(headerSize, begin.Size), begin.Size > 0, begin.Prev); err != nil {
		return err
	}
	l.setTip(Point{Index: last, CRC: begin.Prev}, l.active, l.pos)
	return nil
}

// settle makes durable what recovery found, and gets the log ready to go on after it.
func (l *Log) settle(r *recovery) error {
	for _, s := range r.segments {
		l.segments = append(l.segments, &segment{first: s.first, path: s.path, size: s.size})
	}
	l.active = l.segments[len(l.segments)-1]
	if s := r.segments[len(r.segments)-1]; s.made > 0 {
		l.active.prev = s.prev
		l.active.size = min(s.size, s.made) // what is behind belongs to nobody
	}
	f, err := l.cfg.FS.Open(l.active.path)
	if err != nil {
		return err
	}
	l.active.file, l.file = f, f
	l.pos, l.prev, l.term = r.tail.pos, r.prev, r.term
	if r.tail.broken {
		l.prev = 0 // the chain begins anew, in the next segment, for which there is no room in this one
	}
	if l.pos == headerSize && len(r.segments) > 1 {
		if err := l.lookBehind(r); err != nil {
			return err
		}
	}
	last := uint64(r.found.Last)
	l.setTip(Point{Index: entry.Index(last), Term: l.term, CRC: l.prev}, l.active, l.pos)
	l.last.Store(last)
	l.room.Store(l.active.size - l.pos)
	if err := rewriteTail(f, r); err != nil {
		return fmt.Errorf("write the end of the log again: %w", err)
	}
	if t := r.found.Torn; t != nil {
		// Stale bytes must be gone before anything is appended: frames among them could join the chain again.
		if err := zeroRange(f, t.Offset, t.Offset+t.Bytes); err != nil {
			return fmt.Errorf("cut the torn tail: %w", err)
		}
		l.cfg.Logger.Warn("cut a torn write off the end of the log: after a power cut that is normal and nothing acknowledged", "segment", uint64(t.Segment),
			"offset", t.Offset, "bytes", t.Bytes, "index", uint64(t.Index))
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", l.active.path, err)
	}
	// A crash may have come between the naming of the last segment and the sync of the folder.
	if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
		return fmt.Errorf("sync folder %s: %w", l.cfg.Dir, err)
	}
	if l.mark.set { // all is durable now
		if err := l.unmark(); err != nil {
			return err
		}
	}
	l.active.end.Store(l.pos)
	l.durable.Store(last)
	l.prep.start()
	return nil
}

// lookBehind finds the end of the last entry, and its term, in the segment before the active one, which has no entries.
// When that is damaged they stay unknown.
func (l *Log) lookBehind(r *recovery) error {
	s := r.segments[len(r.segments)-2]
	f, err := l.cfg.FS.OpenRead(s.path)
	if err != nil {
		return err
	}
	defer closeFile(f)
	w := walker{seed: l.seed}
	h, err := w.follow(f, s, l.cfg.LogID, r.found.Last, nil)
	if errors.As(err, new(*CorruptionError)) {
		return nil
	}
	l.term, l.behind = w.term, Place{Segment: s.first, Size: h.size, Prev: h.prev, Offset: w.pos}
	return err
}

// rewriteTail writes the frames again, with the same bytes, that no later frame proves to be durable. What
// recovery read may stand only in the page cache: after a failed sync the kernel keeps such pages and calls
// them clean, and a sync by this process would succeed without writing them. Written again, they are dirty.
func rewriteTail(f vfs.File, r *recovery) error {
	r.dropProven()
	if len(r.unproven) == 0 || r.tail.broken {
		return nil
	}
	buf := make([]byte, 0, 64<<10)
	for from := r.unproven[0].pos; from < r.tail.pos; {
		buf = buf[:min(int64(cap(buf)), r.tail.pos-from)]
		if _, err := f.ReadAt(buf, from); err != nil {
			return err
		}
		if _, err := f.WriteAt(buf, from); err != nil {
			return err
		}
		from += int64(len(buf))
	}
	return nil
}
