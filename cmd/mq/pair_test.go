package main

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.com/mq/api"
)

const (
	pairToken = "pair-canary-7c1e"
	nodeA     = "aaaaaaaaaaaa00000000000000000001"
	nodeB     = "bbbbbbbbbbbb00000000000000000002"
	pairLog   = "cccccccccccc00000000000000000003"
)

// inStep is a pair as it should be, with changes.
func inStep(change func(leader, follower *api.PairStatus)) (leader, follower *api.PairStatus) {
	leader = &api.PairStatus{
		Role: "leader", NodeID: nodeA, LogID: pairLog, Epoch: 3, State: "streaming", Writable: true,
		LastIndex: 1207, DurableIndex: 1206, CommittedIndex: 1205, AppliedIndex: 1204,
		Peer: api.PairPeer{NodeID: nodeB, Address: "http://127.0.0.1:7001", DurableIndex: 1203, AppliedIndex: 1202, LagEntries: 11, LastContactMS: 12},
	}
	follower = &api.PairStatus{
		Role: "follower", NodeID: nodeB, LogID: pairLog, Epoch: 3, State: "streaming",
		LastIndex: 1203, DurableIndex: 1203, CommittedIndex: 1203, AppliedIndex: 1202,
		Peer: api.PairPeer{NodeID: nodeA, DurableIndex: 1206, AppliedIndex: 1204, LagEntries: 3, LastContactMS: 2500},
	}
	if change != nil {
		change(leader, follower)
	}
	return leader, follower
}

func TestJudgePair(t *testing.T) {
	// Where neither node is more to blame, they are named in the order of the command line.
	alike := map[string]bool{"two leaders, one epoch": true, "two followers": true, "one node twice": true, "other logs": true}
	for name, test := range map[string]struct {
		change func(l, f *api.PairStatus)
		want   string // of the verdict; A is the leader's URL, B the follower's
	}{
		"in step": {nil, "in step: A leads with epoch 3 and takes writes, B follows in epoch 3"},
		"two leaders, other epochs": {func(_, f *api.PairStatus) { f.Role, f.Epoch, f.LogID = "leader", 4, "other" },
			"two leaders: B has the higher epoch 4 and leads, A has only 3: restart A with -role follower"},
		"two leaders, higher first": {func(l, f *api.PairStatus) { f.Role, l.Epoch = "leader", 9 },
			"two leaders: A has the higher epoch 9 and leads, B has only 3: restart B with -role follower"},
		"two leaders, one epoch": {func(_, f *api.PairStatus) { f.Role = "leader" },
			"two leaders with the same epoch 3: A and B: decide which one leads, restart it with a higher -epoch, and the other one with -role follower"},
		"two followers": {func(l, f *api.PairStatus) { l.Role, l.Writable, f.Epoch = "follower", false, 5 },
			"no node leads: A and B are both followers; the highest epoch they know is 5"},
		"one node twice": {func(_, f *api.PairStatus) { f.NodeID = nodeA },
			"A and B are the same node " + nodeA + ": give the URLs of both nodes, and make sure that no data directory was copied"},
		"other logs": {func(_, f *api.PairStatus) { f.LogID, f.State = "other", "disconnected" },
			"different logs, so this is no pair: A has log " + pairLog + ", B has log other"},
		"no log yet": {func(l, f *api.PairStatus) {
			f.LogID, f.State, f.Reason = "", "disconnected", "no leader has called yet"
			l.State, l.Writable, l.Reason = "disconnected", false, "dial: refused"
		}, "the leader A takes no writes: its follower is not connected: dial: refused"},
		"the follower met a higher epoch": {func(l, f *api.PairStatus) { f.Epoch, l.Writable = 4, false },
			"epochs differ: the follower B has met epoch 4, which is higher than epoch 3 of the leader A: it takes nothing from that leader"},
		"the follower has a lower epoch": {func(_, f *api.PairStatus) { f.Epoch = 2 },
			"epochs differ: the leader A has 3, the follower B still has 2"},
		"the follower has failed": {func(l, f *api.PairStatus) {
			f.State, f.Reason = "failed", "sync: input/output error"
			l.State, l.Writable, l.Reason = "disconnected", false, "closed"
		}, "the follower B: it has failed: sync: input/output error"},
		"the leader is fenced": {func(l, _ *api.PairStatus) { l.State, l.Writable, l.Reason = "fenced", false, "epoch 3 is over" },
			"the leader A takes no writes: it is fenced, another node leads: epoch 3 is over"},
		"no writes in a stream": {func(l, _ *api.PairStatus) { l.Writable = false },
			"the leader A takes no writes: it is streaming"},
		"handshake": {func(l, f *api.PairStatus) { l.State, l.Writable = "handshake", false },
			"the leader A takes no writes: the handshake with its follower is under way"},
		"catching up": {func(l, f *api.PairStatus) { l.State, l.Writable, f.State = "catching_up", false, "catching_up" },
			"the leader A takes no writes: the follower is catching up, 11 entries behind"},
		"only the follower says so": {func(_, f *api.PairStatus) { f.State, f.Reason = "disconnected", "silent for 2s" },
			"the follower B: its leader is not connected: silent for 2s"},
		"a state of a newer version": {func(_, f *api.PairStatus) { f.State = "resting\x1b[2J" },
			`the follower B: state resting\x1b[2J`},
		"full sync beside writes": {func(l, f *api.PairStatus) {
			l.State, f.State, l.Sync = "full_sync", "full_sync", &api.PairSync{DoneBytes: 1e6, TotalBytes: 4e6}
		}, "the leader A: a full sync is under way (25% of 4.0 MB): the follower must not be promoted before it has the whole log"},
		"full sync without writes": {func(l, _ *api.PairStatus) { l.State, l.Writable = "full_sync", false },
			"the leader A: a full sync is under way, and writes wait for it: the follower must not be promoted before it has the whole log"},
		"another follower": {func(l, _ *api.PairStatus) { l.Peer.NodeID = "x" },
			"the leader A is connected to node x (http://127.0.0.1:7001), not to B, which is node " + nodeB},
		"another leader": {func(_, f *api.PairStatus) { f.Peer.NodeID = "x" },
			"the follower B is connected to node x, not to A, which is node " + nodeA},
	} {
		l, f := inStep(test.change)
		a, b := nodeStatus{URL: "A", PairStatus: l}, nodeStatus{URL: "B", PairStatus: f}
		for _, nodes := range [][]nodeStatus{{a, b}, {b, a}} {
			got, ok := judgePair(nodes)
			if ok != strings.HasPrefix(test.want, "in step") {
				t.Errorf("%s: ok is %v", name, ok)
			}
			if got != test.want && !(alike[name] && nodes[0].URL == "B") {
				t.Errorf("%s: got  %s\n want %s", name, got, test.want)
			}
		}
	}
}

// TestJudgeOne judges what is there when the other node says nothing, or was not asked.
func TestJudgeOne(t *testing.T) {
	l, f := inStep(nil)
	a, b := nodeStatus{URL: "A", PairStatus: l}, nodeStatus{URL: "B", PairStatus: f}
	for _, test := range []struct {
		nodes []nodeStatus
		want  string
		ok    bool
	}{
		{[]nodeStatus{a}, "in step: A leads with epoch 3 and takes writes", true},
		{[]nodeStatus{b}, "in step: B follows in epoch 3", true},
		{[]nodeStatus{a, {URL: "B", Error: "not reachable: refused"}}, "B: not reachable: refused", false},
		{[]nodeStatus{{URL: "A", Error: "gone"}, {URL: "B", PairStatus: &api.PairStatus{Role: "follower", State: "disconnected", Reason: "silence"}}},
			"A: gone; the follower B: its leader is not connected: silence", false},
		{[]nodeStatus{{URL: "A", Error: "gone"}, {URL: "B", Error: "lost"}}, "A: gone; B: lost", false},
	} {
		if got, ok := judgePair(test.nodes); got != test.want || ok != test.ok {
			t.Errorf("got %q, %v, want %q, %v", got, ok, test.want, test.ok)
		}
	}
}

// fakeNode answers the status of a pair as a node does.
func fakeNode(s *api.PairStatus) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || r.URL.Path != api.PathReplicationStatus {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		if r.Header.Get(api.HeaderReplicationToken) != pairToken {
			w.WriteHeader(http.StatusUnauthorized)
			json.NewEncoder(w).Encode(api.Error{Code: api.CodeUnauthenticated, Message: "no"})
			return
		}
		json.NewEncoder(w).Encode(s)
	}
}

// pairStatus runs the command and returns its output and exit status.
func pairStatus(t *testing.T, urls string, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	t.Setenv("MQ_REPLICATION_TOKEN", pairToken)
	stdout, stderr, err := mq(t, &server{url: urls}, append([]string{"pair", "status"}, args...)...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return stdout, stderr, exit.ExitCode()
	}
	if err != nil {
		t.Fatal(err)
	}
	return stdout, stderr, 0
}

func TestPairStatus(t *testing.T) {
	l, f := inStep(func(_, f *api.PairStatus) { f.Reason = "told\nto" })
	a, b := httptest.NewServer(fakeNode(l)), httptest.NewServer(fakeNode(f))
	defer a.Close()
	defer b.Close()
	out, errs, status := pairStatus(t, a.URL+"/,"+b.URL)
	if want := fmt.Sprintf("mq: in step: %s leads with epoch 3 and takes writes, %s follows in epoch 3\n", a.URL, b.URL); status != 0 || errs != want {
		t.Errorf("status %d: %s\nwant %s", status, errs, want)
	}
	var lines []string
	for line := range strings.Lines(strings.NewReplacer(a.URL, "A", b.URL, "B").Replace(out)) {
		lines = append(lines, strings.Join(strings.Fields(line), " "))
	}
	want := strings.Split(`A B
ROLE leader follower
STATE streaming streaming
WRITABLE yes -
EPOCH 3 3
NODE aaaaaaaaaaaa.. bbbbbbbbbbbb..
LOG cccccccccccc.. cccccccccccc..
LAST INDEX 1207 1203
DURABLE 1206 1203
COMMITTED 1205 1203
APPLIED 1204 1202
OTHER NODE bbbbbbbbbbbb.. aaaaaaaaaaaa..
OTHER AT http://127.0.0.1:7001 -
OTHER DURABLE 1203 1206
OTHER APPLIED 1202 1204
LAG 11 3
LAST CONTACT 12ms ago 2.5s ago
B: told\nto`, "\n")
	if strings.Join(lines, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s", out)
	}

	out, _, status = pairStatus(t, a.URL+","+b.URL, "-o", "json")
	rows := strings.SplitAfter(out, "\n")
	if status != 0 || len(rows) != 3 {
		t.Fatalf("status %d: %s", status, out)
	}
	for i, node := range []nodeStatus{{URL: a.URL, PairStatus: l}, {URL: b.URL, PairStatus: f}} {
		want, err := json.Marshal(node)
		if err != nil || rows[i] != string(want)+"\n" {
			t.Errorf("got %s want %s, %v", rows[i], want, err)
		}
	}
}

// TestPairStatusFailures: nodes that cannot be asked, and a full sync. The token goes to the node and nowhere else.
func TestPairStatusFailures(t *testing.T) {
	l, f := inStep(func(l, f *api.PairStatus) {
		l.State, l.Sync = "full_sync", &api.PairSync{DoneBytes: 3e9, TotalBytes: 4e9}
		f.State, f.Peer.LastContactMS = "full_sync", -1
	})
	stop := make(chan struct{})
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Errorf("redirected: %v", r.Header) }))
	defer elsewhere.Close()
	servers := map[string]http.HandlerFunc{
		"leader": fakeNode(l), "follower": fakeNode(f),
		"standalone": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(404)
			json.NewEncoder(w).Encode(api.Error{Code: api.CodeNotFound, Message: "no path"})
		},
		"busy": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			json.NewEncoder(w).Encode(api.Error{Code: api.CodeUnavailable, Message: "too many\x1b"})
		},
		"gateway": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(502); fmt.Fprint(w, "<html>") },
		"redirect": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL, http.StatusTemporaryRedirect)
		},
		"hung":    func(_ http.ResponseWriter, r *http.Request) { <-stop },
		"half":    func(w http.ResponseWriter, r *http.Request) { w.(http.Flusher).Flush(); <-stop },
		"website": func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") },
		"other":   func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"ok"}`) },
		"endless": func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, `{"role":"leader"}`+strings.Repeat(" ", 1<<20))
		},
	}
	urls := map[string]string{"gone": "http://127.0.0.1:1"} // a port that no other server gets
	for name, handler := range servers {
		s := httptest.NewServer(handler)
		defer s.Close()
		urls[name] = s.URL
	}
	defer close(stop) // before the servers, which wait for their handlers
	for _, test := range []struct {
		name, want string
		args       []string
	}{
		{"gone", "URL: not reachable: dial tcp HOST: connect: connection refused", nil},
		{"hung", "URL: not reachable: no answer within 150ms", []string{"--timeout", "150ms"}},
		{"half", "URL: not reachable: no answer within 150ms", []string{"--timeout", "150ms"}},
		{"leader", "URL: it does not take this replication token", []string{"--replication-token", "wrong"}},
		{"standalone", "URL: it is no node of a pair: it runs with another -role than leader and follower", nil},
		{"busy", `URL: status 503: too many\x1b`, nil},
		{"gateway", "URL: status 502, which is not from a node of a pair", nil},
		{"redirect", "URL: status 307, which is not from a node of a pair", nil},
		{"website", "URL: its answer is not that of a node of a pair", nil},
		{"other", "URL: its answer is not that of a node of a pair", nil},
		{"endless", "URL: its answer is not that of a node of a pair", nil},
		{"leader", "the leader URL: a full sync is under way (75% of 4000.0 MB): the follower must not be promoted before it has the whole log", nil},
		{"follower", "the follower URL: a full sync is under way: the follower must not be promoted before it has the whole log", nil},
	} {
		url := urls[test.name]
		want := "mq: " + strings.NewReplacer("URL", url, "HOST", strings.TrimPrefix(url, "http://")).Replace(test.want) + "\n"
		out, errs, status := pairStatus(t, url, test.args...)
		if status != 1 || errs != want {
			t.Errorf("%s: status %d: %s\nwant %s", test.name, status, errs, want)
		}
		if strings.Contains(out+errs, pairToken) {
			t.Errorf("%s: the token shows", test.name)
		}
	}
	// One of two: what the other one says is shown and judged all the same.
	out, errs, status := pairStatus(t, urls["gone"]+","+urls["leader"])
	if status != 1 || !strings.Contains(errs, urls["gone"]+": not reachable: ") || !strings.Contains(errs, "; the leader "+urls["leader"]+": a full sync") ||
		!strings.Contains(out, "NO STATUS") || !strings.Contains(out, "75% of 4000.0 MB") || strings.Contains(out, "never") {
		t.Errorf("status %d: %s%s", status, out, errs)
	}
	out, _, status = pairStatus(t, urls["standalone"]+","+urls["follower"], "-o", "json")
	if first, _, _ := strings.Cut(out, "\n"); status != 1 ||
		first != fmt.Sprintf(`{"url":"%s","error":"it is no node of a pair: it runs with another -role than leader and follower"}`, urls["standalone"]) {
		t.Errorf("status %d: %s", status, out)
	}
	if out, _, _ := pairStatus(t, urls["follower"]); !strings.Contains(out, "LAST CONTACT   never") {
		t.Errorf("%s", out)
	}
	// Wrong usage: nothing is asked.
	for _, args := range [][]string{
		{"-u", "http://mq.example:8080"}, // in the clear
		{"-u", "http://127.0.0.1:1,http://127.0.0.1:2,http://127.0.0.1:3"},
		{"--replication-token", ""},
		{"--replication-token-file", "missing"},
	} {
		if out, errs, status := pairStatus(t, urls["leader"], args...); status != 2 || out != "" || strings.Contains(errs, pairToken) {
			t.Errorf("%v: status %d: %s%s", args, status, out, errs)
		}
	}
}

// TestPairStatusTLS: --ca decides whom the token is shown to; it comes from a file.
func TestPairStatusTLS(t *testing.T) {
	l, _ := inStep(nil)
	s := httptest.NewUnstartedServer(fakeNode(l))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(token, []byte(pairToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) error {
		cmd := mqCommand(t, &server{url: s.URL}, append([]string{"pair", "status", "--replication-token-file", token}, args...)...)
		out, err := cmd.CombinedOutput()
		if err == nil != strings.Contains(string(out), "in step") {
			t.Errorf("%v: %s", err, out)
		}
		return err
	}
	if err := run("--ca", ca); err != nil {
		t.Error(err)
	}
	if err := run(); err == nil {
		t.Error("a certificate that nobody vouches for is taken")
	}
}
