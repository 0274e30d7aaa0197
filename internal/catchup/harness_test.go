package catchup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

var testID = entry.LogID{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}

const (
	testSegment = 8 << 10
	testTime    = 1_700_000_000_000
)

func logConfig(fsys vfs.FS) wal.Config {
	return wal.Config{FS: fsys, LogID: testID, SegmentBytes: testSegment, Create: true, Inline: true}
}

func newMem(t testing.TB) *memfs.FS {
	t.Helper()
	m := memfs.New()
	for _, dir := range []string{"log", "snapshots"} {
		if err := m.Mkdir(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.SyncDir("."); err != nil {
		t.Fatal(err)
	}
	return m
}

func openLog(t testing.TB, cfg wal.Config) *wal.Log {
	t.Helper()
	l, _, err := wal.Open(cfg, 0, nil)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// host is a node that others ask.
type host struct {
	t   testing.TB
	rng *rand.Rand
	mem vfs.FS

	mu       sync.Mutex
	log      *wal.Log
	standing Standing
	files    map[entry.Index][]byte // snapshots
	opened   func()                 // called when a snapshot is opened
	formed   func(from int, f *Formation) error
}

var _ Source = (*host)(nil)

func newHost(t testing.TB, seed uint64) *host {
	t.Helper()
	mem := newMem(t)
	return &host{t: t, rng: rand.New(rand.NewPCG(seed, 7)), mem: mem, log: openLog(t, logConfig(mem)),
		standing: Standing{LogID: testID, Term: 1, Leader: true}, files: make(map[entry.Index][]byte)}
}

// clone returns another node with the same data, that leads the next term.
func (h *host) clone() *host {
	h.t.Helper()
	mem := h.mem.(*memfs.FS).Clone()
	c := &host{t: h.t, rng: h.rng, mem: mem, standing: h.standing, files: h.files}
	c.standing.Term++
	var err error
	if c.log, _, err = wal.Open(logConfig(mem), h.log.Segments()[0].First-1, nil); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { c.log.Close() })
	return c
}

// append puts groups of random size into the log, unsynced.
func (h *host) append(groups int) {
	h.t.Helper()
	var f wal.Frames
	for range groups {
		f.Reset()
		size := 300
		if h.rng.IntN(15) == 0 {
			size = 12_000 // may be larger than a segment
		}
		for range 1 + h.rng.IntN(6) {
			b := f.Begin(2, testTime+int64(h.log.Last()))
			p := make([]byte, h.rng.IntN(size))
			for i := range p {
				p[i] = byte(h.rng.Uint32()) | 1
			}
			f.End(append(b, p...))
		}
		if _, err := h.log.Append(&f, h.standing.Term, h.standing.Commit); err != nil {
			h.t.Fatal(err)
		}
	}
}

// grow appends and commits.
func (h *host) grow(groups int) {
	h.t.Helper()
	h.append(groups)
	h.sync()
	h.commit(h.log.Last())
}

func (h *host) sync() {
	h.t.Helper()
	if err := h.log.Sync(); err != nil {
		h.t.Fatal(err)
	}
}

func (h *host) commit(i entry.Index) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standing.Commit = i
}

func (h *host) lead(term entry.Term, leader bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.standing.Term, h.standing.Leader = term, leader
}

// snapshot makes up a snapshot file.
func (h *host) snapshot(at entry.Index, bytes int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.files[at] = snapshotBytes(at, bytes)
}

// snapshotBytes is the content of the snapshot file at an index, so that a receiver can check it.
func snapshotBytes(at entry.Index, n int) []byte {
	r := rand.NewChaCha8([32]byte{byte(at), byte(at >> 8), byte(at >> 16)})
	b := make([]byte, n)
	r.Read(b)
	return b
}

func (h *host) Introduce(from int, in *Introduction) Introduced {
	return Introduced{Introduction: Introduction{Self: 0, Nodes: in.Nodes, Phase: "whole"}, Leader: -1, Verdict: VerdictOK}
}

func (h *host) Form(from int, f *Formation) error {
	if h.formed == nil {
		return nil
	}
	return h.formed(from, f)
}

func (h *host) Standing() Standing {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.standing
}

func (h *host) Log() *wal.Log {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.log
}

func (h *host) Snapshots() (list []SnapshotInfo, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for at := h.log.Last() + 1; at > 0; at-- {
		if b, ok := h.files[at]; ok {
			list = append(list, SnapshotInfo{at, int64(len(b))})
		}
	}
	return list, nil
}

func (h *host) OpenSnapshot(at entry.Index) (vfs.File, int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.opened != nil {
		h.mu.Unlock()
		h.opened()
		h.mu.Lock()
	}
	b, ok := h.files[at]
	if !ok {
		return nil, 0, fs.ErrNotExist
	}
	name := fmt.Sprintf("snapshots/%d-%d", at, h.rng.Uint64())
	f, err := h.mem.Create(name)
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	return f, int64(len(b)), errors.Join(err, h.mem.Remove(name))
}

func (h *host) StateHash(at entry.Index) (hash [32]byte, known bool) {
	return [32]byte{byte(at)}, at > 0 && at <= h.Standing().Commit
}

var errCut = errors.New("the connection was cut")

// line carries requests of node 1 to a server.
type line struct {
	s     *Server
	calls int
	bytes int
	// damage is what the server has found damaged.
	damage []*wal.CorruptionError
	limit  uint32 // of frames in an answer, in bytes; 0: what was asked for
	// before and after, if not nil, may end call number n (from 1 on), before or after it is answered, and change the
	// answer.
	before func(n int, request []byte) error
	after  func(n int, request, answer []byte) ([]byte, error)
}

func (l *line) Call(ctx context.Context, b []byte) ([]byte, error) {
	l.calls++
	n := l.calls
	if l.before != nil {
		if err := l.before(n, b); err != nil {
			return nil, err
		}
	}
	if l.limit > 0 && b[5] == byte(kindFrames) {
		binary.LittleEndian.PutUint32(b[44:], l.limit)
		seal(b)
	}
	out := l.s.Answer(ctx, 1, b)
	if len(out) > AnswerMax {
		return nil, fmt.Errorf("an answer of %d bytes", len(out))
	}
	if l.after != nil {
		return l.after(n, b, out)
	}
	return out, ctx.Err()
}

func serve(t testing.TB, h *host) *line {
	t.Helper()
	l := new(line)
	l.s = NewServer(ServerConfig{Source: h, Clock: clock.NewManual(time.UnixMilli(testTime)), Nodes: 3,
		Served: func(n int) { l.bytes += n }, Damaged: func(c *wal.CorruptionError) { l.damage = append(l.damage, c) }})
	t.Cleanup(l.s.Close)
	return l
}

func (l *line) client() Client { return Client{Peer: l, LogID: testID} }

// extend is Extend of a log by all that l's host has.
func extend(t testing.TB, l *line, log *wal.Log, opt ExtendOptions) Result {
	t.Helper()
	r, err := Extend(t.Context(), l.client(), log, opt)
	if err != nil {
		t.Fatalf("extend: %v", err)
	}
	return r
}

// mustEqual fails unless two logs hold the same bytes and end alike, durably.
func mustEqual(t testing.TB, a vfs.FS, b vfs.FS, of *wal.Log) {
	t.Helper()
	c, err := wal.Compare(a, "log", b, "log")
	if err != nil || !c.Equal() {
		t.Fatalf("compare: %+v, %v", c, err)
	}
	if of != nil && of.Durable() != of.Last() {
		t.Errorf("durable up to %d of %d", of.Durable(), of.Last())
	}
}

// mustBePrefix fails unless a log holds nothing but what the host's does.
func mustBePrefix(t testing.TB, h *host, mem vfs.FS) {
	t.Helper()
	c, err := wal.Compare(h.mem, "log", mem, "log")
	if err != nil || len(c.Differences) > 0 {
		t.Fatalf("compare: %+v, %v", c, err)
	}
}

// folder is a Sink on a file system, as a node would have it.
type folder struct {
	t        testing.TB
	mem      vfs.FS
	log      *wal.Log
	whole    bool
	resets   int
	snap     []byte // snapshot that is complete
	finished int    // files that were found good
	bad      int    // files that were found damaged
	written  int64
}

var _ Sink = (*folder)(nil)

func newFolder(t testing.TB) *folder {
	f := &folder{t: t, mem: newMem(t)}
	t.Cleanup(func() {
		if f.log != nil {
			f.log.Close()
		}
	})
	return f
}

func (f *folder) LogID() entry.LogID {
	if f.log == nil {
		return entry.LogID{}
	}
	return testID
}

func (f *folder) Log() *wal.Log { return f.log }

func (f *folder) remove(dir string, pick func(name string) bool) error {
	names, err := f.mem.List(dir)
	for _, name := range names {
		if err == nil && pick(name) {
			err = f.mem.Remove(path.Join(dir, name))
		}
	}
	return errors.Join(err, f.mem.SyncDir(dir))
}

func (f *folder) open(begin wal.Place) error {
	cfg := logConfig(f.mem)
	cfg.Begin, cfg.From = &begin, begin.Segment
	l, _, err := wal.Open(cfg, begin.Segment-1, nil)
	f.log = l
	return err
}

func (f *folder) Reset(id entry.LogID, begin wal.Place) error {
	f.resets++
	if id != testID {
		return fmt.Errorf("log %x", id)
	}
	if f.log != nil {
		f.log.Close()
		f.log = nil
	}
	all := func(string) bool { return true }
	if err := errors.Join(f.remove("log", all), f.remove("snapshots", all)); err != nil {
		return err
	}
	return f.open(begin)
}

func (f *folder) Forget(before entry.Index) error {
	return f.remove("log", func(name string) bool {
		var first entry.Index
		n, _ := fmt.Sscanf(name, "%020d", &first)
		return n == 1 && first < before
	})
}

// restart opens the folder again as a power cut has left it: with the log that begins at an entry.
func (f *folder) restart(mem vfs.FS) {
	f.t.Helper()
	if f.log == nil {
		f.mem = mem
		return
	}
	first := f.log.Segments()[0].First
	f.log.Close()
	f.mem, f.snap = mem, nil
	cfg := logConfig(mem)
	cfg.Create, cfg.From = false, first
	l, _, err := wal.Open(cfg, first-1, nil)
	if err != nil {
		f.t.Fatalf("open after a power cut: %v", err)
	}
	f.log = l
}

func (f *folder) Snapshot(at entry.Index, bytes int64) (Import, error) {
	name := fmt.Sprintf("snapshots/%d", at)
	file, err := f.mem.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = f.mem.Create(name)
	}
	if err != nil {
		return nil, err
	}
	have, err := file.Size()
	if have > bytes {
		have, err = 0, file.Truncate(0)
	}
	return &snapshotImport{f: f, at: at, name: name, file: file, have: have, size: bytes}, err
}

type snapshotImport struct {
	f          *folder
	at         entry.Index
	name       string
	file       vfs.File
	have, size int64
}

func (im *snapshotImport) Have() int64 { return im.have }

func (im *snapshotImport) Write(p []byte) error {
	_, err := im.file.WriteAt(p, im.have)
	im.have += int64(len(p))
	im.f.written += int64(len(p))
	return err
}

func (im *snapshotImport) Finish() error {
	b := make([]byte, im.size)
	if _, err := im.file.ReadAt(b, 0); err != nil {
		return err
	}
	if !bytes.Equal(b, snapshotBytes(im.at, len(b))) {
		im.f.bad++
		return errors.Join(fmt.Errorf("snapshot: %w", ErrDamaged), im.f.mem.Remove(im.name))
	}
	im.f.finished++
	im.f.snap = b
	return im.file.Sync()
}

func (im *snapshotImport) Close() { im.file.Close() }

func (f *folder) Segment(first, last entry.Index, bytes int64) (Import, error) {
	im, err := f.log.Import(first, bytes)
	return &segmentImport{Import: im, f: f, last: last}, err
}

// segmentImport syncs beside the writing, as a node's does.
type segmentImport struct {
	*wal.Import
	f        *folder
	last     entry.Index
	unsynced int
	syncing  chan error
}

func (im *segmentImport) Write(p []byte) error {
	im.f.written += int64(len(p))
	if err := im.Import.Write(p); err != nil {
		return err
	}
	if im.unsynced += len(p); im.unsynced < syncBytes {
		return nil
	}
	im.unsynced = 0
	if err := im.synced(); err != nil {
		return err
	}
	im.syncing = make(chan error, 1)
	go func(done chan<- error) { done <- im.Import.Sync() }(im.syncing) // awaited by synced
	return nil
}

func (im *segmentImport) synced() (err error) {
	if im.syncing != nil {
		err = <-im.syncing
		im.syncing = nil
	}
	return err
}

func (im *segmentImport) Finish() error {
	if err := im.synced(); err != nil {
		return err
	}
	_, err := im.Import.Finish(im.last, nil)
	if errors.As(err, new(*wal.CorruptionError)) {
		im.f.bad++
	} else if err == nil {
		im.f.finished++
	}
	return err
}

func (im *segmentImport) Close() {
	im.synced()
	im.Import.Close()
}

func (f *folder) Whole() error {
	f.whole = true
	return f.log.Prepend()
}
