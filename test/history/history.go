// Package history records what clients of a broker saw and checks it against what the broker promises:
// nothing acknowledged is lost, moved, reordered or stored twice; nothing refused appears; a batch is seen
// whole or not at all; offsets are dense and what stands at one never changes; a group's offset is what
// was committed last.
//
// The checker is on line: it judges each answer when it comes, so that a run may be long. It relies on
// real time only in this way: what was acknowledged to anybody, or seen by anybody, before a call began
// must hold for that call. One Checker follows one data directory through any number of restarts. It
// knows nothing of the broker but its answers, and is safe for concurrent use.
//
// A client calls Send before it sends a publish for the first time, and Done, Unknown or Refused for each
// answer; Reading before and Page, Missing or Gone after a fetch; and likewise for groups and retention.
package history

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"sync"
)

// Checker keeps what is known and the violations found.
type Checker struct {
	mu     sync.Mutex // guards all below, and every Sent
	topics map[string]*topic
	groups map[groupKey]*groupOffset
	life   int // how often the broker was killed or stopped
	doubt  bool
	report Report
}

// topic is what is known of one topic.
type topic struct {
	end uint64 // one past the highest record that somebody saw or was acknowledged

	start     uint64 // the highest start that somebody saw or was acknowledged
	startMost uint64 // the highest start that somebody asked for
	// Invariant: start <= startMost, or some policy let go of what is before start, or that was reported.
	policies []Policy // that were ever asked for
	dueMost  uint64   // the highest start that a policy was seen to allow
	deleting bool     // somebody asked for it, and the outcome is not known
	deleted  uint64   // the end at which it was deleted last

	sent    map[sum]*Sent // publishes by the sums of their records
	slots   []slot        // what stands at the offsets from slotsAt on
	slotsAt uint64
}

// slot is what is known of one offset.
type slot struct {
	sent   *Sent // nil: nothing yet. The record is sent.sums[offset-sent.base].
	timeMS int64 // 0: not read yet
}

// sum stands for a record's key and value.
type sum [16]byte

func sumOf(key, value []byte) sum {
	h := sha256.New()
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], uint64(len(key)))
	h.Write(length[:])
	h.Write(key)
	h.Write(value)
	return sum(h.Sum(nil)[:16])
}

// New returns a Checker of an empty data directory.
func New() *Checker {
	return &Checker{topics: map[string]*topic{}, groups: map[groupKey]*groupOffset{}}
}

// Restarted records that the broker's process is dead: what it has not done by now it never does.
func (c *Checker) Restarted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.life++
}

// Doubt says whether an answer with records may come from a leader that does not know all that was acknowledged: one that
// was restarted and whose follower is not back, or one of a cluster that was replaced and does not know it yet. The end
// and the start beside the records may be old then. It must not say that there is no record after them.
func (c *Checker) Doubt(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.doubt = on
}

func (c *Checker) topic(name string) *topic {
	t := c.topics[name]
	if t == nil {
		t = &topic{sent: map[sum]*Sent{}}
		c.topics[name] = t
	}
	return t
}

// slot returns the slot of an offset, or nil when the offset is below the start and forgotten.
func (t *topic) slot(offset uint64) *slot {
	if offset < t.slotsAt {
		return nil
	}
	for offset >= t.slotsAt+uint64(len(t.slots)) {
		t.slots = append(t.slots, slot{})
	}
	return &t.slots[offset-t.slotsAt]
}

// forget drops what is known of the records below the start: they are never read again, and if one
// appeared at another offset it would be reported as a record that nobody published.
func (t *topic) forget() {
	n := min(t.start, t.slotsAt+uint64(len(t.slots)))
	const worthwhile = 1024
	if n < t.slotsAt+worthwhile {
		return
	}
	for _, s := range t.slots[:n-t.slotsAt] {
		if s.sent != nil && s.sent.base+uint64(len(s.sent.sums)) <= n {
			for _, sum := range s.sent.sums {
				delete(t.sent, sum)
			}
		}
	}
	t.slots = append([]slot(nil), t.slots[n-t.slotsAt:]...)
	t.slotsAt = n
}

// Report is the outcome so far.
type Report struct {
	Acknowledged int          // records, each counted once
	Read         int          // records in all answers
	Counts       [kindEnd]int // of violations
	First        []Violation  // the first ones found; at most violationsMax
}

const violationsMax = 20

// Report returns what was found so far.
func (c *Checker) Report() Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.report
	r.First = append([]Violation(nil), r.First...)
	return r
}

// Err returns nil if there was no violation, or an error that lists the first ones.
func (r Report) Err() error {
	if len(r.First) == 0 {
		return nil
	}
	text := ""
	for _, v := range r.First {
		text += "\n\t" + v.String()
	}
	return fmt.Errorf("%s%s", r, text)
}

// String returns the counts in one line.
func (r Report) String() string {
	text := fmt.Sprintf("acknowledged %d, read %d", r.Acknowledged, r.Read)
	for k, n := range r.Counts {
		text += fmt.Sprintf(", %s %d", Kind(k), n)
	}
	return text
}
