package security

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// The tokens of the matrix. None is a part of another.
const (
	clientToken = "Client-0b5e7d"
	adminToken  = "Admin-91c2f4"
)

// credential is a set of tokens that a request shows properly.
type credential uint8

const (
	asClient credential = 1 << iota
	asAdmin
	asPeer // of a pair
	asRaft // of a cluster
)

// kinds of nodes.
const (
	alone = iota
	leads // a pair
	follows
	leadsCluster
	inCluster
	kinds
)

// route is what is expected of one path.
type route struct {
	scope string
	get   bool
	body  string     // of a request that is in order
	ok    [kinds]int // status of it, with a token that suffices; 0: the path does not exist there
}

// everywhere and the others are rows of route.ok.
var (
	everywhere   = [kinds]int{200, 200, 200, 200, 200}
	whereItLeads = [kinds]int{200, 200, 503, 200, 307}
	missing      = [kinds]int{404, 404, 503, 404, 307} // of what the body names there is none
	ofPairs      = [kinds]int{0, 200, 200, 0, 0}
	ofClusters   = [kinds]int{0, 0, 0, 200, 200}
)

// expected has every route of the server. $T is a topic that exists where the request may pass, and must not come to exist
// where it may not.
var expected = map[string]route{
	api.PathPublish:           {"scopeClient", false, `{"topic":"$T","value":"YQ=="}`, whereItLeads},
	api.PathPublishBatch:      {"scopeClient", false, `{"topic":"$T","messages":[{"value":"YQ=="}]}`, whereItLeads},
	api.PathFetch:             {"scopeClient", false, `{"topic":"$T","offset":0,"limit":1}`, whereItLeads},
	api.PathGroupsFetch:       {"scopeClient", false, `{"topic":"$T","group":"g","limit":1}`, whereItLeads},
	api.PathGroupsCommit:      {"scopeClient", false, `{"topic":"$T","group":"g","next_offset":1}`, whereItLeads},
	api.PathGroupsSeek:        {"scopeClient", false, `{"topic":"$T","group":"g","to":"start"}`, whereItLeads},
	api.PathGroupsList:        {"scopeClient", false, `{}`, whereItLeads},
	api.PathGroupsDescribe:    {"scopeClient", false, `{"topic":"$T","group":"g"}`, whereItLeads},
	api.PathGroupsDelete:      {"scopeClient", false, `{"topic":"$T","group":"none"}`, missing},
	api.PathTopicsList:        {"scopeClient", false, `{}`, whereItLeads},
	api.PathTopicsDescribe:    {"scopeClient", false, `{"topic":"$T"}`, whereItLeads},
	api.PathTopicsRetain:      {"scopeAdmin", false, `{"topic":"$T","start_offset":0}`, whereItLeads},
	api.PathTopicsConfigure:   {"scopeAdmin", false, `{"topic":"$T","retention_records":1000000}`, whereItLeads},
	api.PathTopicsDelete:      {"scopeAdmin", false, `{"topic":"none"}`, missing},
	api.PathSnapshot:          {"scopeAdmin", false, ``, [kinds]int{200, 200, 503, 200, 200}}, // it is of the node
	api.PathBackupBegin:       {"scopeAdmin", false, `{}`, whereItLeads},
	api.PathBackupRead:        {"scopeAdmin", false, `{"backup":"none","segment":1,"offset":0,"bytes":1}`, missing},
	api.PathBackupEnd:         {"scopeAdmin", false, `{"backup":"none"}`, missing},
	api.PathHealth:            {"scopeOpen", true, ``, everywhere},
	api.PathReady:             {"scopeOpen", true, ``, everywhere},
	api.PathMetrics:           {"scopeClient", true, ``, everywhere},
	api.PathReplicationStatus: {"scopePeer", true, ``, ofPairs},
	api.PathReplicationStream: {"scopePeer", false, ``, [kinds]int{0, 400, 400, 0, 0}}, // it asks for no protocol
	api.PathRaftRole:          {"scopeRaft", true, ``, ofClusters},
	api.PathRaftStatus:        {"scopeRaft", true, ``, ofClusters},
	api.PathRaftStream:        {"scopeRaft", false, ``, [kinds]int{0, 0, 0, 400, 400}},
	api.PathRaftTransfer:      {"scopeRaft", false, `{"to":99}`, [kinds]int{0, 0, 0, 400, 400}},
}

// TestEveryRouteIsExpected: the table has what the source has, with the same token and method.
func TestEveryRouteIsExpected(t *testing.T) {
	source := routesInSource(t)
	if len(source) < 20 {
		t.Fatalf("only %d routes found in the source", len(source))
	}
	for path, d := range source {
		want, ok := expected[path]
		switch {
		case !ok:
			t.Errorf("%s is served, and this package does not say who may use it: add a row to expected", path)
		case want.scope != d.scope || want.get != d.get:
			t.Errorf("%s: the source says %+v, the table %s, get %v", path, d, want.scope, want.get)
		}
	}
	for path := range expected {
		if _, ok := source[path]; !ok {
			t.Errorf("%s is expected, and not served", path)
		}
	}
	for name, path := range apiPaths(t) {
		if _, ok := expected[path]; !ok {
			t.Errorf("api.%s is the path of no route", name)
		}
	}
}

// variant is one way to show tokens, or to fail to.
type variant struct {
	name    string
	headers []string
	query   string
	shows   credential
}

func bearer(token string) string { return "Authorization: Bearer " + token }

// variants are all ways. No other header, place or spelling is a token's.
func variants() []variant {
	const repl, raft = process.ReplicationToken, process.RaftToken
	peer, node := api.HeaderReplicationToken+": ", api.HeaderRaftToken+": "
	basic := base64.StdEncoding.EncodeToString([]byte("mq:" + adminToken))
	return []variant{
		{name: "none"},
		{name: "empty header", headers: []string{"Authorization: "}},
		{name: "empty token", headers: []string{bearer("")}},
		{name: "wrong", headers: []string{bearer("Wrong-000000")}},
		{name: "client", headers: []string{bearer(clientToken)}, shows: asClient},
		{name: "admin", headers: []string{bearer(adminToken)}, shows: asAdmin},
		{name: "replication", headers: []string{peer + repl}, shows: asPeer},
		{name: "raft", headers: []string{node + raft}, shows: asRaft},
		{name: "all", headers: []string{bearer(adminToken), peer + repl, node + raft}, shows: asAdmin | asPeer | asRaft},

		{name: "scheme in lower case", headers: []string{"Authorization: bearer " + clientToken}, shows: asClient},
		{name: "scheme in upper case", headers: []string{"Authorization: BEARER " + adminToken}, shows: asAdmin},
		{name: "name in lower case", headers: []string{"authorization: Bearer " + clientToken}, shows: asClient},
		// White space around a value is no part of it (RFC 9110, 5.5), and the scheme ends with spaces (11.4).
		{name: "spaces after the token", headers: []string{bearer(clientToken + "  ")}, shows: asClient},
		{name: "spaces before the token", headers: []string{bearer("  " + adminToken)}, shows: asAdmin},

		{name: "no scheme", headers: []string{"Authorization: " + adminToken}},
		{name: "scheme only", headers: []string{"Authorization: Bearer"}},
		{name: "other scheme", headers: []string{"Authorization: Token " + adminToken}},
		{name: "basic", headers: []string{"Authorization: Basic " + basic}},
		{name: "tab after the scheme", headers: []string{"Authorization: Bearer\t" + adminToken}},
		{name: "quoted", headers: []string{bearer(`"` + adminToken + `"`)}},
		{name: "token in lower case", headers: []string{bearer(strings.ToLower(adminToken))}},
		{name: "beginning of the token", headers: []string{bearer(adminToken[:len(adminToken)-1])}},
		{name: "token and more", headers: []string{bearer(adminToken + "0")}},
		{name: "two tokens", headers: []string{bearer(clientToken + " " + adminToken)}},
		{name: "two tokens with a comma", headers: []string{bearer(clientToken + ", Bearer " + adminToken)}},
		{name: "encoded", headers: []string{bearer(base64.StdEncoding.EncodeToString([]byte(adminToken)))}},

		{name: "admin in the header of pairs", headers: []string{peer + adminToken}},
		{name: "admin in the header of clusters", headers: []string{node + adminToken}},
		{name: "replication as a client's", headers: []string{bearer(repl)}},
		{name: "raft as a client's", headers: []string{bearer(raft)}},
		{name: "replication in the header of clusters", headers: []string{node + repl}},
		{name: "raft in the header of pairs", headers: []string{peer + raft}},
		{name: "bearer in the header of pairs", headers: []string{peer + "Bearer " + repl}},
		{name: "bearer in the header of clusters", headers: []string{node + "Bearer " + raft}},

		// A program in front may look at another one of two than we do: neither counts.
		{name: "right and wrong", headers: []string{bearer(adminToken), bearer("Wrong-000000")}},
		{name: "wrong and right", headers: []string{bearer("Wrong-000000"), bearer(adminToken)}},
		{name: "twice the same", headers: []string{bearer(adminToken), bearer(adminToken)}},
		{name: "empty and right", headers: []string{"Authorization: ", bearer(adminToken)}},
		{name: "replication right and wrong", headers: []string{peer + repl, peer + "Wrong-000000"}},
		{name: "replication wrong and right", headers: []string{peer + "Wrong-000000", peer + repl}},
		{name: "raft right and wrong", headers: []string{node + raft, node + "Wrong-000000"}},
		{name: "raft wrong and right", headers: []string{node + "Wrong-000000", node + raft}},

		{name: "in the target", query: "?token=" + adminToken + "&access_token=" + adminToken + "&Authorization=Bearer%20" + adminToken},
		{name: "in a cookie", headers: []string{"Cookie: token=" + adminToken + "; Authorization=Bearer " + adminToken}},
		{name: "in other headers", headers: []string{"Proxy-Authorization: Bearer " + adminToken, "X-Authorization: Bearer " + adminToken,
			"X-Api-Key: " + adminToken, "X-Forwarded-Authorization: Bearer " + adminToken, "X-Original-Authorization: Bearer " + adminToken}},
		{name: "says who it is", headers: []string{"X-Forwarded-For: 127.0.0.1", "X-Real-IP: 127.0.0.1", "X-Forwarded-Host: localhost", "Forwarded: for=127.0.0.1", "X-Remote-User: admin"}},
		{name: "another target in a header", headers: []string{"X-Original-URL: /healthz", "X-Rewrite-URL: /healthz", "X-HTTP-Method-Override: GET"}},
	}
}

// node is a node under test.
type node struct {
	name      string
	kind      int
	url       string
	tokens    credential // of asClient and asAdmin, those that are configured
	writable  string     // URL of the node that takes its writes
	refusals  int        // counted
	permitted int
	wrong     []string // what was not as it must be while the node is of its kind
}

// errorf notes what may be wrong because another node leads. That a request is refused, and what it tells, depends on nothing.
func (n *node) errorf(format string, args ...any) {
	n.wrong = append(n.wrong, n.name+": "+fmt.Sprintf(format, args...))
}

// verdict is the status that a request must get. It is written from docs/security.md, not from the code.
func (n *node) verdict(r route, shows credential) int {
	ok := r.ok[n.kind]
	if ok == 0 {
		return 404 // before any token is looked at: it does not tell whether one is right
	}
	shows &= n.tokens | asPeer | asRaft
	switch r.scope {
	case "scopeOpen":
		return ok
	case "scopeClient":
		if n.tokens&asClient == 0 || shows&(asClient|asAdmin) != 0 {
			return ok
		}
	case "scopeAdmin":
		switch {
		case n.tokens&asAdmin == 0:
			return 403
		case shows&asAdmin != 0:
			return ok
		case shows&asClient != 0:
			return 403
		}
	case "scopePeer":
		if shows&asPeer != 0 {
			return ok
		}
	case "scopeRaft":
		if shows&asRaft != 0 {
			return ok
		}
	}
	return 401
}

// codes of the statuses in question.
var codes = map[int][]api.Code{
	400: {"invalid_argument"}, 401: {"unauthenticated"}, 403: {"permission_denied"}, 307: {"not_leader"},
	404: {"not_found", "topic_not_found", "group_not_found"}, 503: {"not_leader"},
}

// try sends one request and judges the answer.
func (n *node) try(t *testing.T, w *wire, path string, r route, v variant, want int, host string) {
	t.Helper()
	topic, errorf := "open", n.errorf
	if want == 401 || want == 403 {
		topic = "forbidden"
		errorf = func(format string, args ...any) { t.Errorf(n.name+": "+format, args...) }
		n.refusals++
	} else {
		n.permitted++
	}
	method := "POST"
	if r.get {
		method = "GET"
	}
	a := w.send(request{method: method, target: path + v.query, host: host, headers: v.headers, body: strings.ReplaceAll(r.body, "$T", topic)})
	var e api.Error
	if a.status != 200 {
		if err := json.Unmarshal(a.body, &e); err != nil {
			errorf("%s, %s: %d with %q, which is no error of the API", path, v.name, a.status, a.body)
			return
		}
	}
	if a.status != want || a.status != 200 && !slices.Contains(codes[want], e.Code) {
		errorf("%s, %s: %d %.200s, want %d %v", path, v.name, a.status, a.body, want, codes[want])
	}
	if challenge := a.header.Get("WWW-Authenticate"); (challenge != "") != (want == 401) {
		t.Errorf("%s: %s, %s: status %d with the challenge %q", n.name, path, v.name, want, challenge)
	}
	whole := string(a.body) + fmt.Sprint(a.header)
	for _, secret := range []string{clientToken, adminToken, process.ReplicationToken, process.RaftToken} {
		if strings.Contains(whole, secret) {
			t.Errorf("%s: %s, %s: a token is in the answer: %s", n.name, path, v.name, whole)
		}
	}
}

// matrix sends every variant to every route of the node.
func (n *node) matrix(t *testing.T) {
	t.Helper()
	if !n.prepare(t) {
		return
	}
	w := newWire(t, n.url)
	for _, path := range slices.Sorted(maps.Keys(expected)) {
		r := expected[path]
		for _, v := range variants() {
			n.try(t, w, path, r, v, n.verdict(r, v.shows), "")
		}
		// With all tokens, but from a web page, or by a name that leads here and should not.
		all := []string{bearer(adminToken), api.HeaderReplicationToken + ": " + process.ReplicationToken, api.HeaderRaftToken + ": " + process.RaftToken}
		for _, v := range []variant{
			{name: "another origin", headers: append(all, "Origin: http://evil.example")},
			{name: "a file's origin", headers: append(all, "Origin: null")},
			{name: "another port's origin", headers: append(all, "Origin: http://127.0.0.1:1")},
			{name: "cross-site", headers: append(all, "Sec-Fetch-Site: cross-site")},
			{name: "same-site", headers: append(all, "Sec-Fetch-Site: same-site")},
		} {
			n.try(t, w, path, r, v, 403, "")
		}
		for _, host := range []string{"evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1", "127.0.0.1@evil.example"} {
			n.try(t, w, path, r, variant{name: "host " + host, headers: all}, 403, host)
		}
	}
	// Nothing of what was refused was done.
	lists := newWire(t, n.writable)
	a := lists.send(request{method: "POST", target: api.PathTopicsList, headers: []string{n.key()}, body: `{}`})
	var page struct{ Topics []struct{ Topic string } }
	if err := json.Unmarshal(a.body, &page); err != nil || a.status != 200 {
		n.errorf("the topics: %d %s", a.status, a.body)
		return
	}
	if len(page.Topics) != 1 || page.Topics[0].Topic != "open" {
		t.Errorf("%s: refused requests were done: there are %+v", n.name, page.Topics)
	}
	if n.refusals < 500 || n.permitted < 100 {
		t.Errorf("%s: %d refusals and %d others are too few to prove anything", n.name, n.refusals, n.permitted)
	}
}

// tell tells what came of the matrix.
func (n *node) tell(t *testing.T) {
	t.Helper()
	for _, w := range n.wrong {
		t.Error(w)
	}
	report.Count(t, "requests refused", int64(n.refusals))
	report.Count(t, "requests let through", int64(n.permitted))
	t.Logf("%s: %d requests refused, %d let through", n.name, n.refusals, n.permitted)
}

// key is a token that allows client calls.
func (n *node) key() string {
	if n.tokens&asAdmin != 0 {
		return bearer(adminToken)
	}
	return bearer(clientToken)
}

// prepare makes the topic and the group that the requests are about.
func (n *node) prepare(t *testing.T) bool {
	t.Helper()
	w := newWire(t, n.writable)
	for _, r := range []request{
		{target: api.PathPublish, body: `{"topic":"open","value":"YQ=="}`},
		{target: api.PathGroupsCommit, body: `{"topic":"open","group":"g","next_offset":1}`},
	} {
		r.method, r.headers = "POST", []string{n.key()}
		if a := w.send(r); a.status != 200 {
			n.errorf("%s: %d %s", r.target, a.status, a.body)
			return false
		}
	}
	return true
}

// TestTokenMatrixAlone crosses every route with every kind of token, with all and with some tokens configured.
func TestTokenMatrixAlone(t *testing.T) {
	t.Parallel()
	configured := []credential{asClient | asAdmin, asAdmin, asClient, 0}
	if each(t) > 1 {
		configured = configured[:2]
	}
	for _, tokens := range configured {
		// process gives an admin token, which not all of these have.
		wrap := []string{"env", "-u", "MQ_ADMIN_TOKEN", "-u", "MQ_CLIENT_TOKEN"}
		if tokens&asClient != 0 {
			wrap = append(wrap, "MQ_CLIENT_TOKEN="+clientToken)
		}
		if tokens&asAdmin != 0 {
			wrap = append(wrap, "MQ_ADMIN_TOKEN="+adminToken)
		}
		p := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: process.Dir(t) + "/data", Wrap: wrap}).StartReady()
		n := &node{name: fmt.Sprintf("alone, tokens %02b", tokens), kind: alone, url: p.URL, writable: p.URL, tokens: tokens}
		n.matrix(t)
		n.tell(t)
	}
}

// TestTokenMatrixPair does so on both nodes of a pair.
func TestTokenMatrixPair(t *testing.T) {
	t.Parallel()
	var nodes [2]*process.Node
	for i := range nodes {
		address, err := process.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		nodes[i] = process.NewNode(t, process.Config{Binary: process.Binary(t), Data: process.Dir(t) + "/data", Listen: address,
			Env: []string{"MQ_CLIENT_TOKEN=" + clientToken, "MQ_ADMIN_TOKEN=" + adminToken, "MQ_REPLICATION_TOKEN=" + process.ReplicationToken}})
	}
	leader, follower := nodes[0], nodes[1]
	follower.Args = []string{"-role", "follower"}
	leader.Args = []string{"-role", "leader", "-epoch", "1", "-replica", "http://" + follower.Listen}
	second := follower.Start()
	first := leader.Start()
	await(t, "the pair", func() string {
		s, err := first.PairStatus()
		if err == nil && s.InStep() {
			return ""
		}
		return fmt.Sprintf("%+v, %v", s, err)
	})
	for _, n := range []*node{
		{name: "leader", kind: leads, url: first.URL},
		{name: "follower", kind: follows, url: second.URL},
	} {
		n.tokens, n.writable = asClient|asAdmin, first.URL
		n.matrix(t)
		n.tell(t)
	}
}

// TestTokenMatrixCluster does so on the leader and a follower of a cluster. What is expected holds while they are that.
func TestTokenMatrixCluster(t *testing.T) {
	t.Parallel()
	const rounds = 3 // at most: on a busy machine the lead may move
	c := process.NewCluster(t, process.Dir(t), 3)
	for _, m := range c.Nodes {
		m.Env = append(m.Env, "MQ_CLIENT_TOKEN="+clientToken, "MQ_ADMIN_TOKEN="+adminToken)
	}
	c.Start()
	for round := 1; ; round++ {
		leader := c.AwaitWhole(patience)
		numbers := []int{leader, c.Others(leader)[0]}
		nodes := []*node{
			{name: "leader of a cluster", kind: leadsCluster},
			{name: "follower in a cluster", kind: inCluster},
		}
		before := whoLeads(t, c, numbers)
		for i, n := range nodes {
			n.url, n.tokens, n.writable = c.Nodes[numbers[i]].URL, asClient|asAdmin, c.Nodes[leader].URL
			n.matrix(t)
		}
		if after := whoLeads(t, c, numbers); after != before && round < rounds {
			t.Logf("once more, since the lead has moved from %s to %s", before, after)
			continue
		}
		for _, n := range nodes {
			n.tell(t)
		}
		return
	}
}

// whoLeads tells who leads, by what some nodes of a cluster say.
func whoLeads(t *testing.T, c *process.Cluster, numbers []int) (text string) {
	t.Helper()
	for _, i := range numbers {
		r, err := c.Nodes[i].Process.RaftRole()
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprintf("node %d: %s in term %d of %q; ", i, r.Role, r.Term, r.Leader)
	}
	return text
}

// patience is how long anything may take that must happen in the end.
const patience = 60 * time.Second

// await waits until lacks returns nothing.
func await(t *testing.T, what string, lacks func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for still := lacks(); still != ""; still = lacks() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %s", what, patience, still)
		}
		<-poll.C
	}
}
