package httpapi

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
)

// TestAdminAnswers: the answers of the calls on topics and groups, to the letter.
func TestAdminAnswers(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken = "root" })
	s.post(api.PathPublishBatch, `{"topic":"t<&\"é","messages":[{"value":"AAAA"},{"key":"AA==","value":"AAAA"},{"value":""}]}`)
	for _, row := range []struct {
		path, body string
		status     int
		want       string
	}{
		{api.PathTopicsConfigure, `{"topic":"T"}`, 200, `{"settings":{"retention_ms":1000,"retention_bytes":null,"retention_records":null},"own":[]}`},
		{api.PathTopicsConfigure, `{"topic":"T","retention_ms":null}`, 200,
			`{"settings":{"retention_ms":null,"retention_bytes":null,"retention_records":null},"own":["retention_ms"]}`},
		{api.PathTopicsConfigure, `{"topic":"T","retention_bytes":7,"retention_records":9007199254740991}`, 200,
			`{"settings":{"retention_ms":null,"retention_bytes":7,"retention_records":9007199254740991},"own":["retention_ms","retention_bytes","retention_records"]}`},
		{api.PathTopicsConfigure, `{"topic":"T","retention_records":1,"reset":true}`, 200,
			`{"settings":{"retention_ms":1000,"retention_bytes":null,"retention_records":1},"own":["retention_records"]}`},
		{api.PathTopicsConfigure, `{"topic":"nope","reset":true}`, 404, `{"code":"topic_not_found",...,"field":"topic"}`},

		{api.PathTopicsList, `{}`, 200, `{"topics":[{"topic":"T","start_offset":0,"end_offset":3,"records":3,"bytes":7}]}`},
		{api.PathTopicsList, ``, 200, `{"topics":[{"topic":"T","start_offset":0,"end_offset":3,"records":3,"bytes":7}]}`},
		{api.PathTopicsList, `{"prefix":"T"}`, 200, `{"topics":[{"topic":"T","start_offset":0,"end_offset":3,"records":3,"bytes":7}]}`},
		{api.PathTopicsList, `{"prefix":"nope"}`, 200, `{"topics":[]}`},

		{api.PathGroupsSeek, `{"group":"g","topic":"T","offset":2,"dry_run":true}`, 200, `{"next_offset":2,"previous_offset":0,"skipped":2,"repeated":0,"dry_run":true}`},
		{api.PathGroupsDescribe, `{"group":"g","topic":"T"}`, 404, `{"code":"group_not_found",...,"field":"group"}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"T","offset":2,"dry_run":false}`, 200, `{"next_offset":2,"previous_offset":0,"skipped":2,"repeated":0}`},
		{api.PathGroupsDescribe, `{"group":"g","topic":"T"}`, 200,
			`{"group":"g","topic":"T","next_offset":2,"start_offset":0,"end_offset":3,"lag":1,"last_activity_ms":1700000000002}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"T","time_ms":1700000000001}`, 200, `{"next_offset":1,"previous_offset":2,"skipped":0,"repeated":1}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"T","time_ms":281474976710655}`, 200, `{"next_offset":3,"previous_offset":1,"skipped":2,"repeated":0}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"T","to":"start"}`, 200, `{"next_offset":0,"previous_offset":3,"skipped":0,"repeated":3}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"T","to":"end"}`, 200, `{"next_offset":3,"previous_offset":0,"skipped":3,"repeated":0}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"T","offset":4}`, 400,
			`{"code":"offset_out_of_range","message":"the offset must be from 0 to 3","field":"offset","start_offset":0,"end_offset":3}`},
		{api.PathGroupsSeek, `{"group":"g","topic":"nope","offset":0}`, 404, `{"code":"topic_not_found",...}`},
		{api.PathGroupsCommit, `{"group":"a","topic":"T","next_offset":1}`, 200, `{"next_offset":1}`},

		{api.PathGroupsList, `{}`, 200,
			`{"groups":[{"group":"a","topic":"T","next_offset":1,"start_offset":0,"end_offset":3,"lag":2,"last_activity_ms":1700000000001},` +
				`{"group":"g","topic":"T","next_offset":3,"start_offset":0,"end_offset":3,"lag":0,"last_activity_ms":1700000000003}]}`},
		{api.PathGroupsList, `{"prefix":"g","topic":"T"}`, 200,
			`{"groups":[{"group":"g","topic":"T","next_offset":3,"start_offset":0,"end_offset":3,"lag":0,"last_activity_ms":1700000000003}]}`},
		{api.PathGroupsList, `{"topic":"nope"}`, 404, `{"code":"topic_not_found",...}`},

		{api.PathTopicsDescribe, `{"topic":"T"}`, 200, `{"topic":"T","start_offset":0,"end_offset":3,"records":3,"bytes":7,` +
			`"oldest_ms":1700000000000,"newest_ms":1700000000002,"settings":{"retention_ms":1000,"retention_bytes":null,"retention_records":1},` +
			`"own":["retention_records"],"groups":[{"group":"a","topic":"T","next_offset":1,"start_offset":0,"end_offset":3,"lag":2,` +
			`"last_activity_ms":1700000000001},{"group":"g","topic":"T","next_offset":3,"start_offset":0,"end_offset":3,"lag":0,"last_activity_ms":1700000000003}],"groups_total":2}`},
		{api.PathTopicsRetain, `{"topic":"T","start_offset":3}`, 200, `{"start_offset":3}`},
		{api.PathGroupsDelete, `{"group":"a","topic":"T"}`, 200, `{"next_offset":1}`},
		{api.PathGroupsDelete, `{"group":"a","topic":"T"}`, 404, `{"code":"group_not_found",...}`},
		{api.PathGroupsDelete, `{"group":"g","topic":"T"}`, 200, `{"next_offset":3}`},
		{api.PathTopicsDescribe, `{"topic":"T"}`, 200, `{"topic":"T","start_offset":3,"end_offset":3,"records":0,"bytes":0,"oldest_ms":null,` +
			`"newest_ms":null,"settings":{"retention_ms":1000,"retention_bytes":null,"retention_records":1},"own":["retention_records"],"groups":[],"groups_total":0}`},

		{api.PathFetch, `{"topic":"T","from_ms":0}`, 200, `{"records":[],"next_offset":3,"start_offset":3,"end_offset":3}`},
		{api.PathPublish, `{"topic":"T","value":""}`, 200, `{"offset":3}`},
		{api.PathFetch, `{"topic":"T","from_ms":1700000000003}`, 200,
			`{"records":[{"offset":3,"key":"","value":"","timestamp_ms":1700000000003}],"next_offset":4,"start_offset":3,"end_offset":4}`},
		{api.PathFetch, `{"topic":"T","from_ms":1700000000004}`, 200, `{"records":[],"next_offset":4,"start_offset":3,"end_offset":4}`},
		{api.PathFetch, `{"topic":"nope","from_ms":0}`, 404, `{"code":"topic_not_found",...}`},

		{api.PathTopicsDelete, `{"topic":"T"}`, 200, `{"end_offset":4}`},
		{api.PathTopicsDelete, `{"topic":"T"}`, 404, `{"code":"topic_not_found",...}`},
		{api.PathTopicsDescribe, `{"topic":"T"}`, 404, `{"code":"topic_not_found",...}`},
		{api.PathTopicsList, `{}`, 200, `{"topics":[]}`},
		{api.PathGroupsList, `{}`, 200, `{"groups":[]}`},
		{api.PathPublish, `{"topic":"T","value":""}`, 200, `{"offset":4}`},
	} {
		const name = `t<&\"é` // quotes and what HTML minds go through, too
		body, want := strings.ReplaceAll(row.body, `"T"`, `"`+name+`"`), strings.ReplaceAll(row.want, `"T"`, `"`+name+`"`)
		if row.body == `{"prefix":"T"}` {
			body = `{"prefix":"t<&\""}`
		}
		a := s.post(row.path, body, "Authorization", "Bearer root")
		head, tail, some := strings.Cut(want, "...")
		if tail == "}" {
			tail = ""
		}
		if a.status != row.status || a.body != want && (!some || !strings.HasPrefix(a.body, head) || !strings.HasSuffix(a.body, tail)) {
			t.Errorf("%s %s: %d\n got %s\nwant %s", row.path, body, a.status, a.body, want)
		}
	}
}

// TestAnswersAreThoseOfAPI: what the server writes is what package api says, field by field and in its order.
func TestAnswersAreThoseOfAPI(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken = "root" })
	s.fake.seed()
	s.post(api.PathTopicsConfigure, `{"topic":"t","retention_bytes":5}`, "Authorization", "Bearer root")
	for path, into := range map[string]any{
		api.PathTopicsConfigure: new(api.ConfigureTopicAnswer), api.PathTopicsList: new(api.ListTopicsAnswer),
		api.PathTopicsDescribe: new(api.DescribeTopicAnswer), api.PathTopicsDelete: new(api.DeleteTopicAnswer),
		api.PathGroupsList: new(api.ListGroupsAnswer), api.PathGroupsDescribe: new(api.GroupState),
		api.PathGroupsDelete: new(api.GroupDeleted), api.PathGroupsSeek: new(api.SeekAnswer),
		api.PathBackupBegin: new(api.BackupBegun), api.PathBackupEnd: new(api.BackupEnded),
	} {
		a := s.post(path, goodBodies[path], "Authorization", "Bearer root")
		d := json.NewDecoder(strings.NewReader(a.body))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			t.Errorf("%s: %v: %s", path, err, a.body)
		}
		if again, err := json.Marshal(into); err != nil || string(again) != a.body {
			t.Errorf("%s:\n got %s\nwant %s", path, a.body, again)
		}
	}
	// And package api writes requests that the server takes.
	offset, ms, none, some := uint64(0), int64(0), api.NoLimit, api.Limit(5)
	for _, row := range []struct {
		path    string
		request any
	}{
		{api.PathFetch, api.FetchRequest{Topic: "t", Offset: &offset}},
		{api.PathFetch, api.FetchRequest{Topic: "t", FromMS: &ms}},
		{api.PathTopicsConfigure, api.ConfigureTopicRequest{Topic: "t", RetentionMS: &none, RetentionBytes: &some}},
		{api.PathTopicsConfigure, api.ConfigureTopicRequest{Topic: "t", Reset: true}},
		{api.PathTopicsList, api.ListTopicsRequest{}},
		{api.PathTopicsList, api.ListTopicsRequest{Prefix: "t", Limit: 1000, Cursor: "dHQ"}},
		{api.PathTopicsDescribe, api.TopicRequest{Topic: "t"}},
		{api.PathGroupsList, api.ListGroupsRequest{Topic: "t", Prefix: "g", Limit: 1, Cursor: "Z2cAdA"}},
		{api.PathGroupsDescribe, api.GroupRequest{Group: "g", Topic: "t"}},
		{api.PathGroupsSeek, api.SeekRequest{Group: "g", Topic: "t", Offset: &offset}},
		{api.PathGroupsSeek, api.SeekRequest{Group: "g", Topic: "t", TimeMS: &ms, DryRun: true}},
		{api.PathGroupsSeek, api.SeekRequest{Group: "g", Topic: "t", To: api.SeekEnd}},
		{api.PathBackupRead, api.BackupReadRequest{Backup: fakeBackup, Segment: 1, Bytes: 1}},
		{api.PathBackupEnd, api.BackupEndRequest{Backup: fakeBackup}},
	} {
		body, err := json.Marshal(row.request)
		if err != nil {
			t.Fatal(err)
		}
		if a := s.post(row.path, string(body), "Authorization", "Bearer root"); a.status != 200 {
			t.Errorf("%s %s: %d %s", row.path, body, a.status, a.body)
		}
	}
}

// TestPages: a list is read page by page, with any limit, and with topics that come and go in between; what is there all the
// while comes exactly once and in order.
func TestPages(t *testing.T) {
	s := start(t)
	names := []string{"a", "a/b", "a\\b", "a\"b", "b", "b ", "b!", "long" + strings.Repeat("x", 251), "é", "日本", "😀"}
	slices.Sort(names)
	for _, name := range names {
		s.fake.topics[name] = &fakeTopic{records: make([]fakeRecord, 2), groups: map[string]uint64{}}
		for _, group := range names {
			s.fake.topics[name].groups[group] = 1
		}
	}
	for _, limit := range []int{1, 2, 3, 7, 11, 1000} {
		var got []string
		for cursor := ""; ; {
			a := s.post(api.PathTopicsList, fmt.Sprintf(`{"limit":%d%s}`, limit, cursor))
			page := a.json["topics"].([]any)
			for _, e := range page {
				got = append(got, e.(map[string]any)["topic"].(string))
			}
			if a.json["cursor"] == nil {
				break
			}
			if len(page) != limit {
				t.Errorf("a page of %d, want %d", len(page), limit)
			}
			cursor = fmt.Sprintf(`,"cursor":%q`, a.json["cursor"])
			s.fake.mu.Lock()
			delete(s.fake.topics, got[len(got)-1]) // the one that the cursor names
			s.fake.topics[got[len(got)-1]+"\x01"] = &fakeTopic{deleted: true}
			s.fake.mu.Unlock()
		}
		s.fake.mu.Lock()
		for _, name := range names {
			if s.fake.topics[name] == nil {
				s.fake.topics[name] = &fakeTopic{records: make([]fakeRecord, 2), groups: map[string]uint64{}}
				for _, group := range names {
					s.fake.topics[name].groups[group] = 1
				}
			}
		}
		s.fake.mu.Unlock()
		if !slices.Equal(got, names) {
			t.Errorf("limit %d: %q", limit, got)
		}
		var groups [][2]string
		for cursor := ""; ; {
			a := s.post(api.PathGroupsList, fmt.Sprintf(`{"limit":%d%s}`, limit, cursor))
			for _, e := range a.json["groups"].([]any) {
				g := e.(map[string]any)
				groups = append(groups, [2]string{g["group"].(string), g["topic"].(string)})
			}
			if a.json["cursor"] == nil {
				break
			}
			cursor = fmt.Sprintf(`,"cursor":%q`, a.json["cursor"])
		}
		if n := len(names); len(groups) != n*n {
			t.Fatalf("limit %d: %d groups", limit, len(groups))
		}
		for i, g := range groups {
			if want := [2]string{names[i/len(names)], names[i%len(names)]}; g != want {
				t.Errorf("limit %d: group %d is %q, want %q", limit, i, g, want)
			}
		}
	}
}

// TestCursors: a cursor is what its names say, and nothing else is one.
func TestCursors(t *testing.T) {
	long := strings.Repeat("é", 127) + "x"
	for _, names := range [][]string{{"t"}, {long}, {"g", "t"}, {long, long}} {
		kind := cursorTopics
		if len(names) == 2 {
			kind = cursorGroups
		}
		cursor := appendCursor(nil, kind, names...)
		if len(cursor) > api.CursorMax {
			t.Errorf("a cursor of %d bytes", len(cursor))
		}
		got := parseCursor(cursor, kind, len(names))
		if len(got) != len(names) {
			t.Fatalf("%q: got %q", names, got)
		}
		for i := range got {
			if string(got[i]) != names[i] {
				t.Errorf("%q: got %q", names, got)
			}
		}
		if parseCursor(cursor, kind^1, len(names)) != nil || parseCursor(cursor, kind, 3-len(names)) != nil {
			t.Errorf("%q: taken for another call", names)
		}
		// One byte cut, or changed, never makes a cursor of the same place.
		for i := range cursor {
			cut := append(slices.Clone(cursor[:i]), cursor[i+1:]...)
			if got := parseCursor(cut, kind, len(names)); got != nil && string(got[0]) == names[0] && len(names) == 1 {
				t.Errorf("%q without byte %d is taken for it", cursor, i)
			}
		}
	}
	for _, plain := range []string{"", "t", "x1", "t\x00", "ta\x00b", "ga", "g\x00a", "ga\x00", "ga\x00b\x00c", "t\n", "t\u0085", "t\xff", "t" + strings.Repeat("x", 256), "g" + strings.Repeat("x", 256) + "\x00t"} {
		cursor := cursorBase64.AppendEncode(nil, []byte(plain))
		if parseCursor(cursor, cursorTopics, 1) != nil || parseCursor(cursor, cursorGroups, 2) != nil {
			t.Errorf("%q is taken for a cursor", plain)
		}
	}
}

func FuzzCursor(f *testing.F) {
	f.Add([]byte("dHQ"))
	f.Add([]byte("Z2cAdA"))
	f.Fuzz(func(t *testing.T, cursor []byte) {
		for kind, names := range map[byte]int{cursorTopics: 1, cursorGroups: 2} {
			list := parseCursor(cursor, kind, names)
			if list == nil {
				continue
			}
			texts := make([]string, len(list))
			for i := range list {
				texts[i] = string(list[i])
			}
			if again := appendCursor(nil, kind, texts...); string(again) != string(cursor) {
				t.Fatalf("%q is read as %q, which is %q", cursor, texts, again)
			}
		}
	})
}

// TestListsWithLittleMemory: with no memory for answers left, pages are shorter, and all of the list is read all the same; a
// description has fewer groups and says how many there are. Nobody waits, and all is given back.
func TestListsWithLittleMemory(t *testing.T) {
	s := start(t)
	const n = 1000
	pad := strings.Repeat(`"`, 240)
	big := &fakeTopic{groups: map[string]uint64{}}
	for i := range n {
		s.fake.topics[fmt.Sprintf("%04d%s", i, pad)] = &fakeTopic{groups: map[string]uint64{"g": 0}}
		big.groups[fmt.Sprintf("%04d%s", i, pad)] = 0
	}
	s.fake.topics["z"+pad] = big
	for _, left := range []int64{0, 200 << 10, s.cfg.AnswerBudgetBytes} {
		s.answers.tryTake(s.cfg.AnswerBudgetBytes - left)
		for path, want := range map[string]int{api.PathTopicsList: n + 1, api.PathGroupsList: 2 * n} {
			got, pages := 0, 0
			for cursor := ""; ; pages++ {
				a := s.post(path, `{"limit":1000`+cursor+`}`)
				if a.status != 200 {
					t.Fatalf("%d %.300s", a.status, a.body)
				}
				for _, list := range []string{"topics", "groups"} {
					if l, ok := a.json[list].([]any); ok {
						if len(l) == 0 {
							t.Fatal("an empty page")
						}
						got += len(l)
					}
				}
				if int64(len(a.body)) > left+keepMax {
					t.Errorf("%d bytes with %d left", len(a.body), left)
				}
				if a.json["cursor"] == nil {
					break
				}
				cursor = fmt.Sprintf(`,"cursor":%q`, a.json["cursor"])
			}
			if got != want {
				t.Errorf("%s with %d left: %d, want %d", path, left, got, want)
			}
			if left == 0 && pages < 5 {
				t.Errorf("%s: %d pages", path, pages)
			}
		}
		a := s.post(api.PathTopicsDescribe, fmt.Sprintf(`{"topic":%q}`, "z"+pad))
		groups := len(a.json["groups"].([]any))
		if a.status != 200 || a.json["groups_total"] != float64(n) || groups == 0 || (groups == n) != (left == s.cfg.AnswerBudgetBytes) {
			t.Errorf("with %d left: %d, %d groups of %v", left, a.status, groups, a.json["groups_total"])
		}
		s.answers.give(s.cfg.AnswerBudgetBytes - left)
		waitUntil(t, "all is given back", func() bool { return s.answers.left.Load() == s.cfg.AnswerBudgetBytes })
	}
}

// asked is a broker that notes what it was asked for.
type asked struct {
	*fakeBroker
	list      broker.List
	configure broker.Configure
	seek      broker.Seek
	fetch     broker.Fetch
	shown     int
}

func (a *asked) ListTopics(q *broker.List) ([]broker.TopicSummary, bool, error) {
	a.list = *q
	return a.fakeBroker.ListTopics(q)
}

func (a *asked) ListGroups(q *broker.List) ([]broker.GroupState, bool, error) {
	a.list = *q
	return a.fakeBroker.ListGroups(q)
}

func (a *asked) ConfigureTopic(q *broker.Configure) (broker.Settings, error) {
	a.configure = *q
	return a.fakeBroker.ConfigureTopic(q)
}

func (a *asked) SeekGroup(q *broker.Seek) (broker.Sought, error) {
	a.seek = *q
	return a.fakeBroker.SeekGroup(q)
}

func (a *asked) Fetch(q *broker.Fetch, sink broker.Sink) (broker.Page, error) {
	a.fetch = *q
	return a.fakeBroker.Fetch(q, sink)
}

func (a *asked) DescribeTopic(topic []byte, groups int) (broker.TopicDescription, error) {
	a.shown = groups
	return a.fakeBroker.DescribeTopic(topic, groups)
}

// TestAsked: what the broker is asked for is what the body says, nothing of the request before among it.
func TestAsked(t *testing.T) {
	a := &asked{}
	s := start(t, func(c *Config) {
		a.fakeBroker = c.Broker.(*fakeBroker)
		c.Broker, c.AdminToken = a, "root"
	})
	a.seed()
	post := func(path, body string) {
		t.Helper()
		if r := s.post(path, body, "Authorization", "Bearer root"); r.status != 200 {
			t.Fatalf("%s %s: %d %s", path, body, r.status, r.body)
		}
	}
	limits := func() string {
		show := func(l *fact.Limit) string {
			if l == nil {
				return "-"
			}
			return fmt.Sprint(*l)
		}
		return show(a.configure.RetentionMS) + " " + show(a.configure.RetentionBytes) + " " + show(a.configure.RetentionRecords)
	}
	for range 3 {
		post(api.PathTopicsConfigure, `{"topic":"t","retention_ms":5,"retention_bytes":null,"reset":true}`)
		if limits() != "5 -1 -" || !a.configure.Reset || string(a.configure.Topic) != "t" {
			t.Errorf("configure: %s %+v", limits(), a.configure)
		}
		post(api.PathTopicsConfigure, `{"topic":"t","retention_records":9}`)
		if limits() != "- - 9" || a.configure.Reset {
			t.Errorf("configure: %s %+v", limits(), a.configure)
		}
		post(api.PathGroupsList, `{"topic":"t","prefix":"p","limit":3,"cursor":"Z2cAdA"}`)
		if q := a.list; string(q.Topic) != "t" || string(q.Prefix) != "p" || q.Limit != 3 || len(q.After) != 2 || string(q.After[0]) != "g" || string(q.After[1]) != "t" {
			t.Errorf("list groups: %+v", q)
		}
		post(api.PathTopicsList, ``)
		if q := a.list; len(q.Topic) != 0 || len(q.Prefix) != 0 || q.Limit != api.LimitDefault || q.After != nil {
			t.Errorf("list topics: %+v", q)
		}
		for body, want := range map[string]broker.Seek{
			`"offset":0,"dry_run":true`: {By: broker.SeekByOffset, DryRun: true}, `"offset":1`: {By: broker.SeekByOffset, Offset: 1},
			`"time_ms":0`: {By: broker.SeekByTime}, `"time_ms":77`: {By: broker.SeekByTime, TimeMS: 77},
			`"to":"start"`: {By: broker.SeekToStart}, `"to":"end","dry_run":false`: {By: broker.SeekToEnd},
		} {
			post(api.PathGroupsSeek, `{"group":"g","topic":"t",`+body+`}`)
			if q := a.seek; q.By != want.By || q.Offset != want.Offset || q.TimeMS != want.TimeMS || q.DryRun != want.DryRun || string(q.Group) != "g" || string(q.Topic) != "t" {
				t.Errorf("%s: %+v", body, q)
			}
		}
		post(api.PathFetch, `{"topic":"t","from_ms":7,"limit":3}`)
		if q := a.fetch; !q.ByTime || q.FromMS != 7 || q.Limit != 3 {
			t.Errorf("fetch by time: %+v", q)
		}
		post(api.PathFetch, `{"topic":"t","from_ms":0}`)
		if q := a.fetch; !q.ByTime || q.FromMS != 0 {
			t.Errorf("fetch by time: %+v", q)
		}
		post(api.PathFetch, `{"topic":"t","offset":0}`)
		if q := a.fetch; q.ByTime || q.FromMS != 0 {
			t.Errorf("fetch by offset: %+v", q)
		}
		post(api.PathTopicsDescribe, `{"topic":"t"}`)
		if a.shown != api.GroupsShown {
			t.Errorf("describe: %d groups", a.shown)
		}
	}
}

// TestRestoredOffsets: an offset that a restore jumped over is told from one that is out of range.
func TestRestoredOffsets(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken = "root" })
	s.fake.setFail(&broker.OffsetRangeError{Start: 3, End: 1e12 + 5})
	for _, row := range []struct {
		path, body, field string
		want              string
	}{
		{api.PathGroupsCommit, `{"group":"g","topic":"t","next_offset":9}`, "next_offset", "restored from a backup"},
		{api.PathTopicsRetain, `{"topic":"t","start_offset":9}`, "start_offset", "restored from a backup"},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","offset":9}`, "offset", "restored from a backup"},
		{api.PathGroupsSeek, `{"group":"g","topic":"t","offset":2}`, "offset", "the offset must be from 3 to 1000000000005"},
		{api.PathGroupsCommit, `{"group":"g","topic":"t","next_offset":1000000000006}`, "next_offset", "the offset must be from 3 to 1000000000005"},
	} {
		a := s.post(row.path, row.body, "Authorization", "Bearer root")
		if a.status != 400 || a.code() != "offset_out_of_range" || a.field() != row.field || !strings.Contains(a.body, row.want) {
			t.Errorf("%s %s: %d %s", row.path, row.body, a.status, a.body)
		}
	}
}

// TestScopes: who may make which of the calls.
func TestScopes(t *testing.T) {
	want := map[string]scope{
		api.PathTopicsConfigure: scopeAdmin, api.PathTopicsDelete: scopeAdmin, api.PathTopicsRetain: scopeAdmin, api.PathSnapshot: scopeAdmin,
		api.PathBackupBegin: scopeAdmin, api.PathBackupRead: scopeAdmin, api.PathBackupEnd: scopeAdmin,
		api.PathTopicsList: scopeClient, api.PathTopicsDescribe: scopeClient, api.PathGroupsList: scopeClient, api.PathGroupsDescribe: scopeClient,
		api.PathGroupsDelete: scopeClient, api.PathGroupsSeek: scopeClient,
	}
	s := start(t)
	for path := range maps.Keys(want) {
		if r := s.routes[path]; r == nil || r.scope != want[path] {
			t.Errorf("%s: %+v", path, r)
		}
	}
}

// TestSeekDecodesBothMeanings: "to" is a number of a node, or a word, by the call.
func TestSeekDecodesBothMeanings(t *testing.T) {
	for _, row := range []struct {
		sh   *shape
		body string
		ok   bool
	}{
		{&shapeTransfer, `{"to":1}`, true}, {&shapeTransfer, `{"to":"end"}`, false},
		{&shapeGroupsSeek, `{"group":"g","topic":"t","to":1}`, false}, {&shapeGroupsSeek, `{"group":"g","topic":"t","to":"end"}`, true},
	} {
		var req request
		if err := decodeStrict([]byte(row.body), row.sh, nil, &req); (err == nil) != row.ok {
			t.Errorf("%s: %v", row.body, err)
		}
		if decodeFast([]byte(row.body), row.sh, newArena([]byte(row.body)), &req) && !row.ok {
			t.Errorf("%s: the fast decoder takes it", row.body)
		}
	}
}
