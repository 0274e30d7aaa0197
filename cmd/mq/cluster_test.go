package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"example.com/mq/api"
)

// serving is held while a server of a test answers, and by the test while it touches what the servers say.
var serving sync.Mutex

const raftTestToken = "raft-canary-91ab"

// wellCluster is what three nodes A, B and C say, of which A leads, with changes.
func wellCluster(change func(a, b, c *api.RaftStatus)) []member {
	urls := []string{"A", "B", "C"}
	leader := urls[0]
	var list []*api.RaftStatus
	for i := range urls {
		s := &api.RaftStatus{
			Role: api.RaftFollower, Node: i, Term: 7, Leader: &leader, NodeID: fmt.Sprintf("%032d", i), LogID: pairLog, Phase: "whole",
			LastIndex: 120, DurableIndex: 119, CommitIndex: 118, AppliedIndex: 117, SnapshotIndex: 100,
		}
		if i == 0 {
			s.Role = api.RaftLeader
		}
		for j, url := range urls {
			n := api.RaftNode{Node: j, URL: url, Connected: true, Role: api.RaftFollower, Phase: "whole", Term: 7, LastContactMS: 12}
			if i == 0 && j > 0 {
				n.State, n.MatchIndex, n.LagEntries, n.LastIndex, n.AppliedIndex, n.SnapshotIndex = "replicate", 116, 4, 116, 115, 90
			}
			if i == j {
				n.LastContactMS = 0
			}
			s.Nodes = append(s.Nodes, n)
		}
		list = append(list, s)
	}
	if change != nil {
		change(list[0], list[1], list[2])
	}
	return []member{{URL: "A", RaftStatus: list[0]}, {URL: "B", RaftStatus: list[1]}, {URL: "C", RaftStatus: list[2]}}
}

func TestJudgeCluster(t *testing.T) {
	none := func(members ...*api.RaftStatus) {
		for _, m := range members {
			m.Role, m.Leader = api.RaftFollower, nil
		}
	}
	for name, test := range map[string]struct {
		change func(a, b, c *api.RaftStatus)
		asked  string // which; empty for all
		want   string
	}{
		"all":          {nil, "", "all is well: A leads 3 nodes in term 7"},
		"the leader":   {nil, "A", "all is well: A leads 3 nodes in term 7"},
		"a follower":   {nil, "B", "nothing is wrong as far as B knows: A leads in term 7; give all URLs, or the leader's, to know more"},
		"two of three": {nil, "BC", "nothing is wrong as far as B knows: A leads in term 7; give all URLs, or the leader's, to know more"},
		"no leader":    {func(a, b, c *api.RaftStatus) { none(a, b, c); b.Term = 8 }, "", "no node leads, as far as B knows in term 8"},
		"an old leader": {func(a, b, c *api.RaftStatus) {
			b.Role, b.Term = api.RaftLeader, 9
			for i := range b.Nodes {
				b.Nodes[i].State = "replicate"
			}
		}, "",
			"B leads in term 9, and A still takes itself for the leader of term 7"},
		"it knows no leader": {func(_, b, _ *api.RaftStatus) { b.Leader = nil }, "", "B knows of no leader"},
		"they disagree": {func(_, _, c *api.RaftStatus) { other := "B"; c.Leader = &other }, "",
			"C takes B for the leader, A takes A"},
		"one node twice": {func(_, b, _ *api.RaftStatus) { b.Node = 2 }, "",
			"B and C are both node 2: give each node once, and make sure that no two have the same -raft-self"},
		"other logs":   {func(_, _, c *api.RaftStatus) { c.LogID = "other" }, "", "no one cluster: A has log " + pairLog + ", C has log other"},
		"another size": {func(_, b, _ *api.RaftStatus) { b.Nodes = b.Nodes[:2] }, "", "no one cluster: A has 3 nodes, B has 2"},
		"no log yet": {func(_, b, _ *api.RaftStatus) {
			b.LogID, b.Phase, b.Reason, b.Leader = "", "healing", "it is empty", nil
		}, "", "node 1 (B) is healing: it is empty"},
		"not asked":     {func(a, _, _ *api.RaftStatus) { a.Nodes[2].Phase, a.Nodes[2].Reason = "fetching", "40%\x1b" }, "A", `node 2 (C) is fetching: 40%\x1b`},
		"not connected": {func(a, _, _ *api.RaftStatus) { a.Nodes[1].Connected, a.Nodes[1].Reason = false, "refused" }, "AC", "node 1 (B) is not connected: refused"},
		"full, asked":   {func(_, _, c *api.RaftStatus) { c.DiskFull = true }, "", "node 2 (C) has a full disk"},
		"full, known":   {func(a, _, _ *api.RaftStatus) { a.Nodes[2].DiskFull = true }, "A", "node 2 (C) has a full disk"},
		"far behind":    {func(a, _, _ *api.RaftStatus) { a.Nodes[1].State = "pull" }, "", "node 1 (B) is being caught up (pull), 4 entries behind"},
		"quarantined": {func(_, b, _ *api.RaftStatus) { b.Phase, b.Reason = "quarantined", "its fold differs" }, "",
			"node 1 (B) is quarantined: its fold differs"},
	} {
		var members []member
		for _, m := range wellCluster(test.change) {
			if test.asked == "" || strings.Contains(test.asked, m.URL) {
				members = append(members, m)
			}
		}
		got, ok := judgeCluster(members)
		if well := strings.HasPrefix(test.want, "all is well") || strings.HasPrefix(test.want, "nothing is wrong"); got != test.want || ok != well {
			t.Errorf("%s: ok is %v\ngot  %s\nwant %s", name, ok, got, test.want)
		}
	}
	gone := []member{{URL: "A", Error: "not reachable"}}
	if got, ok := judgeCluster(gone); ok || got != "A: not reachable" {
		t.Errorf("%v %s", ok, got)
	}
	if got, ok := judgeCluster(append(gone, wellCluster(nil)[1])); ok || got != "A: not reachable" {
		t.Errorf("%v %s", ok, got)
	}
}

// raftServers serves what members say; transfer answers /raft/transfer. It puts the servers' URLs in place of theirs.
func raftServers(t *testing.T, members []member, transfer func(w http.ResponseWriter, node int, body string)) (urls []string) {
	t.Helper()
	for i := range members {
		s := members[i].RaftStatus
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			serving.Lock()
			defer serving.Unlock()
			switch {
			case r.Header.Get(api.HeaderRaftToken) != raftTestToken:
				w.WriteHeader(401)
				json.NewEncoder(w).Encode(api.Error{Code: api.CodeUnauthenticated, Message: "no"})
			case r.Method == http.MethodGet && r.URL.Path == api.PathRaftStatus:
				json.NewEncoder(w).Encode(s)
			case r.Method == http.MethodPost && r.URL.Path == api.PathRaftTransfer && r.Header.Get("Content-Type") == "application/json":
				body, _ := io.ReadAll(r.Body)
				transfer(w, s.Node, string(body))
			default:
				t.Errorf("%s %s", r.Method, r.URL)
			}
		}))
		t.Cleanup(server.Close)
		urls = append(urls, server.URL)
	}
	serving.Lock()
	defer serving.Unlock()
	for i := range members {
		members[i].URL = urls[i]
		for j := range members[i].Nodes {
			members[i].Nodes[j].URL = urls[j]
		}
		if members[i].Leader != nil {
			*members[i].Leader = urls[0]
		}
	}
	return urls
}

// mqCluster runs a subcommand of cluster and returns its output and exit status.
func mqCluster(t *testing.T, urls []string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	t.Setenv("MQ_RAFT_TOKEN", raftTestToken)
	stdout, stderr, err := mq(t, &server{url: strings.Join(urls, ",")}, append([]string{"cluster"}, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return stdout, stderr, exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stdout, stderr, 0
}

func TestClusterStatus(t *testing.T) {
	members := wellCluster(func(_, _, c *api.RaftStatus) { c.Reason = "told\nto" })
	urls := raftServers(t, members, nil)
	table := func(out string) string {
		var lines []string
		for line := range strings.Lines(strings.NewReplacer(urls[0], "A", urls[1], "B", urls[2], "C").Replace(out)) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n")
	}
	out, errs, status := mqCluster(t, urls, "status")
	if want := "mq: all is well: " + urls[0] + " leads 3 nodes in term 7\n"; status != 0 || errs != want {
		t.Errorf("status %d: %s", status, errs)
	}
	if got, want := table(out), `NODE URL ROLE TERM PHASE SENDING MATCH LAG LAST APPLIED SNAPSHOT CONTACT DISK
0 A leader 7 whole - 0 0 120 117 100 - ok
1 B follower 7 whole replicate 116 4 120 117 100 12ms ago ok
2 C follower 7 whole replicate 116 4 120 117 100 12ms ago ok
C: told\nto`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// Of the others it is the leader's word that is shown; and a follower knows no match.
	out, _, status = mqCluster(t, urls[:1], "status")
	if want := "1 B follower 7 whole replicate 116 4 116 115 90 12ms ago ok"; status != 0 || !strings.Contains(table(out), want) {
		t.Errorf("status %d\n%s", status, table(out))
	}
	out, _, status = mqCluster(t, urls[1:2], "status")
	if want := "0 A follower 7 whole - - - 0 0 0 12ms ago ok"; status != 0 || !strings.Contains(table(out), want) {
		t.Errorf("status %d\n%s", status, table(out))
	}
	out, _, status = mqCluster(t, urls, "status", "-o", "json")
	rows := strings.SplitAfter(out, "\n")
	if status != 0 || len(rows) != 4 {
		t.Fatalf("status %d: %s", status, out)
	}
	for i, m := range members {
		if want, err := json.Marshal(m); err != nil || rows[i] != string(want)+"\n" {
			t.Errorf("got %s want %s", rows[i], want)
		}
	}
	serving.Lock()
	members[0].Nodes[1].Connected = false
	members[0].Nodes[1].LastContactMS = -1
	serving.Unlock()
	if out, errs, status = mqCluster(t, urls, "status"); status != 1 || !strings.Contains(errs, "node 1 ("+urls[1]+") is not connected") ||
		!strings.Contains(out, "never") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
}

func TestClusterStatusFailures(t *testing.T) {
	urls := raftServers(t, wellCluster(nil), nil)
	website := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"role":"leader"}`) }))
	defer website.Close()
	for _, test := range []struct {
		urls []string
		want string
		args []string
	}{
		{urls[:1], urls[0] + ": it does not take this raft token", []string{"--raft-token", "wrong"}},
		{[]string{website.URL}, website.URL + ": its answer is not that of a node of a cluster", nil},
		{append([]string{website.URL}, urls...), website.URL + ": its answer is not that of a node of a cluster", nil},
	} {
		out, errs, status := mqCluster(t, test.urls, append([]string{"status"}, test.args...)...)
		if status != 1 || errs != "mq: "+test.want+"\n" || strings.Contains(out+errs, raftTestToken) {
			t.Errorf("status %d: %s\nwant %s", status, errs, test.want)
		}
	}
	for _, args := range [][]string{
		{"status", "-u", "http://mq.example:8080"}, // in the clear
		{"status", "--raft-token", ""},
		{"transfer", "--raft-token-file", "missing"},
		{"transfer", "--to", "-1"},
		{"transfer", "--to", "3"},
		{"transfer", "--to", "x"},
	} {
		if out, errs, status := mqCluster(t, urls, args...); status != 2 || out != "" || strings.Contains(errs, raftTestToken) {
			t.Errorf("%v: status %d: %s%s", args, status, out, errs)
		}
	}
}

func TestClusterTransfer(t *testing.T) {
	var bodies []string
	members := wellCluster(nil)
	refuse := false
	urls := raftServers(t, members, func(w http.ResponseWriter, node int, body string) {
		bodies = append(bodies, fmt.Sprintf("%d %s", node, body))
		if refuse {
			w.WriteHeader(503)
			json.NewEncoder(w).Encode(api.Error{Code: api.CodeUnavailable, Message: "the lead was not handed over: node 1 is behind"})
			return
		}
		json.NewEncoder(w).Encode(api.RaftRole{Role: api.RaftFollower, Term: 8, Leader: &members[2].URL})
	})
	out, errs, status := mqCluster(t, urls, "transfer", "--to", "2")
	if want := urls[2] + " leads, in term 8\n"; status != 0 || out != want || errs != "" {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	if out, errs, status = mqCluster(t, []string{urls[1], urls[0]}, "transfer", "-o", "json"); status != 0 || !strings.Contains(out, `"term":8`) {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	touch := func(do func()) {
		serving.Lock()
		defer serving.Unlock()
		do()
	}
	var asked []string
	touch(func() { asked, refuse, bodies = bodies, true, nil })
	if got := strings.Join(asked, "; "); got != `0 {"to":2}; 0 {}` {
		t.Errorf("asked %s", got)
	}
	if _, errs, status = mqCluster(t, urls, "transfer", "--to", "0"); status != 1 ||
		errs != "mq: "+urls[0]+": status 503: the lead was not handed over: node 1 is behind\n" {
		t.Errorf("status %d: %s", status, errs)
	}
	// Nobody but the nodes that were given is asked.
	touch(func() { bodies = nil })
	_, errs, status = mqCluster(t, urls[1:], "transfer")
	touch(func() { asked = bodies })
	if status != 1 || !strings.Contains(errs, "give its URL, too") || len(asked) != 0 {
		t.Errorf("status %d: %s", status, errs)
	}
	touch(func() {
		for _, m := range members {
			m.Role = api.RaftFollower
		}
	})
	if _, errs, status = mqCluster(t, urls, "transfer"); status != 1 || !strings.Contains(errs, "but it does not say so: try again") {
		t.Errorf("status %d: %s", status, errs)
	}
	touch(func() {
		for _, m := range members {
			m.Leader = nil
		}
	})
	if _, errs, status = mqCluster(t, urls, "transfer"); status != 1 || !strings.Contains(errs, "no node leads") {
		t.Errorf("status %d: %s", status, errs)
	}
}
