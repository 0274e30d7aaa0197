package cluster

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	pb "go.etcd.io/raft/v3/raftpb"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

const (
	// segmentStart is where the first frame of a segment stands in its file.
	segmentStart = 512
	// writeBytes bounds what is gathered for one write.
	writeBytes = 4 << 20
	// splitsMax is how often entries that come together are synced in pieces, see (*Role).replicate.
	splitsMax = 2
)

// disk is what is known of the log on disk. It is owned by the holder of Role.tail.
type disk struct {
	saved  Hard
	runs   []run       // the terms of the newest entries, oldest first
	timeMS int64       // the stamp of the last entry
	proven entry.Index // the highest index that a frame says to be committed
	frames wal.Frames
	buf    []byte
}

// run says that the entries from first on are of a term, up to the next run.
type run struct {
	first entry.Index
	term  entry.Term
}

// note notes the entries of f, which are the last ones in the log.
func (d *disk) note(f *wal.Frames) {
	for i := range f.Len() {
		e := f.Entry(i)
		if n := len(d.runs); n == 0 || d.runs[n-1].term != e.Term {
			d.runs = append(d.runs, run{e.Index, e.Term})
		}
		d.proven, d.timeMS = max(d.proven, e.Commit), max(d.timeMS, e.TimeMS)
	}
}

// cut notes that the log ends with entry last, now.
func (d *disk) cut(last entry.Index) {
	for n := len(d.runs); n > 0 && d.runs[n-1].first > last; n-- {
		d.runs = d.runs[:n-1]
	}
}

// forget drops what is not needed above commit.
func (d *disk) forget(commit entry.Index) {
	n := 0
	for n+1 < len(d.runs) && d.runs[n+1].first <= commit {
		n++
	}
	d.runs = d.runs[:copy(d.runs, d.runs[n:])]
}

// term returns the term of an entry in the log, 0 when it is not known: that is one committed long ago.
func (d *disk) term(i entry.Index) entry.Term {
	for n := len(d.runs) - 1; n >= 0; n-- {
		if d.runs[n].first <= i {
			return d.runs[n].term
		}
	}
	return 0
}

// appendExtra adds to a frame what a node has to know that begins the same segment with it.
func appendExtra(frame []byte, p wal.Place) []byte {
	frame = binary.LittleEndian.AppendUint64(frame, uint64(p.Size))
	return binary.LittleEndian.AppendUint32(frame, p.Prev)
}

// frameOf splits the bytes of an entry, which were checked when they came, into the frame and what is behind it.
func frameOf(data []byte) (frame, extra []byte) {
	n := (frameMin + int64(binary.LittleEndian.Uint32(data[4:])) + 7) &^ 7
	return data[:n], data[n:]
}

// drainLoop writes what raft gives to the disk, when nobody else does.
func (r *Role) drainLoop() {
	for {
		select {
		case <-r.stop:
			return
		case <-r.drain:
		}
		r.tail.Lock()
		err := r.drainAll()
		r.tail.Unlock()
		if err != nil && !errors.Is(err, wal.ErrFull) {
			r.failDisk(err)
			return
		}
		r.advance()
	}
}

// failDisk makes an error sticky that came up while the log was written.
func (r *Role) failDisk(err error) {
	if errors.As(err, new(*DivergedError)) || errors.As(err, new(*panicError)) {
		r.stopHere(err)
		return
	}
	r.fail(err)
}

// drainAll writes what is queued for the disk until nothing is: votes first, then entries, one sync for all, and only
// then what promises them. wal.ErrFull means that entries wait; votes do not. Called with tail held.
func (r *Role) drainAll() error {
	for {
		r.mu.Lock()
		list := r.queue
		usable := r.usable() == nil
		r.queue = nil
		r.full = false
		r.disk.forget(r.commit)
		r.mu.Unlock()
		if len(list) == 0 || !usable {
			return nil
		}
		if err := r.persist(list); err != nil {
			return err
		}
	}
}

// persist makes a list of storage messages durable, in order, and hands on the answers.
func (r *Role) persist(list []*pb.Message) error {
	hard := r.disk.saved
	for _, m := range list {
		if m.Term != nil {
			hard = Hard{Term: entry.Term(m.GetTerm()), Vote: nodeOf(m.GetVote())}
		}
	}
	if hard != r.disk.saved {
		done := r.io.begin()
		err := r.cfg.Save(hard)
		done()
		if err != nil {
			return fmt.Errorf("save term %d and a vote for node %d: %w", hard.Term, hard.Vote, err)
		}
		r.disk.saved = hard
	}
	entries := 0
	var full error
	for i, m := range list {
		err := r.write(m.GetEntries())
		if errors.Is(err, wal.ErrFull) {
			full = err
			r.requeue(list[i:])
			list = list[:i+1]
			break
		}
		if err != nil {
			return err
		}
		entries += len(m.GetEntries())
	}
	if err := r.sync(entries); err != nil {
		return err
	}
	err := r.locked(func() error {
		r.lazy = true
		for _, m := range list {
			r.answer(m)
		}
		return nil
	})
	if err != nil && !errors.Is(err, wal.ErrFull) {
		return nil // closed, or it has failed: whoever did that has dealt with it
	}
	return full
}

// requeue puts messages whose entries found no room back to the front of the queue. Votes do not wait for room: they
// promise nothing about these entries. Of the first one's answers only they are given now; so are those of the others.
func (r *Role) requeue(list []*pb.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := make([]*pb.Message, 0, len(list)+len(r.queue))
	for i, m := range list {
		wait := &pb.Message{Entries: m.Entries}
		var now []*pb.Message
		for _, a := range m.GetResponses() {
			if t := a.GetType(); t == pb.MsgVoteResp || t == pb.MsgPreVoteResp {
				now = append(now, a)
			} else {
				wait.Responses = append(wait.Responses, a)
			}
		}
		m.Responses = now
		if i > 0 {
			list[0].Responses = append(list[0].Responses, now...)
		}
		again = append(again, wait)
	}
	r.queue = append(again, r.queue...)
	r.full = true
	r.retryAt = r.cfg.Clock.Monotonic() + fullRetry
}

// answer hands on what may be said now that a storage message is durable. Called with mu held.
func (r *Role) answer(m *pb.Message) {
	for _, a := range m.GetResponses() {
		if a.GetTo() == idOf(r.cfg.Self) {
			// It is about this node's own promises; the library knows what is stale.
			_ = r.node.Step(a)
			continue
		}
		r.post(a)
	}
}

// sync makes what was written durable.
func (r *Role) sync(entries int) error {
	if r.cfg.Log.Durable() == r.cfg.Log.Last() {
		return nil
	}
	start := r.cfg.Clock.Monotonic()
	done := r.io.begin()
	err := r.cfg.Log.Sync()
	done()
	if err == nil && r.cfg.Observer.Synced != nil {
		r.cfg.Observer.Synced(r.cfg.Clock.Monotonic()-start, entries)
	}
	return err
}

// write writes entries that are not in the log yet, after it has cut what they replace. They are not durable then.
func (r *Role) write(list []*pb.Entry) error {
	if len(list) == 0 {
		return nil
	}
	defer r.io.begin()()
	log := r.cfg.Log
	for len(list) > 0 && entry.Index(list[0].GetIndex()) <= log.Last() {
		e := list[0]
		index := entry.Index(e.GetIndex())
		if r.disk.term(index) == entry.Term(e.GetTerm()) { // the leader has written it before raft knew of it
			list = list[1:]
			continue
		}
		if err := r.cutFrom(index); err != nil {
			return err
		}
	}
	for len(list) > 0 {
		n, err := 1, error(nil)
		if list[0].GetData() == nil {
			err = r.writeMarker(list[0])
		} else {
			n = together(list)
			err = r.replicate(list[:n])
		}
		if err != nil {
			return err
		}
		list = list[n:]
	}
	return nil
}

// cutFrom removes the entries from index on: another leader has replaced them.
func (r *Role) cutFrom(index entry.Index) error {
	r.mu.Lock()
	commit := r.commit
	r.mu.Unlock()
	if index <= commit || index <= r.disk.proven {
		return &DivergedError{Index: index, What: "it is committed here, and the leader has another one"}
	}
	if err := r.cfg.Log.Truncate(index - 1); err != nil {
		return fmt.Errorf("cut what another leader has replaced: %w", err)
	}
	r.disk.cut(index - 1)
	return nil
}

// writeMarker writes the entry with which this node begins its term; raft has it without bytes. The messages that wait
// for them go out while it is synced.
func (r *Role) writeMarker(e *pb.Entry) error {
	f := new(wal.Frames)
	f.Reserve, f.Frees = true, true
	r.cfg.Marker(f, r.disk.timeMS)
	index, term := entry.Index(e.GetIndex()), entry.Term(e.GetTerm())
	if f.Len() != 1 || r.cfg.Log.Last()+1 != index {
		panic(fmt.Sprintf("BUG: cluster: %d entries behind entry %d to begin term %d with entry %d", f.Len(), r.cfg.Log.Last(), term, index))
	}
	r.mu.Lock()
	commit := min(max(r.commit, r.disk.proven), index-1)
	r.mu.Unlock()
	if _, err := r.cfg.Log.Append(f, term, commit); err != nil {
		return err
	}
	r.disk.note(f)
	data := entriesOf(f, r.cfg.Log.Place(f))[0].Data
	r.mu.Lock()
	e.Data = data
	r.window.grow(e.GetIndex(), len(data))
	held := r.held
	r.held = nil
	for _, m := range held {
		r.post(m)
	}
	r.mu.Unlock()
	r.send()
	return nil
}

// together returns how many entries from the first on can be written at once: they stand in one segment.
func together(list []*pb.Entry) int {
	n, bytes := 1, len(list[0].GetData())
	for n < len(list) {
		data := list[n].GetData()
		if data == nil || bytes+len(data) > writeBytes {
			break
		}
		if _, extra := frameOf(data); len(extra) > 0 {
			break
		}
		bytes += len(data)
		n++
	}
	return n
}

// replicate writes entries that came from a leader exactly where the leader has them.
func (r *Role) replicate(list []*pb.Entry) error {
	d := &r.disk
	d.buf = d.buf[:0]
	for _, e := range list {
		frame, _ := frameOf(e.GetData())
		d.buf = append(d.buf, frame...)
	}
	raw := d.buf
	first := entry.Index(list[0].GetIndex())
	place, err := r.placeOf(first, list[0].GetData())
	if err != nil {
		return err
	}
	// A frame that says that entries are committed which are not durable here makes the log write a mark, which costs
	// more than a sync. So they are synced in pieces, unless that would be many.
	for split := 0; split < splitsMax && len(list) > 1; split++ {
		n, bytes := 0, 0
		for durable := r.cfg.Log.Durable(); n < len(list) && commitOf(list[n]) <= durable; n++ {
			frame, _ := frameOf(list[n].GetData())
			bytes += len(frame)
		}
		if n == 0 || n == len(list) {
			break
		}
		if err := r.appendReplica(place, raw[:bytes], first); err != nil {
			return err
		}
		if err := r.sync(n); err != nil {
			return err
		}
		list, raw, place = list[n:], raw[bytes:], r.cfg.Log.Next()
		first += entry.Index(n)
	}
	return r.appendReplica(place, raw, first)
}

// placeOf says where the frame of an entry belongs that comes next.
func (r *Role) placeOf(index entry.Index, data []byte) (wal.Place, error) {
	if _, extra := frameOf(data); len(extra) > 0 {
		return wal.Place{
			Segment: index, Size: int64(binary.LittleEndian.Uint64(extra)), Prev: binary.LittleEndian.Uint32(extra[8:]), Offset: segmentStart,
		}, nil
	}
	place, ok := r.cfg.Log.Behind()
	if !ok {
		return place, &DivergedError{Index: index, What: "it does not begin a segment, and there is none to go on with"}
	}
	return place, nil
}

// appendReplica writes frames at their place.
func (r *Role) appendReplica(place wal.Place, raw []byte, first entry.Index) error {
	f := &r.disk.frames
	if err := r.cfg.Log.Load(f, place, raw); err != nil {
		return &DivergedError{Index: first, What: err.Error()}
	}
	switch err := r.cfg.Log.AppendReplica(f, place); {
	case errors.Is(err, wal.ErrMismatch):
		return &DivergedError{Index: first, What: err.Error()}
	case err != nil:
		return err
	}
	r.disk.note(f)
	f.Reset()
	return nil
}

// commitOf returns up to where an entry's frame says that the log is committed.
func commitOf(e *pb.Entry) entry.Index {
	return entry.Index(e.GetIndex() - uint64(binary.LittleEndian.Uint32(e.GetData()[28:])))
}

// ioWatch knows how long the disk has not answered.
type ioWatch struct {
	clock clock.Clock
	done  func()       // end
	since atomic.Int64 // the moment at which a call began, plus one; 0 for none
}

// begin notes that a call begins; the function that it returns, that it has ended. One call at a time; a call within
// another one counts as part of it.
func (w *ioWatch) begin() func() {
	if !w.since.CompareAndSwap(0, int64(w.clock.Monotonic())+1) {
		return func() {}
	}
	return w.done
}

func (w *ioWatch) end() { w.since.Store(0) }

// waits returns for how long the call that runs has run, 0 for none.
func (w *ioWatch) waits() time.Duration {
	since := w.since.Load()
	if since == 0 {
		return 0
	}
	return w.clock.Monotonic() - time.Duration(since-1)
}
