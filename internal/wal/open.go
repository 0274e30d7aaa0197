package wal

import (
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
	l := &Log{cfg: cfg, seed: seedOf(cfg.LogID)}
	l.prep = newPreparer(l)
	if len(list) == 0 {
		if !cfg.Create || after > 0 {
			return nil, Recovered{}, fmt.Errorf("open the log in %s: %w", cfg.Dir, ErrEmpty)
		}
		if err := l.create(); err != nil {
			l.Close()
			return nil, Recovered{}, fmt.Errorf("create the log: %w", err)
		}
		return l, Recovered{First: 1}, nil
	}
	r := &recovery{walker: walker{seed: l.seed}, fs: cfg.FS, id: cfg.LogID, segments: list, after: after, proven: cfg.Proven,
		visit: visit, progress: cfg.Progress}
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
func (l *Log) create() error {
	if err := l.cfg.FS.SyncDir(path.Dir(l.cfg.Dir)); err != nil {
		return fmt.Errorf("sync folder: %w", err)
	}
	l.prep.start()
	return l.roll(0)
}

// settle makes durable what recovery found, and gets the log ready to go on after it.
func (l *Log) settle(r *recovery) error {
	for _, s := range r.segments {
		l.segments = append(l.segments, &segment{first: s.first, path: s.path, size: s.size})
	}
	l.active = l.segments[len(l.segments)-1]
	f, err := l.cfg.FS.Open(l.active.path)
	if err != nil {
		return err
	}
	l.active.file, l.file = f, f
	l.pos, l.prev = r.tail.pos, r.prev
	if r.tail.broken {
		l.prev = 0 // the chain begins anew, in the next segment, for which there is no room in this one
	}
	last := uint64(r.found.Last)
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
	l.active.end.Store(l.pos)
	l.durable.Store(last)
	l.prep.start()
	return nil
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
