package linear

import "fmt"

// call is an Operation with its names replaced by numbers.
type call struct {
	Operation
	publish int      // of Publish
	records []record // of Fetch and GroupFetch
}

// record is a record of a publish.
type record struct {
	publish int32 // foreign: nobody published it
	at      int32 // which of its records
}

const foreign = -1

// publication is what all attempts of one publish have in common.
type publication struct {
	id   string // request id; empty for none
	size int    // how many records
}

// topic is what the numbers in calls stand for.
type topic struct {
	publications []publication
}

// prepare numbers publishes, and decides what can be decided without a search: calls that have no effect
// whatever their order are left out, and what somebody saw returned before that somebody's call did. Neither changes
// whether a history is linearizable.
func prepare(operations []Operation) (*topic, []call, error) {
	t := &topic{}
	byValue := map[string]record{}
	calls := make([]call, 0, len(operations))
	for _, o := range operations {
		c := call{Operation: o}
		if o.Kind == Publish {
			var err error
			if c.publish, err = t.publication(o, byValue); err != nil {
				return nil, nil, err
			}
		}
		if o.Outcome != Unknown && o.Return < o.Call {
			return nil, nil, fmt.Errorf("%v: returned at %d, and was called at %d", o, o.Return, o.Call)
		}
		calls = append(calls, c)
	}
	for i := range calls {
		for _, v := range calls[i].Records {
			r, ok := byValue[v]
			if !ok {
				r = record{foreign, 0}
			}
			calls[i].records = append(calls[i].records, r)
		}
	}
	return t, t.settle(calls), nil
}

// publication returns the number of a publish. Attempts with the same request id and the same values are one.
func (t *topic) publication(o Operation, byValue map[string]record) (int, error) {
	if len(o.Values) == 0 {
		return 0, fmt.Errorf("%v: no records", o)
	}
	first, seen := byValue[o.Values[0]]
	if seen {
		p := t.publications[first.publish]
		same := o.RequestID != "" && p.id == o.RequestID && p.size == len(o.Values)
		for i, v := range o.Values {
			same = same && byValue[v] == record{first.publish, int32(i)}
		}
		if !same {
			return 0, fmt.Errorf("%v: another publish has the same values", o)
		}
		return int(first.publish), nil
	}
	n := len(t.publications)
	for i, v := range o.Values {
		if _, ok := byValue[v]; ok {
			return 0, fmt.Errorf("%v: another publish has the same values", o)
		}
		byValue[v] = record{int32(n), int32(i)}
	}
	t.publications = append(t.publications, publication{o.RequestID, len(o.Values)})
	return n, nil
}

// sighting is what is known of a publication from answers.
type sighting struct {
	at       int64 // when the first answer returned that shows it; never: none does
	first    bool  // an attempt was answered that it was the first: all others change nothing
	disputed bool  // another publish was refused because of its request id, or of one that both have
}

// settle leaves out what has no effect, and gives calls with an unknown outcome the time by which they took effect, if that
// can be told.
func (t *topic) settle(calls []call) (kept []call) {
	sightings, whole := t.sight(calls)
	for _, c := range calls {
		if c.Outcome == NotDone && !speaks(c.Operation) {
			continue
		}
		if c.Outcome == Unknown {
			c.Return = never
			switch c.Kind {
			case Fetch, GroupFetch:
				continue
			case Publish:
				s := sightings[c.publish]
				if s.first || c.Call > s.at || s.at == never && whole && !s.disputed {
					continue
				}
				c.Return = s.at
			case Retain:
				// Starts only grow. Once one is seen that is as high, the call has had its effect or never will.
				seen, refusals := startSeen(calls, c.Offset)
				if c.Call > seen || seen == never && !refusals {
					continue
				}
				c.Return = seen
			case Commit:
				if !groupSeen(calls, &c) {
					continue
				}
			}
		}
		kept = append(kept, c)
	}
	return kept
}

// startSeen returns when the first answer returned that shows a start at or beyond an offset, and whether there are
// refusals that may be due to a start that no answer shows.
func startSeen(calls []call, offset uint64) (at int64, refusals bool) {
	at = never
	for _, c := range calls {
		refusals = refusals || c.Outcome == NotDone && c.Code == OffsetOutOfRange
		if (c.Outcome == Done || c.Outcome == NotDone && c.Code == OffsetGone) && c.Start >= offset {
			at = min(at, c.Return)
		}
	}
	return at, refusals
}

// groupSeen reports whether there is a fetch that may show where a commit moved the group. If there is none, the commit
// may as well have come behind everything.
func groupSeen(calls []call, commit *call) bool {
	for _, c := range calls {
		if c.Kind != GroupFetch || c.Outcome != Done || c.Return < commit.Call {
			continue
		}
		at := c.Base
		if len(c.records) == 0 {
			at = c.Next
		}
		if at == commit.Offset || commit.Offset < at && at == c.Start {
			return true
		}
	}
	return false
}

// sight collects what answers say of all publications, and whether they show every record that the topic ever had. Then
// a publish that nobody saw took effect behind all of them, if at all.
func (t *topic) sight(calls []call) (all []sighting, whole bool) {
	all = make([]sighting, len(t.publications))
	for i := range all {
		all[i].at = never
	}
	seen, end := map[uint64]bool{}, uint64(0) // offsets
	for _, c := range calls {
		if c.Outcome == NotDone && c.Code == RequestIDConflict {
			for i := range all {
				all[i].disputed = all[i].disputed || t.publications[i].id == c.RequestID
			}
		}
		if c.Outcome != Done {
			continue
		}
		size := len(c.records)
		if c.Kind == Publish {
			size = len(c.Values)
			s := &all[c.publish]
			s.at, s.first = min(s.at, c.Return), s.first || !c.Duplicate
		}
		for _, r := range c.records {
			if r.publish != foreign {
				s := &all[r.publish]
				s.at = min(s.at, c.Return)
			}
		}
		for i := range uint64(size) {
			seen[c.Base+i] = true
		}
		end = max(end, c.Base+uint64(size), c.End, c.Next, c.Start)
	}
	return all, uint64(len(seen)) == end
}

// speaks reports whether a refusal says something about the topic.
func speaks(o Operation) bool {
	switch o.Code {
	case TopicNotFound:
		return o.Kind != Publish
	case OffsetGone:
		return o.Kind == Fetch
	case OffsetOutOfRange:
		return o.Kind == Commit || o.Kind == Retain
	case RequestIDConflict:
		return o.Kind == Publish
	}
	return false
}
