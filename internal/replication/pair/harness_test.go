package pair

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

const (
	testSegment = 4 << 10
	testTimeout = 2 * time.Second
)

var testID = entry.LogID{0x6d, 0x71, 1, 2, 3}

// node names a node by one letter.
func node(letter byte) NodeID { return NodeID{letter, 15: 1} }

// bubbleClock is the virtual time of a synctest bubble, from when the clock was made.
type bubbleClock struct{ began time.Time }

func newBubbleClock() clock.Clock { return bubbleClock{time.Now()} }

func (c bubbleClock) Now() time.Time                       { return time.Now() }
func (c bubbleClock) Monotonic() time.Duration             { return time.Since(c.began) }
func (c bubbleClock) NewTimer(d time.Duration) clock.Timer { return clock.System{}.NewTimer(d) }

// queue is one direction of a pipe.
type queue struct {
	mu      sync.Mutex
	changed *sync.Cond
	packets [][]byte
	closed  bool // nothing comes any more
	gone    bool // nobody reads any more
	stuck   bool // nothing is taken: the writer waits
	waits   int  // writers that wait
	deaf    bool // what is written is lost
}

func newQueue() *queue {
	q := &queue{}
	q.changed = sync.NewCond(&q.mu)
	return q
}

func (q *queue) set(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
	q.changed.Broadcast()
}

// pipe is one end of a Link in memory. Writing does not wait, unless stuck.
type pipe struct{ in, out *queue }

func newPipe() (a, b *pipe) {
	one, other := newQueue(), newQueue()
	return &pipe{one, other}, &pipe{other, one}
}

func (p *pipe) Write(head, body []byte) error {
	q := p.out
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.stuck && !q.closed && !q.gone {
		q.waits++
		q.changed.Wait()
		q.waits--
	}
	if q.closed || q.gone {
		return io.ErrClosedPipe
	}
	if !q.deaf {
		q.packets = append(q.packets, slices.Concat(head, body))
		q.changed.Broadcast()
	}
	return nil
}

func (p *pipe) Read() ([]byte, error) {
	q := p.in
	q.mu.Lock()
	defer q.mu.Unlock()
	for !q.gone {
		if len(q.packets) > 0 {
			b := q.packets[0]
			q.packets = q.packets[1:]
			return b, nil
		}
		if q.closed {
			return nil, io.EOF
		}
		q.changed.Wait()
	}
	return nil, net.ErrClosed
}

func (p *pipe) Ready() bool {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	return len(p.in.packets) > 0
}

func (p *pipe) Close() error {
	p.in.set(func() { p.in.gone, p.in.packets = true, nil })
	p.out.set(func() { p.out.closed = true })
	return nil
}

// closed reports whether the other end was closed.
func (p *pipe) closed() bool {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	return p.in.closed
}

// memPromises keeps a promise in memory.
type memPromises struct {
	mu   sync.Mutex
	kept Promise
	made []Promise
	err  error                   // of the next SetPromise
	full func(next Promise) bool // there is no room for this one
}

func (p *memPromises) Promise() Promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

// room is there from now on.
func (p *memPromises) room() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.full = nil
}

func (p *memPromises) SetPromise(next Promise) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	if p.full != nil && p.full(next) {
		return fmt.Errorf("%w on purpose", wal.ErrFull)
	}
	p.kept = next
	p.made = append(p.made, next)
	return nil
}

// disk is the folder of one node, and what is open of it.
type disk struct {
	t    testing.TB
	mem  *memfs.FS
	fs   *faultfs.FS
	self NodeID
	memPromises
	segmentBytes int64
	log          *wal.Log // nil when there is none
}

func newDisk(t testing.TB, self NodeID) *disk {
	mem := memfs.New()
	for _, dir := range []string{"log", "snap", "cut"} {
		if err := mem.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
	}
	return &disk{t: t, mem: mem, fs: faultfs.New(mem), self: self, segmentBytes: testSegment}
}

func (d *disk) logConfig() wal.Config {
	return wal.Config{FS: d.fs, Clock: clock.NewManual(time.UnixMilli(1)), LogID: testID, SegmentBytes: d.segmentBytes, Inline: true}
}

// open opens the log, and makes it if there is none. One whose history has not come begins where the promise says.
func (d *disk) open() {
	d.t.Helper()
	cfg := d.logConfig()
	cfg.Create, cfg.From = true, d.Promise().First
	log, _, err := wal.Open(cfg, max(1, cfg.From)-1, nil)
	if err != nil {
		d.t.Fatal(err)
	}
	d.log = log
}

// reopen is a restart of the process.
func (d *disk) reopen() {
	d.t.Helper()
	d.log.Close()
	d.open()
}

// append adds entries to the log: of a term, with payloads that a letter decides, each with a write of its own.
func (d *disk) append(term entry.Term, letter byte, n int) {
	d.t.Helper()
	f := new(wal.Frames)
	for range n {
		fill(f, letter, d.log.Last()+1)
		if _, err := d.log.Append(f, term, 0); err != nil {
			d.t.Fatal(err)
		}
	}
	if err := d.log.Sync(); err != nil {
		d.t.Fatal(err)
	}
}

// fill makes f hold one entry. Those of capital letters are longer, and of Z much longer.
func fill(f *wal.Frames, letter byte, index entry.Index) {
	f.Reset()
	n := 150 + int(index%7)*10
	switch {
	case letter == 'Z':
		n += 40_000
	case letter < 'a':
		n += 100
	}
	f.End(append(f.Begin(fact.KindMarker, 1), strings.Repeat(string(letter), n)...))
}

// write makes the log from a description, such as "1a5 2b3": five entries of term 1, then three of term 2.
func (d *disk) write(spec string) {
	d.t.Helper()
	d.open()
	for _, part := range strings.Fields(spec) {
		n, err := strconv.Atoi(part[2:])
		if err != nil {
			d.t.Fatal(err)
		}
		d.append(entry.Term(part[0]-'0'), part[1], n)
	}
}

// describe is the reverse of write.
func (d *disk) describe() string {
	if d.log == nil {
		return "none"
	}
	var parts []string
	run, n := "", 0
	flush := func() {
		if n > 0 {
			parts = append(parts, fmt.Sprint(run, n))
		}
	}
	for _, g := range d.log.Segments() {
		damage, err := d.log.ScanSegment(g.First, func(e *entry.Entry, _ entry.Position) error {
			if next := fmt.Sprintf("%d%c", e.Term, e.Payload[0]); next != run {
				flush()
				run, n = next, 0
			}
			n++
			return nil
		})
		if err != nil || len(damage) > 0 {
			d.t.Errorf("segment %d: %v %v", g.First, damage, err)
		}
	}
	flush()
	if first := d.log.Segments()[0].First; first > 1 {
		parts = append([]string{fmt.Sprintf("from %d:", first)}, parts...)
	}
	return strings.Join(parts, " ")
}

// content is all that is in the folder, by name.
func (d *disk) content() map[string]string { return contentOf(d.t, d.mem) }

func contentOf(t testing.TB, fsys *memfs.FS) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, dir := range []string{".", "log", "snap", "cut"} {
		names, err := fsys.List(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			files[path.Join(dir, name)] = readFile(t, fsys, path.Join(dir, name))
		}
	}
	return files
}

func readFile(t testing.TB, fsys vfs.FS, name string) string {
	t.Helper()
	f, err := fsys.OpenRead(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return string(b)
}

// replica is a follower's folder with the fold left out: what is committed counts as applied.
type replica struct {
	*disk
	id entry.LogID

	mu      sync.Mutex
	applied entry.Index
	cuts    []string
	resets  int
	wholes  int
	spoil   map[entry.Index]int // how often a file of the history is yet to arrive damaged
	holdOn  chan struct{}       // not nil: Whole waits until it is closed
}

var _ Replica = (*replica)(nil)

func newReplica(d *disk) *replica {
	r := &replica{disk: d}
	if d.log != nil {
		r.id = testID
	}
	return r
}

func (r *replica) LogID() entry.LogID { return r.id }
func (r *replica) Log() *wal.Log      { return r.log }

func (r *replica) Reset(id entry.LogID, begin wal.Place) error {
	if r.log != nil {
		r.log.Close()
		r.log = nil
	}
	for _, dir := range []string{"log", "snap"} {
		names, err := r.fs.List(dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := r.fs.Remove(path.Join(dir, name)); err != nil {
				return err
			}
		}
	}
	cfg := r.logConfig()
	cfg.LogID, cfg.Create, cfg.Begin, cfg.From = id, true, &begin, begin.Segment
	log, _, err := wal.Open(cfg, begin.Segment-1, nil)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.id, r.log, r.applied = id, log, 0
	r.resets++
	return nil
}

func (r *replica) SaveCut(after entry.Index) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	name := fmt.Sprintf("cut/%d-%d", after+1, r.log.Last())
	r.cuts = append(r.cuts, strings.TrimPrefix(name, "cut/"))
	f, err := r.fs.Create(name)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func (r *replica) Commit(last entry.Index) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.applied = max(r.applied, last)
}

func (r *replica) Applied() entry.Index {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.applied
}

func (r *replica) Forget(before entry.Index) error {
	names, err := r.fs.List("log")
	if err != nil {
		return err
	}
	for _, name := range names {
		number, _, _ := strings.Cut(name, ".")
		if first, err := strconv.ParseUint(number, 10, 64); err == nil && first > 0 && entry.Index(first) < before {
			if err := r.fs.Remove(path.Join("log", name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// spoilt reports whether the file that just came is to count as damaged.
func (r *replica) spoilt(id entry.Index) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.spoil[id] == 0 {
		return false
	}
	r.spoil[id]--
	return true
}

func (r *replica) Segment(first, last entry.Index, bytes int64) (Import, error) {
	im, err := r.log.Import(first, bytes)
	if err != nil {
		return nil, err
	}
	return &segmentImport{Import: im, r: r, first: first, last: last}, nil
}

type segmentImport struct {
	*wal.Import
	r           *replica
	first, last entry.Index
}

func (im *segmentImport) Finish() error {
	if im.r.spoilt(im.first) {
		im.Import.Close()
		im.r.fs.Remove(fmt.Sprintf("log/%020d.seg.part", im.first))
		return fmt.Errorf("%w on purpose", ErrDamaged)
	}
	_, err := im.Import.Finish(im.last, nil)
	return err
}

func (im *segmentImport) Close() { im.Import.Close() }

func (r *replica) Snapshot(index entry.Index, bytes int64) (Import, error) {
	name := fmt.Sprintf("snap/%d", index)
	f, err := r.fs.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = r.fs.Create(name)
	}
	if err != nil {
		return nil, err
	}
	have, err := f.Size()
	return &fileImport{r: r, name: name, f: f, have: have}, err
}

// fileImport receives a snapshot: any bytes, with their CRC at the end.
type fileImport struct {
	r    *replica
	name string
	f    vfs.File
	have int64
}

func (im *fileImport) Have() int64 { return im.have }

func (im *fileImport) Write(p []byte) error {
	_, err := im.f.WriteAt(p, im.have)
	im.have += int64(len(p))
	return err
}

func (im *fileImport) Finish() error {
	b := make([]byte, im.have)
	if _, err := im.f.ReadAt(b, 0); err != nil && err != io.EOF {
		return err
	}
	if im.r.spoilt(0) || len(b) < 4 || string(sealed(b[:len(b)-4])) != string(b) {
		im.f.Close()
		return errors.Join(ErrDamaged, im.r.fs.Remove(im.name))
	}
	return im.f.Sync()
}

func (im *fileImport) Close() { im.f.Close() }

// sealed returns b with its CRC behind it.
func sealed(b []byte) []byte {
	crc := crc32.Checksum(b, castagnoli)
	return append(slices.Clone(b), byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24))
}

func (r *replica) Whole() error {
	r.mu.Lock()
	r.wholes++
	wait := r.holdOn
	r.mu.Unlock()
	if wait != nil {
		<-wait
	}
	return r.log.Prepend()
}

// recorder is an applier that notes what it is told.
type recorder struct {
	mu        sync.Mutex
	applied   []entry.Index
	committed entry.Index
	leads     int
	told      []string // Lead and Suspend, in order
	failed    error
	refuse    error // of Apply
}

func (r *recorder) note(what func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what()
}

func (r *recorder) Committed(last entry.Index) { r.note(func() { r.committed = last }) }
func (r *recorder) Apply(f *wal.Frames) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse != nil {
		return r.refuse
	}
	for i := range f.Len() {
		r.applied = append(r.applied, f.Entry(i).Index)
	}
	r.committed = f.Last()
	return nil
}

func (r *recorder) Lead()                 { r.note(func() { r.leads++; r.told = append(r.told, "lead") }) }
func (r *recorder) Suspend(reason string) { r.note(func() { r.told = append(r.told, reason) }) }
func (r *recorder) Follow(reason string)  { r.note(func() { r.told = append(r.told, reason) }) }
func (r *recorder) Failed(err error)      { r.note(func() { r.failed = err }) }

// known is the last entry that the applier knows to be committed.
func (r *recorder) known() entry.Index {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.committed
}

func (r *recorder) lastTold() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.told) == 0 {
		return ""
	}
	return r.told[len(r.told)-1]
}

// testHistory is the history of a leader.
type testHistory struct {
	mu       sync.Mutex
	snapshot []byte
	index    entry.Index
	held     int
	holds    int
}

func (h *testHistory) Hold() (Snapshot, func(), error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.held++
	h.holds++
	var s Snapshot
	if len(h.snapshot) > 0 {
		s = Snapshot{Index: h.index, Bytes: int64(len(h.snapshot)), File: strings.NewReader(string(h.snapshot))}
	}
	return s, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.held--
	}, nil
}

// world is a pair in a bubble of virtual time. Each dial gets what connect makes of it.
type world struct {
	t     *testing.T
	clock clock.Clock

	a       *disk // the leader's
	leader  *Leader
	applier *recorder
	history *testHistory
	ledTo   entry.Index // not 0: the leader has led before, up to here
	fatal   []error

	b        *disk // the follower's
	replica  *replica
	follower *Follower
	synced   int64 // bytes of the history that it has written
	serving  sync.WaitGroup

	mu    sync.Mutex
	dial  func() (Link, error) // nil: to the follower
	dials int
	link  *pipe // the leader's end of the newest
}

func newWorld(t *testing.T) *world {
	return &world{t: t, clock: newBubbleClock(), a: newDisk(t, node('a')), b: newDisk(t, node('b')), applier: new(recorder), history: new(testHistory)}
}

// inBubble runs a test in virtual time. It fails when a goroutine stays.
func inBubble(t *testing.T, run func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		defer w.close()
		run(t, w)
	})
}

func (w *world) config(d *disk) Config {
	return Config{Self: d.self, Promises: d, Clock: w.clock, Timeout: testTimeout,
		Fatal: func(err error) { w.mu.Lock(); defer w.mu.Unlock(); w.fatal = append(w.fatal, err) }}
}

// lead starts the leader on what disk a has.
func (w *world) lead(epoch entry.Term, committed entry.Index) {
	w.t.Helper()
	if w.a.log == nil {
		w.a.open()
	}
	if p := w.a.Promise(); p.Epoch < epoch {
		w.a.SetPromise(Promise{Epoch: epoch, Leader: w.a.self})
	}
	w.leader = NewLeader(LeaderConfig{
		Config: w.config(w.a), LogID: testID, Epoch: epoch, Log: w.a.log, Applier: w.applier, Committed: committed, History: w.history,
		Dial: w.connect,
	})
	if w.ledTo > 0 {
		w.leader.led, w.leader.committed = true, w.ledTo
	}
	if err := w.leader.Start(); err != nil {
		w.t.Fatal(err)
	}
}

// follow makes the follower on what disk b has.
func (w *world) follow(committed entry.Index) {
	w.replica = newReplica(w.b)
	cfg := w.config(w.b)
	cfg.Observer.Synced = func(bytes int64) { w.synced += bytes }
	w.follower = NewFollower(FollowerConfig{Config: cfg, Replica: w.replica, Committed: committed})
}

// serve connects to the follower.
func (w *world) serve() *pipe {
	mine, theirs := newPipe()
	f := w.follower
	w.serving.Go(func() { f.Serve(theirs) })
	return mine
}

func (w *world) connect(context.Context) (Link, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dials++
	if w.dial != nil {
		return w.dial()
	}
	w.link = w.serve()
	return w.link, nil
}

// sessions is how often the leader has dialed.
func (w *world) sessions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials
}

func (w *world) setDial(dial func() (Link, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.dial = dial
}

var errUnplugged = errors.New("the network is unplugged")

func unplugged() (Link, error) { return nil, errUnplugged }

// close ends all. Goroutines that stay make the bubble fail.
func (w *world) close() {
	if w.leader != nil {
		if err := w.leader.Close(); err != nil {
			w.t.Error(err)
		}
	}
	if w.follower != nil {
		if err := w.follower.Close(); err != nil {
			w.t.Error(err)
		}
	}
	w.serving.Wait()
	for _, d := range []*disk{w.a, w.b} {
		if d.log != nil {
			d.log.Close()
		}
		if open := d.mem.OpenFiles(); len(open) > 0 {
			w.t.Errorf("files left open: %v", open)
		}
	}
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	if w.history.held != 0 {
		w.t.Errorf("the history is held %d times still", w.history.held)
	}
}

// settled waits until all that can happen now has happened.
func (w *world) settled() { synctest.Wait() }

// pass lets time go by.
func (w *world) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// await lets time go by until ok, at most for a minute.
func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	synctest.Wait()
	for range 6000 {
		if ok() {
			return
		}
		w.pass(10 * time.Millisecond)
	}
	w.t.Fatalf("%s: not within a minute; leader %+v, follower %+v", what, w.leader.Pair(), w.follower.Pair())
}

// streaming waits until writes go on.
func (w *world) streaming() {
	w.t.Helper()
	w.await("writes go on", func() bool { return w.leader.Pair().Writable })
}

// propose adds an entry of the leader's.
func (w *world) propose() error {
	f := new(wal.Frames)
	fill(f, 'p', w.a.log.Last()+1)
	return w.leader.Propose(f)
}

// mustCommit proposes an entry and waits until it is committed.
func (w *world) mustCommit() {
	w.t.Helper()
	if err := w.propose(); err != nil {
		w.t.Fatal(err)
	}
	last := w.a.log.Last()
	w.await("the entry is committed", func() bool { return w.leader.Status().Committed >= last })
}

// sameLogs fails when the two logs are not the same bytes.
func (w *world) sameLogs() {
	w.t.Helper()
	c, err := wal.Compare(w.a.mem, "log", w.b.mem, "log")
	if err != nil {
		w.t.Fatal(err)
	}
	if !c.Equal() {
		w.t.Fatalf("the logs differ: %+v", c)
	}
}

// far is the far end of a link that a test holds.
type far struct {
	w *world
	*pipe
	enc encoder
	dec decoder
}

// send sends a packet, well formed but for what its fields say.
func (p *far) send(k kind, fields any) {
	p.w.t.Helper()
	p.raw(p.enc.encode(k, fields))
}

// raw sends any bytes. That the other end has closed the link shows later.
func (p *far) raw(packet []byte) { p.Write(packet, nil) }

// next returns what comes without waiting for time to pass: kind 0 when nothing does.
func (p *far) next() (kind, any) {
	p.w.t.Helper()
	synctest.Wait()
	if !p.Ready() {
		return 0, nil
	}
	b, err := p.Read()
	if err != nil {
		p.w.t.Fatal(err)
	}
	k, b, err := p.dec.packet(b)
	if err != nil {
		p.w.t.Fatal(err)
	}
	fields, err := decodeFields(k, slices.Clone(b))
	if err != nil {
		p.w.t.Fatal(err)
	}
	return k, fields
}

// expect returns the next packet, which must be of a kind. Beats in between do not count.
func (p *far) expect(want kind) any {
	p.w.t.Helper()
	k, fields := p.next()
	for k == kindBeat && want != kindBeat {
		k, fields = p.next()
	}
	if k != want {
		p.w.t.Fatalf("%v %+v came instead of %v", k, fields, want)
	}
	return fields
}

// drain takes all that comes.
func (p *far) drain() {
	for k, _ := p.next(); k != 0; k, _ = p.next() {
	}
}

// stillClock is a clock that nobody moves.
func stillClock() clock.Clock { return clock.NewManual(time.UnixMilli(1)) }
