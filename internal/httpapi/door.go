package httpapi

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	doorParked  = 128                   // connections of which not enough is known yet
	doorLeaving = 64                    // connections that were refused, and may not have read the answer yet
	doorBatch   = 32                    // connections taken from the kernel in one turn
	doorBeat    = 4 * time.Millisecond  // between two turns; with doorBatch it bounds what refusing takes of the processor
	doorRest    = 20 * time.Millisecond // the same where nobody comes
	doorPeek    = 1 << 10               // of a request, to know its path

	doorHandshakes = 2 // of TLS, begun in one turn
	methodMax      = 16
)

// door is where new connections wait while all places of clients are taken. A crowd that comes again whenever it is cut off
// must not take the processor from those who have a place: so nobody gets a goroutine, a buffer or a part of the poller here.
// One goroutine looks at all of them together, now and then: the kernel holds what they have sent, and the first bytes tell
// whether a connection may use the reserve (see places). The others are refused where they stand. Who says nothing costs
// nothing but a number, goes after reserveTimeout, or makes room for the newest.
//
// Of TLS the path cannot be seen: who speaks may use the reserve, doorHandshakes in each turn. So each of them has at least
// reserveMax/doorHandshakes turns, 128 ms, to show who it is, before the newest take its place.
//
// All of it is owned by the goroutine that accepts.
type door struct {
	s       *Server
	ln      syscall.RawConn // the listener
	parked  []knock         // the oldest first
	leaving []knock         // the oldest first
	polls   []unix.PollFd   // of parked, then of leaving
	beat    time.Duration   // until the next turn
	refused bool            // somebody was
	sight   [doorPeek]byte
	waste   [16 << 10]byte
	no      []byte // the answer to who is refused
	noHead  int    // how much of it is its head
}

// knock is a connection before the door.
type knock struct {
	fd    int
	until time.Time // then it is closed
	most  time.Time // until is never later, for one that was refused
	spoke bool      // something has come
}

// newDoor returns nil where the listener is not the kernel's own.
func newDoor(s *Server, ln net.Listener) *door {
	sc, ok := ln.(syscall.Conn)
	if !ok {
		return nil
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return nil
	}
	d := &door{s: s, ln: rc, beat: doorBeat}
	body := appendError(nil, errManyConnections)
	d.no = fmt.Appendf(nil, "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\nRetry-After: 1\r\nConnection: close\r\n\r\n", len(body))
	d.noHead = len(d.no)
	d.no = append(d.no, body...)
	return d
}

// stands reports whether connections have to wait at the door.
func (d *door) stands() bool { return len(d.parked)+len(d.leaving) > 0 || d.s.freePlaces() == 0 }

// turn waits for the beat, takes new connections from the kernel, and looks at all that wait. It returns those that may come
// in. An error is one of accept; those that wait go on waiting.
func (d *door) turn() ([]net.Conn, error) {
	beat := time.NewTimer(d.beat)
	<-beat.C // a stop shows in accept
	now := time.Now()
	came, err := d.accept(now)
	d.beat = doorBeat
	if came == 0 && len(d.parked)+len(d.leaving) == 0 {
		d.beat = doorRest
	}
	in := d.look(now)
	return in, err
}

// accept takes connections from the kernel, a few at a time: the others wait there.
func (d *door) accept(now time.Time) (came int, err error) {
	var failed error
	err = d.ln.Control(func(ln uintptr) {
		for came < doorBatch {
			fd, _, err := unix.Accept4(int(ln), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			switch err {
			case nil:
				d.parked = append(d.parked, knock{fd: fd, until: now.Add(reserveTimeout)})
				came++
			case unix.EINTR, unix.ECONNABORTED:
			case unix.EAGAIN:
				return
			default:
				failed = os.NewSyscallError("accept4", err)
				return
			}
		}
	})
	for len(d.parked) > doorParked { // never one that has come just now: nobody has looked at it
		old := d.parked[:max(1, len(d.parked)-came)]
		i := max(0, slices.IndexFunc(old, func(k knock) bool { return !k.spoke }))
		unix.Close(d.parked[i].fd)
		d.parked = slices.Delete(d.parked, i, i+1)
	}
	if err == nil {
		err = failed
	}
	return came, err
}

// look looks at all that wait, and returns those that may come in.
func (d *door) look(now time.Time) (in []net.Conn) {
	d.polls = d.polls[:0]
	for _, list := range [][]knock{d.parked, d.leaving} {
		for _, k := range list {
			d.polls = append(d.polls, unix.PollFd{Fd: int32(k.fd), Events: unix.POLLIN | unix.POLLRDHUP})
		}
	}
	if len(d.polls) == 0 {
		return nil
	}
	if _, err := unix.Poll(d.polls, 0); err != nil {
		return nil // interrupted
	}
	parked, leaving := d.polls[:len(d.parked)], d.polls[len(d.parked):]

	stay := d.leaving[:0]
	for i, k := range d.leaving {
		if leaving[i].Revents != 0 {
			switch n, _, err := unix.Recvfrom(k.fd, d.waste[:], unix.MSG_DONTWAIT); {
			case err == unix.EAGAIN || err == unix.EINTR:
			case err != nil || n == 0: // it has gone
				k.until = now
			default: // it goes on sending, and reads the answer later
				if k.until = now.Add(lingerSilence); k.until.After(k.most) {
					k.until = k.most
				}
			}
		}
		if !now.Before(k.until) {
			unix.Close(k.fd)
			continue
		}
		stay = append(stay, k)
	}
	d.leaving = stay

	free, handshakes := d.s.freePlaces(), doorHandshakes
	stay = d.parked[:0]
	for i, k := range d.parked {
		verdict := doorWait
		if parked[i].Revents != 0 {
			k.spoke = true
			verdict = d.judge(k.fd)
		}
		late := !now.Before(k.until)
		waits := verdict == doorWait
		if verdict == doorPass && d.s.cfg.TLS != nil && free == 0 {
			waits = handshakes == 0
			if parked[i].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0 {
				verdict = doorGone
			}
		}
		switch {
		case verdict == doorGone, waits && late:
			unix.Close(k.fd)
		case waits:
			stay = append(stay, k)
		case free > 0: // who has something to say comes first
			free--
			in = d.let(in, k)
		case verdict == doorPass:
			handshakes--
			in = d.let(in, k)
		default:
			d.refuse(k, verdict, now)
		}
	}
	d.parked = stay
	for free > 0 && len(d.parked) > 0 {
		free--
		in = d.let(in, d.parked[0])
		d.parked = slices.Delete(d.parked, 0, 1)
	}
	return in
}

// verdict is what the first bytes of a connection say of it.
type verdict uint8

const (
	doorWait       verdict = iota // too little has come
	doorGone                      // the connection has ended
	doorPass                      // it may use the reserve
	doorRefuse                    // it may not
	doorRefuseHead                // the same, and the answer must not have a body
)

// judge looks at what a connection has sent, and leaves it in the kernel.
func (d *door) judge(fd int) verdict {
	n, _, err := unix.Recvfrom(fd, d.sight[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
	switch {
	case err == unix.EAGAIN || err == unix.EINTR:
		return doorWait
	case err != nil || n == 0:
		return doorGone
	case d.s.cfg.TLS != nil:
		return doorPass
	}
	text := d.sight[:n]
	method, rest, ok := bytes.Cut(text, []byte(" "))
	if !ok {
		if len(text) > methodMax {
			return doorRefuse
		}
		return doorWait
	}
	end := bytes.IndexAny(rest, " \r\n")
	if end < 0 && n < len(d.sight) {
		return doorWait
	}
	if r := d.s.route(rest[:max(end, 0)]); r != nil && (r.scope.isNode() || r.plain != nil) {
		return doorPass
	}
	if string(method) == "HEAD" {
		return doorRefuseHead
	}
	return doorRefuse
}

// let makes a connection of Go's out of one that may come in.
func (d *door) let(in []net.Conn, k knock) []net.Conn {
	f := os.NewFile(uintptr(k.fd), "")
	c, err := net.FileConn(f) // it has a descriptor of its own
	f.Close()
	if err != nil {
		return in // no more files may be open: it is closed
	}
	return append(in, c)
}

// refuse tells a connection that there is no place for it, and lets it go.
func (d *door) refuse(k knock, v verdict, now time.Time) {
	d.refused = true
	if d.s.cfg.Observe != nil {
		d.s.cfg.Observe.Request(routeOther, errManyConnections.status, 0)
	}
	// What has been read is not answered by a reset, which would take the answer away.
	unix.Recvfrom(k.fd, d.waste[:], unix.MSG_DONTWAIT)
	answer := d.no
	if v == doorRefuseHead {
		answer = answer[:d.noHead]
	}
	_, err := unix.SendmsgN(k.fd, answer, nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	if err == nil {
		err = unix.Shutdown(k.fd, unix.SHUT_WR)
	}
	if err != nil { // it has gone
		unix.Close(k.fd)
		return
	}
	k.until, k.most = now.Add(lingerSilence), now.Add(lingerTimeout)
	if d.leaving = append(d.leaving, k); len(d.leaving) > doorLeaving {
		unix.Close(d.leaving[0].fd)
		d.leaving = slices.Delete(d.leaving, 0, 1)
	}
}

// close sends all away.
func (d *door) close() {
	for _, list := range [][]knock{d.parked, d.leaving} {
		for _, k := range list {
			unix.Close(k.fd)
		}
	}
	d.parked, d.leaving = nil, nil
}
