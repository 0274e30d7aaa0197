package httpapi

import (
	"fmt"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
	"github.com/valyala/fasthttp"
)

// call is one request under way, with all the memory that it needs. Calls are pooled, so that a request in
// the steady state allocates nothing.
type call struct {
	s    *Server
	ctx  *fasthttp.RequestCtx
	conn *conn

	small    [prefetchMax + 1]byte // the body, when it is small; one byte more than is prefetched saves a read
	big      []byte                // from a pool: the body, when it is not
	body     []byte                // in small or big
	bodyDone bool                  // the body has been read to its end: the connection can go on
	booked   int64                 // bytes taken from
	bookedOf *budget               // Server.budget or Server.singles
	chunked  int64                 // bytes taken from Server.chunked

	req   request
	names [2 * api.NameMax]byte // topic and group, once the body was given back
	arena []byte                // decoded keys and values

	out       []byte      // the answer
	outFirst  [256]byte   // where it begins
	bigOut    bool        // out is from a pool
	outBooked int64       // bytes taken from Server.answers. Invariant: cap(out) if bigOut, else 0
	outHint   int         // how large out will likely become; 0 once it was followed
	outFull   bool        // a record was dropped for want of memory: those behind it are too
	outNext   fact.Offset // behind the last record in out, if there is one

	// inBroker is set while the Broker runs: see Config.Fatal.
	inBroker bool

	pub     broker.Publish
	fet     broker.Fetch
	isAlive func() bool
}

type callKeyType struct{}

// callKey is where fasthttp keeps the call until the answer is written.
var callKey any = callKeyType{}

func newCall(s *Server) *call {
	c := &call{s: s}
	c.isAlive = func() bool { return !c.s.stopping.Load() && c.conn.alive() }
	return c
}

func (c *call) begin(ctx *fasthttp.RequestCtx, conn *conn) {
	c.ctx, c.conn = ctx, conn
}

// Close gives everything back. fasthttp calls it when the answer has been written, or the connection died.
func (c *call) Close() error {
	c.freeBody()
	if cap(c.arena) > keepMax {
		putBuffer(c.arena)
		c.arena = nil
	}
	if c.bigOut {
		putBuffer(c.out)
		c.out, c.bigOut = nil, false
	} else if cap(c.out) > keepMax { // what a backup holds, of a log of many segments
		c.out = nil
	}
	if c.outBooked > 0 {
		c.s.answers.give(c.outBooked)
		c.outBooked = 0
	}
	c.outHint, c.inBroker = 0, false
	c.ctx, c.conn, c.body, c.bodyDone = nil, nil, nil, false
	c.req.reset()
	c.pub, c.fet = broker.Publish{}, broker.Fetch{}
	c.s.calls.Put(c)
	return nil
}

// freeBody gives the body's memory back.
func (c *call) freeBody() {
	c.body = nil
	if c.big != nil {
		putBuffer(c.big)
		c.big = nil
	}
	if c.booked > 0 {
		c.bookedOf.give(c.booked)
		c.booked, c.bookedOf = 0, nil
	}
	if c.chunked > 0 {
		c.s.chunked.give(c.chunked)
		c.chunked = 0
	}
}

// serve reads and decodes the body and does what it asks for.
func (c *call) serve(r *route) *apiError {
	if err := c.readBody(r.shape); err != nil {
		return err
	}
	if err := c.decode(r.shape); err != nil {
		return err
	}
	return r.do(c)
}

// decode turns the body into c.req. The fast decoder knows only what is common and in order; whatever it
// does not take goes to the strict one, which alone finds errors.
func (c *call) decode(sh *shape) *apiError {
	need := len(c.body)/4*3 + arenaSlack
	if sh.records && cap(c.arena) < need {
		if need > keepMax {
			c.arena = getBuffer(need)
		} else {
			c.arena = make([]byte, 0, max(need, 2*cap(c.arena)))
		}
	}
	if decodeFast(c.body, sh, c.arena[:0], &c.req) {
		return nil
	}
	clear(c.req.store[:])
	c.req.reset()
	return decodeStrict(c.body, sh, c.arena[:0], &c.req)
}

func (c *call) publish() *apiError {
	done, err := c.append()
	if err != nil {
		return err
	}
	c.answer(appendPublished(c.out[:0], done))
	return nil
}

func (c *call) publishBatch() *apiError {
	done, err := c.append()
	if err != nil {
		return err
	}
	c.answer(appendBatchPublished(c.out[:0], done))
	return nil
}

func (c *call) append() (broker.Published, *apiError) {
	c.pub = broker.Publish{Topic: c.req.topic, RequestID: c.req.requestID, Records: c.req.records}
	c.inBroker = true
	done, err := c.s.cfg.Broker.Publish(&c.pub)
	c.inBroker = false
	if err != nil {
		return done, c.failed(err)
	}
	return done, nil
}

// fetch serves fetch and groups/fetch.
//
// The memory of a large answer is charged as it grows, by Record, which cannot wait: the page ends before the
// record that finds no room. Only when that is the first one, we wait here for enough for any record, holding
// nothing meanwhile, and read again. So a long poll holds no memory while it waits for a record, a small
// answer never touches the budget, and nobody waits for memory while having some.
func (c *call) fetch() *apiError {
	if c.big != nil { // it is padding, for the most part: do not hold it through a wait
		n := copy(c.names[:], c.req.topic)
		m := n + copy(c.names[n:], c.req.group)
		c.req.topic, c.req.group = c.names[:n], c.names[n:m]
		c.freeBody()
	}
	c.fet = broker.Fetch{
		Topic: c.req.topic, Group: c.req.group, Offset: fact.Offset(c.req.offset), Limit: int(c.req.limit),
		ByTime: c.req.given.has(fieldFromMS), FromMS: int64(c.req.fromMS),
		Wait: time.Duration(c.req.waitMS) * time.Millisecond,
	}
	// With pipelined requests the answer before may be held back until this one is there.
	if c.s.stopping.Load() || c.conn.holdsAnswer() {
		c.fet.Wait = 0
	}
	if c.fet.Wait > 0 {
		c.fet.Alive = c.isAlive
	}
	c.beginRecords()
	c.fet.MaxBytes = c.s.pageBytes()
	page, err := c.brokerFetch()
	if err == nil && c.outFull && len(c.out) == len(recordsHead) {
		if !c.s.answers.take(answerMin, budgetTimeout) {
			return errAnswersBusy
		}
		c.outBooked = answerMin
		c.moveOut(answerMin)
		c.outFull = false
		c.fet.Wait, c.fet.MaxBytes = 0, api.MessageMax
		page, err = c.brokerFetch()
	}
	if err != nil {
		return c.failed(err)
	}
	if c.outFull {
		page.Next = c.outNext
	}
	c.conn.answerSize = len(c.out)
	c.answer(appendPage(c.out, page))
	return nil
}

func (c *call) brokerFetch() (broker.Page, error) {
	c.inBroker = true
	page, err := c.s.cfg.Broker.Fetch(&c.fet, c)
	c.inBroker = false
	return page, err
}

// pageBytes is how many bytes of records a fetch should ask for: what there is likely room for, so that the
// Broker does not read in vain. 0 is its own limit.
func (s *Server) pageBytes() int64 {
	left := s.answers.spare()
	if left >= answerMax {
		return 0
	}
	return max(left/2, keepMax*3/4)
}

func (c *call) groupsCommit() *apiError {
	c.inBroker = true
	next, err := c.s.cfg.Broker.CommitGroup(c.req.topic, c.req.group, fact.Offset(c.req.nextOffset))
	c.inBroker = false
	if err != nil {
		return c.failedAt(err, "next_offset", fact.Offset(c.req.nextOffset))
	}
	c.answer(appendNumber(c.out[:0], `{"next_offset":`, uint64(next)))
	return nil
}

func (c *call) topicsRetain() *apiError {
	c.inBroker = true
	start, err := c.s.cfg.Broker.Retain(c.req.topic, fact.Offset(c.req.startOffset))
	c.inBroker = false
	if err != nil {
		return c.failedAt(err, "start_offset", fact.Offset(c.req.startOffset))
	}
	c.answer(appendNumber(c.out[:0], `{"start_offset":`, uint64(start)))
	return nil
}

func (c *call) snapshot() *apiError {
	c.inBroker = true
	index, err := c.s.cfg.Broker.Snapshot()
	c.inBroker = false
	if err != nil {
		return c.failed(err)
	}
	c.answer(appendNumber(c.out[:0], `{"index":`, uint64(index)))
	return nil
}

// answer makes out the body of a 200.
func (c *call) answer(out []byte) {
	c.out = out
	c.ctx.Response.Header.SetContentTypeBytes(contentJSON)
	c.ctx.Response.SetBodyRaw(out)
}

// failed maps an error of the broker. One that the table does not know is our mistake: it is logged, and
// the client learns no more than that.
func (c *call) failed(err error) *apiError {
	if e := fromBroker(err); e != nil {
		return e
	}
	c.s.cfg.Logger.Error("request failed", "route", c.s.route(c.ctx.Request.Header.RequestURI()).path, "err", err)
	return errInternal
}

// failedAt is failed, for calls in which an offset out of range came from the given field.
func (c *call) failedAt(err error, field string, off fact.Offset) *apiError {
	e := c.failed(err)
	if e.hasRange {
		e.field = field
		if e.start <= uint64(off) && uint64(off) <= e.end {
			e.message = fmt.Sprintf("no record has offset %d: the broker was restored from a backup, or its log was cut, and offsets went on above it; "+
				"the topic has records from %d on, and ends at %d", off, e.start, e.end)
		}
	}
	return e
}
