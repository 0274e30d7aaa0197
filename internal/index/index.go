// Package index knows where the records of a topic lie in the log: it maps a topic and an offset to a run,
// a stretch of a segment file that holds consecutive frames of that topic. A record may stand in the log more
// than once, because it was kept; the copy in the latest segment counts, whatever the order in which segments
// become known.
//
// It guarantees that a run it returns is one that was added, for that topic and that log, or an error: index
// files are checksummed, their identity (log, segment, topic, position) included. It is derived: whatever
// is missing or damaged is made again from the segments, so an index file that cannot be written costs
// memory and nothing else here (package node stops all writes when the reason is a failing disk). It never reads the log, knows nothing of what records
// hold, and starts no goroutine.
//
// Memory holds the runs of the active segment, those of sealed segments whose index file Flush has not yet
// written, and for all others one small entry per topic and segment. The rest is in one index file beside
// each sealed segment (docs/format/index.md), read on demand through a bounded cache.
//
// The broker calls Add for each applied entry that appended or kept records and Find for each fetch; a
// maintenance goroutine of node calls Flush, Live and Drop. All methods may be called concurrently, Add and Begin by one
// goroutine at a time. This is where the way of a publish ends, and where a fetch learns what to ask of
// package wal.
package index

import (
	"sync"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs"
)

// CacheBytesDefault is the default of Config.CacheBytes.
const CacheBytesDefault = 4 << 20

// Config says where the index files are and how much memory to use.
type Config struct {
	FS    vfs.FS
	Dir   string // folder of the segments and their index files; default "log"
	LogID entry.LogID
	// CacheBytes bounds the memory for runs read back from index files. Default 4 MiB. Too little costs a
	// file read for most fetches of old records.
	CacheBytes int64
}

// Index is the index of one log.
type Index struct {
	cfg   Config
	cache *cache

	// maintenance lets one of Load, Rebuild, Flush and Drop run at a time. It is held across file I/O, which
	// Add and Find never wait for: they take only mu.
	maintenance sync.Mutex

	mu     sync.RWMutex
	topics map[string]*topic
	// segments that are known, in log order; the last one is the active one once Begin or Add named it.
	segments []*segment
	// active is the segment that Add adds to; nil before the first.
	active *segment
	// oldest: segments with a lower number were dropped.
	oldest entry.Index
}

// New returns an empty index.
func New(cfg Config) *Index {
	if cfg.Dir == "" {
		cfg.Dir = "log"
	}
	if cfg.CacheBytes == 0 {
		cfg.CacheBytes = CacheBytesDefault
	}
	return &Index{cfg: cfg, cache: newCache(cfg.CacheBytes), topics: make(map[string]*topic)}
}

// Begin says that the log has gone on to a segment. Add does so by itself; only a segment without any record
// (group offsets alone, say) needs Begin, so that Alive and Drop know it. A segment that is known already is
// no news; one that is new must come after all others, and seals the one before.
func (x *Index) Begin(segment entry.Index) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.begin(segment)
}

func (x *Index) begin(number entry.Index) {
	if x.active != nil && x.active.number == number {
		return
	}
	if n := len(x.segments); n > 0 && x.segments[n-1].number >= number {
		invariant.Check(false, "index: segment %d begins after segment %d", number, x.segments[n-1].number)
	}
	s := &segment{number: number}
	if x.active != nil {
		// The next segment is likely to hold the same topics.
		s.topics = make([]*topic, 0, len(x.active.topics))
		s.lists = make([]list, 0, len(x.active.lists))
	}
	x.segments = append(x.segments, s)
	x.active = s
}

// Add records that the frame at p holds count records of the topic, from offset first on. Frames are added in
// log order; their offsets may come in any order. From now on this is where these records are, wherever else
// they are. A position in a new segment seals the one before.
func (x *Index) Add(name string, first fact.Offset, count int, p entry.Position) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.begin(p.Segment)
	t := x.topics[name]
	if t == nil {
		if name == "" || len(name) > nameMax {
			invariant.Check(false, "index: a topic name of %d bytes", len(name))
		}
		t = &topic{name: name}
		x.topics[name] = t
	}
	t.add(x.active, first, count, p)
}

// SegmentOf returns the segment that holds the newest copy of a record; it reads nothing.
func (x *Index) SegmentOf(topic []byte, off fact.Offset) (entry.Index, bool) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	t := x.topics[string(topic)]
	if t == nil {
		return 0, false
	}
	i := t.findFrom(off, x.oldest)
	if i == len(t.places) || t.places[i].first > off {
		return 0, false
	}
	return t.places[i].segment, true
}

// Find returns the run that holds a record, or, when there is none (a gap: damage, or what a restore jumped
// over), the first run of the topic after it. It returns ErrNone when the topic has nothing at or after the offset, and
// a *SegmentError when an index file that it needs cannot be used: after Rebuild of that segment it can be
// called again. The run may be in a segment that is dropped right after.
func (x *Index) Find(topic []byte, off fact.Offset) (Run, error) {
	for {
		r, b, err := x.lookup(topic, off)
		if b.segment == nil {
			return r, err
		}
		runs, err := x.block(b)
		if err == nil {
			// Never past the end: block has checked that the place's records are all there.
			return runs[findRun(runs, max(off, b.place.first))].in(b.place), nil
		}
		// Since lookup the segment may have been dropped, or rebuilt and its file written anew, or a later one has
		// got the record. Then what is known of the offset has changed, and the next round finds that.
		if _, again, _ := x.lookup(topic, off); again == b {
			return Run{}, &SegmentError{Segment: b.segment.number, Err: err}
		}
	}
}

// wanted is a block of an index file that is to be read.
type wanted struct {
	topic   *topic
	segment *segment
	place   place
}

// lookup finds what memory knows: the run itself, or, with a segment, the block of an index file that holds it.
func (x *Index) lookup(name []byte, off fact.Offset) (Run, wanted, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	t := x.topics[string(name)]
	if t == nil {
		return Run{}, wanted{}, ErrNone
	}
	i := t.findFrom(off, x.oldest)
	if i == len(t.places) {
		return Run{}, wanted{}, ErrNone
	}
	p := t.places[i]
	s := x.segment(p.segment)
	if p.size > 0 {
		return Run{}, wanted{t, s, p}, nil
	}
	runs := s.lists[p.at].runs
	return runs[findRun(runs, max(off, p.first))].in(p), wanted{}, nil
}

// segment returns a segment that a place names.
func (x *Index) segment(number entry.Index) *segment {
	if x.active != nil && x.active.number == number {
		return x.active
	}
	i, ok := searchSegment(x.segments, number)
	if !ok {
		invariant.Check(false, "index: a place names segment %d, which is not known", number)
	}
	return x.segments[i]
}
