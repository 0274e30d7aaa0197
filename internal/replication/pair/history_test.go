package pair

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/mq/internal/entry"
)

// newSync makes a leader with a long log, and an empty follower.
func newSync(w *world, entries int, snapshot entry.Index) {
	w.a.write(fmt.Sprintf("1a%d", entries))
	if snapshot > 0 {
		w.history.index, w.history.snapshot = snapshot, sealed(body(3*chunkBytes+17))
	}
	w.follow(0)
}

// whole waits until the follower has all of the history.
func (w *world) whole() {
	w.t.Helper()
	w.await("the full sync is complete", func() bool {
		return w.leader.Pair().State == StateStreaming && w.follower.Pair().State == StateStreaming && w.b.Promise().First == 0
	})
	if p := w.b.Promise(); p.WholeAt != 0 {
		w.t.Fatalf("whole, and the promise is %+v", p)
	}
	if w.history.held != 0 {
		w.t.Fatalf("the history is held %d times", w.history.held)
	}
}

func TestFullSync(t *testing.T) {
	for _, snapshot := range []entry.Index{0, 40, 60} {
		t.Run(fmt.Sprint("snapshot ", snapshot), func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				newSync(w, 60, snapshot)
				w.lead(1, 60)
				w.whole()
				w.mustCommit()
				w.sameLogs()
				if w.sessions() != 1 || w.replica.wholes != 1 || w.replica.resets != 1 {
					t.Fatalf("%d sessions, whole %d times, begun anew %d times", w.sessions(), w.replica.wholes, w.replica.resets)
				}
				if snapshot > 0 && readFile(t, w.b.mem, fmt.Sprintf("snap/%d", snapshot)) != string(w.history.snapshot) {
					t.Fatal("the snapshot is another one")
				}
			})
		})
	}
}

// The log's head was dropped: the snapshot stands for it.
func TestFullSyncOfDroppedLog(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		newSync(w, 90, 40)
		if _, err := w.a.log.DropBefore(40); err != nil {
			t.Fatal(err)
		}
		w.lead(1, 90)
		w.whole()
		w.mustCommit()
		w.sameLogs()
	})
}

// Files may be many and small: the window counts them, too.
func TestFullSyncOfManyFiles(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		newSync(w, 2000, 0)
		if n := len(w.a.log.Segments()); n < 100 {
			t.Fatalf("%d segments", n)
		}
		w.lead(1, 2000)
		w.whole()
		w.mustCommit()
		w.sameLogs()
		if w.sessions() != 1 {
			t.Fatalf("%d sessions", w.sessions())
		}
	})
}

// Writes go on while the history is on its way; until it has come, the follower must not lead.
func TestWritesDuringFullSync(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		newSync(w, 60, 40)
		w.replica.holdOn = make(chan struct{})
		w.lead(1, 60)
		w.streaming()
		for range 50 {
			w.mustCommit()
			if p := w.b.Promise(); p.First == 0 {
				t.Fatalf("promise %+v", p)
			}
			if l, f := w.leader.Pair(), w.follower.Pair(); l.State != StateFullSync || f.State != StateFullSync || !l.Writable {
				t.Fatalf("leader %+v, follower %+v", l, f)
			}
		}
		close(w.replica.holdOn)
		w.whole()
		w.sameLogs()
	})
}

// A file that arrives damaged is sent again, twice at most, while parts of those behind it are there already.
func TestDamagedFile(t *testing.T) {
	for file := range 4 { // the snapshot, and three segments of several chunks each
		for times := 1; times <= fileTries; times++ {
			t.Run(fmt.Sprintf("file %d %d times", file, times), func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					w.a.segmentBytes, w.b.segmentBytes = 600<<10, 600<<10
					w.a.write("1Z50")
					w.history.index, w.history.snapshot = 40, sealed(body(chunkBytes+17))
					w.follow(0)
					var id entry.Index
					if segments := w.a.log.Segments(); len(segments) != 4 {
						t.Fatalf("%d segments", len(segments))
					} else if file > 0 {
						id = segments[file-1].First
					}
					w.replica.spoil = map[entry.Index]int{id: times}
					w.lead(1, 50)
					w.whole()
					w.mustCommit()
					w.sameLogs()
					if want := 1 + times/fileTries; w.sessions() != want {
						t.Fatalf("%d sessions, want %d; the applier was told %q", w.sessions(), want, w.applier.told)
					}
					told := strings.Join(w.applier.told, " ")
					if gaveUp := strings.Contains(told, "arrived damaged 3 times"); gaveUp != (times == fileTries) {
						t.Fatalf("the applier was told %s", told)
					}
				})
			})
		}
	}
}

// The same, when it comes again in the middle of another file, because the window has no room before.
func TestDamagedFileInBetween(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.a.segmentBytes, w.b.segmentBytes = 2<<20, 2<<20
		w.a.write("1Z260")
		w.history.index, w.history.snapshot = 40, sealed(body(100))
		w.follow(0)
		w.replica.spoil = map[entry.Index]int{0: 1}
		w.lead(1, 260)
		w.whole()
		w.mustCommit()
		w.sameLogs()
		if w.sessions() != 1 {
			t.Fatalf("%d sessions; the applier was told %q", w.sessions(), w.applier.told)
		}
		if got := readFile(t, w.b.mem, "snap/40"); got != string(w.history.snapshot) {
			t.Fatal("the snapshot is another one")
		}
	})
}

// cutOff is a link that ends after some words of the follower on the history.
type cutOff struct {
	*pipe
	left int
	have int64 // what the follower said that it has, in bytes
}

func (c *cutOff) Read() ([]byte, error) {
	b, err := c.pipe.Read()
	if err != nil {
		return nil, err
	}
	switch kind(b[12]) {
	case kindBegun:
		var m begun
		if err := decodeJSON(b[packetHeader:], &m); err != nil {
			return nil, err
		}
		c.have = m.Snapshot
		for _, n := range m.Segments {
			c.have += n
		}
	case kindGot:
		if c.left--; c.left < 0 {
			c.pipe.Close()
			return nil, errUnplugged
		}
	}
	return b, nil
}

// Wherever the link ends, the next session goes on with what is there, also in a new process.
func TestFullSyncGoesOn(t *testing.T) {
	for _, restart := range []bool{false, true} {
		inBubble(t, func(t *testing.T, w *world) {
			newSync(w, 90, 40)
			var links []*cutOff
			w.setDial(func() (Link, error) {
				if n := len(links); restart && n > 0 {
					links[n-1].Close()
					w.follower.Close()
					committed := w.follower.Pair().Committed
					w.b.reopen()
					w.follow(committed)
				}
				links = append(links, &cutOff{pipe: w.serve(), left: 2 + len(links)})
				return links[len(links)-1], nil
			})
			w.lead(1, 90)
			w.whole()
			w.mustCommit()
			w.sameLogs()
			total := int64(len(w.history.snapshot))
			for _, g := range w.a.log.Segments() {
				if g.First < w.b.made[0].First {
					total += g.Bytes
				}
			}
			if w.synced != total {
				t.Fatalf("%d bytes were written of a history of %d", w.synced, total)
			}
			for i, l := range links[1:] {
				if last := i == len(links)-2; last && l.have == 0 || l.have == total { // whole, and the leader does not know
					continue
				}
				if l.have < links[i].have {
					t.Fatalf("session %d began with %d bytes, and the one before with %d: %q", i+1, l.have, links[i].have, w.applier.told)
				}
			}
			if len(links) < 2 {
				t.Fatalf("%d sessions", len(links))
			}
			if w.replica.resets > 1 {
				t.Fatalf("begun anew %d times", w.replica.resets)
			}
		})
	}
}

// A disk is full just when the follower is to note that its log is whole. When there is room it does so before anything else:
// a leader that has dropped the head of its log meanwhile would begin a full sync anew, into a log that is in use.
func TestNoRoomToNoteThatTheLogIsWhole(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		newSync(w, 60, 40)
		w.b.memPromises.full = func(next Promise) bool { return next.First == 0 }
		w.lead(1, 60)
		w.await("there is no room", func() bool { return w.replica.wholes > 0 })
		w.pass(3 * time.Second)
		if w.b.Promise().First == 0 || w.follower.Err() != nil {
			t.Fatalf("without room the promise is %+v, %v", w.b.Promise(), w.follower.Err())
		}
		if _, err := w.a.log.DropBefore(60); err != nil {
			t.Fatal(err)
		}
		w.history.index = 60
		w.b.memPromises.room()
		w.whole()
		w.mustCommit()
		if w.replica.resets != 1 || w.replica.wholes != 1 {
			t.Fatalf("begun anew %d times, whole %d times", w.replica.resets, w.replica.wholes)
		}
	})
}

// If the leader has dropped the segment with which the follower's log begins, a full sync begins anew.
func TestFullSyncBeginsAnew(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		newSync(w, 60, 40)
		w.replica.holdOn = make(chan struct{})
		w.lead(1, 60)
		w.streaming()
		for range 60 {
			w.mustCommit()
		}
		first := w.b.Promise().First
		w.setDial(unplugged)
		w.link.Close()
		close(w.replica.holdOn)
		w.pass(time.Second)
		w.b.memPromises.kept.First = first // as if it had not become whole in between, and had been started again
		committed := w.follower.Pair().Committed
		w.follower.Close()
		w.b.reopen()
		w.follow(committed)
		w.history.index = 110
		if _, err := w.a.log.DropBefore(110); err != nil {
			t.Fatal(err)
		}
		w.setDial(nil)
		w.streaming()
		w.whole()
		w.mustCommit()
		w.sameLogs()
		if w.replica.resets != 1 { // since then
			t.Fatalf("begun anew %d times", w.replica.resets)
		}
		i := slices.IndexFunc(w.b.made, func(p Promise) bool { return p.First > first })
		if w.b.made[i].WholeAt < 120 {
			t.Fatalf("begun anew with the promise %+v", w.b.made[i])
		}
	})
}
