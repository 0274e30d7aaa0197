package wal

import (
	"errors"
	"fmt"
	"path"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Recovered says what Open found.
type Recovered struct {
	First, Last entry.Index // of the log; Last is First-1 when it is empty
	Commit      entry.Index // highest index that the log itself shows to be committed
	Entries     int         // visited
	Bytes       int64       // read
	Torn        *Torn       // nil when the log ended cleanly
	Damage      []Damage    // that was tolerated, in log order
}

// Torn is a write at the end of the log that a crash cut short. It was never acknowledged. It is cut off.
type Torn struct {
	Segment entry.Index
	Offset  int64       // where it begins in the file
	Bytes   int64       // up to the last byte that is not zero
	Index   entry.Index // the first entry that was lost
}

// Damage is a place where the log is not as it was written.
type Damage struct {
	Segment     entry.Index // the file; of a missing segment, the one before
	Offset      int64
	First, Last entry.Index // the entries that are lost; Last < First when none is
	Reason      string
}

func (d Damage) String() string {
	text := fmt.Sprintf("%s at byte %d: %s", segmentName(d.Segment), d.Offset, d.Reason)
	if d.First <= d.Last && d.Last > 0 {
		text += fmt.Sprintf(" (entries %d to %d are lost)", d.First, d.Last)
	}
	return text
}

// segmentFile is a segment that recovery reads.
type segmentFile struct {
	first entry.Index
	path  string
	size  int64
	// What the header says, once it was read; 0 when it is damaged.
	made int64 // size of the file
	prev uint32
}

// listSegments returns the segments in dir, oldest first.
func listSegments(fsys vfs.FS, dir string) ([]segmentFile, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, fmt.Errorf("list the log: %w", err)
	}
	var list []segmentFile
	for _, name := range names { // sorted, and so are the numbers in them
		first, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		s := segmentFile{first: first, path: path.Join(dir, name)}
		if s.size, err = fsys.Size(s.path); err != nil {
			return nil, fmt.Errorf("size of a segment: %w", err)
		}
		list = append(list, s)
	}
	return list, nil
}

// recovery reads a log. It changes nothing on disk.
type recovery struct {
	walker
	fs       vfs.FS
	id       entry.LogID
	segments []segmentFile
	after    entry.Index
	proven   entry.Index // see Config
	mark     proofMark
	report   bool // report all damage and go on, whatever it hits
	visit    func(*entry.Entry, entry.Position) error
	progress func(done, total int64)
	total    int64

	found    Recovered
	short    bool // the file is shorter than its header says
	tail     tail
	unproven []batchStart
}

// tail is where the log ends.
type tail struct {
	pos int64
	// broken: the entries before it are damaged, so no frame can be chained to them. The segment is left
	// as it is, and the log goes on in a new one.
	broken bool
}

// batchStart is where the frames begin that carry another commit index than those before.
type batchStart struct {
	index entry.Index
	pos   int64
}

// run reads the headers of all segments, and the frames of those that hold entries beyond after.
func (r *recovery) run() error {
	for i, s := range r.segments {
		if !r.covered(i) {
			r.total += s.size
		}
	}
	if first := r.segments[0].first; first > r.after+1 && !r.report {
		return &CorruptionError{Segment: first, Index: r.after + 1,
			Reason: fmt.Sprintf("the log begins with entry %d, what comes before is missing", first)}
	}
	r.found.First = r.segments[0].first
	for i := range r.segments {
		if err := r.segment(i); err != nil {
			return err
		}
	}
	r.found.Last = r.want - 1
	return nil
}

// covered reports whether the segment holds only entries up to after, whose effects a snapshot has.
func (r *recovery) covered(i int) bool {
	return i+1 < len(r.segments) && r.segments[i+1].first-1 <= r.after
}

// segment opens and reads one segment.
func (r *recovery) segment(i int) error {
	s := &r.segments[i]
	f, err := r.fs.OpenRead(s.path)
	if err != nil {
		return fmt.Errorf("open a segment: %w", err)
	}
	defer closeFile(f)
	r.reset(f, s.size)
	var head []byte
	if r.covered(i) {
		// Do not read a megabyte for the sake of a header.
		head = make([]byte, min(headerSize, s.size))
		if _, err = f.ReadAt(head, 0); len(head) > 0 && err != nil && s.size > headerSize {
			return fmt.Errorf("read the header of %s: %w", s.path, err)
		}
	} else if s.size > 0 {
		if head, err = r.at(0, int(min(headerSize, s.size))); err != nil {
			return fmt.Errorf("read %s: %w", s.path, err)
		}
	}
	if err := r.header(s, head); err != nil {
		return err
	}
	if r.covered(i) {
		r.want, r.chained = r.segments[i+1].first, false
		if r.short {
			return r.damage(Damage{Segment: s.first, Offset: s.size, Reason: "the file is shorter than it was made"}, 0)
		}
		return nil
	}
	if err := r.frames(i); err != nil {
		if c := (*CorruptionError)(nil); errors.As(err, &c) {
			return err
		}
		return fmt.Errorf("read %s: %w", s.path, err)
	}
	r.found.Bytes += s.size
	if r.progress != nil {
		r.progress(r.found.Bytes, r.total)
	}
	return nil
}

// header checks the header of s, and that s follows the segment before.
func (r *recovery) header(s *segmentFile, b []byte) error {
	r.pos, r.want, r.short = headerSize, s.first, false
	h, err := decodeHeader(b)
	switch {
	case errors.Is(err, ErrVersion):
		return fmt.Errorf("segment %s: %w", s.path, err)
	case err != nil:
		// The chain goes on over a damaged header, if the segment before was read.
	case h.id != r.id:
		err = fmt.Errorf("the segment belongs to log %x, not to %x", h.id, r.id)
	case h.first != s.first:
		err = fmt.Errorf("the segment says that it begins with entry %d", h.first)
	case r.chained && h.prev != r.prev && h.prev != 0: // 0: the chain begins anew
		err = errors.New("the segment does not follow the one before it")
		r.prev = h.prev
	default:
		s.made, s.prev = h.size, h.prev
		r.prev, r.chained, r.short = h.prev, true, s.size < h.size
		if s.size > h.size {
			return r.damage(Damage{Segment: s.first, Offset: h.size, Reason: "the file is longer than it was made"}, 0)
		}
		return nil
	}
	return r.damage(Damage{Segment: s.first, First: s.first, Last: s.first - 1, Reason: err.Error()}, s.first)
}

// damage records d if it hits no entry beyond after, and otherwise returns it as an error. hit is the last
// entry that it may concern.
func (r *recovery) damage(d Damage, hit entry.Index) error {
	if hit > r.after && !r.report {
		return &CorruptionError{Segment: d.Segment, Offset: d.Offset, Index: max(d.First, r.after+1), Reason: d.Reason}
	}
	r.found.Damage = append(r.found.Damage, d)
	return nil
}

// lost records that the entries from r.want up to last cannot be read.
func (r *recovery) lost(s *segmentFile, last entry.Index, reason string) error {
	return r.damage(Damage{Segment: s.first, Offset: r.pos, First: r.want, Last: last, Reason: reason}, last)
}

// frames reads the frames of segment i, over tolerated damage.
func (r *recovery) frames(i int) error {
	s, limit := &r.segments[i], entry.Index(0)
	if i+1 < len(r.segments) {
		limit = r.segments[i+1].first
	}
	r.unproven = r.unproven[:0]
	for more := true; more; {
		if err := r.walk(s.first, limit, r.entry); err != nil {
			return err
		}
		var err error
		switch {
		case r.want == limit:
			more, err = false, r.sealedEnd(s)
		case limit != 0:
			more, err = r.resync(s, limit, r.why)
		case r.want <= r.after && !r.report:
			more, err = r.coveredEnd(s)
		default:
			more, err = r.lastEnd(s)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// entry is called for each good frame, in order.
func (r *recovery) entry(f *frame, p entry.Position) error {
	if n := len(r.unproven); n == 0 || f.Commit > r.found.Commit {
		r.found.Commit = max(r.found.Commit, f.Commit)
		r.dropProven()
		r.unproven = append(r.unproven, batchStart{f.Index, p.Offset})
	}
	r.found.Entries++
	if r.visit == nil {
		return nil
	}
	return r.visit(&f.Entry, p)
}

// dropProven forgets the batches that end at or below the commit index.
func (r *recovery) dropProven() {
	n, proven := 0, r.mark.proves(r.found.Commit)
	for n+1 < len(r.unproven) && r.unproven[n+1].index <= proven+1 {
		n++
	}
	if n > 0 {
		r.unproven = append(r.unproven[:0], r.unproven[n:]...)
	}
}
