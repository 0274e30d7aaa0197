// Package crowd surrounds an mqd whose memory is bounded with thousands of clients that mean no good, and looks at what
// becomes of the process, and of the clients beside them that do nothing wrong.
package crowd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Report counts what happened to a crowd.
type Report struct {
	Connected int            // connections that were made
	Refused   int            // that could not be made
	Answers   map[string]int // first answers by kind of member and status
	Cut       map[string]int // connections that mqd ended without an answer, or after it, by kind of member
	Held      map[string]int // connections that stood when the crowd was told to go, by kind
	LongestMS map[string]int // the longest that mqd let one stand, by kind
}

// Plan says who is in a crowd.
type Plan struct {
	Address string // of mqd, host:port
	Topic   string // that has much to read
	Quiet   string // that exists and gets no records
	Readers int
	Writers int
	Flood   int // connects a second that are closed at once
	Seed    uint64
}

// Run sends a crowd until ctx ends. It calls here when each member has connected once.
func Run(ctx context.Context, p Plan, here func()) Report {
	c := &crowd{Plan: p, ctx: ctx, here: here, missing: p.Readers + p.Writers, report: Report{
		Answers: map[string]int{}, Cut: map[string]int{}, Held: map[string]int{}, LongestMS: map[string]int{},
	}}
	var all sync.WaitGroup
	dice := rand.New(rand.NewPCG(p.Seed, 6))
	for i := range p.Readers {
		c.send(&all, i, readers[i%len(readers)], dice)
	}
	for i := range p.Writers {
		c.send(&all, p.Readers+i, writers[i%len(writers)], dice)
	}
	if p.Flood > 0 {
		all.Go(c.flood)
	}
	all.Wait()
	return c.report
}

type crowd struct {
	Plan
	ctx context.Context

	mu      sync.Mutex // guards the fields below
	report  Report
	missing int // members that have not connected yet
	here    func()
}

// pause is how long a member waits before it comes back.
const pause = time.Second

// send sends one member, which comes back whenever it is cut off.
func (c *crowd) send(all *sync.WaitGroup, number int, k kind, dice *rand.Rand) {
	// They come within a second, not in one burst: that is what the flood is for.
	first, phase := time.Duration(dice.Int64N(int64(time.Second))), time.Duration(dice.Int64N(int64(beat)))
	all.Go(func() {
		arrived := false
		for wait := first; c.sleep(wait); wait = pause {
			m := &member{crowd: c, kind: k, phase: phase}
			if !m.connect(number) {
				continue
			}
			if !arrived {
				arrived = true
				c.arrive()
			}
			began := time.Now()
			m.act()
			m.leave(time.Since(began))
		}
	})
}

// sleep waits, and reports whether the crowd goes on.
func (c *crowd) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-c.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func (c *crowd) count(f func(r *Report)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.report)
}

// arrive counts a member in.
func (c *crowd) arrive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.missing--; c.missing == 0 {
		c.here()
	}
}

// flood connects, and closes at once.
func (c *crowd) flood() {
	const each = 20 * time.Millisecond
	tick := time.NewTicker(each)
	defer tick.Stop()
	for due := 0.0; ; {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		for due += float64(c.Flood) * each.Seconds(); due >= 1; due-- {
			m := &member{crowd: c, kind: kind{name: "flood"}}
			if m.connect(-1) {
				m.conn.Close()
			}
		}
	}
}

// member is one client of a crowd, on one connection.
type member struct {
	*crowd
	kind   kind
	phase  time.Duration
	conn   *net.TCPConn
	status string // of the first answer; empty: there was none
}

// connect connects with buffers as small as the kernel lets them be, from an address of its own, so that no number of
// connections uses up the ports.
func (m *member) connect(number int) bool {
	d := net.Dialer{Timeout: 10 * time.Second, LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 66, byte(1+number/250), byte(1+(number+250)%250))}}
	d.Control = func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 2048)
		}); e != nil {
			return e
		}
		return err
	}
	conn, err := d.DialContext(m.ctx, "tcp", m.Address)
	if m.ctx.Err() != nil {
		if err == nil {
			conn.Close()
		}
		return false
	}
	m.count(func(r *Report) {
		if err != nil {
			r.Refused++
		} else {
			r.Connected++
		}
	})
	if err != nil {
		return false
	}
	m.conn = conn.(*net.TCPConn)
	m.conn.SetLinger(0) // gone is gone: neither side keeps anything
	return true
}

// act does what the kind does, until mqd or the crowd ends it.
func (m *member) act() {
	over := context.AfterFunc(m.ctx, func() { m.conn.SetDeadline(time.Unix(1, 0)) })
	defer over()
	m.kind.act(m)
}

// leave counts how it ended.
func (m *member) leave(after time.Duration) {
	m.conn.Close()
	held := m.ctx.Err() != nil
	m.count(func(r *Report) {
		if m.status != "" {
			r.Answers[m.kind.name+" "+m.status]++
		}
		if held {
			r.Held[m.kind.name]++
		} else {
			r.Cut[m.kind.name]++
			r.LongestMS[m.kind.name] = max(r.LongestMS[m.kind.name], int(after.Milliseconds()))
		}
	})
}

// write sends a text, and reports whether that went well.
func (m *member) write(text string) bool {
	_, err := m.conn.Write([]byte(text))
	return err == nil
}

// beat is how often a member does its little.
const beat = time.Second

// drip sends a byte of the text each beat, over and over, and reports the end of it.
func (m *member) drip(text string, times int) {
	answered := make(chan struct{})
	go func() { // ends with the connection
		defer close(answered)
		m.readStatus()
	}()
	defer func() {
		m.conn.SetReadDeadline(time.Unix(1, 0))
		<-answered
	}()
	wait := m.phase
	for range times {
		for i := range text {
			t := time.NewTimer(wait)
			select {
			case <-answered:
				t.Stop()
				return
			case <-t.C:
			}
			if !m.write(text[i : i+1]) {
				return
			}
			wait = beat
		}
	}
}

// readStatus reads the status of the next answer, and whatever follows until the end.
func (m *member) readStatus() {
	buf := make([]byte, 12)
	for n := 0; n < len(buf); {
		k, err := m.conn.Read(buf[n:])
		if err != nil {
			return
		}
		n += k
	}
	m.status = string(buf[9:])
	for {
		if _, err := m.conn.Read(buf); err != nil {
			return
		}
	}
}

// sip reads a byte each beat; stare reads nothing. Both end when mqd ends the connection.
func (m *member) sip() { m.linger(1) }

func (m *member) stare() { m.linger(0) }

func (m *member) linger(bytes int) {
	buf := make([]byte, bytes)
	for wait := m.phase; m.sleep(wait); wait = beat {
		if m.gone() {
			return
		}
		if bytes == 0 {
			continue
		}
		m.conn.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if _, err := m.conn.Read(buf); err == nil && m.status == "" {
			m.status = "taken"
		}
	}
}

// gone reports whether the other side has ended the connection.
func (m *member) gone() (gone bool) {
	raw, err := m.conn.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents != 0
	})
	return gone || err != nil
}

// String is the report in one line.
func (r Report) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Add adds another report.
func (r *Report) Add(o Report) {
	r.Connected += o.Connected
	r.Refused += o.Refused
	for _, x := range []struct{ to, from map[string]int }{{r.Answers, o.Answers}, {r.Cut, o.Cut}, {r.Held, o.Held}} {
		for k, n := range x.from {
			x.to[k] += n
		}
	}
	for k, n := range maps.All(o.LongestMS) {
		r.LongestMS[k] = max(r.LongestMS[k], n)
	}
}

var _ fmt.Stringer = Report{}
