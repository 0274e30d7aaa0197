// Package wal is the log on disk: entries at dense indexes, stored as checksummed, chained frames in
// zero-filled segment files.
//
// It guarantees that what was appended before a Sync that returned nil is there after a crash or power cut,
// byte for byte, or that Open says that it is damaged. It hands out no payload whose checksum is wrong. It
// never cuts, skips or resets anything that may have been acknowledged: only a torn tail is cut, and what
// Truncate and Cut are told to. The format, and how a torn tail is told from damage, is described in docs/format/log.md.
//
// A replica holds the same bytes: Cursor reads frames and their places from one log, Load and AppendReplica
// check them and write them to the same places of another; Import brings whole segments. VerifySegment finds damage in a
// log that is open, TakeSurvey all of it in one that is not; Repair puts a peer's segment in the place of a damaged one.
//
// One caller at a time (who holds the baton of group commit) may call Append, AppendReplica, Truncate, Sync, Next
// and Behind; everything else may be called from any goroutine at any time and never waits for a Sync. The log
// knows frames and bytes, not topics. One goroutine of its own prepares the next segment, unless
// Config.Inline; Close ends it.
//
// The next stop of a publish: package vfs, the disk. Then back to package replication: it is committed.
package wal

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs"
)

// Config says how to open a log. FS is required.
type Config struct {
	FS vfs.FS
	// Clock times Retry and what Observer gets. Default: the system's.
	Clock clock.Clock
	// Dir is the folder of the log. Default "log".
	Dir string
	// LogID is the identity of the log; a segment of another log is damage.
	LogID entry.LogID
	// Proven is an index up to which all entries are known to be durable, for example since a clean stop: if
	// one of them is missing, that is damage, whatever it looks like. 0 for none.
	Proven entry.Index
	// Create allows Open to begin a new log when the folder holds no segment. Set it only for a data
	// directory known to be new: an old one that lost its log must not start empty.
	Create bool
	// Begin, if not nil, says where a log begins that Create makes: with entry Begin.Segment, in a segment of
	// Begin.Size bytes with Begin.Prev in its header. It is for a replica, whose history comes later, by Import.
	Begin *Place
	// From is the first entry of the first segment that Open looks at; those before it are still being
	// fetched, see Prepend. Open must then be told to need no entry before From. 0 for all.
	From entry.Index
	// Inline prepares segments in the goroutine that needs them, and starts none: the operations on files
	// are the same, in the same order, in every run. For simulations: each roll takes longer.
	Inline bool
	// SegmentBytes is the size of a segment file. Default 64 MiB. Smaller files are given back sooner by
	// DropBefore; each roll costs a few syncs. A replica should have its leader's: otherwise it has prepared
	// the wrong file at each roll, and makes another while its caller waits.
	SegmentBytes int64
	// ReserveBytes is the room in the active segment that only entries with Frames.Reserve may use while
	// the disk is full. Default 1 MiB, but not more than a quarter of SegmentBytes. A log with sealed segments keeps more
	// back: the next segment, and a quarter of the active one.
	ReserveBytes int64
	// Retry is how often preparing a segment is tried again on a full disk. Default 250 ms.
	Retry time.Duration
	// Logger gets what an operator should know: a full disk, a failure. Default: discarded.
	Logger *slog.Logger
	// Observer is called for figures; nil functions are skipped.
	Observer Observer
	// Progress, if not nil, is called during Open with the bytes read so far and in total.
	Progress func(done, total int64)
}

// Observer receives figures. The functions must be quick; they are called by whoever does the work.
type Observer struct {
	Synced   func(d time.Duration, bytes int) // one Sync and how much it made durable
	Rolled   func()                           // a new segment became active
	Prepared func(d time.Duration)            // a segment was zero-filled ahead of its use
}

const (
	defaultDir          = "log"
	defaultSegmentBytes = 64 << 20
	defaultReserveBytes = 1 << 20
	defaultRetry        = 250 * time.Millisecond
	segmentBytesMin     = 4 << 10
	segmentBytesMax     = 4 << 30
	segmentSizeMax      = 2 * segmentBytesMax // of a file: a large group commit may need more than segmentBytesMax

	// openFilesMax bounds the sealed segments that are kept open for reading.
	openFilesMax = 256
)

// withDefaults returns c with zero fields replaced, or what is wrong with it.
func (c Config) withDefaults() (Config, error) {
	if c.FS == nil {
		return c, errors.New("wal: Config.FS is required")
	}
	if c.Clock == nil {
		c.Clock = clock.System{}
	}
	if c.Dir == "" {
		c.Dir = defaultDir
	}
	if c.SegmentBytes == 0 {
		c.SegmentBytes = defaultSegmentBytes
	}
	if c.SegmentBytes < segmentBytesMin || c.SegmentBytes > segmentBytesMax {
		return c, fmt.Errorf("wal: segment size %d is not within %d to %d bytes", c.SegmentBytes, segmentBytesMin, int64(segmentBytesMax))
	}
	if c.ReserveBytes == 0 {
		c.ReserveBytes = min(defaultReserveBytes, c.SegmentBytes/4)
	}
	if c.ReserveBytes < 0 || c.ReserveBytes > c.SegmentBytes/2 {
		return c, fmt.Errorf("wal: reserve of %d bytes does not fit into half a segment of %d", c.ReserveBytes, c.SegmentBytes)
	}
	if b := c.Begin; b != nil && (b.Segment == 0 || b.Size < segmentBytesMin || b.Size > segmentSizeMax) {
		return c, fmt.Errorf("wal: a log cannot begin with entry %d in a segment of %d bytes", b.Segment, b.Size)
	}
	if c.Retry <= 0 {
		c.Retry = defaultRetry
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// Log is an open log.
type Log struct {
	cfg  Config
	seed uint32 // CRC of the log id
	prep *preparer

	// owned by the caller of Append, AppendReplica, Truncate and Sync
	active   *segment
	file     vfs.File   // of active, for writing
	pos      int64      // where the next frame goes; Invariant: all bytes of the file from pos on are zero
	behind   Place      // of the end of the last entry, while active has none; zero when that is not known
	prev     uint32     // CRC of the last frame; 0 when the chain begins anew
	term     entry.Term // of the last frame, or lower when that is not known
	unsynced int        // bytes appended since the last Sync
	mark     proofMark  // as on disk

	last    atomic.Uint64 // Invariant: durable <= last
	durable atomic.Uint64
	room    atomic.Int64 // bytes left in the active segment
	failed  atomic.Pointer[failure]
	refused atomic.Bool  // entries without Frames.Reserve got ErrFull since a segment was prepared last
	isTight atomic.Bool  // what it said then, see tight
	spare   atomic.Int64 // bytes that others need, see KeepFree

	tick  atomic.Uint64 // orders uses of files
	files atomic.Int64  // sealed segments that are open
	cuts  atomic.Uint64 // how often Truncate cut; raised when tip and segments are as they are afterwards

	dropMu sync.Mutex // one DropBefore, Prepend or Truncate at a time; held across I/O, guards nothing else

	mu       sync.RWMutex
	segments []*segment                  // oldest first, the last one is active
	closed   bool                        //
	imported map[entry.Index]importPoint // segments that Import verified, by their first entry

	tipMu  sync.Mutex
	tip    Point
	tipEnd entry.Position // of no length: where the last frame ends
}

// Append writes the entries of f to the log, as the next ones, with one write. They are not durable before
// Sync, and must not be acknowledged before. commit is the highest index known to be committed. term must not
// be lower than that of the entry before.
//
// ErrFull means that nothing was done. After any other error it is unknown what survives, and the log
// takes no more entries.
func (l *Log) Append(f *Frames, term entry.Term, commit entry.Index) (entry.Index, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	last := l.Last()
	need := int64(f.Bytes())
	if f.Len() == 0 || commit > last || uint64(last)+uint64(f.Len())-uint64(commit) > math.MaxUint32 {
		panic(fmt.Sprintf("BUG: wal: append of %d entries after %d with commit index %d", f.Len(), last, commit))
	}
	if term < l.term {
		panic(fmt.Sprintf("BUG: wal: append of entries of term %d after one of term %d", term, l.term))
	}
	if err := l.makeRoom(need, f); err != nil {
		if !f.Reserve && errors.Is(err, ErrFull) {
			l.refused.Store(true)
		}
		return 0, err
	}
	if l.mark.set { // from when this was a replica
		if err := l.Sync(); err != nil {
			return 0, err
		}
		if err := l.unmark(); err != nil {
			return 0, err
		}
	}
	prev := f.finish(l.seed, l.prev, last+1, term, commit)
	if err := l.write(f, Point{Index: last + entry.Index(f.Len()), Term: term, CRC: prev}); err != nil {
		return 0, err
	}
	return last + 1, nil
}

// write writes frames that are complete to the end of the log, where there is room for them. tip is the last
// of them.
func (l *Log) write(f *Frames, tip Point) error {
	if invariant.Enabled {
		clean, err := allZeroAt(l.file, l.pos, f.end)
		invariant.Check(clean || err != nil, "stale bytes at %d of %s", l.pos, l.active.path)
	}
	if _, err := l.file.WriteAt(f.buf[:f.end], l.pos); err != nil {
		return l.undo(f.end, fmt.Errorf("write to %s at byte %d: %w", l.active.path, l.pos, err))
	}
	f.place = l.placeOf(l.pos)
	l.pos += int64(f.end)
	l.prev, l.term = tip.CRC, tip.Term
	l.unsynced += f.end
	l.room.Store(l.active.size - l.pos)
	l.setTip(tip, l.active, l.pos)
	l.last.Store(uint64(tip.Index))
	return nil
}

// undo takes back a write of n bytes that failed. When the disk was full, and only then, the log can go on:
// what was written is zeroed and synced before anyone is told that nothing was done, because otherwise a
// crash could bring an entry back of which its client knows that it was refused.
func (l *Log) undo(n int, cause error) error {
	if !noRoom(cause) {
		return l.fail(cause)
	}
	// How much was written is not known: an error may hide the count.
	clean, err := allZeroAt(l.file, l.pos, n)
	if err == nil && !clean {
		if err = zeroRange(l.file, l.pos, l.pos+int64(n)); err == nil {
			err = l.file.Sync()
		}
		if err == nil {
			l.synced()
		}
	}
	if err != nil {
		return l.fail(fmt.Errorf("take back a short write to %s: %w", l.active.path, err))
	}
	l.refused.Store(true)
	return fmt.Errorf("%w: %w", ErrFull, cause)
}

// allZeroAt reports whether the n bytes of f from off on are zero.
func allZeroAt(f vfs.File, off int64, n int) (bool, error) {
	b := make([]byte, n)
	if _, err := f.ReadAt(b, off); err != nil {
		return false, err
	}
	return allZero(b), nil
}

// makeRoom makes sure that need bytes fit into the active segment, by a roll if it must.
func (l *Log) makeRoom(need int64, f *Frames) error {
	left := l.active.size - l.pos - need
	if !f.Reserve && l.refuses(left, true) {
		return ErrFull
	}
	if left < 0 {
		size := headerSize + need
		if size > l.cfg.SegmentBytes {
			size += l.cfg.ReserveBytes // a larger segment keeps its reserve, too
		}
		return l.roll(size, false, l.prev)
	}
	switch {
	case f.Reserve && f.Frees:
		return nil
	case f.Reserve: // the last quarter of the reserve is for what gives room back
		if left >= l.cfg.ReserveBytes/4 {
			return nil
		}
	case left >= l.cfg.ReserveBytes:
		return nil
	}
	// These entries would use the reserve. That is fine when there is a next segment.
	return l.prep.wait(l)
}

// refuses reports whether entries that are not Frames.Reserve may not take the active segment down to left bytes, whatever is
// left in it. They must stop before the disk is full: at any time all that lives in the oldest segment must fit behind the
// end, or no segment could ever be dropped again. A quarter of a segment and a whole one, which is prepared, is enough for
// that. A log that has no other segment has nothing to move.
//
// With wait it waits for the next segment where that decides.
func (l *Log) refuses(left int64, wait bool) bool {
	switch {
	case !l.hasSealed():
		return false
	case l.prep.isFull():
		return true
	case left >= l.cfg.SegmentBytes/4:
		return false
	case l.prep.current() == prepareReady:
		return l.tight()
	case !wait:
		return false
	}
	if l.prep.wait(l) != nil {
		return true
	}
	return l.tight()
}

func (l *Log) hasSealed() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.segments) > 1
}

// KeepFree says how many bytes of the disk others need: entries that take room are refused before the log takes them.
func (l *Log) KeepFree(bytes int64) { l.spare.Store(bytes) }

// tight reports whether the disk has no room for the segment behind the next one.
func (l *Log) tight() bool {
	usage, err := l.cfg.FS.Usage()
	tight := err == nil && usage.FreeBytes < l.cfg.SegmentBytes+l.spare.Load() // an error: the next write tells
	if l.isTight.Swap(tight) != tight {
		if tight {
			l.cfg.Logger.Warn("the disk is full but for what is kept back for giving room: entries that take room are refused", "free_bytes", usage.FreeBytes)
		} else {
			l.cfg.Logger.Info("the disk has room for the log again", "free_bytes", usage.FreeBytes)
		}
	}
	return tight
}

// Room is how many bytes entries with Frames.Reserve may still take: in the active segment, the one that is prepared, and those
// for which the disk has room now.
func (l *Log) Room() int64 {
	segments := int64(0)
	if l.prep.current() == prepareReady {
		segments++
	}
	if usage, err := l.cfg.FS.Usage(); err == nil {
		segments += usage.FreeBytes / l.cfg.SegmentBytes
	}
	return max(0, l.room.Load()-l.cfg.ReserveBytes/4) + segments*(l.cfg.SegmentBytes-headerSize)
}

// Sync makes everything appended durable. After an error nothing more can be acknowledged: the kernel may
// have dropped what it could not write, and a second sync would not say so.
func (l *Log) Sync() error {
	if err := l.Err(); err != nil {
		return err
	}
	if l.unsynced == 0 {
		return nil
	}
	start := l.cfg.Clock.Now()
	if err := l.file.Sync(); err != nil {
		return l.fail(fmt.Errorf("sync %s: %w", l.active.path, err))
	}
	if l.cfg.Observer.Synced != nil {
		l.cfg.Observer.Synced(l.cfg.Clock.Now().Sub(start), l.unsynced)
	}
	l.synced()
	return nil
}

// synced notes that all that was appended is durable.
func (l *Log) synced() {
	l.unsynced = 0
	l.active.end.Store(l.pos)
	l.durable.Store(l.last.Load())
}

// roll makes a new active segment of size bytes, exactly or at least, whose chain begins after the frame with
// CRC prev. The order matters:
//
//  1. The old segment is synced, so that only the last segment can ever have a torn tail.
//  2. The prepared file gets its header and is synced: a segment under its own name has a header.
//  3. It is renamed and the folder synced, before a frame is written: else a power cut could take the name
//     away from entries that were acknowledged.
func (l *Log) roll(size int64, exactly bool, prev uint32) error {
	if err := l.Sync(); err != nil {
		return err
	}
	next, err := l.prep.take(l, size, exactly)
	if err != nil {
		return err
	}
	first := l.Last() + 1
	h := segmentHeader{id: l.cfg.LogID, first: first, prev: prev, size: next.size}
	if _, err := next.file.WriteAt(h.encode(), 0); err != nil {
		if noRoom(err) {
			l.prep.giveBack(next)
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
		closeFile(next.file)
		return l.fail(fmt.Errorf("write segment header: %w", err))
	}
	s := &segment{first: first, path: path.Join(l.cfg.Dir, segmentName(first)), size: next.size, prev: prev, file: next.file}
	s.end.Store(headerSize)
	if err := l.publish(s); err != nil {
		closeFile(next.file)
		return l.fail(err)
	}
	// An active segment without entries has the same first entry as its successor, so its file has just been
	// replaced. It must not stay in the list: dropping it would remove the new file.
	empty := l.active != nil && l.active.first == first
	l.mu.Lock()
	closed := l.closed
	switch {
	case closed:
	case empty:
		l.segments[len(l.segments)-1] = s
	default:
		l.segments = append(l.segments, s)
	}
	l.mu.Unlock()
	if closed { // Close did not see s
		s.discard()
		return ErrClosed
	}
	switch {
	case empty:
		l.active.discard()
	case l.active != nil:
		l.files.Add(1) // the old active file is now one that may be closed and opened again
		l.closeSomeFile()
	}
	if !empty {
		l.behind = Place{}
		if l.active != nil {
			l.behind = l.placeOf(l.pos)
		}
	}
	l.active, l.file, l.pos, l.prev = s, next.file, headerSize, prev
	l.room.Store(s.size - l.pos)
	l.prep.begin()
	if l.cfg.Observer.Rolled != nil {
		l.cfg.Observer.Rolled()
	}
	return nil
}

// publish gives a prepared segment its name, durably.
func (l *Log) publish(s *segment) error {
	if err := s.file.Sync(); err != nil {
		return fmt.Errorf("sync segment header: %w", err)
	}
	if err := l.cfg.FS.Rename(l.prep.ready, s.path); err != nil {
		return fmt.Errorf("name the new segment: %w", err)
	}
	if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
		return fmt.Errorf("sync folder %s: %w", l.cfg.Dir, err)
	}
	return nil
}

// Last is the index of the last entry appended, Durable that of the last one synced; 0 for an empty log.
func (l *Log) Last() entry.Index    { return entry.Index(l.last.Load()) }
func (l *Log) Durable() entry.Index { return entry.Index(l.durable.Load()) }

// Segments describes the segments, oldest first. There is always an active one, the last.
func (l *Log) Segments() []Segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	list := make([]Segment, len(l.segments))
	for i, s := range l.segments {
		list[i] = Segment{First: s.first, Bytes: s.size, Sealed: true}
		if i > 0 {
			list[i-1].Last = s.first - 1
		}
	}
	if n := len(list) - 1; n >= 0 {
		list[n].Sealed = false
		// Between a roll and the next Sync, durable is still before the first entry of the active segment.
		list[n].Last = max(l.Durable(), list[n].First-1)
	}
	return list
}

// DropBefore removes the segments at the head whose entries all have an index below i, and returns how
// many. The active segment stays. Reads that run are not disturbed.
func (l *Log) DropBefore(i entry.Index) (int, error) {
	l.dropMu.Lock()
	defer l.dropMu.Unlock()
	for n := 0; ; n++ {
		if err := l.Err(); err != nil {
			return n, err
		}
		s := l.droppable(i)
		switch {
		case s == nil && n == 0:
			return 0, nil
		case s == nil:
			return n, l.dropEvidence()
		}
		invariant.Check(s.path != l.activePath(), "dropping the active segment %s", s.path)
		s.dropping.Store(true)
		if err := l.cfg.FS.Remove(s.path); err != nil {
			s.dropping.Store(false)
			return n, fmt.Errorf("remove segment: %w", err)
		}
		// Each removal is made durable before the next: a power cut must not leave a hole in the sequence.
		if err := l.cfg.FS.SyncDir(l.cfg.Dir); err != nil {
			return n, l.fail(fmt.Errorf("sync folder %s: %w", l.cfg.Dir, err))
		}
		l.mu.Lock()
		if !l.closed {
			l.segments = append(l.segments[:0:0], l.segments[1:]...)
		}
		l.mu.Unlock()
		if s.discard() {
			l.files.Add(-1)
		}
		l.prep.retryNow()
	}
}

// dropEvidence removes what Repair and Cut kept of segments that lie before the log now.
func (l *Log) dropEvidence() error {
	names, err := l.cfg.FS.List(l.cfg.Dir)
	if err != nil {
		return fmt.Errorf("list the log: %w", err)
	}
	l.mu.RLock()
	head := entry.Index(0)
	if len(l.segments) > 0 {
		head = l.segments[0].first
	}
	l.mu.RUnlock()
	for _, name := range names {
		segment, ok := strings.CutSuffix(name, damagedSuffix)
		if first, named := parseSegmentName(segment); !ok || !named || first >= head {
			continue
		}
		if err := l.cfg.FS.Remove(path.Join(l.cfg.Dir, name)); err != nil {
			return fmt.Errorf("remove a damaged segment: %w", err)
		}
	}
	return nil
}

// droppable returns the oldest segment, if all its entries are below i.
func (l *Log) droppable(i entry.Index) *segment {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed || len(l.segments) < 2 || l.segments[1].first > i {
		return nil
	}
	return l.segments[0]
}

// activePath is the file of the active segment.
func (l *Log) activePath() string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if n := len(l.segments); n > 0 {
		return l.segments[n-1].path
	}
	return ""
}

// Full reports whether there is no room for entries without Frames.Reserve: no next segment can be
// prepared, and such entries have been refused since, or nothing but the reserve is left.
func (l *Log) Full() bool {
	room := l.room.Load() - frameHeader
	if l.refused.Load() && l.hasSealed() {
		room = 0 // one that is larger than the least was refused
	}
	return l.refuses(room, false) || l.prep.isFull() && (l.refused.Load() || room < l.cfg.ReserveBytes)
}

// NextFull reports whether there is no room for the segment after this one, or behind the next. Full comes to be true once it is
// needed.
func (l *Log) NextFull() bool {
	return l.prep.isFull() || l.hasSealed() && l.prep.current() == prepareReady && l.tight()
}

// Err returns why the log takes no more entries, or nil. The error wraps ErrFailed and its cause, or is
// ErrClosed.
func (l *Log) Err() error {
	if f := l.failed.Load(); f != nil {
		return f.err
	}
	return nil
}

// fail makes err sticky, and returns the first one that was.
func (l *Log) fail(err error) error {
	f := &failure{err: fmt.Errorf("%w: %w", ErrFailed, err)}
	if l.failed.CompareAndSwap(nil, f) {
		l.cfg.Logger.Error("the log failed and takes no more entries", "err", err)
	}
	l.prep.wake()
	return l.Err()
}

// Close ends the preparing goroutine and closes the files as their readers leave. What was appended and
// not synced may be lost. No Append or Sync may run at the same time.
func (l *Log) Close() error {
	l.failed.CompareAndSwap(nil, &failure{err: ErrClosed})
	l.prep.stop()
	l.mu.Lock()
	list := l.segments
	l.segments, l.closed = nil, true
	l.mu.Unlock()
	for _, s := range list {
		s.discard()
	}
	return nil
}

// find returns the segment named first, its last entry, and where that ends in the file; of the active
// segment, the last durable entry.
func (l *Log) find(first entry.Index) (s *segment, last entry.Index, end int64, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	i := sort.Search(len(l.segments), func(i int) bool { return l.segments[i].first >= first })
	switch {
	case l.closed:
		return nil, 0, 0, ErrClosed
	case i == len(l.segments) || l.segments[i].first != first:
		return nil, 0, 0, ErrSegmentGone
	case i+1 < len(l.segments):
		return l.segments[i], l.segments[i+1].first - 1, l.segments[i].size, nil
	}
	last = l.Durable() // before end: so end is not too low for it
	return l.segments[i], last, l.segments[i].end.Load(), nil
}

// closeSomeFile closes the unused sealed file that was used longest ago, when too many are open.
func (l *Log) closeSomeFile() {
	if l.files.Load() <= openFilesMax {
		return
	}
	l.mu.RLock()
	var oldest *segment
	var oldestUse uint64
	for _, s := range l.segments[:max(0, len(l.segments)-1)] {
		if idle, used := s.idle(); idle && (oldest == nil || used < oldestUse) {
			oldest, oldestUse = s, used
		}
	}
	l.mu.RUnlock()
	if oldest != nil && oldest.closeIdle() {
		l.files.Add(-1)
	}
}

// zeroRange writes zeros to [from, to) of f.
func zeroRange(f vfs.File, from, to int64) error {
	for from < to {
		n := min(to-from, int64(len(zeros)))
		if _, err := f.WriteAt(zeros[:n], from); err != nil {
			return err
		}
		from += n
	}
	return nil
}
