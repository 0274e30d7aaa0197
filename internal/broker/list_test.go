package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/internal/fact"
	"example.com/mq/internal/replication"
)

func bytesOf(names ...string) (all [][]byte) {
	for _, n := range names {
		all = append(all, []byte(n))
	}
	return all
}

// topics returns the names of all topics with a prefix, page by page.
func (r *rig) topics(prefix string, limit int) (names []string) {
	r.t.Helper()
	q := &List{Prefix: []byte(prefix), Limit: limit}
	for {
		page, more, err := r.ListTopics(q)
		if err != nil || len(page) > limit || more && len(page) == 0 {
			r.t.Fatalf("%d topics, more: %v, %v", len(page), more, err)
		}
		for _, t := range page {
			names = append(names, t.Name)
		}
		if !more {
			return names
		}
		q.After = bytesOf(page[len(page)-1].Name)
	}
}

// groups returns all groups with a prefix, of one topic or of all, page by page, as "group/topic".
func (r *rig) groups(topic, prefix string, limit int) (names []string) {
	r.t.Helper()
	q := &List{Topic: []byte(topic), Prefix: []byte(prefix), Limit: limit}
	for {
		page, more, err := r.ListGroups(q)
		if err != nil || len(page) > limit || more && len(page) == 0 {
			r.t.Fatalf("%d groups, more: %v, %v", len(page), more, err)
		}
		for _, g := range page {
			names = append(names, g.Group+"/"+g.Topic)
		}
		if !more {
			return names
		}
		q.After = bytesOf(page[len(page)-1].Group, page[len(page)-1].Topic)
	}
}

// Pages of any size hold exactly the topics and groups that are there, in order, whatever comes and goes between the lists.
func TestListsHoldWhatIsThere(t *testing.T) {
	for seed := range uint64(5) {
		rng := rand.New(rand.NewPCG(seed, 7))
		r := newRig(t, nil)
		name := func(n int) string {
			return strings.Repeat("ab"[rng.IntN(2):][:1], 1+rng.IntN(2)) + fmt.Sprint(rng.IntN(n))
		}
		topics := map[string]bool{}
		groups := map[[2]string]bool{} // by group and topic
		for range 300 {
			topic, group := name(20), name(3)
			switch rng.IntN(6) {
			case 0, 1:
				r.publish(topic, "", "x")
				topics[topic] = true
			case 2, 3:
				if _, err := r.CommitGroup([]byte(topic), []byte(group), r.endOf(topic)); (err == nil) != topics[topic] {
					t.Fatal(err)
				}
				if topics[topic] {
					groups[[2]string{group, topic}] = true
				}
			case 4:
				if _, err := r.DeleteGroup([]byte(topic), []byte(group)); (err == nil) != groups[[2]string{group, topic}] {
					t.Fatal(err)
				}
				delete(groups, [2]string{group, topic})
			case 5:
				if _, err := r.DeleteTopic([]byte(topic)); (err == nil) != topics[topic] {
					t.Fatal(err)
				}
				delete(topics, topic)
				for g := range groups {
					if g[1] == topic {
						delete(groups, g)
					}
				}
			}
			if rng.IntN(10) > 0 {
				continue
			}
			if rng.IntN(4) == 0 {
				r.lists.expire(r.clock.Monotonic() + listsKept + 1)
			}
			prefix, limit := []string{"", "a", "aa", "b", "c"}[rng.IntN(5)], 1+rng.IntN(7)
			var want []string
			for name := range topics {
				if strings.HasPrefix(name, prefix) {
					want = append(want, name)
				}
			}
			slices.Sort(want)
			if got := r.topics(prefix, limit); !slices.Equal(got, want) {
				t.Fatalf("seed %d: topics with %q: %q, want %q", seed, prefix, got, want)
			}
			for _, of := range []string{"", topic} {
				if of != "" && !topics[of] {
					continue
				}
				var keys [][2]string
				for g := range groups {
					if strings.HasPrefix(g[0], prefix) && (of == "" || g[1] == of) {
						keys = append(keys, g)
					}
				}
				slices.SortFunc(keys, func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
				want = nil
				for _, k := range keys {
					want = append(want, k[0]+"/"+k[1])
				}
				if got := r.groups(of, prefix, limit); !slices.Equal(got, want) {
					t.Fatalf("seed %d: groups of %q with %q: %q, want %q", seed, of, prefix, got, want)
				}
			}
		}
	}
}

func (r *rig) endOf(topic string) fact.Offset {
	r.view.RLock()
	defer r.view.RUnlock()
	t, _ := r.state.Topic([]byte(topic))
	return t.End
}

// A cursor names a place, not a topic: what it names may be gone.
func TestListAfterWhatIsGone(t *testing.T) {
	r := newRig(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		r.publish(name, "", "x")
		if _, err := r.CommitGroup([]byte(name), []byte("g"), 1); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.DeleteTopic([]byte("b")); err != nil {
		t.Fatal(err)
	}
	for after, want := range map[string]int{"": 2, "a": 1, "b": 1, "bb": 1, "c": 0, "d": 0} {
		page, more, err := r.ListTopics(&List{Limit: 9, After: bytesOf(after)})
		if err != nil || more || len(page) != want {
			t.Fatalf("topics after %q: %+v, %v, %v", after, page, more, err)
		}
		groups, more, err := r.ListGroups(&List{Limit: 9, After: bytesOf("g", after)})
		if err != nil || more || len(groups) != want {
			t.Fatalf("groups after %q: %+v, %v, %v", after, groups, more, err)
		}
	}
	if page, _, _ := r.ListTopics(&List{Limit: 9, Prefix: []byte("c"), After: bytesOf("a")}); len(page) != 1 || page[0].Name != "c" {
		t.Fatalf("a cursor before the prefix: %+v", page)
	}
	if page, _, _ := r.ListGroups(&List{Limit: 9, Prefix: []byte("g"), After: bytesOf("a", "a")}); len(page) != 2 || page[0].Group != "g" {
		t.Fatalf("a cursor before the prefix: %+v", page)
	}
	if _, err := r.CommitGroup([]byte("a"), []byte("f"), 1); err != nil {
		t.Fatal(err)
	}
	if page, _, _ := r.ListGroups(&List{Limit: 9, Prefix: []byte("g"), After: bytesOf("a", "a")}); len(page) != 2 || page[0].Group != "g" {
		t.Fatalf("a cursor before the prefix, and another group between: %+v", page)
	}
	if _, _, err := r.ListGroups(&List{Topic: []byte("b"), Limit: 9}); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("groups of a topic that is gone: %v", err)
	}
}

// The names are dropped when nobody has asked for a minute, and no sooner.
func TestListsExpire(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "x")
	if _, err := r.CommitGroup([]byte("a"), []byte("g"), 1); err != nil {
		t.Fatal(err)
	}
	r.topics("", 9)
	r.groups("", "", 9)
	used := r.clock.Monotonic()
	if r.lists.expire(used + listsKept); r.lists.topics == nil || r.lists.groups == nil {
		t.Fatal("dropped too soon")
	}
	if r.lists.expire(used + listsKept + 1); r.lists.topics != nil || r.lists.groups != nil {
		t.Fatal("not dropped")
	}
	if got := r.topics("", 9); !slices.Equal(got, []string{"a"}) {
		t.Fatalf("got %q", got)
	}
}

// What lists and descriptions tell of a topic and its groups is exact, across what a restore has jumped over, too.
func TestDescribe(t *testing.T) {
	r := newRig(t, nil)
	r.Broker.retention = fact.Retention{MS: 5000, Bytes: 1000}
	r.publishTen("a")
	move := func(group string, next fact.Offset) {
		t.Helper()
		if _, err := r.CommitGroup([]byte("a"), []byte(group), next); err != nil {
			t.Fatal(err)
		}
		r.clock.Step(time.Second)
	}
	first := r.clock.Now().UnixMilli()
	move("end", 10)
	move("low", 1)
	move("mid", 8)
	if _, err := r.Retain([]byte("a"), 3); err != nil {
		t.Fatal(err)
	}
	r.restore(fact.RestoreStep)
	r.Broker.retention = fact.Retention{MS: 5000, Bytes: 1000}
	if d, err := r.DescribeTopic([]byte("a"), 0); err != nil || d.NewestMS != testStart.UnixMilli()+90_000 {
		t.Fatalf("the newest record stands before the gap: %+v, %v", d, err)
	}
	newest := r.clock.Now().UnixMilli()
	r.publish("a", "", "x", "xx")
	r.configure("a", Configure{RetentionBytes: limit(fact.LimitNone), RetentionRecords: limit(70)})
	d, err := r.DescribeTopic([]byte("a"), 2)
	if err != nil {
		t.Fatal(err)
	}
	const start, end = 3, fact.RestoreStep + 2
	groups := []GroupState{
		{Group: "end", Topic: "a", Next: fact.RestoreStep, Start: start, End: end, Lag: 2, LastMS: first},
		{Group: "low", Topic: "a", Next: 3, Start: start, End: end, Lag: 9, LastMS: first + 1000},
		{Group: "mid", Topic: "a", Next: 8, Start: start, End: end, Lag: 4, LastMS: first + 2000},
	}
	want := TopicDescription{
		TopicSummary: TopicSummary{Name: "a", Start: start, End: end, Records: 9, Bytes: 55 - 6 + 5},
		OldestMS:     testStart.UnixMilli() + 30_000, NewestMS: newest,
		Settings: Settings{
			Own:       fact.Retention{Bytes: fact.LimitNone, Records: 70},
			Effective: fact.Retention{MS: 5000, Bytes: fact.LimitNone, Records: 70},
		},
		GroupsTotal: 3,
	}
	if !slices.Equal(d.Groups, groups[:2]) {
		t.Fatalf("groups: %+v", d.Groups)
	}
	if d.Groups = nil; fmt.Sprint(d) != fmt.Sprint(want) {
		t.Fatalf("got %+v, want %+v", d, want)
	}
	if page, _, err := r.ListTopics(&List{Limit: 1}); err != nil || !slices.Equal(page, []TopicSummary{want.TopicSummary}) {
		t.Fatalf("listed as %+v, %v", page, err)
	}
	if page, _, err := r.ListGroups(&List{Limit: 9}); err != nil || !slices.Equal(page, groups) {
		t.Fatalf("groups listed as %+v, %v", page, err)
	}
	if g, err := r.DescribeGroup([]byte("a"), []byte("mid")); err != nil || g != groups[2] {
		t.Fatalf("group described as %+v, %v", g, err)
	}
	if _, err := r.DescribeGroup([]byte("a"), []byte("x")); !errors.Is(err, ErrGroupNotFound) {
		t.Fatalf("a group that is not there: %v", err)
	}
	if _, err := r.DescribeGroup([]byte("b"), []byte("x")); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("a topic that is not there: %v", err)
	}
	if _, err := r.DescribeTopic([]byte("b"), 2); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("a topic that is not there: %v", err)
	}
	frames, log := r.frames("a"), r.sicken()
	log.bad[frames[0].at] = true
	if d, err := r.DescribeTopic([]byte("a"), 0); err != nil || d.OldestMS != -1 || d.NewestMS != newest || len(d.Groups) > 0 || d.GroupsTotal != 3 {
		t.Fatalf("with a damaged first record: %+v, %v", d, err)
	}
	if _, err := r.Retain([]byte("a"), end); err != nil {
		t.Fatal(err)
	}
	if d, err := r.DescribeTopic([]byte("a"), 1); err != nil || d.OldestMS != -1 || d.NewestMS != -1 || d.Records != 0 || d.Bytes != 0 || d.Groups[0].Lag != 0 {
		t.Fatalf("without records: %+v, %v", d, err)
	}
}

// doubtful is a role that cannot confirm that it leads.
type doubtful struct{ replication.Role }

func (doubtful) Confirm(context.Context) error {
	return &replication.UnavailableError{Reason: "nobody answers"}
}

// Nothing is told by a node that may not lead, nor while the log ends with what may not be committed.
func TestTellOnlyWhatIsSure(t *testing.T) {
	calls := map[string]func(*rig) error{
		"list topics":    func(r *rig) error { _, _, err := r.ListTopics(&List{Limit: 1}); return err },
		"list groups":    func(r *rig) error { _, _, err := r.ListGroups(&List{Limit: 1}); return err },
		"describe topic": func(r *rig) error { _, err := r.DescribeTopic([]byte("a"), 1); return err },
		"describe group": func(r *rig) error { _, err := r.DescribeGroup([]byte("a"), []byte("g")); return err },
		"backup":         func(r *rig) error { _, _, err := r.Settled(); return err },
		"seek": func(r *rig) error {
			_, err := r.SeekGroup(&Seek{Topic: []byte("a"), Group: []byte("g"), By: SeekToEnd, DryRun: true})
			return err
		},
	}
	for what, call := range calls {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, nil)
			r.publish("a", "", "x")
			if _, err := r.CommitGroup([]byte("a"), []byte("g"), 1); err != nil {
				t.Fatal(err)
			}
			if err := call(r); err != nil {
				t.Fatal(err)
			}
			for _, tail := range []Tail{{Topics: map[string]struct{}{"b": {}}}, {Other: true}} {
				r.Unsettled(tail)
				wantUnavailable(t, call(r), errTellUnsettled.Reason, false)
				r.unsettled.Store(nil)
			}
			r.Unsettled(Tail{}) // a marker, say
			if err := call(r); err != nil {
				t.Fatal(err)
			}
			sure := r.role
			r.role = doubtful{sure}
			wantUnavailable(t, call(r), "nobody answers", false)
			r.role = sure
			r.Broker.leader = func() string { return "http://other" }
			r.Broker.Follow("another node leads")
			var elsewhere *NotLeaderError
			if err := call(r); !errors.As(err, &elsewhere) || elsewhere.Leader != "http://other" {
				t.Fatalf("without the lead: %v", err)
			}
			r.Broker.Lead()
			r.Broker.follower = true
			if err := call(r); !errors.As(err, &elsewhere) {
				t.Fatalf("on a follower: %v", err)
			}
			r.Broker.follower = false
		})
	}
}

// What a page of 1000 of 100,000 topics or groups costs, when the names are in order already, and when one is new.
func BenchmarkList(b *testing.B) {
	const n = 100_000
	br := benchTopics(b, n)
	var workers sync.WaitGroup
	for w := range 64 {
		workers.Go(func() {
			for i := w; i < n; i += 64 {
				br.CommitGroup(fmt.Append(nil, "topic-", i), fmt.Append(nil, "group-", i), 1)
			}
		})
	}
	workers.Wait()
	fresh := 0
	for _, c := range []struct {
		what string
		list func(*List) (int, error)
		add  func()
	}{
		{"topics", func(q *List) (int, error) { page, _, err := br.ListTopics(q); return len(page), err },
			func() { br.Publish(publishOf(fmt.Sprint("new-", fresh), "", "x")) }},
		{"groups", func(q *List) (int, error) { page, _, err := br.ListGroups(q); return len(page), err },
			func() { br.CommitGroup([]byte("topic-1"), fmt.Append(nil, "new-", fresh), 1) }},
	} {
		for _, adds := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/new=%v", c.what, adds), func(b *testing.B) {
				q := &List{Limit: 1000, After: bytesOf("topic-5", "t")}
				if c.what == "groups" {
					q.After = bytesOf("group-5", "t")
				}
				for range b.N {
					if fresh++; adds {
						c.add()
					}
					if got, err := c.list(q); err != nil || got != 1000 {
						b.Fatalf("%d, %v", got, err)
					}
				}
			})
		}
	}
}
