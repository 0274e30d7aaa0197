package pair

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// tap is a link that notes the packets of the handshake, and frames.
type tap struct {
	*pipe
	log *wal.Log

	mu    sync.Mutex
	lines []string
}

func (p *tap) Write(head, body []byte) error {
	p.note("leader:   ", append(append([]byte(nil), head...), body...))
	return p.pipe.Write(head, body)
}

func (p *tap) Read() ([]byte, error) {
	b, err := p.pipe.Read()
	if err == nil {
		p.note("follower: ", b)
	}
	return b, err
}

var crcs = regexp.MustCompile(`,"crc":\d+|,"prev":\d+`)

func (p *tap) note(who string, packet []byte) {
	b := packet[packetHeader:]
	text := ""
	switch k := kind(packet[12]); k {
	case kindBeat, kindAck, kindChunk, kindGot, kindWhole: // when they come depends on the schedule
		return
	case kindFrames:
		var m frames
		var f wal.Frames
		if err := m.decode(b); err != nil {
			text = err.Error()
		} else if err := p.log.Load(&f, m.place, m.raw); err != nil {
			text = err.Error()
		} else {
			text = fmt.Sprintf("frames %d to %d in segment %d at byte %d", f.First(), f.Last(), m.place.Segment, m.place.Offset)
		}
	default:
		text = crcs.ReplaceAllString(fmt.Sprintf("%v %s", k, b), "")
		for letter := byte('a'); letter <= 'd'; letter++ {
			text = strings.ReplaceAll(text, node(letter).String(), string(letter))
		}
		text = strings.ReplaceAll(text, fmt.Sprintf("%x", testID), "log")
		text = strings.ReplaceAll(text, NodeID{}.String(), "-")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lines = append(p.lines, who+text)
}

// TestHandshake runs the scripts in testdata/handshake. A command is one session:
//
//	connect leader="1a5 2b3" committed=5 epoch=2 follower="1a5" known=4 promised=(1,b)
//
// makes both logs, connects, and prints what is said, and what comes of it. Node a leads, node b follows. A log is
// described as by disk.write; "none" is an empty folder. Other arguments: drop (the leader has dropped the segments
// before this entry), self (the follower's node id), led (the leader has led before, with another follower, up to here).
func TestHandshake(t *testing.T) {
	datadriven.Walk(t, "testdata/handshake", func(t *testing.T, file string) {
		datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "connect" {
				t.Fatalf("%s: unknown command", d.Cmd)
			}
			var out string
			inBubble(t, func(t *testing.T, w *world) { out = w.script(d) })
			return out
		})
	})
}

func (w *world) script(d *datadriven.TestData) string {
	number := func(key string) entry.Index {
		if !d.HasArg(key) {
			return 0
		}
		var s string
		d.ScanArgs(w.t, key, &s)
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			d.Fatalf(w.t, "%s: %v", key, err)
		}
		return entry.Index(n)
	}
	spec := func(key string) string {
		for _, a := range d.CmdArgs {
			if a.Key == key {
				return strings.Join(a.Vals, " ")
			}
		}
		return ""
	}
	w.a.write(spec("leader"))
	if first := number("drop"); first > 0 {
		if _, err := w.a.log.DropBefore(first); err != nil {
			w.t.Fatal(err)
		}
	}
	if s := spec("follower"); s != "none" {
		w.b.write(s)
	}
	if s := spec("self"); s != "" {
		w.b.self = node(s[0])
	}
	if p := strings.Fields(spec("promised")); len(p) > 0 {
		n, err := strconv.Atoi(p[0])
		if err != nil {
			d.Fatalf(w.t, "promised: %v", err)
		}
		w.b.SetPromise(Promise{Epoch: entry.Term(n), Leader: node(p[1][0])})
	}
	w.follow(number("known"))
	var link *tap
	w.setDial(func() (Link, error) {
		link = &tap{pipe: w.serve(), log: w.a.log}
		w.dial = unplugged
		return link, nil
	})
	w.ledTo = number("led")
	w.lead(entry.Term(number("epoch")), number("committed"))
	w.settled()

	var out strings.Builder
	for _, line := range link.lines {
		fmt.Fprintln(&out, line)
	}
	p, q := w.leader.Pair(), w.follower.Pair()
	fmt.Fprintf(&out, "leader is %s, committed %d, applied %v, log %s\n", p.State, p.Committed, runs(w.applier.applied), w.a.describe())
	for _, told := range w.applier.told[1:] {
		if !strings.Contains(told, errUnplugged.Error()) && told != "lead" && !strings.Contains(told, "catches up") {
			fmt.Fprintf(&out, "  because %s\n", strings.TrimPrefix(told, "writes wait for the follower: "))
		}
	}
	fmt.Fprintf(&out, "follower is %s, committed %d, log %s\n", q.State, q.Committed, w.b.describe())
	if len(w.replica.cuts) > 0 {
		fmt.Fprintf(&out, "  has cut %v\n", strings.Join(w.replica.cuts, " "))
	}
	if pr := w.b.Promise(); len(w.b.made) > 1 || spec("promised") == "" && len(w.b.made) > 0 {
		fmt.Fprintf(&out, "  has promised epoch %d to %c", pr.Epoch, pr.Leader[0])
		for _, made := range w.b.made {
			if made.WholeAt > 0 {
				fmt.Fprintf(&out, "; not whole before %d", made.WholeAt)
				break
			}
		}
		fmt.Fprintln(&out)
	}
	if p.Writable {
		w.mustCommit()
		w.sameLogs()
	}
	return out.String()
}

// runs describes a list of indexes.
func runs(list []entry.Index) string {
	if len(list) == 0 {
		return "none"
	}
	for i := 1; i < len(list); i++ {
		if list[i] != list[i-1]+1 {
			return fmt.Sprint(list)
		}
	}
	return fmt.Sprintf("%d to %d", list[0], list[len(list)-1])
}
