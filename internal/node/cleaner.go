package node

import (
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

const (
	// The cleaner works while the sealed segments take more than so many times what lives in the log. At the soft limit it
	// yields to publishers, beyond the hard one it does not. When the disk is low the soft limit is lower. The promise is twice
	// what lives, and two segments: the hard limit is below it, because what is dead goes only when two snapshots cover it.
	cleanSoft    = 1.5
	cleanSoftLow = 1.1
	cleanHard    = 1.8
	// cleanPiece is how many bytes of log are moved at a time, or a little more. While others publish and the cleaner yields it
	// is cleanPieceSmall: a piece shares the sync of a group commit, and makes all wait longer that are in it.
	cleanPiece      = 128 << 10
	cleanPieceSmall = 32 << 10
	// cleanRead is how much is read from a segment at a time.
	cleanRead = 256 << 10
	// cleanIdleRate is how many bytes a second are moved while nobody publishes; cleanShare is how many for each byte that
	// is published, at the soft limit, and cleanShareMax at the hard one. cleanSaved bounds what is saved up.
	cleanIdleRate = 16 << 20
	cleanShare    = 1
	cleanShareMax = 4
	cleanSaved    = 1 << 20
	// cleanTick is how often the cleaner looks whether there is something to do, cleanWait how often whether it may go on.
	cleanTick = time.Second
	cleanWait = 10 * time.Millisecond
	// cleanRetry is when it looks again at a segment that it cannot read.
	cleanRetry = 30 * time.Second
	// cleanLiveShare bounds the time that summing up what lives may take: one part in so many. It is not done again sooner than
	// after cleanLiveWait.
	cleanLiveShare = 10
	cleanLiveWait  = 100 * time.Millisecond
	// cleanAhead is how many segments in which nothing lives any more may wait for the keeper to drop them.
	cleanAhead = 4
	// cleanTurns is how often the whole log is moved, at most, without a record being freed. What takes more room then is no
	// dead records but the unused ends of segments, and moving on would go on for ever.
	cleanTurns = 2
	// frameOverhead is about what a frame, and a record in it, take beside keys and values.
	frameOverhead, recordOverhead = 64, 12
)

// cleaner gives disk space back where little of what a segment holds still lives: it has the living records of the oldest
// segment appended to the log once more, as facts, so that the keeper can drop it. Each node runs one; it acts only while
// its broker leads. What it moves is found by the index, so who leads next goes on where it ended.
//
// Why the oldest segment, and no other: the log must stay without holes. While the sealed segments take a times
// what lives, one turn through the log moves what lives once, and frees a - 1 times as much: each byte that is freed costs one
// that is moved at a = 2, 1.25 at the hard limit and 2 at the soft one, where the cleaner yields.
//
// One goroutine does all of it. It is told to look by committed and the keeper, and looks by itself once a second.
type cleaner struct {
	node   *Node
	broker *broker.Broker
	room   *room

	kick    chan struct{} // capacity 1
	quit    chan struct{}
	quitOne sync.Once
	stopped sync.WaitGroup

	published atomic.Int64  // bytes of log committed since the budget was last filled up
	freed     atomic.Uint64 // how often records were freed, by a retain or a delete
	advance   atomic.Bool   // an entry is wanted, so that one more snapshot can be taken

	// For others to read.
	mu      sync.Mutex
	figures CleanerStatus
	sumMu   sync.Mutex
	sum     liveSum // for report; guarded by sumMu

	// owned by run
	live    liveSum
	budget  budget
	turn    turn
	job     *job          // the segment at work; nil for none
	dead    entry.Index   // segments before hold nothing that lives, and wait for the keeper
	lookAt  time.Duration // at the room on the disk
	blocked entry.Index   // the segment that cannot be cleaned; 0 for none
	retryAt time.Duration // then
	said    entry.Index   // the segment of which was said that it cannot be cleaned
}

// CleanerStatus says what the cleaner does. Bytes are bytes of segment files.
type CleanerStatus struct {
	State        string `json:"state"`      // one of those below
	LiveBytes    int64  `json:"live_bytes"` // what lives in the log, as it was not long ago
	SealedBytes  int64  `json:"sealed_bytes"`
	MovedBytes   uint64 `json:"moved_bytes"` // keys and values, since the start
	MovedRecords uint64 `json:"moved_records"`
	Blocked      string `json:"blocked,omitempty"` // why the oldest segment cannot be cleaned
}

// States of the cleaner.
const (
	cleanerIdle    = "idle"
	cleanerSoft    = "soft" // yields to publishers
	cleanerHard    = "hard" // does not
	cleanerBlocked = "blocked"
)

func newCleaner(n *Node, b *broker.Broker) *cleaner {
	c := &cleaner{node: n, broker: b, room: &n.room, kick: make(chan struct{}, 1), quit: make(chan struct{})}
	c.figures.State = cleanerIdle
	c.lookAt = n.cfg.Clock.Monotonic()
	c.budget = budget{tokens: cleanSaved, at: c.lookAt}
	return c
}

func (c *cleaner) start() { c.stopped.Go(c.run) } // ended by end, awaited by wait

// end makes the cleaner stop soon. What it waits for may end only with the role.
func (c *cleaner) end() { c.quitOne.Do(func() { close(c.quit) }) }

func (c *cleaner) wait() { c.stopped.Wait() }

func (c *cleaner) wake() {
	select {
	case c.kick <- struct{}{}:
	default:
	}
}

// committed is called for each group commit. It must be quick.
func (c *cleaner) committed(logBytes int64, freed bool) {
	c.published.Add(logBytes)
	if freed {
		c.freed.Add(1)
	}
}

func (c *cleaner) status() CleanerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.figures
}

// report is status with the room that the log takes now, on any node. It takes time where there are many topics and segments,
// so it sums up anew only now and then.
func (c *cleaner) report() CleanerStatus {
	c.sumMu.Lock()
	defer c.sumMu.Unlock()
	if c.node.cfg.Clock.Monotonic() >= c.sum.next {
		c.sum.known = false
	}
	status := c.status()
	status.LiveBytes, status.SealedBytes = c.sum.get(c, 0), 0
	for _, s := range c.node.log.Segments() {
		if s.Sealed {
			status.SealedBytes += s.Bytes
		}
	}
	return status
}

func (c *cleaner) run() {
	timer := c.node.cfg.Clock.NewTimer(cleanTick)
	defer timer.Stop()
	defer c.drop()
	for {
		for c.step() {
			select {
			case <-c.quit:
				return
			default:
			}
		}
		if c.advance.Swap(false) || c.node.keeper.awaitsEntry() {
			c.broker.Advance()
		}
		timer.Reset(cleanTick)
		select {
		case <-c.quit:
			return
		case <-c.kick:
		case <-timer.C():
		}
	}
}

// step moves one piece, if that is due, and reports whether the next one may follow at once.
func (c *cleaner) step() bool {
	if now := c.node.cfg.Clock.Monotonic(); now >= c.lookAt {
		c.lookAt = now + cleanTick
		c.room.look()
	}
	if !c.broker.Leads() {
		c.drop()
		c.say(cleanerIdle, "")
		if c.published.Swap(0) > 0 { // what the leader moves frees segments here, too
			c.node.keeper.lookAgain()
		}
		return false
	}
	segments := c.node.log.Segments()
	excess := c.excess(segments)
	if excess < 0 {
		c.drop()
		c.say(cleanerIdle, "")
		return false
	}
	if c.job == nil && !c.begin(segments) {
		return false
	}
	state := cleanerSoft
	if excess >= 1 {
		state = cleanerHard
	}
	if c.job.segment.First != c.blocked { // else it is tried once more
		c.say(state, "")
	}
	limit := min(cleanPiece, int(c.node.cfg.SegmentBytes/16)) // what does not fit at the end of a segment is lost
	if excess < 1 && c.budget.busy {
		limit = min(limit, cleanPieceSmall)
	}
	piece, err := c.job.next(c, limit)
	switch {
	case errors.As(err, new(*wal.CorruptionError)):
		return c.around(err, limit)
	case err == nil && len(piece.Runs) == 0:
		return c.finish(nil)
	case err == nil:
		err = c.move(&piece, excess)
	}
	if err != nil {
		c.failed(err)
		return false
	}
	return true
}

// move has a piece of the job appended to the log, when its turn has come.
func (c *cleaner) move(piece *broker.Keep, excess float64) error {
	if err := c.pay(c.job.cost, excess); err != nil {
		return err
	}
	if err := c.broker.Keep(piece); err != nil {
		return err
	}
	c.moved(piece)
	return nil
}

// around goes on behind damage in the segment at work: it moves all that lives there and can be read. What is damaged may be
// dead. It reports whether the next segment may be taken up.
func (c *cleaner) around(damage error, limit int) bool {
	if c.node.corrupt != nil {
		c.node.corrupt() // where there is somebody to repair it from
	}
	err := c.job.rest(c, limit, func(piece *broker.Keep) error {
		select {
		case <-c.quit:
			return errEnded
		default:
			return c.move(piece, c.excess(c.node.log.Segments()))
		}
	})
	if err != nil {
		c.failed(err)
		return false
	}
	return c.finish(damage)
}

// excess says how far the sealed segments are beyond the soft limit: 0 at it, 1 at the hard one, negative below.
func (c *cleaner) excess(segments []wal.Segment) float64 {
	var sealed int64
	for _, s := range segments {
		if s.Sealed && s.First >= c.dead {
			sealed += s.Bytes
		}
	}
	soft := cleanSoft
	if c.room.low.Load() {
		soft = cleanSoftLow
	}
	var least uint64 // frames take more than the keys and values in them
	c.broker.View(func(s *state.State) { least = s.LiveBytes() })
	if float64(sealed) <= soft*float64(least) {
		c.note(sealed, 0)
		return -1
	}
	live := c.live.get(c, segments[len(segments)-1].First)
	c.note(sealed, live)
	if float64(sealed) <= soft*float64(live) || c.turn.resting(c.freed.Load()) {
		return -1
	}
	return (float64(sealed)/float64(max(live, 1)) - soft) / (cleanHard - soft)
}

// begin takes up the oldest segment in which something lives. It reports false when there is none to be cleaned now. It looks
// anew each time: a segment that was dead lives again when damage in it was repaired.
func (c *cleaner) begin(segments []wal.Segment) bool {
	switch {
	case c.blocked == 0:
	case segments[0].First > c.blocked || !c.node.keeper.alive(c.blocked): // it is in nobody's way any more
		c.blocked = 0
		c.say(cleanerIdle, "")
	case c.node.cfg.Clock.Monotonic() < c.retryAt:
		return false
	}
	c.dead = 0
	ahead := 0
	for _, s := range segments {
		// Of a segment that is not all applied, nothing is known yet.
		if !s.Sealed || s.Last > c.broker.Applied() {
			return false
		}
		if !c.node.keeper.alive(s.First) {
			c.dead = s.Last + 1
			if ahead++; ahead == 1 {
				c.node.keeper.lookAgain()
			}
			if ahead >= cleanAhead {
				return false // the keeper has to drop them first
			}
			continue
		}
		if ahead > 0 && c.excess(segments) < 0 {
			return false
		}
		if c.node.log.Full() && !c.fits(s.First) {
			c.node.keeper.spareSegment()
			return false
		}
		c.turn.at(s, segments, c.freed.Load())
		c.job = newJob(c.node.log, s)
		return true
	}
	return false
}

// fits reports whether what lives in a segment fits into what the log has left on a full disk. If not, moving some of it
// would take room and give none.
func (c *cleaner) fits(segment entry.Index) bool {
	for _, l := range c.node.index.Live(c.startOf) {
		if l.Segment == segment {
			most := l.Bytes + l.Bytes/16 // a frame that is kept may take a few bytes more
			return most+min(cleanPiece, c.node.cfg.SegmentBytes/16) <= c.node.log.Room()
		}
	}
	return false
}

// finish is called when a segment has been read to its end, over damage if that is not nil. It reports whether the next one
// may be taken up.
func (c *cleaner) finish(damage error) bool {
	segment, moved := c.job.segment, c.job.moved
	c.drop()
	if !c.node.keeper.alive(segment.First) {
		c.dead = segment.Last + 1
		c.node.keeper.lookAgain()
		return true
	}
	switch {
	case moved:
	case damage != nil:
		c.block(segment.First, damage.Error()+lostText(c.node.lostIn(segment.First, 0, math.MaxInt64)))
	default:
		c.block(segment.First, "the index says that records live in it which are not found there")
	}
	return false // once more, a little later: what was moved is not all applied yet, perhaps
}

// failed ends the work at a segment for now. What makes it fail for good has been reported by who met it.
func (c *cleaner) failed(err error) {
	segment := c.job.segment.First
	c.drop()
	switch {
	case errors.As(err, new(*broker.UnavailableError)), errors.As(err, new(*broker.NotLeaderError)), errors.Is(err, broker.ErrStorageFull),
		errors.Is(err, wal.ErrSegmentGone), errors.Is(err, wal.ErrClosed), errors.Is(err, wal.ErrFailed), errors.Is(err, errEnded):
	default:
		c.block(segment, err.Error())
	}
}

// block leaves a segment alone for a while, and says why once.
func (c *cleaner) block(segment entry.Index, why string) {
	c.mu.Lock() // tests read it
	c.blocked, c.retryAt = segment, c.node.cfg.Clock.Monotonic()+cleanRetry
	c.mu.Unlock()
	c.say(cleanerBlocked, why)
	if c.said != segment {
		c.said = segment
		c.node.logger.Error("the oldest segment cannot be cleaned: it stays, and all after it, until it is repaired or its records are retained",
			"segment", uint64(segment), "err", why)
	}
}

// lostText says which records are lost, the first of them if they are many.
func lostText(lost []DamagedRecords) string {
	const most = 10
	text := ""
	for i, r := range lost {
		switch {
		case i == 0:
			text = "; lost with it: " + r.String()
		case i == most:
			return text + ", and more"
		default:
			text += ", " + r.String()
		}
	}
	return text
}

// drop lets go of the segment at work.
func (c *cleaner) drop() {
	if c.job != nil {
		c.job.cursor.Close()
		c.job = nil
	}
}

func (c *cleaner) say(state, blocked string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.figures.State, c.figures.Blocked = state, blocked
}

func (c *cleaner) note(sealed, live int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.figures.SealedBytes = sealed
	if live > 0 {
		c.figures.LiveBytes = live
	}
}

func (c *cleaner) moved(piece *broker.Keep) {
	c.blocked = 0
	records := 0
	for i := range piece.Runs {
		records += len(piece.Runs[i].Records)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.figures.MovedBytes += uint64(piece.Bytes)
	c.figures.MovedRecords += uint64(records)
}

// startOf returns where a topic starts: above all that it ever held when it does not exist any more.
func (c *cleaner) startOf(topic string) (start fact.Offset) {
	c.broker.View(func(s *state.State) { start = startOf(s, topic) })
	return start
}

// startOf returns the start of a topic, or the end of one that was deleted.
func startOf(s *state.State, topic string) fact.Offset {
	if t, ok := s.Topic([]byte(topic)); ok {
		return t.Start
	}
	end, _, _, _ := s.Ended([]byte(topic))
	return end
}

// liveSum is what lives in the log, summed up from the index: it takes time where there are many topics and segments.
type liveSum struct {
	bytes  int64
	known  bool
	active entry.Index // when it was summed up
	freed  uint64
	next   time.Duration // not before
}

// get sums up again if segments or starts have changed, and not too often.
func (l *liveSum) get(c *cleaner, active entry.Index) int64 {
	now, freed := c.node.cfg.Clock.Monotonic(), c.freed.Load()
	if l.known && (l.active == active && l.freed == freed || now < l.next) {
		return l.bytes
	}
	l.bytes = 0
	for _, s := range c.node.index.Live(c.startOf) {
		l.bytes += s.Bytes
	}
	end := c.node.cfg.Clock.Monotonic()
	l.known, l.active, l.freed = true, active, freed
	l.next = end + max(cleanLiveWait, cleanLiveShare*(end-now))
	return l.bytes
}

// turn is one way through the log, from its head to where it ended when the turn began.
type turn struct {
	last  entry.Index // of the segments that were sealed then
	freed uint64
	idle  int // turns that have ended since records were freed
}

// at is told which segment comes next.
func (t *turn) at(s wal.Segment, segments []wal.Segment, freed uint64) {
	if freed != t.freed {
		t.idle, t.freed = 0, freed
	} else if t.last > 0 && s.First > t.last {
		t.idle++
	} else if t.last > 0 {
		return
	}
	t.last = segments[len(segments)-1].First - 1
}

// resting reports whether going on would free nothing.
func (t *turn) resting(freed uint64) bool { return t.idle >= cleanTurns && freed == t.freed }

// budget is how many bytes may be moved.
type budget struct {
	tokens float64
	own    float64 // bytes that were moved, about, and come back as published
	busy   bool    // others have published of late
	at     time.Duration
}

// earn adds what has come together since it was last called.
func (b *budget) earn(now time.Duration, published int64, excess float64) {
	others := max(0, float64(published)-b.own)
	b.own = max(0, b.own-float64(published))
	share := cleanShare + (cleanShareMax-cleanShare)*min(1, max(0, excess))
	// The more is published, the less comes with the time alone.
	idle := max(0, cleanIdleRate*(now-b.at).Seconds()-16*others)
	b.tokens = min(cleanSaved, b.tokens+share*others+idle)
	b.busy = others > 0
	b.at = now
}

var errEnded = errors.New("the node is closing")

// pay waits until a piece may be moved. Beyond the hard limit it does not wait.
func (c *cleaner) pay(bytes int, excess float64) error {
	cost := float64(bytes)
	var timer clock.Timer
	for {
		c.budget.earn(c.node.cfg.Clock.Monotonic(), c.published.Swap(0), excess)
		if excess >= 1 || c.budget.tokens >= min(cost, cleanSaved) {
			break
		}
		if timer == nil {
			timer = c.node.cfg.Clock.NewTimer(cleanWait)
			defer timer.Stop()
		} else {
			timer.Reset(cleanWait)
		}
		select {
		case <-c.quit:
			return errEnded
		case <-timer.C():
		}
	}
	c.budget.tokens = max(0, c.budget.tokens-cost)
	c.budget.own += cost
	return nil
}
