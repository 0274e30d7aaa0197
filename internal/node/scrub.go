package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/index"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

const (
	// DefaultScrubWithin is how long it takes at most to read all of the log again.
	DefaultScrubWithin = 24 * time.Hour
	// scrubRate is how many bytes a second are read at least; more where the log is so large that it would take too long.
	scrubRate = 4 << 20
	// scrubFirst is how long after the start the first pass begins: a start has other things to read.
	scrubFirst = time.Minute
	// scrubHaste is how much faster it reads after a read has met damage, scrubHasteEvery how often at most: clients
	// may ask for a damaged record over and over.
	scrubHaste      = 8
	scrubHasteEvery = time.Hour
	// scrubWait is the shortest pause: shorter ones are saved up.
	scrubWait = 10 * time.Millisecond
	// renewEvery is how often it is looked whether a damaged snapshot can be replaced, if that could not be done at once.
	renewEvery = 5 * time.Second
	// damagesMax is how many places are remembered, and how many stretches of records for each.
	damagesMax = 100
	// scrubPiece is how much of a damaged segment is read at a time.
	scrubPiece = 64 << 10
)

// scrubber reads the log and the snapshots again and again, slowly, to find damage while there is somebody, or a backup, to
// get back from what is lost. One goroutine does all of it.
type scrubber struct {
	n      *Node
	report *scrubReport
	rate   int64         // bytes a second at least
	first  time.Duration // before the first pass
	rest   time.Duration // between two passes at least
	within time.Duration // a pass takes no longer, as far as the disk allows
	spaced bool          // and the next one begins so long after it
	hurry  <-chan struct{}
	haste  time.Duration // hurries count once in so long

	// Of a cluster; nil elsewhere.
	repair func(segment entry.Index) // a sealed segment is damaged
	broken func()                    // the segment that is written to is damaged
	after  func()                    // called in each pass, behind the sealed segments

	// Of the snapshots, once one of them was found damaged; owned by run.
	bad  []entry.Index // the damaged ones that are still there
	want int           // good ones that are lacking
}

// Damage is a place where bytes are not as they were written.
type Damage struct {
	File     string           `json:"file"`
	Position int64            `json:"position"`
	Bytes    int64            `json:"bytes,omitempty"` // that cannot be read from there on
	First    entry.Index      `json:"first_entry,omitempty"`
	Last     entry.Index      `json:"last_entry,omitempty"`
	Reason   string           `json:"reason"`
	Records  []DamagedRecords `json:"records,omitempty"` // that are lost with it, as far as that is known
	FoundMS  int64            `json:"found_ms"`
}

// DamagedRecords are records of a topic that cannot be read.
type DamagedRecords struct {
	Topic string      `json:"topic"`
	First fact.Offset `json:"first_offset"`
	Last  fact.Offset `json:"last_offset"`
}

func (r DamagedRecords) String() string {
	return fmt.Sprintf("records %d to %d of topic %q", r.First, r.Last, r.Topic)
}

// ScrubStatus says how far the scrubber is.
type ScrubStatus struct {
	Running        bool    `json:"running"`
	ReadBytes      int64   `json:"read_bytes"` // of this pass, or the last one
	PassBytes      int64   `json:"pass_bytes"` // that it reads in all, about
	BytesPerSecond int64   `json:"bytes_per_second"`
	Passes         uint64  `json:"passes"` // that came to their end since the start
	LastSeconds    float64 `json:"last_pass_seconds"`
	LastMS         int64   `json:"last_pass_ms"` // when it ended; 0 for none
	Found          uint64  `json:"damage_found"` // places, since the start
}

// scrubReport is what was found. It outlives the lives of a node in a cluster.
type scrubReport struct {
	mu      sync.Mutex
	status  ScrubStatus
	damages []Damage // the newest last
	// needs reports whether a file is still there, or ought to be; nil while no scrubber runs.
	needs func(file string) bool
}

// status and known damages, for others to read. Those of files that have gone are forgotten.
func (r *scrubReport) get() (ScrubStatus, []Damage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.needs != nil {
		r.damages = slices.DeleteFunc(r.damages, func(d Damage) bool { return !r.needs(d.File) })
	}
	return r.status, slices.Clone(r.damages)
}

func (r *scrubReport) change(f func(*ScrubStatus)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.status)
}

// found replaces what is known of a file, and returns what is new.
func (r *scrubReport) found(file string, now []Damage) (fresh []Damage) {
	return r.replace(func(name string) bool { return name == file }, now)
}

// foundIn replaces what is known of the segments that begin at first to last, whose files may be missing, and returns what is
// new.
func (r *scrubReport) foundIn(first, last entry.Index, now []Damage) (fresh []Damage) {
	return r.replace(func(name string) bool {
		segment, ok := segmentOf(name)
		return ok && first <= segment && segment <= last
	}, now)
}

// replace replaces what is known of some files, and returns what is new.
func (r *scrubReport) replace(of func(file string) bool, now []Damage) (fresh []Damage) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range now {
		at := slices.IndexFunc(r.damages, func(d Damage) bool { return d.File == now[i].File && d.Position == now[i].Position })
		if at >= 0 {
			now[i].FoundMS = r.damages[at].FoundMS
			continue
		}
		fresh = append(fresh, now[i])
		r.status.Found++
	}
	r.damages = slices.DeleteFunc(r.damages, func(d Damage) bool { return of(d.File) })
	r.damages = append(r.damages, now...)
	if n := len(r.damages) - damagesMax; n > 0 {
		r.damages = slices.Delete(r.damages, 0, n)
	}
	return fresh
}

// tell sets needs.
func (r *scrubReport) tell(needs func(file string) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.needs = needs
}

// segmentOf returns the segment whose file has a name.
func segmentOf(file string) (first entry.Index, ok bool) {
	number, ok := strings.CutSuffix(path.Base(file), ".seg")
	if !ok {
		return 0, false
	}
	index, err := strconv.ParseUint(number, 10, 64)
	return entry.Index(index), err == nil
}

// needs reports whether a file is needed: a segment that was not dropped, there or not, or a snapshot that is there.
func (n *Node) needs(file string) bool {
	if segment, ok := segmentOf(file); ok {
		list := n.log.Segments()
		return len(list) > 0 && segment >= list[0].First
	}
	_, err := n.fs.Size(file)
	return !errors.Is(err, fs.ErrNotExist)
}

// scrubbing is the scrubber of a node that is in no cluster, which runs as long as the node serves.
type scrubbing struct {
	met     chan struct{} // capacity 1: a read has met damage
	end     context.CancelFunc
	stopped sync.WaitGroup
}

// corruptMet is called when a read has met damage.
func (g *scrubbing) corruptMet() {
	select {
	case g.met <- struct{}{}:
	default:
	}
}

// startScrub begins to scrub, unless the node is a life in a cluster, which sees to it itself.
func (n *Node) startScrub() {
	if n.cfg.Role == InCluster || n.cfg.ScrubWithin < 0 {
		return
	}
	ctx, end := context.WithCancel(context.Background())
	n.scrubbing.end = end
	s := &scrubber{n: n, report: n.scrubs, rate: scrubRate, first: scrubFirst, within: n.cfg.ScrubWithin, spaced: true,
		hurry: n.scrubbing.met, haste: scrubHasteEvery}
	n.scrubbing.stopped.Go(func() { s.run(ctx) }) // ended and awaited by endScrub
}

func (n *Node) endScrub() {
	if n.scrubbing.end != nil {
		n.scrubbing.end()
		n.scrubbing.stopped.Wait()
	}
}

// run makes one pass after the other until ctx ends.
func (s *scrubber) run(ctx context.Context) {
	s.report.tell(s.n.needs)
	defer s.report.tell(nil)
	clock := s.n.cfg.Clock
	timer := clock.NewTimer(s.first)
	defer timer.Stop()
	soon := clock.NewTimer(renewEvery)
	defer soon.Stop()
	hurried := clock.Monotonic() - s.haste
	for pause, haste := s.first, int64(1); ; {
		if pause > 0 {
			timer.Reset(pause)
			for waiting := true; waiting; {
				haste = 1
				renew := (<-chan time.Time)(nil)
				if len(s.bad) > 0 || s.want > 0 {
					soon.Reset(renewEvery)
					renew = soon.C()
				}
				select {
				case <-renew:
					s.renew()
				case <-ctx.Done():
					return
				case <-s.hurry:
					if now := clock.Monotonic(); now-hurried >= s.haste {
						hurried, haste, waiting = now, scrubHaste, false
					}
				case <-timer.C():
					waiting = false
				}
			}
		}
		begun := clock.Monotonic()
		s.pass(ctx, haste)
		if ctx.Err() != nil {
			return
		}
		if pause = s.rest; s.spaced {
			pause = max(pause, s.within-(clock.Monotonic()-begun))
		}
		pause = max(pause, time.Second)
	}
}

// pass reads everything once.
func (s *scrubber) pass(ctx context.Context, haste int64) {
	n, clock := s.n, s.n.cfg.Clock
	begun := clock.Monotonic()
	segments := n.log.Segments()
	total := s.total(segments)
	rate := s.rate
	if s.within > 0 {
		rate = max(rate, int64(float64(total)/s.within.Seconds()))
	}
	rate *= haste
	s.report.change(func(r *ScrubStatus) {
		r.Running, r.ReadBytes, r.PassBytes, r.BytesPerSecond = true, 0, total, rate
	})
	defer s.report.change(func(r *ScrubStatus) { r.Running = false })
	p := &pacing{s: s, rate: rate}
	for _, g := range segments {
		if g.Sealed && ctx.Err() == nil && s.sealed(ctx, g, p) && s.repair != nil {
			s.repair(g.First)
		}
	}
	if ctx.Err() == nil && s.after != nil {
		s.after()
	}
	if ctx.Err() == nil {
		s.active(ctx, p)
	}
	if ctx.Err() == nil {
		s.snapshots(ctx, p)
	}
	if ctx.Err() != nil {
		return
	}
	s.report.change(func(r *ScrubStatus) {
		r.Passes++
		r.LastSeconds, r.LastMS = (clock.Monotonic() - begun).Seconds(), clock.Now().UnixMilli()
	})
}

// total is how many bytes a pass reads, about.
func (s *scrubber) total(segments []wal.Segment) (total int64) {
	for _, g := range segments {
		total += g.Bytes
	}
	if files, err := snapshot.Files(s.n.fs, snapshotDir); err == nil {
		for _, f := range files {
			total += f.Bytes
		}
	}
	return total
}

// pacing makes reading as slow as it shall be.
type pacing struct {
	s    *scrubber
	rate int64 // bytes a second
	read int64 // since the last pause
}

// took is called after so many bytes were read.
func (p *pacing) took(ctx context.Context, bytes int) error {
	p.s.report.change(func(r *ScrubStatus) { r.ReadBytes += int64(bytes) })
	p.read += int64(bytes)
	if pause := time.Duration(float64(p.read) / float64(p.rate) * float64(time.Second)); pause > scrubWait {
		p.read = 0
		timer := p.s.n.cfg.Clock.NewTimer(pause)
		defer timer.Stop()
		select {
		case <-timer.C():
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// sealed reads a sealed segment, and reports whether it is damaged.
func (s *scrubber) sealed(ctx context.Context, g wal.Segment, p *pacing) (damaged bool) {
	err := s.n.log.VerifySegment(ctx, g.First, func(bytes int) error { return p.took(ctx, bytes) })
	switch {
	case err == nil:
		s.report.foundIn(g.First, g.Last, nil)
		return false
	case ctx.Err() != nil, errors.Is(err, wal.ErrSegmentGone), errors.Is(err, wal.ErrMismatch), errors.Is(err, wal.ErrClosed), passing(err):
		return false
	}
	s.damaged(g, err)
	return true
}

// active reads what is applied of the segment that is written to.
func (s *scrubber) active(ctx context.Context, p *pacing) {
	list := s.n.log.Segments()
	b := s.n.broker.Load()
	if len(list) == 0 || b == nil {
		return
	}
	g, to := list[len(list)-1], b.Applied()
	cursor := s.n.log.NewCursor(g.First)
	defer cursor.Close()
	f := new(wal.Frames)
	for {
		_, err := cursor.Next(f, to, applyBytes)
		if errors.As(err, new(*wal.CorruptionError)) {
			s.damaged(g, err)
			if s.broken != nil {
				s.broken()
			}
			return
		}
		if err == io.EOF {
			s.report.foundIn(g.First, math.MaxUint64, nil)
		}
		if err != nil {
			return
		}
		if p.took(ctx, f.Bytes()) != nil {
			return
		}
	}
}

// snapshots reads the snapshots. Those that are damaged are replaced.
func (s *scrubber) snapshots(ctx context.Context, p *pacing) {
	n := s.n
	files, err := snapshot.Files(n.fs, snapshotDir)
	if err != nil {
		return
	}
	good, bad := 0, []entry.Index(nil)
	for _, f := range files {
		name := snapshotFile(f.Index)
		_, err := snapshot.Verify(paced{n.fs, func(bytes int) error { return p.took(ctx, bytes) }}, snapshotDir, n.identity.logID(), f.Index)
		var now []Damage
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			good++
		case errors.Is(err, snapshot.ErrCorrupt):
			bad = append(bad, f.Index)
			now = []Damage{{File: name, Reason: err.Error(), FoundMS: n.cfg.Clock.Now().UnixMilli()}}
		default:
			continue // it was pruned, or cannot be read now
		}
		for _, d := range s.report.found(name, now) {
			n.logger.Error("a snapshot is damaged; a new one is taken", "file", d.File, "err", d.Reason)
		}
	}
	if s.bad = bad; len(bad) == 0 || n.keeper.broker == nil {
		s.want = 0
		return
	}
	s.want = snapshotsKept - good
	s.renew()
}

// renew brings two good snapshots about again, and removes the damaged ones: nothing needs them. What cannot be done yet is
// done when it is called again. For one more snapshot there has to be one more entry; a node that leads logs it.
func (s *scrubber) renew() {
	n, k := s.n, s.n.keeper
	k.mu.Lock()
	before := entry.Index(k.newest.Load())
	again := slices.Contains(s.bad, before)
	if again {
		k.newest.Store(0) // so that it is written once more, if nothing was logged since
	}
	k.mu.Unlock()
	if again || s.want > 0 {
		if err := k.snapshot(); err != nil {
			n.fail(err)
			return
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	now := entry.Index(k.newest.Load())
	if now == 0 { // there is no room for it
		k.newest.Store(uint64(before))
		return
	}
	if again || now != before {
		s.bad = slices.DeleteFunc(s.bad, func(index entry.Index) bool { return index == now })
		s.report.found(snapshotFile(now), nil)
		s.want--
	}
	// Also while others read the history: they cannot use it either.
	s.bad = slices.DeleteFunc(s.bad, func(index entry.Index) bool {
		err := n.fs.Remove(snapshotFile(index))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			n.logger.Warn("a damaged snapshot cannot be removed", "file", snapshotFile(index), "err", err)
			return false
		}
		return true
	})
	if err := n.fs.SyncDir(snapshotDir); err != nil {
		n.logger.Warn("the removal of a damaged snapshot is not durable", "err", err)
	}
	if s.want > 0 && now == k.broker.Applied() {
		n.cleaner.advance.Store(true)
		n.cleaner.wake()
	}
}

func snapshotFile(index entry.Index) string {
	return path.Join(snapshotDir, fmt.Sprintf("%020d.snap", uint64(index)))
}

// paced is a file system whose files are read slowly.
type paced struct {
	vfs.FS
	took func(bytes int) error
}

// OpenRead implements vfs.FS.
func (f paced) OpenRead(name string) (vfs.File, error) {
	file, err := f.FS.OpenRead(name)
	if err != nil {
		return nil, err
	}
	return pacedFile{vfs.Once(file), f.took}, nil
}

type pacedFile struct {
	vfs.File
	took func(bytes int) error
}

// ReadAt implements vfs.File.
func (f pacedFile) ReadAt(b []byte, off int64) (int, error) {
	n, err := f.File.ReadAt(b, off)
	if stop := f.took(n); stop != nil {
		return n, stop
	}
	return n, err
}

// damaged finds out all that is damaged in a segment, and says what is new. why is what was met first.
func (s *scrubber) damaged(g wal.Segment, why error) {
	n, now := s.n, s.n.cfg.Clock.Now().UnixMilli()
	list := s.examine(g)
	corrupt := (*wal.CorruptionError)(nil)
	switch {
	case len(list) > 0:
	case errors.As(why, &corrupt):
		list = []Damage{{Position: corrupt.Offset, First: corrupt.Index, Last: corrupt.Index, Reason: corrupt.Reason}}
	default:
		list = []Damage{{Reason: why.Error()}}
	}
	for i := range list {
		if list[i].FoundMS = now; list[i].File == "" {
			list[i].File = segmentFile(g.First)
		}
	}
	last := g.Last
	if !g.Sealed {
		last = math.MaxUint64
	}
	for _, d := range s.report.foundIn(g.First, last, list) {
		records := ""
		for i, r := range d.Records {
			if i > 0 {
				records += ", "
			}
			records += r.String()
		}
		segment, _ := segmentOf(d.File)
		n.logger.Error("the scrubber has found damage in the log", "segment", uint64(segment), "file", d.File, "position", d.Position,
			"first", uint64(d.First), "last", uint64(d.Last), "records", records, "err", d.Reason)
	}
}

// examine reads all of a segment, over what is damaged, and finds out by the index which records are lost.
func (s *scrubber) examine(g wal.Segment) (list []Damage) {
	n := s.n
	if s.gone(g.First) {
		return []Damage{s.missing(g, g.First)}
	}
	ends := map[int64]int64{} // of the holes between good frames, by where they begin
	at := int64(segmentHead)
	damage, err := n.log.ScanSegment(g.First, func(e *entry.Entry, p entry.Position) error {
		if p.Offset > at {
			ends[at] = p.Offset
		}
		at = p.End()
		return nil
	})
	if err != nil {
		return nil
	}
	for _, d := range damage {
		one := Damage{Position: d.Offset, First: d.First, Last: d.Last, Reason: d.Reason}
		if d.First > d.Last || d.First == 0 {
			one.First, one.Last = 0, 0
			list = append(list, one)
			continue
		}
		if d.Last == g.Last && d.First > g.First && s.gone(d.First) && s.unused(g, d.Offset) {
			list = append(list, s.missing(g, d.First))
			continue
		}
		end, known := ends[d.Offset]
		if !known {
			end = g.Bytes
		}
		one.Bytes = end - d.Offset
		one.Records = n.lostIn(g.First, d.Offset, end)
		list = append(list, one)
	}
	return list
}

// gone reports whether there is no file for a segment that begins with an entry.
func (s *scrubber) gone(first entry.Index) bool {
	_, err := s.n.fs.Size(segmentFile(first))
	return errors.Is(err, fs.ErrNotExist)
}

// unused reports whether nothing was ever written to a segment from a position on: it ends there, and what comes then stood in
// another file.
func (s *scrubber) unused(g wal.Segment, at int64) bool {
	b := make([]byte, scrubPiece)
	for at < g.Bytes {
		n, err := s.n.log.ReadAt(b[:min(scrubPiece, g.Bytes-at)], g.First, at)
		if n == 0 || err != nil && err != io.EOF {
			return false
		}
		for _, c := range b[:n] {
			if c != 0 {
				return false
			}
		}
		at += int64(n)
	}
	return true
}

// missing is the damage that the files of the segments from first to the end of g are missing, and the entries in them.
func (s *scrubber) missing(g wal.Segment, first entry.Index) Damage {
	return Damage{File: segmentFile(first), First: first, Last: g.Last, Reason: "the file is missing", Records: s.n.lostWith(first, g.Last)}
}

// lostWith returns the records in segments whose files are missing, as far as index files tell of them: those that live, and
// have no copy elsewhere.
func (n *Node) lostWith(first, last entry.Index) (lost []DamagedRecords) {
	names, err := n.fs.List(logDir)
	if err != nil {
		return nil
	}
	slices.Sort(names)
	for _, name := range names {
		digits, ours := strings.CutSuffix(name, path.Ext(index.FileName(0)))
		number, err := strconv.ParseUint(digits, 10, 64)
		if segment := entry.Index(number); !ours || err != nil || segment < first || segment > last || name != index.FileName(segment) {
			continue
		}
		x := n.newIndex(n.identity.logID())
		var held []index.Held
		if err = x.Load(entry.Index(number)); err == nil {
			held, err = x.Within(entry.Index(number), 0, math.MaxInt64)
		}
		if err != nil {
			n.logger.Warn("an index file does not tell of all records of a missing segment", "segment", number, "err", err)
		}
		for _, h := range held {
			for off := max(h.First, n.startOf(h.Topic)); off <= h.Last; off++ {
				if where, known := n.index.SegmentOf([]byte(h.Topic), off); known && (where < first || where > last) {
					continue
				}
				if lost = addLost(lost, h.Topic, off, off); len(lost) == damagesMax {
					return lost
				}
			}
		}
	}
	return lost
}

// addLost adds records to those that are lost.
func addLost(lost []DamagedRecords, topic string, first, last fact.Offset) []DamagedRecords {
	if k := len(lost) - 1; k >= 0 && lost[k].Topic == topic && lost[k].Last+1 == first {
		lost[k].Last = last
		return lost
	}
	return append(lost, DamagedRecords{topic, first, last})
}

// startOf returns where a topic starts, or the end of one that was deleted.
func (n *Node) startOf(topic string) (start fact.Offset) {
	if b := n.broker.Load(); b != nil {
		b.View(func(s *state.State) { start = startOf(s, topic) })
	}
	return start
}

// lostIn returns the records that the index knows in a part of a segment which cannot be read: those that live, and have no
// newer copy elsewhere.
func (n *Node) lostIn(segment entry.Index, from, to int64) (lost []DamagedRecords) {
	held, err := n.index.Within(segment, from, to)
	if err != nil {
		n.logger.Warn("the index does not tell of all records that are damaged", "segment", uint64(segment), "err", err)
	}
	if len(held) == 0 {
		return nil
	}
	// A run may hold more than one frame, and good ones.
	good := map[string]*Spans{}
	if _, err := n.log.ScanSegment(segment, func(e *entry.Entry, p entry.Position) error {
		if !slices.ContainsFunc(held, func(h index.Held) bool { return p.Offset < h.End && p.End() > h.Pos }) {
			return nil
		}
		if r, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload); ok && err == nil {
			spans := good[string(r.Topic)]
			if spans == nil {
				spans = new(Spans)
				good[string(r.Topic)] = spans
			}
			spans.Add(r.Base, r.Base+fact.Offset(r.Count))
		}
		return nil
	}); err != nil {
		return nil
	}
	for _, h := range held {
		start := max(h.First, n.startOf(h.Topic))
		missing := Spans{}
		if start <= h.Last {
			missing = Spans{{start, h.Last + 1}}
		}
		if spans := good[h.Topic]; spans != nil && start <= h.Last {
			missing = spans.Missing(start, h.Last+1)
		}
		for _, m := range missing {
			if lost = addLost(lost, h.Topic, m.From, m.To-1); len(lost) == damagesMax {
				return lost
			}
		}
	}
	return lost
}

// gauges tells what the scrubber does.
func (r *scrubReport) gauges(set func(name string, value float64)) {
	status, damages := r.get()
	set("scrub_damage_total", float64(status.Found))
	set("scrub_damaged_places", float64(len(damages)))
	set("scrub_read_bytes", float64(status.ReadBytes))
	set("scrub_pass_bytes", float64(status.PassBytes))
	set("scrub_pass_seconds", status.LastSeconds)
	set("scrub_last_pass_timestamp_seconds", float64(status.LastMS)/1000)
}
