package linear

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The operations of the tests, in the order of time. at sets when they were called and answered.

func at(call, ret int64, o Operation) Operation {
	o.Topic, o.Call, o.Return = "t", call, ret
	return o
}

func pub(base uint64, values ...string) Operation {
	return Operation{Kind: Publish, Values: values, Base: base}
}

func unknown(o Operation) Operation {
	o.Outcome = Unknown
	return o
}

func refused(code string, o Operation) Operation {
	o.Outcome, o.Code = NotDone, code
	return o
}

func id(id string, o Operation) Operation {
	o.RequestID = id
	return o
}

func again(o Operation) Operation {
	o.Duplicate = true
	return o
}

// read is a fetch from an offset whose topic begins at 0.
func read(from, end uint64, values ...string) Operation {
	return Operation{
		Kind: Fetch, Offset: from, Limit: 10, Base: from, Records: values, Next: nextOf(from, end, values), End: end,
	}
}

func groupRead(group string, from, end uint64, values ...string) Operation {
	o := read(from, end, values...)
	o.Kind, o.Group, o.Offset = GroupFetch, group, 0
	return o
}

func nextOf(from, end uint64, values []string) uint64 {
	if len(values) == 0 {
		return end
	}
	return from + uint64(len(values))
}

func startAt(start uint64, o Operation) Operation {
	o.Start = start
	return o
}

func commit(group string, next uint64) Operation {
	return Operation{Kind: Commit, Group: group, Offset: next, Next: next}
}

func retain(start uint64) Operation {
	return Operation{Kind: Retain, Offset: start, Start: start}
}

func TestLinearizable(t *testing.T) {
	for name, h := range map[string][]Operation{
		"nothing":            {},
		"publishes in order": {at(0, 1, pub(0, "a")), at(2, 3, pub(1, "b", "c")), at(4, 5, read(0, 3, "a", "b", "c")), at(6, 7, read(3, 3))},
		"publishes at once":  {at(0, 9, pub(1, "a")), at(0, 9, pub(0, "b"))},
		"an old page":        {at(0, 1, pub(0, "a")), at(2, 3, pub(1, "b")), at(4, 5, read(0, 1, "a"))},
		"an old start": {
			at(0, 1, pub(0, "a", "b")), at(2, 3, retain(2)), at(4, 5, read(0, 2, "a", "b")),
			at(6, 7, startAt(2, read(2, 2))), at(8, 9, refused(OffsetGone, startAt(2, read(1, 0)))),
		},
		"an unknown publish that is seen":        {at(0, 1, unknown(pub(0, "a"))), at(5, 6, read(0, 1, "a"))},
		"an unknown publish that comes late":     {at(0, 1, unknown(pub(0, "a"))), at(2, 3, pub(0, "b")), at(4, 5, read(1, 1)), at(6, 7, read(0, 2, "b", "a"))},
		"an unknown publish that never comes":    {at(0, 1, unknown(pub(0, "a"))), at(2, 3, pub(0, "b")), at(4, 5, read(0, 1, "b"))},
		"an unknown publish that nobody read":    {at(0, 1, unknown(pub(0, "a"))), at(2, 3, pub(1, "b"))},
		"a request id that was there":            {at(0, 1, unknown(id("x", pub(0, "a")))), at(2, 3, again(id("x", pub(0, "a")))), at(4, 5, read(0, 1, "a"))},
		"a request id whose first attempt fails": {at(0, 1, unknown(id("x", pub(0, "a")))), at(2, 3, id("x", pub(0, "a"))), at(4, 5, read(0, 1, "a"))},
		"a request id sent again and again": {
			at(0, 1, unknown(id("x", pub(0, "a")))), at(2, 3, unknown(id("x", pub(0, "a")))), at(4, 9, again(id("x", pub(0, "a")))), at(5, 6, unknown(id("x", pub(0, "a")))),
		},
		"a conflict": {at(0, 1, id("x", pub(0, "a"))), at(2, 3, refused(RequestIDConflict, id("x", pub(0, "b"))))},
		"a conflict with what nobody saw": {
			at(0, 1, pub(0, "z")), at(2, 3, read(0, 1, "z")), at(4, 5, unknown(id("x", pub(0, "a")))), at(6, 7, refused(RequestIDConflict, id("x", pub(0, "b")))),
		},
		"groups": {
			at(0, 1, pub(0, "a", "b")), at(2, 3, groupRead("g", 0, 2, "a", "b")), at(4, 5, commit("g", 1)), at(6, 7, groupRead("g", 1, 2, "b")),
			at(8, 9, groupRead("h", 0, 2, "a", "b")), at(10, 11, commit("g", 2)), at(12, 13, groupRead("g", 2, 2)),
		},
		"a group below the start": {at(0, 1, pub(0, "a", "b")), at(2, 3, retain(1)), at(4, 5, startAt(1, groupRead("g", 1, 2, "b")))},
		"an unknown commit that comes late": {
			at(0, 1, pub(0, "a", "b")), at(2, 3, unknown(commit("g", 2))), at(4, 5, groupRead("g", 0, 2, "a", "b")), at(6, 7, groupRead("g", 2, 2)),
		},
		"refusals": {
			at(0, 1, refused(TopicNotFound, read(0, 0))), at(0, 1, refused(TopicNotFound, commit("g", 0))), at(0, 1, refused(TopicNotFound, groupRead("g", 0, 0))),
			at(2, 3, pub(0, "a")), at(4, 5, refused(OffsetOutOfRange, commit("g", 2))), at(6, 7, refused("unavailable", pub(0, "b"))), at(6, 7, refused(OffsetOutOfRange, retain(2))),
		},
	} {
		if err := Check(h, 0); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNotLinearizable(t *testing.T) {
	for name, h := range map[string][]Operation{
		"two at one offset":                  {at(0, 1, pub(0, "a")), at(2, 3, pub(0, "b"))},
		"order against time":                 {at(0, 1, pub(1, "a")), at(2, 3, pub(0, "b"))},
		"a hole":                             {at(0, 1, pub(1, "a"))},
		"lost":                               {at(0, 1, pub(0, "a")), at(2, 3, unknown(pub(0, "b"))), at(4, 5, read(0, 1, "b"))},
		"nothing more, though there is":      {at(0, 1, pub(0, "a")), at(2, 3, pub(1, "b")), at(4, 5, read(1, 1))},
		"nobody published it":                {at(0, 1, pub(0, "a")), at(2, 3, read(0, 1, "z"))},
		"read before it was sent":            {at(0, 1, read(0, 1, "a")), at(2, 3, pub(0, "a"))},
		"seen, gone, and back":               {at(0, 1, unknown(pub(0, "a"))), at(2, 3, read(0, 1, "a")), at(4, 5, refused(TopicNotFound, read(0, 0)))},
		"not done, but there":                {at(0, 1, refused("unavailable", pub(0, "a"))), at(2, 3, read(0, 1, "a"))},
		"half a batch":                       {at(0, 1, pub(0, "a", "b")), at(2, 3, read(0, 1, "a"))},
		"twice by one request id":            {at(0, 1, id("x", pub(0, "a"))), at(2, 3, id("x", pub(1, "a")))},
		"another offset by one request id":   {at(0, 1, pub(0, "z")), at(0, 1, pub(1, "y")), at(2, 3, id("x", pub(2, "a"))), at(4, 5, again(id("x", pub(1, "a"))))},
		"twice after an unknown outcome":     {at(0, 1, unknown(id("x", pub(0, "a")))), at(2, 3, id("x", pub(1, "a"))), at(4, 5, read(0, 2, "a", "a"))},
		"a conflict with nothing":            {at(0, 1, pub(0, "a")), at(2, 3, refused(RequestIDConflict, id("x", pub(0, "b"))))},
		"a conflict that was stored":         {at(0, 1, id("x", pub(0, "a"))), at(2, 3, refused(RequestIDConflict, id("x", pub(0, "b")))), at(4, 5, read(0, 2, "a", "b"))},
		"no conflict where there is one":     {at(0, 1, id("x", pub(0, "a"))), at(2, 3, id("x", pub(1, "b")))},
		"a duplicate of nothing":             {at(0, 1, again(id("x", pub(0, "a"))))},
		"an offset of a group that is old":   {at(0, 1, pub(0, "a")), at(2, 3, commit("g", 1)), at(4, 5, groupRead("g", 0, 1, "a"))},
		"an offset of a group that is ahead": {at(0, 1, pub(0, "a")), at(2, 3, groupRead("g", 1, 1))},
		"an unknown commit, seen and gone": {
			at(0, 1, pub(0, "a")), at(2, 3, unknown(commit("g", 1))), at(4, 5, groupRead("g", 1, 1)), at(6, 7, groupRead("g", 0, 1, "a")),
		},
		"a commit beyond the end":      {at(0, 1, pub(0, "a")), at(2, 3, commit("g", 2))},
		"a commit that was right":      {at(0, 1, pub(0, "a")), at(2, 3, refused(OffsetOutOfRange, commit("g", 1)))},
		"a topic that is there":        {at(0, 1, pub(0, "a")), at(2, 3, refused(TopicNotFound, retain(0)))},
		"gone, but it is not":          {at(0, 1, pub(0, "a")), at(2, 3, refused(OffsetGone, startAt(1, read(0, 0))))},
		"a start that went back":       {at(0, 1, pub(0, "a")), at(2, 3, retain(1)), at(4, 5, read(1, 1))},
		"a page that ends before it":   {at(0, 1, pub(0, "a", "b")), at(2, 3, read(0, 1, "a", "b"))},
		"more than was asked for":      {at(0, 1, pub(0, strings.Split("abcdefghijk", "")...)), at(2, 3, read(0, 11, strings.Split("abcdefghijk", "")...))},
		"a page that leaves one out":   {at(0, 1, pub(0, "a", "b", "c")), at(2, 3, read(0, 3, "a", "c"))},
		"a page from somewhere else":   {at(0, 1, pub(0, "a", "b")), at(2, 3, Operation{Kind: Fetch, Limit: 9, Base: 1, Records: []string{"b"}, Next: 2, End: 2})},
		"a commit that says otherwise": {at(0, 1, pub(0, "a", "b")), at(2, 3, Operation{Kind: Commit, Group: "g", Offset: 1, Next: 2})},
	} {
		err := Check(h, 0)
		var v *Violation
		if !errors.As(err, &v) {
			t.Errorf("%s: %v, want a violation", name, err)
			continue
		}
		if len(v.Stuck) == 0 {
			t.Errorf("%s: no call is named: %v", name, err)
		}
	}
}

func TestDraw(t *testing.T) {
	err := Check([]Operation{at(0, 1, pub(1, "a"))}, 0)
	var v *Violation
	if !errors.As(err, &v) {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "picture.html")
	if err := v.Draw(path); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || len(text) == 0 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
}

func TestNotAHistory(t *testing.T) {
	for name, h := range map[string][]Operation{
		"answered before it was called": {at(5, 4, pub(0, "a"))},
		"one value twice":               {at(0, 1, pub(0, "a")), at(2, 3, pub(1, "a"))},
		"one request id, other batch":   {at(0, 1, id("x", pub(0, "a"))), at(2, 3, id("x", pub(0, "a", "b")))},
		"no records":                    {at(0, 1, pub(0))},
	} {
		var v *Violation
		if err := Check(h, 0); err == nil || errors.As(err, &v) {
			t.Errorf("%s: %v, want another error", name, err)
		}
	}
}

// TestRandom makes histories of a topic that does one thing at a time, with answers that are lost: each is linearizable.
// Then one answer is falsified, and it is not.
func TestRandom(t *testing.T) {
	falsified := 0
	for seed := range uint64(60) {
		w := newWorld(seed)
		for range 120 {
			w.step()
		}
		if err := Check(w.history, 0); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for i := range w.history {
			o := &w.history[i]
			// An empty page that hides a record that was acknowledged before.
			if o.Kind == Fetch && o.Outcome == Done && len(o.Records) > 0 && w.acknowledged(o.Records[0]) < o.Call {
				o.Records, o.Next, o.End = nil, o.Base, o.Base
				falsified++
				var v *Violation
				if err := Check(w.history, 0); !errors.As(err, &v) {
					t.Errorf("seed %d: %v, though call %d was falsified: %v", seed, err, i, o)
				}
				break
			}
		}
	}
	if falsified < 30 {
		t.Errorf("only %d histories were falsified", falsified)
	}
}

// world is a topic and clients with one call each at a time.
type world struct {
	dice    *rand.Rand
	now     int64
	free    [5]int64 // when each client may call again
	records []string
	ids     map[string]uint64
	groups  map[string]uint64
	retry   []Operation // with an unknown outcome and a request id
	history []Operation
}

func newWorld(seed uint64) *world {
	return &world{dice: rand.New(rand.NewPCG(seed, 0)), ids: map[string]uint64{}, groups: map[string]uint64{}}
}

// acknowledged returns when a publish of a value was answered.
func (w *world) acknowledged(value string) int64 {
	for _, o := range w.history {
		if o.Kind == Publish && o.Outcome == Done && slices.Contains(o.Values, value) {
			return o.Return
		}
	}
	return never
}

// step lets one client make a call that takes effect now, and was made and is answered around now. Some calls take
// effect later than their client waits, or never.
func (w *world) step() {
	w.now += 10
	client := w.dice.IntN(len(w.free))
	if w.free[client] >= w.now {
		return
	}
	o := Operation{Client: client, Topic: "t", Call: max(w.free[client]+1, w.now-int64(w.dice.IntN(60)))}
	lost := w.dice.IntN(12) == 0
	effect := !lost || w.dice.IntN(2) == 0
	w.make(&o, effect)
	o.Return = w.now + int64(w.dice.IntN(60))
	w.free[client] = o.Return
	if lost {
		o.Outcome = Unknown
		if o.Kind == Publish && o.RequestID != "" {
			w.retry = append(w.retry, o)
		}
	}
	w.history = append(w.history, o)
}

func (w *world) make(o *Operation, effect bool) {
	end := uint64(len(w.records))
	switch dice := w.dice.IntN(10); {
	case dice < 4 || end == 0:
		o.Kind = Publish
		if len(w.retry) > 0 && w.dice.IntN(2) == 0 {
			o.Values, o.RequestID = w.retry[0].Values, w.retry[0].RequestID
			w.retry = w.retry[1:]
		} else {
			for i := range 1 + w.dice.IntN(3) {
				o.Values = append(o.Values, fmt.Sprintf("%d.%d", len(w.history), i))
			}
			o.RequestID = fmt.Sprint(len(w.history))
		}
		if base, ok := w.ids[o.RequestID]; ok {
			o.Base, o.Duplicate = base, true
			return
		}
		if o.Base = end; effect {
			w.ids[o.RequestID] = end
			w.records = append(w.records, o.Values...)
		}
	case dice < 7:
		*o = w.page(*o, Fetch, w.dice.Uint64N(end+1))
	case dice < 9:
		o.Group = fmt.Sprint(w.dice.IntN(2))
		*o = w.page(*o, GroupFetch, w.groups[o.Group])
	default:
		o.Kind, o.Group, o.Offset = Commit, fmt.Sprint(w.dice.IntN(2)), w.dice.Uint64N(end+1)
		o.Next = o.Offset
		if effect {
			w.groups[o.Group] = o.Offset
		}
	}
}

func (w *world) page(o Operation, kind Kind, from uint64) Operation {
	o.Kind, o.Offset, o.Base, o.Limit, o.End = kind, from, from, 1+w.dice.IntN(8), uint64(len(w.records))
	o.Next = min(o.End, from+uint64(o.Limit))
	o.Records = append([]string(nil), w.records[from:o.Next]...)
	return o
}
