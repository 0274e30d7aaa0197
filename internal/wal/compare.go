package wal

import (
	"bytes"
	"errors"
	"fmt"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// differencesMax bounds Comparison.Differences.
const differencesMax = 100

// Difference is a place where two logs are not the same.
type Difference struct {
	Segment entry.Index
	Offset  int64       // of the first byte in the segment that differs
	Index   entry.Index // the entry there; 0 when there is none
	What    string
}

func (d Difference) String() string {
	return fmt.Sprintf("%s at byte %d (entry %d): %s", segmentName(d.Segment), d.Offset, d.Index, d.What)
}

// Comparison is what Compare found.
type Comparison struct {
	First, Last  entry.Index  // the entries that both logs have; Last < First when there is none
	Bytes        int64        // compared in each
	LastA, LastB entry.Index  // where each log ends
	Differences  []Difference // one for each segment that differs, in log order; at most 100
}

// Equal reports whether there is no difference, and both logs end with the same entry.
func (c Comparison) Equal() bool { return len(c.Differences) == 0 && c.LastA == c.LastB }

// Compare tells whether two logs hold the same bytes where both have entries. Their heads may have been dropped
// to different places, and one may be longer: of the segment in which the shorter one ends cleanly, only what
// comes before its end is compared, of all others the whole files. Files other than segments do not count. An error means that they could not be compared: a file cannot be read, there is no
// segment (ErrEmpty), or they are different logs (ErrMismatch). It writes nothing. Of a log that is in use it
// sees what was written so far.
func Compare(a vfs.FS, dirA string, b vfs.FS, dirB string) (Comparison, error) {
	logA, err := listLog(a, dirA)
	if err != nil {
		return Comparison{}, err
	}
	logB, err := listLog(b, dirB)
	if err != nil {
		return Comparison{}, err
	}
	if logA.id != logB.id {
		return Comparison{}, fmt.Errorf("log %x and log %x are different logs: %w", logA.id, logB.id, ErrMismatch)
	}
	c := Comparison{LastA: logA.last, LastB: logB.last, First: max(logA.list[0].first, logB.list[0].first), Last: min(logA.last, logB.last)}
	shorter := logA
	if logB.last < logA.last {
		shorter = logB
	}
	limit := c.Last
	if !shorter.clean {
		limit = max(limit, shorter.end.Segment) // its first entry may be the damaged one
	}
	for first := range common(logA.list, logB.list, c.First, limit) {
		i, j := logA.index(first), logB.index(first)
		if i < 0 || j < 0 {
			c.add(Difference{Segment: first, Index: first, What: "only one of the logs has a segment that begins here"})
			continue
		}
		end := int64(-1) // the whole file
		if c.LastA != c.LastB && first == shorter.end.Segment && shorter.clean {
			end = shorter.end.Offset
		}
		if err := c.segment(logA, logB, i, j, end); err != nil {
			return c, err
		}
	}
	return c, nil
}

// add adds a difference, unless there are too many.
func (c *Comparison) add(d Difference) {
	if len(c.Differences) < differencesMax {
		c.Differences = append(c.Differences, d)
	}
}

// comparedLog is one of two logs.
type comparedLog struct {
	fs   vfs.FS
	id   entry.LogID
	list []segmentFile
	last entry.Index
	end  entry.Position // of no length: where the last entry ends
	// clean says that only zeros stand behind end. Otherwise there may have been more entries, now damaged.
	clean bool
}

// listLog finds the segments of a log, and its end.
func listLog(fsys vfs.FS, dir string) (*comparedLog, error) {
	list, err := listSegments(fsys, dir)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("compare the log in %s: %w", dir, ErrEmpty)
	}
	id, err := findLogID(fsys, list)
	if err != nil {
		return nil, err
	}
	l := &comparedLog{fs: fsys, id: id, list: list}
	newest := list[len(list)-1]
	l.last, l.end.Offset, err = l.follow(len(list)-1, func(*frame) bool { return true })
	if err != nil {
		return nil, err
	}
	l.end.Segment = newest.first
	f, err := fsys.OpenRead(newest.path)
	if err != nil {
		return nil, fmt.Errorf("open a segment: %w", err)
	}
	defer closeFile(f)
	rest := source{file: f, size: newest.size}
	if l.clean, err = rest.zero(l.end.Offset, newest.size); err != nil {
		return nil, fmt.Errorf("read %s: %w", newest.path, err)
	}
	return l, nil
}

func (l *comparedLog) index(first entry.Index) int {
	for i := range l.list {
		if l.list[i].first == first {
			return i
		}
	}
	return -1
}

// follow follows the chain in segment i while more is true, and returns the last good entry, and its end. It
// does not need a good header.
func (l *comparedLog) follow(i int, more func(*frame) bool) (entry.Index, int64, error) {
	s := l.list[i]
	f, err := l.fs.OpenRead(s.path)
	if err != nil {
		return 0, 0, fmt.Errorf("open a segment: %w", err)
	}
	defer closeFile(f)
	w := walker{seed: seedOf(l.id), pos: headerSize, want: s.first}
	w.reset(f, s.size)
	stop := errors.New("stop")
	err = w.walk(s.first, 0, func(f *frame, _ entry.Position) error {
		if !more(f) {
			return stop
		}
		return nil
	})
	if err != nil && err != stop {
		return 0, 0, fmt.Errorf("read %s: %w", s.path, err)
	}
	return w.want - 1, w.pos, nil
}

// common yields the first entries of the segments that either log has between two entries, ascending.
func common(a, b []segmentFile, first, last entry.Index) func(yield func(entry.Index) bool) {
	return func(yield func(entry.Index) bool) {
		for len(a) > 0 || len(b) > 0 {
			var next entry.Index
			if len(b) == 0 || len(a) > 0 && a[0].first <= b[0].first {
				next = a[0].first
			} else {
				next = b[0].first
			}
			if len(a) > 0 && a[0].first == next {
				a = a[1:]
			}
			if len(b) > 0 && b[0].first == next {
				b = b[1:]
			}
			if next >= first && next <= last && !yield(next) {
				return
			}
		}
	}
}

// segment compares segment i of a and j of b up to byte end, or, when that is -1, whole.
func (c *Comparison) segment(a, b *comparedLog, i, j int, end int64) error {
	sa, sb := a.list[i], b.list[j]
	first := sa.first
	if end < 0 {
		end = min(sa.size, sb.size)
		if sa.size != sb.size {
			c.add(Difference{Segment: first, Offset: end, What: fmt.Sprintf("the files have %d and %d bytes", sa.size, sb.size)})
		}
	}
	fa, err := a.fs.OpenRead(sa.path)
	if err != nil {
		return fmt.Errorf("open a segment: %w", err)
	}
	defer closeFile(fa)
	fb, err := b.fs.OpenRead(sb.path)
	if err != nil {
		return fmt.Errorf("open a segment: %w", err)
	}
	defer closeFile(fb)
	ra, rb := source{file: fa, size: sa.size}, source{file: fb, size: sb.size}
	differ, count := int64(-1), int64(0)
	for off := int64(0); off < min(end, sa.size, sb.size); {
		x, err := ra.at(off, 1)
		if err != nil {
			return fmt.Errorf("read %s: %w", sa.path, err)
		}
		y, err := rb.at(off, 1)
		if err != nil {
			return fmt.Errorf("read %s: %w", sb.path, err)
		}
		n := int(min(int64(len(x)), int64(len(y)), end-off))
		if !bytes.Equal(x[:n], y[:n]) {
			for k := range n {
				if x[k] != y[k] {
					count++
					if differ < 0 {
						differ = off + int64(k)
					}
				}
			}
		}
		off += int64(n)
	}
	c.Bytes += min(end, sa.size, sb.size)
	if count == 0 {
		return nil
	}
	return c.explain(a, b, i, j, differ, count)
}

// explain adds a difference at byte off, and says which of the two is good there.
func (c *Comparison) explain(a, b *comparedLog, i, j int, off, count int64) error {
	d := Difference{Segment: a.list[i].first, Offset: off, What: fmt.Sprintf("%d bytes differ", count)}
	until := func(l *comparedLog, i int) (entry.Index, int64, error) {
		pos := int64(headerSize)
		return l.follow(i, func(f *frame) bool {
			pos += int64(f.size)
			return pos <= off
		})
	}
	lastA, endA, err := until(a, i)
	if err != nil {
		return err
	}
	lastB, endB, err := until(b, j)
	if err != nil {
		return err
	}
	if off < headerSize {
		d.What += ", in the header"
		c.add(d)
		return nil
	}
	if endA > off || endB > off { // at least one has a good frame there
		d.Index = min(lastA, lastB)
		if endA <= off || endB <= off {
			d.Index++
		}
	}
	switch {
	case endA > off && endB > off:
		d.What += ", and both frames are good"
	case endA > off:
		d.What += ", and only the frame in the first log is good"
	case endB > off:
		d.What += ", and only the frame in the second log is good"
	}
	c.add(d)
	return nil
}
