package broker

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
)

const (
	// listStep is how many rows of the fold are looked at under one lock: publishers wait for so many at most.
	listStep = 256
	// listsKept is how long the sorted names stay in memory when nobody asks for them.
	listsKept = time.Minute
)

// lists are the names of topics and of groups in order, made when somebody asks and dropped when nobody has for a while. They
// say who may be there: what a page tells comes from the fold, when it is asked for. A list is never changed, only replaced,
// so who has one may go on with it.
type lists struct {
	mu     sync.Mutex    // guards the fields below, and is held while a list is made, so that it is made once
	topics []listedTopic // by name; those that are deleted stay, for when they come back
	groups *listedGroups
	used   time.Duration // when somebody asked last, by the monotonic clock
}

type listedTopic struct {
	name string
	id   state.TopicID
}

type listedGroups struct {
	version uint64        // of the groups in the fold
	byName  []listedGroup // by the names of the group and of the topic
	byTopic []listedGroup // by the topic's id and the name of the group
}

type listedGroup struct {
	name  string
	topic string
	id    state.TopicID // of the topic
}

// ListTopics returns a page of the topics in the order of their names, and whether others follow.
func (b *Broker) ListTopics(q *List) (page []TopicSummary, more bool, err error) {
	if err := b.mayTell(); err != nil {
		return nil, false, err
	}
	names := b.lists.topicsNow(b)
	from := string(q.Prefix)
	byName := func(t listedTopic, name string) int { return strings.Compare(t.name, name) }
	at, _ := slices.BinarySearchFunc(names, from, byName)
	if len(q.After) > 0 && string(q.After[0]) >= from {
		var found bool
		if at, found = slices.BinarySearchFunc(names, string(q.After[0]), byName); found {
			at++
		}
	}
	for at < len(names) {
		rows := names[at:min(at+listStep, len(names))]
		at += len(rows)
		b.view.RLock()
		for i := range rows {
			t := b.state.TopicByID(rows[i].id)
			switch {
			case !strings.HasPrefix(t.Name, from):
				b.view.RUnlock()
				return page, false, nil
			case t.Deleted:
			case len(page) == q.Limit:
				b.view.RUnlock()
				return page, true, nil
			default:
				page = append(page, summaryOf(&t))
			}
		}
		b.view.RUnlock()
	}
	return page, false, nil
}

func summaryOf(t *state.Topic) TopicSummary {
	return TopicSummary{Name: t.Name, Start: t.Start, End: t.End, Records: t.Records(), Bytes: t.EndCum - t.StartCum}
}

// ListGroups returns a page of the groups in the order of their names, and then of the topics', and whether others follow.
func (b *Broker) ListGroups(q *List) (page []GroupState, more bool, err error) {
	if err := b.mayTell(); err != nil {
		return nil, false, err
	}
	var rows []listedGroup
	if len(q.Topic) == 0 {
		rows = b.lists.groupsNow(b).byName
	} else {
		b.view.RLock()
		t, ok := b.state.Topic(q.Topic)
		b.view.RUnlock()
		if !ok {
			return nil, false, ErrTopicNotFound
		}
		rows = b.lists.groupsNow(b).of(t.ID)
	}
	prefix := string(q.Prefix)
	at, _ := slices.BinarySearchFunc(rows, prefix, func(g listedGroup, name string) int { return strings.Compare(g.name, name) })
	if len(q.After) > 0 {
		after := listedGroup{name: string(q.After[0])}
		if len(q.After) > 1 {
			after.topic = string(q.After[1])
		}
		i, found := slices.BinarySearchFunc(rows, after, byGroup)
		if found {
			i++
		}
		at = max(at, i)
	}
	page, more = b.groupPage(rows[at:], prefix, q.Limit)
	return page, more, nil
}

// groupPage looks up to limit groups up, of those in rows that begin with prefix, and tells whether others follow.
func (b *Broker) groupPage(rows []listedGroup, prefix string, limit int) (page []GroupState, more bool) {
	for len(rows) > 0 {
		step := rows[:min(listStep, len(rows))]
		rows = rows[len(step):]
		b.view.RLock()
		for i := range step {
			if !strings.HasPrefix(step[i].name, prefix) {
				b.view.RUnlock()
				return page, false
			}
			g, ok := b.state.Group(step[i].id, []byte(step[i].name))
			if !ok {
				continue // deleted meanwhile
			}
			if len(page) == limit {
				b.view.RUnlock()
				return page, true
			}
			t := b.state.TopicByID(step[i].id)
			page = append(page, groupOf(&t, &g))
		}
		b.view.RUnlock()
	}
	return page, false
}

// groupOf tells where a group stands.
func groupOf(t *state.Topic, g *state.Group) GroupState {
	next := nextOf(t, g.Next)
	return GroupState{
		Group: g.Name, Topic: t.Name, Next: next, Start: t.Start, End: t.End, Lag: t.Between(next, t.End), LastMS: g.TimeMS,
	}
}

// nextOf is where a group reads next whose offset was set to next once.
func nextOf(t *state.Topic, next fact.Offset) fact.Offset {
	next, _, _ = t.Normal(max(next, t.Start))
	return next
}

// mayTell returns nil once what the fold tells from now on was true within the call; else it returns the answer.
func (b *Broker) mayTell() error {
	if b.follower {
		return &NotLeaderError{}
	}
	if _, err := b.mayRead(); err != nil {
		return err
	}
	if err := b.confirmRead(); err != nil {
		return err
	}
	if b.unsettled.Load() != nil {
		return errTellUnsettled
	}
	return nil
}

var errTellUnsettled = &UnavailableError{
	Reason: "records may follow, and topics and groups may have changed, which this node cannot know before its follower is back"}

// topicsNow returns all topics by name. Only those that are new since the last time are sorted in.
func (s *lists) topicsNow(b *Broker) []listedTopic {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = b.clock.Monotonic()
	var fresh []listedTopic
	for more := true; more; {
		b.view.RLock()
		at := len(s.topics) + len(fresh) // ids are the numbers below
		end := min(at+listStep, b.state.Topics())
		for ; at < end; at++ {
			id := state.TopicID(at)
			fresh = append(fresh, listedTopic{b.state.TopicByID(id).Name, id})
		}
		more = at < b.state.Topics()
		b.view.RUnlock()
	}
	if len(fresh) == 0 {
		return s.topics
	}
	slices.SortFunc(fresh, byTopicName)
	merged := make([]listedTopic, 0, len(s.topics)+len(fresh))
	old := s.topics
	for len(old) > 0 && len(fresh) > 0 {
		if byTopicName(old[0], fresh[0]) < 0 {
			merged, old = append(merged, old[0]), old[1:]
		} else {
			merged, fresh = append(merged, fresh[0]), fresh[1:]
		}
	}
	s.topics = append(append(merged, old...), fresh...)
	return s.topics
}

func byTopicName(a, b listedTopic) int { return strings.Compare(a.name, b.name) }

// groupsNow returns all groups in order.
func (s *lists) groupsNow(b *Broker) *listedGroups {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = b.clock.Monotonic()
	b.view.RLock()
	version := b.state.GroupsVersion()
	b.view.RUnlock()
	if s.groups != nil && s.groups.version == version {
		return s.groups
	}
	b.view.Lock() // to freeze is to change
	version = b.state.GroupsVersion()
	frozen, n := b.state.FreezeTables(), b.state.Groups()
	b.view.Unlock()
	g := &listedGroups{version: version, byName: make([]listedGroup, 0, n)}
	frozen.EachGroup(func(row state.Group) bool {
		g.byName = append(g.byName, listedGroup{name: row.Name, topic: frozen.TopicByID(row.Topic).Name, id: row.Topic})
		return true
	})
	g.byTopic = slices.Clone(g.byName)
	slices.SortFunc(g.byName, byGroup)
	slices.SortFunc(g.byTopic, byTopicID)
	s.groups = g
	return g
}

func byGroup(a, b listedGroup) int {
	if c := strings.Compare(a.name, b.name); c != 0 {
		return c
	}
	return strings.Compare(a.topic, b.topic)
}

func byTopicID(a, b listedGroup) int {
	if c := cmp.Compare(a.id, b.id); c != 0 {
		return c
	}
	return strings.Compare(a.name, b.name)
}

// of returns the groups of one topic by name.
func (g *listedGroups) of(id state.TopicID) []listedGroup {
	at := func(id state.TopicID) int {
		i, _ := slices.BinarySearchFunc(g.byTopic, id, func(g listedGroup, id state.TopicID) int { return cmp.Compare(g.id, id) })
		return i
	}
	return g.byTopic[at(id):at(id+1)]
}

// expire drops the lists if nobody has asked for a while.
func (s *lists) expire(now time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now-s.used > listsKept {
		s.topics, s.groups = nil, nil
	}
}
