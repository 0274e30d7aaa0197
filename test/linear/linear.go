// Package linear decides whether what clients saw of a broker is linearizable: whether there is one order of all calls,
// each taking effect at one instant between its call and its answer, in which a topic that does one thing at a time would
// have given the same answers. It knows nothing of mqd but its contract.
//
// What is promised is a little less than that for one kind of answer, and the model says so: records never change, so a
// fetch that returns records may be answered by a leader that does not know yet that it was replaced. Its records must
// be right; the start and the end beside them may be old. "There is no more", "no such topic", and where a group
// stands are never old.
//
// Groups do not know of each other, so each is judged apart, together with its topic. The search is exponential at worst. It is quick when answers show offsets, as those of a broker do, and when few calls
// of one topic are open at a time or have an unknown outcome: some dozens to a few hundred calls for each topic.
package linear

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Kind says what a call does.
type Kind int

const (
	Publish    Kind = iota // of one record, or a batch
	Fetch                  // from an offset
	Commit                 // of a group's offset
	GroupFetch             // from a group's offset
	Retain                 // moves a topic's start
)

func (k Kind) String() string {
	return [...]string{"publish", "fetch", "commit", "group fetch", "retain"}[k]
}

// Outcome says what is known of a call.
type Outcome int

const (
	Done    Outcome = iota // answered 200
	NotDone                // refused; Code says why. It never takes effect
	Unknown                // whether it took effect, or ever will, is not known
)

// Codes of refusals that say something about a topic. With any other code a refusal is only held to its word: the call
// never takes effect.
const (
	TopicNotFound     = "topic_not_found"
	OffsetGone        = "offset_gone"
	OffsetOutOfRange  = "offset_out_of_range"
	RequestIDConflict = "request_id_conflict"
)

// Operation is one call as its client saw it. A call that is tried again is another Operation.
type Operation struct {
	Client int // for messages and pictures only
	Kind   Kind
	Topic  string
	Group  string // of Commit and GroupFetch

	// Call and Return are read from one clock that all clients share, when the call is made and when its answer is
	// there. Return of a call with an unknown outcome does not matter.
	Call, Return int64

	// What was asked for.
	Values    []string // Publish: one for each record. No two publishes have a value in common, save attempts of one request id
	RequestID string   // Publish: empty for none
	Offset    uint64   // Fetch: where to read. Commit, Retain: where to
	Limit     int      // Fetch, GroupFetch

	// What was answered.
	Outcome
	Code      string   // NotDone
	Base      uint64   // Publish: offset of the first record. Fetch, GroupFetch: of the first of Records
	Duplicate bool     // Publish
	Records   []string // Fetch, GroupFetch: the values
	Next      uint64   // Fetch, GroupFetch, Commit
	Start     uint64   // Fetch, GroupFetch, Retain, and OffsetGone
	End       uint64   // Fetch, GroupFetch
}

func (o Operation) ofGroup() bool { return o.Kind == Commit || o.Kind == GroupFetch }

// String tells an operation in one line.
func (o Operation) String() string {
	ask := ""
	switch o.Kind {
	case Publish:
		ask = fmt.Sprintf("%q id %q", short(o.Values), o.RequestID)
	case Fetch:
		ask = fmt.Sprintf("from %d, at most %d", o.Offset, o.Limit)
	case GroupFetch:
		ask = fmt.Sprintf("of %s, at most %d", o.Group, o.Limit)
	case Commit:
		ask = fmt.Sprintf("of %s to %d", o.Group, o.Offset)
	case Retain:
		ask = fmt.Sprintf("from %d", o.Offset)
	}
	return fmt.Sprintf("client %d: %v %s -> %s", o.Client, o.Kind, ask, o.answer())
}

func (o Operation) answer() string {
	switch {
	case o.Outcome == Unknown:
		return "unknown"
	case o.Outcome == NotDone && o.Code == OffsetGone:
		return fmt.Sprintf("%s, start %d", o.Code, o.Start)
	case o.Outcome == NotDone:
		return o.Code
	}
	switch o.Kind {
	case Publish:
		if o.Duplicate {
			return fmt.Sprintf("%d, a duplicate", o.Base)
		}
		return fmt.Sprint(o.Base)
	case Fetch, GroupFetch:
		return fmt.Sprintf("%q at %d, next %d, start %d, end %d", short(o.Records), o.Base, o.Next, o.Start, o.End)
	case Retain:
		return fmt.Sprint(o.Start)
	}
	return fmt.Sprint(o.Next)
}

// short leaves out the middle of a long list.
func short(values []string) []string {
	const most = 4
	if len(values) <= most {
		return values
	}
	return []string{values[0], values[1], fmt.Sprintf("... %d more", len(values)-3), values[len(values)-1]}
}

// ErrUndecided is returned when the search took too long.
var ErrUndecided = errors.New("not decided in time whether the history is linearizable")

// Violation says that a topic's history is not linearizable.
type Violation struct {
	Topic string
	Group string      // that was judged with it; empty: none, or not named
	Calls int         // of both
	Stuck []Operation // those that are left when as many calls as possible are in order, by the time of their call

	model porcupine.Model
	info  porcupine.LinearizationInfo
}

func (v *Violation) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "topic %q with group %q is not linearizable: %d of %d calls do not fit behind the others:", v.Topic, v.Group, len(v.Stuck), v.Calls)
	const most = 12
	for i, o := range v.Stuck {
		if i == most {
			fmt.Fprintf(&b, "\n\t... %d more", len(v.Stuck)-most)
			break
		}
		fmt.Fprintf(&b, "\n\t[%d, %d] %v", o.Call, o.Return, o)
	}
	return b.String()
}

// Draw writes a page that shows the history and where it fails.
func (v *Violation) Draw(path string) error { return porcupine.VisualizePath(v.model, v.info, path) }

// Check returns nil if the history of every topic is linearizable, a *Violation of the first topic by name whose history
// is not, ErrUndecided if one took longer than timeout (0: no limit), or an error that says that the operations are not a
// history. It starts goroutines and waits for them.
func Check(operations []Operation, timeout time.Duration) error {
	topics := map[string][]Operation{}
	for _, o := range operations {
		topics[o.Topic] = append(topics[o.Topic], o)
	}
	var undecided error
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		err := checkTopic(name, topics[name], timeout)
		if err != nil && !errors.Is(err, ErrUndecided) {
			return err
		}
		if err != nil {
			undecided = err
		}
	}
	return undecided
}

func checkTopic(name string, operations []Operation, timeout time.Duration) error {
	groups := map[string]bool{}
	for _, o := range operations {
		if o.ofGroup() {
			groups[o.Group] = true
		}
	}
	if len(groups) == 0 {
		return checkGroup(name, "", operations, timeout)
	}
	var undecided error
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		own := slices.DeleteFunc(slices.Clone(operations), func(o Operation) bool { return o.ofGroup() && o.Group != group })
		err := checkGroup(name, group, own, timeout)
		if err != nil && !errors.Is(err, ErrUndecided) {
			return err
		}
		if err != nil {
			undecided = err
		}
	}
	return undecided
}

// checkGroup judges a topic and one of its groups.
func checkGroup(topic, group string, operations []Operation, timeout time.Duration) error {
	t, calls, err := prepare(operations)
	if err != nil {
		return fmt.Errorf("topic %q: %w", topic, err)
	}
	history := make([]porcupine.Operation, len(calls))
	for i, c := range calls {
		history[i] = porcupine.Operation{ClientId: c.Client, Input: c, Call: c.Call, Output: c, Return: c.Return}
	}
	m := t.model()
	switch porcupine.CheckOperationsTimeout(m, history, timeout) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("topic %q, group %q, %d calls: %w", topic, group, len(calls), ErrUndecided)
	}
	_, info := porcupine.CheckOperationsVerbose(m, history, timeout)
	v := &Violation{Topic: topic, Group: group, Calls: len(calls), model: m, info: info}
	var longest []int
	for _, orders := range info.PartialLinearizations() {
		for _, order := range orders {
			if len(order) > len(longest) {
				longest = order
			}
		}
	}
	for i, c := range calls {
		if !slices.Contains(longest, i) {
			v.Stuck = append(v.Stuck, c.Operation)
		}
	}
	slices.SortFunc(v.Stuck, func(a, b Operation) int { return cmp.Compare(a.Call, b.Call) })
	return v
}

// never is when a call returns that may take effect at any time.
const never = math.MaxInt64
