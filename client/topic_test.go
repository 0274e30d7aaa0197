package client

import (
	"context"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
)

func ptr[T any](v T) *T { return &v }

// TestTopicRequests: what the calls on topics and groups send, and what they make of the answer.
func TestTopicRequests(t *testing.T) {
	ctx := context.Background()
	var answer string
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) { say(w, 200, answer) })
	c := quick(t, Config{Token: "user", AdminToken: "root"}, f)
	const (
		settings = `"settings":{"retention_ms":5,"retention_bytes":null,"retention_records":7},"own":["retention_ms"]`
		topic    = `"topic":"t","start_offset":1,"end_offset":9,"records":8,"bytes":80`
		group    = `{"group":"g","topic":"t","next_offset":4,"start_offset":1,"end_offset":9,"lag":5,"last_activity_ms":6}`
	)
	wantSettings := api.Settings{RetentionMS: ptr[int64](5), RetentionRecords: ptr[int64](7)}
	wantTopic := api.TopicSummary{Topic: "t", StartOffset: 1, EndOffset: 9, Records: 8, Bytes: 80}
	wantGroup := api.GroupState{Group: "g", Topic: "t", NextOffset: 4, StartOffset: 1, EndOffset: 9, Lag: 5, LastActivityMS: 6}
	for _, test := range []struct {
		path, body, answer string
		admin              bool
		call               func() (any, error)
		want               any
	}{
		{"/v1/topics/configure", `{"topic":"t","retention_ms":5,"retention_bytes":null}`, `{` + settings + `}`, true, func() (any, error) {
			return c.ConfigureTopic(ctx, api.ConfigureTopicRequest{Topic: "t", RetentionMS: ptr(api.Limit(5)), RetentionBytes: ptr(api.NoLimit)})
		}, api.ConfigureTopicAnswer{Settings: wantSettings, Own: []string{"retention_ms"}}},
		{"/v1/topics/configure", `{"topic":"t","reset":true}`, `{` + settings + `}`, true, func() (any, error) {
			return c.ConfigureTopic(ctx, api.ConfigureTopicRequest{Topic: "t", Reset: true})
		}, api.ConfigureTopicAnswer{Settings: wantSettings, Own: []string{"retention_ms"}}},
		{"/v1/topics/delete", `{"topic":"t"}`, `{"end_offset":9}`, true, func() (any, error) { return c.DeleteTopic(ctx, "t") }, uint64(9)},
		{"/v1/topics/list", `{"prefix":"p","limit":3,"cursor":"c"}`, `{"topics":[{` + topic + `}],"cursor":"d"}`, false, func() (any, error) {
			return c.ListTopics(ctx, api.ListTopicsRequest{Prefix: "p", Limit: 3, Cursor: "c"})
		}, api.ListTopicsAnswer{Topics: []api.TopicSummary{wantTopic}, Cursor: "d"}},
		{"/v1/topics/list", `{}`, `{"topics":[]}`, false, func() (any, error) {
			return c.ListTopics(ctx, api.ListTopicsRequest{})
		}, api.ListTopicsAnswer{Topics: []api.TopicSummary{}}},
		{"/v1/topics/describe", `{"topic":"t"}`, `{` + topic + `,"oldest_ms":null,"newest_ms":3,` + settings + `,"groups":[` + group + `],"groups_total":4}`, false,
			func() (any, error) { return c.DescribeTopic(ctx, "t") },
			api.DescribeTopicAnswer{TopicSummary: wantTopic, NewestMS: ptr[int64](3), Settings: wantSettings, Own: []string{"retention_ms"},
				Groups: []api.GroupState{wantGroup}, GroupsN: 4}},
		{"/v1/groups/list", `{"topic":"t","prefix":"p"}`, `{"groups":[` + group + `]}`, false, func() (any, error) {
			return c.ListGroups(ctx, api.ListGroupsRequest{Topic: "t", Prefix: "p"})
		}, api.ListGroupsAnswer{Groups: []api.GroupState{wantGroup}}},
		{"/v1/groups/describe", `{"group":"g","topic":"t"}`, group, false, func() (any, error) { return c.DescribeGroup(ctx, "t", "g") }, wantGroup},
		{"/v1/groups/delete", `{"group":"g","topic":"t"}`, `{"next_offset":4}`, false, func() (any, error) { return c.DeleteGroup(ctx, "t", "g") }, uint64(4)},
		{"/v1/groups/seek", `{"group":"g","topic":"t","offset":0,"dry_run":true}`, `{"next_offset":0,"previous_offset":4,"skipped":0,"repeated":3,"dry_run":true}`, false,
			func() (any, error) {
				return c.SeekGroup(ctx, api.SeekRequest{Group: "g", Topic: "t", Offset: ptr[uint64](0), DryRun: true})
			},
			api.SeekAnswer{PreviousOffset: 4, Repeated: 3, DryRun: true}},
		{"/v1/groups/seek", `{"group":"g","topic":"t","to":"end"}`, `{"next_offset":9,"previous_offset":4,"skipped":5,"repeated":0}`, false,
			func() (any, error) {
				return c.SeekGroup(ctx, api.SeekRequest{Group: "g", Topic: "t", To: api.SeekEnd})
			},
			api.SeekAnswer{NextOffset: 9, PreviousOffset: 4, Skipped: 5}},
	} {
		answer = test.answer
		got, err := test.call()
		if err != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s %s: %+v, %v", test.path, test.body, got, err)
		}
		token := "Bearer user"
		if test.admin {
			token = "Bearer root"
		}
		if r := f.got()[len(f.got())-1]; r.path != test.path || r.body != test.body || r.token != token {
			t.Errorf("got %+v, want %s %s", r, test.path, test.body)
		}
		// Each member that the answer must have.
		for _, name := range []string{"settings", "own", "end_offset", "topics", "groups", "lag", "next_offset", "skipped", "groups_total"} {
			if !strings.Contains(test.answer, `"`+name+`":`) || name == "end_offset" && !strings.HasPrefix(test.answer, `{"end_offset"`) {
				continue
			}
			answer = strings.Replace(test.answer, `"`+name+`":`, `"_`+name+`":`, 1)
			if strings.HasPrefix(test.answer, `{"topics"`) && name != "topics" || strings.HasPrefix(test.answer, `{"groups"`) && name != "groups" {
				continue
			}
			if strings.HasPrefix(test.path, "/v1/topics/describe") && (name == "lag" || name == "next_offset") {
				continue
			}
			if got, err := test.call(); !errors.Is(err, ErrBadAnswer) {
				t.Errorf("%s: an answer without %s: %+v, %v", test.path, name, got, err)
			}
		}
		for _, bad := range []string{`{}`, `[]`, `null`, `{"settings":1,"own":[],"topics":1,"groups":1}`, `<html>`} {
			answer = bad
			got, err := test.call()
			if e := asError(t, err); e.Code != ErrBadAnswer || e.Unknown != (strings.HasSuffix(test.path, "configure") ||
				strings.HasSuffix(test.path, "delete") || strings.HasSuffix(test.path, "seek") && !strings.Contains(test.body, "dry_run")) {
				t.Errorf("%s with %s: %+v, %+v", test.path, bad, got, e)
			}
		}
	}
}

// TestRanges: all pages are read, and the first error ends it.
func TestRanges(t *testing.T) {
	ctx := context.Background()
	broken := false
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		body := string(readBody(t, r))
		second := strings.Contains(body, `"cursor":"c1"`)
		switch {
		case second && broken:
			say(w, 404, `{"code":"topic_not_found","message":"m"}`)
		case r.URL.Path == api.PathTopicsList && !second:
			say(w, 200, `{"topics":[{"topic":"a"},{"topic":"b"}],"cursor":"c1"}`)
		case r.URL.Path == api.PathTopicsList:
			say(w, 200, `{"topics":[{"topic":"c"}]}`)
		case !second:
			say(w, 200, `{"groups":[{"group":"a"}],"cursor":"c1"}`)
		default:
			say(w, 200, `{"groups":[]}`)
		}
	})
	c := quick(t, Config{}, f)
	all := func() (got string) {
		for topic, err := range c.Topics(ctx, "p") {
			if err != nil {
				return got + "!"
			}
			got += topic.Topic
		}
		for group, err := range c.Groups(ctx, "t", "p") {
			if err != nil {
				return got + "!"
			}
			got += group.Group
		}
		return got
	}
	if got := all(); got != "abca" {
		t.Errorf("got %s", got)
	}
	if r := f.got()[0]; r.body != `{"prefix":"p","limit":1000}` {
		t.Errorf("asked %s", r.body)
	}
	if r := f.got()[3]; r.body != `{"topic":"t","prefix":"p","limit":1000,"cursor":"c1"}` {
		t.Errorf("asked %s", r.body)
	}
	broken = true
	if got := all(); got != "ab!" {
		t.Errorf("got %s", got)
	}
	before := len(f.got())
	for range c.Topics(ctx, "") {
		break
	}
	if n := len(f.got()) - before; n != 1 {
		t.Errorf("%d requests for the first topic", n)
	}
}

// TestTopicCallsAreRetried: all of them can be sent again. A deletion that finds nothing the second time says that it is not
// known who has done it.
func TestTopicCallsAreRetried(t *testing.T) {
	ctx := context.Background()
	second := ""
	status := 200
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n == 0 {
			hangUp()
		}
		say(w, status, second)
	})
	reset := func(s int, answer string) *Client {
		f.mu.Lock()
		f.requests = nil
		f.mu.Unlock()
		status, second = s, answer
		return quick(t, Config{}, f)
	}
	if end, err := reset(200, `{"end_offset":9}`).DeleteTopic(ctx, "t"); end != 9 || err != nil {
		t.Errorf("delete topic: %d, %v", end, err)
	}
	if _, err := reset(200, `{"settings":{},"own":[]}`).ConfigureTopic(ctx, api.ConfigureTopicRequest{Topic: "t"}); err != nil {
		t.Errorf("configure: %v", err)
	}
	if _, err := reset(200, `{"next_offset":0,"previous_offset":0,"skipped":0,"repeated":0}`).SeekGroup(ctx, api.SeekRequest{Group: "g", Topic: "t", To: "end"}); err != nil {
		t.Errorf("seek: %v", err)
	}
	if _, err := reset(200, `{"topics":[]}`).ListTopics(ctx, api.ListTopicsRequest{}); err != nil {
		t.Errorf("list: %v", err)
	}
	_, err := reset(404, `{"code":"topic_not_found","message":"m"}`).DeleteTopic(ctx, "t")
	if e := asError(t, err); e.Code != ErrTopicNotFound || !e.Unknown || e.Attempts != 2 {
		t.Errorf("delete topic: %+v", e)
	}
	_, err = reset(404, `{"code":"group_not_found","message":"m"}`).DeleteGroup(ctx, "t", "g")
	if e := asError(t, err); e.Code != ErrGroupNotFound || !e.Unknown || e.Attempts != 2 {
		t.Errorf("delete group: %+v", e)
	}
	_, err = reset(404, `{"code":"topic_not_found","message":"m"}`).SeekGroup(ctx, api.SeekRequest{Group: "g", Topic: "t", To: "end", DryRun: true})
	if e := asError(t, err); e.Code != ErrTopicNotFound || e.Unknown {
		t.Errorf("a seek that only asks: %+v", e)
	}
	c := reset(200, `{}`)
	for name, call := range map[string]func() error{
		"configure":      func() error { _, err := c.ConfigureTopic(ctx, api.ConfigureTopicRequest{Topic: "\xff"}); return err },
		"delete topic":   func() error { _, err := c.DeleteTopic(ctx, "\xff"); return err },
		"list topics":    func() error { _, err := c.ListTopics(ctx, api.ListTopicsRequest{Prefix: "\xff"}); return err },
		"cursor":         func() error { _, err := c.ListTopics(ctx, api.ListTopicsRequest{Cursor: "\xff"}); return err },
		"describe topic": func() error { _, err := c.DescribeTopic(ctx, "\xff"); return err },
		"list groups":    func() error { _, err := c.ListGroups(ctx, api.ListGroupsRequest{Topic: "\xff"}); return err },
		"describe group": func() error { _, err := c.DescribeGroup(ctx, "t", "\xff"); return err },
		"delete group":   func() error { _, err := c.DeleteGroup(ctx, "t", "\xff"); return err },
		"seek":           func() error { _, err := c.SeekGroup(ctx, api.SeekRequest{Topic: "t", Group: "\xff"}); return err },
		"from":           func() error { _, err := c.FetchFrom(ctx, "\xff", time.Now(), FetchOptions{}); return err },
		"far":            func() error { _, err := c.FetchFrom(ctx, "t", time.UnixMilli(1<<48), FetchOptions{}); return err },
		"from limit":     func() error { _, err := c.FetchFrom(ctx, "t", time.Now(), FetchOptions{Limit: 1001}); return err },
	} {
		if err := call(); !errors.Is(err, ErrInvalidArgument) || asError(t, err).Unknown {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := len(f.got()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestFetchFrom(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		say(w, 200, `{"records":[{"offset":5,"key":"","value":"","timestamp_ms":1}],"next_offset":6,"start_offset":0,"end_offset":9}`)
	})
	c := quick(t, Config{}, f)
	for _, row := range []struct {
		from time.Time
		body string
	}{
		{time.UnixMilli(1700), `{"topic":"t","from_ms":1700,"limit":3,"wait_ms":1000}`},
		{time.UnixMilli(1700).Add(1), `{"topic":"t","from_ms":1701,"limit":3,"wait_ms":1000}`},
		{time.Time{}, `{"topic":"t","from_ms":0,"limit":3,"wait_ms":1000}`},
	} {
		page, err := c.FetchFrom(ctx, "t", row.from, FetchOptions{Limit: 3, Wait: time.Second})
		if err != nil || len(page.Records) != 1 || page.Records[0].Offset != 5 || page.NextOffset != 6 {
			t.Errorf("%v: %+v, %v", row.from, page, err)
		}
		if r := f.got()[len(f.got())-1]; r.path != api.PathFetch || r.body != row.body {
			t.Errorf("sent %s, want %s", r.body, row.body)
		}
	}
}

// TestRestored: where a restore made offsets jump, readers go on; an offset that it lost is an error that says so.
func TestRestored(t *testing.T) {
	ctx := context.Background()
	const step = api.RestoreStep
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		switch body := string(readBody(t, r)); {
		case strings.Contains(body, `"offset":5`):
			say(w, 200, `{"records":[{"offset":5,"key":"","value":"","timestamp_ms":1},{"offset":1000000000000,"key":"","value":"","timestamp_ms":1}],`+
				`"next_offset":1000000000001,"start_offset":0,"end_offset":1000000000002}`)
		case strings.Contains(body, `"offset":7`):
			say(w, 410, `{"code":"offset_gone","message":"m","field":"offset","start_offset":1000000000000,"restored_end":6}`)
		default:
			say(w, 200, `{"records":[{"offset":1000000000001,"key":"","value":"","timestamp_ms":1}],"next_offset":1000000000002,"start_offset":0,"end_offset":1000000000002}`)
		}
	})
	c := quick(t, Config{}, f)
	k, err := c.Consume(ConsumerConfig{Topic: "t", Offset: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	var got []uint64
	for r, err := range k.All(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Offset)
	}
	if !reflect.DeepEqual(got, []uint64{5, step, step + 1}) {
		t.Errorf("got %v", got)
	}
	_, err = c.Fetch(ctx, "t", 7, FetchOptions{})
	if e := asError(t, err); e.Code != ErrOffsetGone || e.StartOffset == nil || *e.StartOffset != step || e.RestoredEnd == nil || *e.RestoredEnd != 6 {
		t.Errorf("got %+v", e)
	}
}

// TestConsumerRestored: a consumer that has read what a restore lost is told so, one of a group too, unless it says that it
// does not want to know.
func TestConsumerRestored(t *testing.T) {
	const step = api.RestoreStep
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		switch body := string(readBody(t, r)); {
		case strings.Contains(body, `"group":"g"`), strings.Contains(body, `"offset":6`):
			say(w, 200, `{"records":[{"offset":6,"key":"","value":"","timestamp_ms":1}],"next_offset":7,"start_offset":0,"end_offset":8}`)
		case strings.Contains(body, `"offset":7`): // it was restored meanwhile
			say(w, 410, `{"code":"offset_gone","message":"m","field":"offset","start_offset":1000000000000,"restored_end":6}`)
		default:
			say(w, 200, `{"records":[{"offset":1000000000000,"key":"","value":"","timestamp_ms":1}],"next_offset":1000000000001,"start_offset":0,"end_offset":1000000000001}`)
		}
	})
	for name, cfg := range map[string]ConsumerConfig{
		"by offset":            {Topic: "t", Offset: 6},
		"of a group":           {Topic: "t", Group: "g"},
		"by offset, skipping":  {Topic: "t", Offset: 6, SkipGone: true},
		"of a group, skipping": {Topic: "t", Group: "g", SkipGone: true},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := quick(t, Config{}, f).Consume(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			if r, err := k.Next(context.Background()); err != nil || r.Offset != 6 {
				t.Fatal(r, err)
			}
			r, err := k.Next(context.Background())
			if cfg.SkipGone {
				if err != nil || r.Offset != step {
					t.Errorf("got %v %v", r, err)
				}
				return
			}
			if e := asError(t, err); e.Code != ErrOffsetGone || e.RestoredEnd == nil || *e.RestoredEnd != 6 {
				t.Errorf("got %+v", e)
			}
		})
	}
}
