package pair

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// catchUpBytes is how much of the log goes into one packet when the follower lacks more than the last batches.
const catchUpBytes = 512 << 10

// errSilent ends a session in which nothing was heard for the timeout.
var errSilent = errors.New("the other node has not answered in time")

// session is the leader's end of one connection to the follower. Its main goroutine reads; one watches the time, one
// sends beats, one what the follower lacks, and in a full sync one the history. run ends them all.
type session struct {
	r    *Leader
	link Link
	over chan struct{} // closed by finish
	once sync.Once
	why  error // set before over is closed

	workers sync.WaitGroup

	writing sync.Mutex // one packet at a time; held across I/O; guards the field below
	enc     encoder

	sentAt  atomic.Int64 // stamp of the last packet with one; -1 when there was none
	heardAt atomic.Int64 // stamp of when the last packet came
	sent    atomic.Uint64
	// busySince is the stamp, and one more, since when a packet waits for the link to take it; 0 when none does. It is
	// what shows a follower that hangs when no packet with a stamp gets out any more.
	busySince atomic.Int64
	settled   atomic.Bool // the follower has had everything; set by the main goroutine
	echoes    echoes

	// Owned by the main goroutine.
	dec     decoder
	durable entry.Index
	end     entry.Index // the tip of the log when the session began

	history *history // of a full sync; nil when none runs
	whole   bool     // the follower has all of it; guarded by Leader.mu
}

func newSession(r *Leader, link Link) *session {
	s := &session{r: r, link: link, over: make(chan struct{})}
	s.heardAt.Store(r.stamp())
	s.sentAt.Store(-1)
	return s
}

// finish ends the session for a reason. It does not wait.
func (s *session) finish(why error) {
	s.once.Do(func() {
		s.why = why
		close(s.over)
		s.link.Close()
	})
}

// cause is why the session ended. It is called after that.
func (s *session) cause() error {
	<-s.over
	return s.why
}

// run talks to the follower until the session ends.
func (s *session) run() {
	s.workers.Go(s.watch)
	s.finish(s.talk())
	if s.history != nil {
		s.history.wake()
	}
	s.workers.Wait()
	if s.history != nil {
		s.history.release()
	}
}

// write sends a packet that build makes, and ends the session when that fails.
func (s *session) write(body []byte, build func(*encoder) []byte) error {
	s.writing.Lock()
	err := s.put(build(&s.enc), body)
	s.writing.Unlock()
	if err != nil {
		s.finish(err)
	}
	return err
}

// put hands a packet to the link. Called with writing held.
func (s *session) put(head, body []byte) error {
	s.busySince.Store(s.r.stamp() + 1)
	err := s.link.Write(head, body)
	s.busySince.Store(0)
	return err
}

func (s *session) writeJSON(k kind, fields any) error {
	return s.write(nil, func(e *encoder) []byte { return e.json(k, fields) })
}

// stamped notes that a packet is about to go that the follower must echo. Called with writing held.
func (s *session) stamped() int64 {
	stamp := s.r.stamp()
	s.sentAt.Store(stamp)
	s.echoes.owe(stamp)
	return stamp
}

// echoes are the stamps that the follower has not echoed yet, oldest first.
type echoes struct {
	mu   sync.Mutex
	owed []int64
}

func (e *echoes) owe(stamp int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n := len(e.owed); n == 0 || e.owed[n-1] < stamp {
		e.owed = append(e.owed, stamp)
	}
}

// paid notes that a stamp was echoed: none before it is owed any more.
func (e *echoes) paid(stamp int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for n < len(e.owed) && e.owed[n] <= stamp {
		n++
	}
	e.owed = append(e.owed[:0], e.owed[n:]...)
}

// oldest returns the oldest stamp that is owed, or now when there is none.
func (e *echoes) oldest(now int64) int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.owed) == 0 {
		return now
	}
	return e.owed[0]
}

// sendFrames sends entries that were appended. When that fails, the session ends.
func (s *session) sendFrames(f *wal.Frames, place wal.Place, commit entry.Index) error {
	s.writing.Lock()
	s.sent.Store(uint64(f.Last()))
	m := frames{stamp: s.stamped(), commit: commit, place: place, raw: f.Raw()}
	err := s.put(s.enc.frames(&m), m.raw)
	s.writing.Unlock()
	if err != nil {
		s.finish(err)
		return err
	}
	s.r.cfg.Observer.Sent(len(m.raw))
	return nil
}

// watch ends the session when the follower is silent for too long: until it has everything, when nothing comes from it,
// and then, when it has not echoed a packet within the timeout. So it may take up to the timeout for each sync, and
// nobody waits longer for an answer; what it wrote before it hung, and arrives late, is no sign of life.
// It never waits for the link.
func (s *session) watch() {
	timer := s.r.cfg.Clock.NewTimer(s.r.cfg.Timeout)
	defer timer.Stop()
	for {
		select {
		case <-s.over:
			return
		case <-timer.C():
		}
		now := s.r.stamp()
		since := s.heardAt.Load()
		if s.settled.Load() {
			since = s.echoes.oldest(now)
		}
		if busy := s.busySince.Load(); busy > 0 {
			since = min(since, busy-1)
		}
		left := s.r.cfg.Timeout - time.Duration(now-since)
		if left <= 0 {
			s.finish(errSilent)
			return
		}
		timer.Reset(left)
	}
}

// beat sends something when nothing else was sent, so that both sides know that the other lives.
func (s *session) beat() {
	every := s.r.cfg.Timeout / 4
	timer := s.r.cfg.Clock.NewTimer(0) // the first one at once: its echo is the first lease
	defer timer.Stop()
	for {
		select {
		case <-s.over:
			return
		case <-timer.C():
		}
		left := every - time.Duration(s.r.stamp()-s.sentAt.Load())
		if left > 0 && s.sentAt.Load() >= 0 {
			timer.Reset(left)
			continue
		}
		s.r.mu.Lock()
		commit := s.r.committed
		s.r.mu.Unlock()
		if s.write(nil, func(e *encoder) []byte {
			m := beat{stamp: s.stamped(), commit: min(commit, entry.Index(s.sent.Load()))}
			return e.beat(&m)
		}) != nil {
			return
		}
		timer.Reset(every)
	}
}

// talk is the session from the handshake to its end.
func (s *session) talk() error {
	r := s.r
	r.proposing.Lock() // what was on its way into the log when the session before ended is in it now
	tip := r.cfg.Log.Tip()
	r.proposing.Unlock()
	r.mu.Lock()
	committed, led := r.committed, r.led
	r.mu.Unlock()
	if err := s.writeJSON(kindHello, &hello{
		Version: version, LogID: hexID(r.cfg.LogID), Node: r.cfg.Self, Epoch: uint64(r.cfg.Epoch),
		LeaseMS: (r.cfg.Timeout + time.Millisecond - 1).Milliseconds(), Tip: pointOf(tip), Commit: uint64(committed),
	}); err != nil {
		return err
	}
	var w welcome
	if err := s.answer(kindWelcome, &w); err != nil {
		return err
	}
	// What this node wrote since it last had a follower, it wrote without one: then the follower has nothing to give back.
	alone := !led && r.cfg.Promises.Promise().Alone
	if err := s.check(&w, tip, led, alone); err != nil {
		return err
	}
	if !led && !alone && w.Leader == r.cfg.Self && w.First == 0 && w.Tip.Index > uint64(tip.Index) {
		if err := s.pull(&w, tip); err != nil {
			return err
		}
		tip = r.cfg.Log.Tip()
	}
	b := begin{From: w.Commit.Index + 1, End: uint64(tip.Index), Committed: uint64(committed)}
	if alone {
		b.Committed, b.Alone = b.End, true
	}
	if w.LogID == (hexID{}) || w.First != 0 {
		var err error
		if s.history, b.Sync, err = s.plan(&w, committed); err != nil {
			return err
		}
		if b.Sync.Fresh {
			b.From = b.Sync.Segment
		}
		if !led { // all of it may have been acknowledged in an earlier life of this node
			b.Committed = b.End
		}
	}
	if err := s.writeJSON(kindBegin, &b); err != nil {
		return err
	}
	var ready begun
	if err := s.answer(kindBegun, &ready); err != nil {
		return err
	}
	return s.stream(&b, &ready)
}

// answer reads one packet, which must be of a kind, or a refusal.
func (s *session) answer(want kind, fields any) error {
	k, b, err := s.read()
	if err != nil {
		return err
	}
	if k == kindRefuse {
		return s.refused(b)
	}
	if k != want {
		return malformed("%v instead of %v", k, want)
	}
	return decodeJSON(b, fields)
}

// read returns the next packet.
func (s *session) read() (kind, []byte, error) {
	b, err := s.link.Read()
	if err != nil {
		return 0, nil, fmt.Errorf("the connection to the follower has ended: %w", err)
	}
	k, b, err := s.dec.packet(b)
	if err != nil {
		return 0, nil, err
	}
	s.heardAt.Store(s.r.stamp())
	s.r.mu.Lock()
	s.r.peer.contact = s.r.cfg.Clock.Now()
	s.r.mu.Unlock()
	return k, b, nil
}

// refused turns the follower's refusal into an error, and ends this leader if another one leads.
func (s *session) refused(b []byte) error {
	var m refuse
	if err := decodeJSON(b, &m); err != nil {
		return err
	}
	s.r.cfg.Observer.Refused(m.Code)
	epoch, own := entry.Term(m.Epoch), s.r.cfg.Epoch
	over := m.Code == CodeStaleEpoch && epoch > own || m.Code == CodeEpochTaken && epoch == own && m.Leader != s.r.cfg.Self
	if over && epoch <= indexMax && !m.Leader.IsZero() {
		return s.r.fence(epoch, m.Leader)
	}
	return &RefusedError{Code: m.Code, Message: m.Message}
}

// reject tells the follower why this leader cannot work with it, and returns the same.
func (s *session) reject(code Code, format string, args ...any) error {
	err := &RefusedError{Code: code, Message: fmt.Sprintf(format, args...)}
	s.r.cfg.Observer.Refused(code)
	s.writeJSON(kindRefuse, &refuse{Code: code, Message: err.Message, Epoch: uint64(s.r.cfg.Epoch), Leader: s.r.cfg.Self})
	return errors.New(err.Message)
}

// check decides whether the follower's log can be continued with this leader's, whose tip is given.
func (s *session) check(w *welcome, tip wal.Point, led, alone bool) error {
	r := s.r
	r.mu.Lock()
	r.peer.node = w.Node
	r.mu.Unlock()
	switch {
	case w.Node == r.cfg.Self:
		return s.reject(CodeSameNode, "leader and follower have the same node id %v: one data folder is a copy of the other; give the follower an empty one", w.Node)
	case w.LogID == hexID{}:
		return nil
	case entry.LogID(w.LogID) != r.cfg.LogID:
		return s.reject(CodeOtherLog, "the follower has log %x, this leader has log %x: nothing was changed; give the follower an empty data folder", w.LogID, r.cfg.LogID)
	case w.Commit.Index > w.Tip.Index || w.Tip.Index > indexMax || w.First > w.Commit.Index+1:
		return malformed("a welcome that contradicts itself")
	case w.First != 0:
		return nil // plan checks it
	case w.Tip.Index > uint64(tip.Index) && w.Leader == r.cfg.Self && led:
		return s.reject(CodeDiverged, "the follower has entries up to %d of this leader's, which has written up to %d only: does another process lead with a copy of this data folder?", w.Tip.Index, tip.Index)
	case w.Commit.Index > uint64(tip.Index) && w.Leader == r.cfg.Self && !alone:
		return nil // what this node lost is pulled, which checks that it fits
	case w.Commit.Index > uint64(tip.Index):
		return s.reject(CodeDiverged, "the follower knows that entries up to %d were acknowledged, and this leader's log ends at %d: it has lost acknowledged entries, or another leader wrote them; promote the node that has them", w.Commit.Index, tip.Index)
	}
	same, err := s.same(w.Commit)
	switch {
	case errors.Is(err, wal.ErrSegmentGone):
		return s.reject(CodeBehind, "the follower's log ends at entry %d, and this leader has dropped what comes next: give the follower an empty data folder", w.Tip.Index)
	case err != nil:
		return fmt.Errorf("compare the logs: %w", err)
	case !same:
		return s.reject(CodeDiverged, "the logs differ at or before entry %d, which was acknowledged: nothing was changed; find out which node holds the right one", w.Commit.Index)
	}
	return nil
}

// same reports whether this leader's log is the follower's up to a point.
func (s *session) same(p point) (bool, error) {
	if p.Index == 0 {
		if first := s.r.cfg.Log.Segments()[0].First; first > 1 {
			return false, wal.ErrSegmentGone
		}
		return p.CRC == 0, nil
	}
	mine, err := s.r.cfg.Log.PointAt(entry.Index(p.Index))
	return mine.CRC == p.CRC, err
}

// pull gets back what this leader sent in an earlier life and lost when it crashed, or its disk lied: the follower
// has it, and it may have been acknowledged.
func (s *session) pull(w *welcome, tip wal.Point) error {
	r := s.r
	r.proposing.Lock()
	defer r.proposing.Unlock()
	if err := s.writeJSON(kindPull, &pull{After: uint64(tip.Index), To: w.Tip.Index}); err != nil {
		return err
	}
	f := new(wal.Frames)
	var m frames
	for tip.Index < entry.Index(w.Tip.Index) {
		k, b, err := s.read()
		if err != nil {
			return err
		}
		if k == kindRefuse {
			return s.refused(b)
		}
		if k != kindFrames {
			return malformed("%v instead of %v", k, kindFrames)
		}
		if err := m.decode(b); err != nil {
			return err
		}
		if err := r.cfg.Log.Load(f, m.place, m.raw); err != nil {
			return fmt.Errorf("entries from the follower: %w", err)
		}
		if f.First() != tip.Index+1 || f.Last() > entry.Index(w.Tip.Index) || f.Term() > r.cfg.Epoch {
			return malformed("entries %d to %d of term %d were not asked for", f.First(), f.Last(), f.Term())
		}
		err = r.cfg.Log.AppendReplica(f, m.place)
		switch {
		case errors.Is(err, wal.ErrMismatch):
			return s.reject(CodeDiverged, "this leader's log ends at entry %d, and what the follower has after it does not follow: the logs differ in what may have been acknowledged", tip.Index)
		case errors.Is(err, wal.ErrFull):
			return err
		case err != nil:
			r.fail(err)
			return err
		}
		if err := r.cfg.Log.Sync(); err != nil {
			r.fail(err)
			return err
		}
		tip = r.cfg.Log.Tip()
	}
	r.mu.Lock()
	r.local = tip.Index
	r.mu.Unlock()
	r.cfg.Logger.Warn("took back entries that this leader had sent and lost", "up_to", uint64(tip.Index))
	return nil
}

// stream sends what the follower lacks, and then keeps the session until it ends.
func (s *session) stream(b *begin, ready *begun) error {
	r := s.r
	s.end, s.durable = entry.Index(b.End), entry.Index(b.From-1)
	s.sent.Store(b.From - 1)
	if s.history != nil {
		if err := s.history.begin(ready); err != nil {
			return err
		}
		r.mu.Lock()
		r.peer.syncDone, r.peer.syncTotal = s.history.progress()
		r.mu.Unlock()
		s.workers.Go(func() { s.history.send(s) })
	}
	r.mu.Lock()
	if r.err == nil {
		r.state, r.reason = StateCatchingUp, "the follower catches up"
		if s.history != nil {
			r.state = StateFullSync
		}
	}
	r.peer.durable = s.durable
	r.mu.Unlock()
	r.suspend()
	r.cfg.Observer.Session()
	r.cfg.Logger.Info("session with the follower", "follower", r.peerNode(), "from", b.From, "to", b.End, "full_sync", b.Sync != nil)
	s.workers.Go(s.beat)
	if b.From <= b.End {
		s.workers.Go(func() {
			if err := s.catchUp(entry.Index(b.From), s.end); err != nil {
				s.finish(err)
			}
		})
	}
	if err := s.arrived(); err != nil {
		return err
	}
	var m ack
	for {
		k, b, err := s.read()
		if err != nil {
			return err
		}
		switch k {
		case kindAck:
			if err = m.decode(b); err == nil {
				err = s.acked(&m)
			}
		case kindGot:
			err = s.historyGot(b)
		case kindWhole:
			err = s.historyWhole()
		case kindRefuse:
			err = s.refused(b)
		default:
			err = malformed("%v within a session", k)
		}
		if err != nil {
			return err
		}
	}
}

func (r *Leader) peerNode() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.peer.node.String()
}

// catchUp sends entries from the log. Nothing else sends entries meanwhile.
func (s *session) catchUp(from, end entry.Index) error {
	c := s.r.cfg.Log.NewCursor(from)
	defer c.Close()
	f := new(wal.Frames)
	for from <= end {
		place, err := c.Next(f, end, catchUpBytes)
		if err != nil {
			return fmt.Errorf("read the log for the follower: %w", err)
		}
		s.r.mu.Lock()
		commit := s.r.committed
		s.r.mu.Unlock()
		if err := s.sendFrames(f, place, min(commit, f.Last())); err != nil {
			return err
		}
		from = f.Last() + 1
	}
	return nil
}

// acked takes an acknowledgement.
func (s *session) acked(m *ack) error {
	if m.durable > entry.Index(s.sent.Load()) || m.durable < s.durable || m.stamp > s.sentAt.Load() || m.stamp < 0 {
		return malformed("an acknowledgement up to entry %d at %d, of what was never sent", m.durable, m.stamp)
	}
	r := s.r
	s.echoes.paid(m.stamp)
	r.mu.Lock()
	s.durable = m.durable
	r.peer.durable, r.peer.applied = m.durable, m.applied
	if s.settled.Load() {
		r.remote = max(r.remote, m.durable)
	}
	r.mu.Unlock()
	if until := m.stamp + int64(r.cfg.Timeout); until > r.lease.Load() {
		r.lease.Store(until)
	}
	if !s.settled.Load() {
		return s.arrived()
	}
	r.advance()
	return nil
}

// arrived lets writes through once the follower has everything that was in the log when the session began.
func (s *session) arrived() error {
	if s.durable < s.end {
		return nil
	}
	if err := s.r.notAlone(); err != nil {
		return err
	}
	s.settled.Store(true)
	err := s.r.settle(s, s.end)
	if errors.As(err, new(*applyError)) {
		s.r.fail(err)
	}
	return err
}
