package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
)

const raftToken = "raft-canary-4"

// leaderURL is what the node of withRaft says after a transfer.
const leaderURL = "http://127.0.0.1:8081"

// withRaft configures a node of a cluster; with nil it hands the lead over to whomever it should.
func withRaft(transfer func(ctx context.Context, to int) error) func(*Config) {
	if transfer == nil {
		transfer = func(context.Context, int) error { return nil }
	}
	leader := leaderURL
	return func(c *Config) {
		c.Raft = &Raft{
			Token:  raftToken,
			Stream: func(c net.Conn) { io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) },
			Role: func() any {
				return api.RaftRole{Role: api.RaftFollower, Node: 2, Term: 7, Leader: &leader, CommitIndex: 5, AppliedIndex: 4}
			},
			Status:   func() any { return api.RaftStatus{Role: api.RaftFollower, Nodes: []api.RaftNode{{Node: 1}}} },
			Transfer: transfer,
		}
	}
}

// TestRaftRole: the answer is the contract's, and null where no leader is known.
func TestRaftRole(t *testing.T) {
	s := start(t, withRaft(nil))
	a := s.do("GET", api.PathRaftRole, "", api.HeaderRaftToken, raftToken)
	const want = `{"role":"follower","node":2,"term":7,"leader":"http://127.0.0.1:8081","commit_index":5,"applied_index":4}`
	if a.status != 200 || a.body != want || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("%d %s", a.status, a.body)
	}
	s = start(t, withRaft(nil), func(c *Config) { c.Raft.Role = func() any { return api.RaftRole{Role: api.RaftCandidate} } })
	a = s.do("GET", api.PathRaftRole, "", api.HeaderRaftToken, raftToken)
	if a.body != `{"role":"candidate","node":0,"term":0,"leader":null,"commit_index":0,"applied_index":0}` {
		t.Errorf("%d %s", a.status, a.body)
	}
}

func TestRaftStatus(t *testing.T) {
	s := start(t, withRaft(nil))
	a := s.do("GET", api.PathRaftStatus, "", api.HeaderRaftToken, raftToken)
	var got api.RaftStatus
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 || len(got.Nodes) != 1 || got.Nodes[0].Node != 1 {
		t.Errorf("%d %s: %v", a.status, a.body, err)
	}
}

// TestRaftTransfer: who is asked to lead, and what becomes of what Transfer returns.
func TestRaftTransfer(t *testing.T) {
	var asked []int
	var fail error
	s := start(t, withRaft(func(ctx context.Context, to int) error {
		if end, ok := ctx.Deadline(); !ok || time.Until(end) > transferTimeout {
			t.Errorf("deadline %v", end)
		}
		asked = append(asked, to)
		return fail
	}))
	for _, row := range []struct {
		body   string
		fail   error
		status int
		want   string // part of the body
		to     int    // -2: it is not asked
	}{
		{"", nil, 200, `"leader":"http://127.0.0.1:8081"`, -1},
		{"{}", nil, 200, `"leader":"http://127.0.0.1:8081"`, -1},
		{`{"to":0}`, nil, 200, `"node":2`, 0},
		{`{"to":6}`, ErrNoSuchNode, 400, `"field":"to"`, 6},
		{`{"to":1}`, errors.New("node 1 is behind"), 503, `"message":"the lead was not handed over: node 1 is behind: nothing was done`, 1},
		{`{"to":1}`, &broker.UnavailableError{Reason: "no leader"}, 503, `"message":"no leader: nothing was done`, 1},
		{`{"to":1}`, &broker.NotLeaderError{Leader: leaderURL}, 307, `"leader":"http://127.0.0.1:8081"`, 1},
		{`{"to":-1}`, nil, 400, `"field":"to"`, -2},
		{`{"to":1.0}`, nil, 400, `"field":"to"`, -2},
		{`{"to":1001}`, nil, 400, `"field":"to"`, -2},
		{`{"to":null}`, nil, 400, `"field":"to"`, -2},
		{`{"to":"1"}`, nil, 400, `"field":"to"`, -2},
		{`{"to":1,"to":2}`, nil, 400, `"field":"to"`, -2},
		{`{"To":1}`, nil, 400, `"field":"To"`, -2},
		{`{"to":1,"topic":"t"}`, nil, 400, `"field":"topic"`, -2},
		{`{"to":1}{}`, nil, 400, `"code":"invalid_argument"`, -2},
		{`[]`, nil, 400, `"code":"invalid_argument"`, -2},
	} {
		asked, fail = nil, row.fail
		c := s.dial()
		c.send(request1(api.PathRaftTransfer, row.body, api.HeaderRaftToken, raftToken))
		a := c.receive("POST")
		if a.status != row.status || !strings.Contains(a.body, row.want) {
			t.Errorf("%s with %v: %d %s, want %d and %s", row.body, row.fail, a.status, a.body, row.status, row.want)
		}
		if row.to == -2 && len(asked) != 0 || row.to > -2 && (len(asked) != 1 || asked[0] != row.to) {
			t.Errorf("%s: asked for %v", row.body, asked)
		}
		c.Close()
	}
}

// TestRaftPaths: they exist where they are configured, and need what they need.
func TestRaftPaths(t *testing.T) {
	s := start(t)
	for _, path := range []string{api.PathRaftStream, api.PathRaftRole, api.PathRaftStatus, api.PathRaftTransfer} {
		if a := s.post(path, "", api.HeaderRaftToken, raftToken); a.status != 404 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	s = start(t, withRaft(nil), func(c *Config) { c.Raft.Stream, c.Raft.Transfer = nil, nil })
	for _, path := range []string{api.PathRaftStream, api.PathRaftTransfer} {
		if a := s.post(path, "", api.HeaderRaftToken, raftToken); a.status != 404 {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	full := Raft{Token: "x", Role: func() any { return nil }, Status: func() any { return nil }}
	for i, forget := range []func(*Raft){func(r *Raft) { r.Token = "" }, func(r *Raft) { r.Role = nil }, func(r *Raft) { r.Status = nil }} {
		r := full
		forget(&r)
		if _, err := New(Config{Broker: newFake(), Logger: startLogger(), Raft: &r}); err == nil {
			t.Errorf("%d: no error", i)
		}
	}
}

// TestRaftStream: the stream of a cluster is switched to its own protocol, beside that of a pair.
func TestRaftStream(t *testing.T) {
	s := start(t, withRaft(nil), withStream(func(net.Conn) { t.Error("the pair got it") }))
	ask := func(protocol string) *raw {
		c := s.dial()
		c.send("POST " + api.PathRaftStream + " HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + protocol + "\r\n" +
			api.HeaderRaftToken + ": " + raftToken + "\r\n\r\n")
		return c
	}
	c := ask(api.ProtocolRaft)
	c.switched(api.ProtocolRaft)
	c.echo("hello")
	a := ask(api.ProtocolReplication).receive("POST")
	if a.status != 426 || a.header.Get("Upgrade") != api.ProtocolRaft || !strings.Contains(a.body, api.ProtocolRaft) {
		t.Errorf("%d %v %s", a.status, a.header, a.body)
	}
}

// TestRedirect: a node that knows who leads sends clients there, to the same path, and the connection lives on.
func TestRedirect(t *testing.T) {
	s := start(t, func(c *Config) { c.ClientToken, c.AdminToken = "user", "root" })
	s.fake.setFail(&broker.NotLeaderError{Leader: "https://node-2.example:8443/"})
	c := s.dial()
	for path, body := range goodBodies {
		for _, target := range []string{path, path + "?token=secret&x=/../y"} {
			c.send(request1(target, body, "Authorization", "Bearer root"))
			a := c.receive("POST")
			if a.status != 307 || a.header.Get("Location") != "https://node-2.example:8443"+path || a.closed || a.header.Get("Retry-After") != "" ||
				a.code() != "not_leader" || a.json["leader"] != "https://node-2.example:8443" || len(a.json) != 3 {
				t.Errorf("%s: %d %v %s", target, a.status, a.header, a.body)
			}
		}
	}
	// What is wrong with a request comes first, and a large body is read to its end or refused as ever.
	for name, row := range map[string]struct {
		request string
		status  int
	}{
		"no token":    {request1(api.PathPublish, goodBodies[api.PathPublish]), 401},
		"not admin":   {request1(api.PathTopicsRetain, goodBodies[api.PathTopicsRetain], "Authorization", "Bearer user"), 403},
		"host":        {strings.Replace(request1(api.PathPublish, goodBodies[api.PathPublish], "Authorization", "Bearer user"), "localhost", "evil.example", 1), 403},
		"origin":      {request1(api.PathPublish, goodBodies[api.PathPublish], "Authorization", "Bearer user", "Origin", "https://evil.example"), 403},
		"bad body":    {request1(api.PathPublish, `{"topic":1}`, "Authorization", "Bearer user"), 400},
		"large":       {request1(api.PathPublish, `{"topic":"t","value":"`+strings.Repeat("AAAA", 50000)+`"}`, "Authorization", "Bearer user"), 307},
		"too large":   {request1(api.PathPublish, strings.Repeat(" ", bodyMax+1), "Authorization", "Bearer user"), 413},
		"large fetch": {request1(api.PathFetch, strings.Repeat(" ", bodySmallMax+1), "Authorization", "Bearer user"), 413},
	} {
		c := s.dial()
		go io.WriteString(c, row.request)
		a := c.receive("POST")
		if a.status != row.status || row.status != 307 && a.header.Get("Location") != "" {
			t.Errorf("%s: %d %v %s", name, a.status, a.header, a.body)
		}
		if row.status == 307 {
			c.send(request1(api.PathPublish, goodBodies[api.PathPublish], "Authorization", "Bearer user"))
			if a := c.receive("POST"); a.status != 307 {
				t.Errorf("after %s: %d %s", name, a.status, a.body)
			}
		}
		c.Close()
	}
	// Headers cannot be smuggled into Location by what stands in the request line.
	c = s.dial()
	c.send("POST " + api.PathPublish + "?\r\nX-Evil: 1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
	if a := c.receive("POST"); a.status == 307 {
		t.Errorf("%d %v", a.status, a.header)
	}
}
