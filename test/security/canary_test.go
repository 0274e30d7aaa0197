package security

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/test/process"
)

// Tokens that look different in every spelling. None of them may be found anywhere but where the test puts it.
var canaries = map[string]string{
	"client token":            `Cn"<1>/+&%41-clientQx7`,
	"admin token":             `Cn"<2>/+&%42-adminVw3`,
	"replication token":       `Cn"<3>/+&%43-replicaZk9`,
	"raft token":              `Cn"<4>/+&%44-raftHj5`,
	"wrong token":             `Cn"<5>/+&%45-wrongTp2`,
	"password in a URL":       `Cn5-password-Bm8`,
	"name of a topic":         `Cn"<0>/+&%40-topicUw8`,
	"name of a group":         `Cn"<0>/+&%40-groupMc2`,
	"record value":            `Cn"<6>/+&%46-valueLs4`,
	"record key":              `Cn"<7>/+&%47-keyRd6`,
	"request id":              `Cn"<8>/+&%48-requestYf1`,
	"value that mqd refuses":  `Cn"<9>/+&%49-refusedGe0`,
	"field that mqd does not": `Cn-unknown-field-Nw7`,
}

// of returns the secrets whose names end so.
func of(endings ...string) (list []secret) {
	for name, text := range canaries {
		for _, ending := range endings {
			if strings.HasSuffix(name, ending) {
				list = append(list, newSecret(name, text))
			}
		}
	}
	return list
}

// site is several nodes in all roles, and what they and those who talk to them say.
type site struct {
	t    *testing.T
	dir  string
	id   *identity
	http *http.Client

	nodes   []*siteNode
	said    output // by everybody: no token in it
	servers output // by mqd where everybody may look, or to its log: no content of records either
	open    output // by pages that need no token, and by metrics: no names either
	env     []string
	stride  int // of the many ways to call something, each so many-th is tried
}

// siteNode is one node.
type siteNode struct {
	*process.Node
	name, url string
	p         *process.Process
	data      string
}

// newSite starts a node alone, a pair and a cluster, all with TLS and all tokens, given by environment or file.
func newSite(t *testing.T) *site {
	s := &site{t: t, dir: process.Dir(t), stride: each(t)}
	names := []string{"alone", "follower", "leader", "node 0", "node 1", "node 2"}
	var addresses, hosts []string
	for range names {
		address, err := process.FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		addresses, hosts = append(addresses, address), append(hosts, host)
	}
	keys := filepath.Join(s.dir, "keys") // the one place where tokens may stand
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	s.id = newIdentity(t, keys, hosts...)
	s.http = s.id.client()
	file := func(name string) string {
		name = filepath.Join(keys, strings.ReplaceAll(name, " ", "-"))
		if err := os.WriteFile(name, []byte(canaries[strings.ReplaceAll(filepath.Base(name), "-", " ")]+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	files := []string{"-client-token-file", file("client token"), "-admin-token-file", file("admin token")}
	s.env = []string{"MQ_CLIENT_TOKEN=" + canaries["client token"], "MQ_ADMIN_TOKEN=" + canaries["admin token"],
		"MQ_REPLICATION_TOKEN=" + canaries["replication token"], "MQ_RAFT_TOKEN=" + canaries["raft token"], "MQ_CA=" + s.id.cert}
	var peers []string
	for _, address := range addresses[3:] {
		peers = append(peers, "https://"+address)
	}
	roles := [][]string{
		{"-log-format", "json", "-debug-listen", "127.0.0.1:0"},
		append([]string{"-role", "follower", "-tls-ca", s.id.cert, "-replication-token-file", file("replication token")}, files...),
		{"-role", "leader", "-tls-ca", s.id.cert, "-epoch", "1", "-replica", "https://" + addresses[1], "-log-format", "json"},
	}
	for i := range peers {
		role := []string{"-role", "cluster", "-tls-ca", s.id.cert, "-raft-self", fmt.Sprint(i), "-raft-peers", strings.Join(peers, ",")}
		if i == 0 {
			role = append(append(role, "-raft-token-file", file("raft token")), files...)
		}
		roles = append(roles, role)
	}
	for i, name := range names {
		folder := strings.ReplaceAll(name, " ", "-")
		n := &siteNode{name: name, url: "https://" + addresses[i], data: filepath.Join(s.dir, folder)}
		n.Node = process.NewNode(t, process.Config{
			Binary: process.Binary(t), Data: n.data, Listen: addresses[i], Client: s.http, Env: s.env,
			Args: append([]string{"-tls-cert", s.id.cert, "-tls-key", s.id.key, "-segment-bytes", "1048576"}, roles[i]...),
			Log:  n.data + ".stderr", Wrap: []string{"sh", "-c", `out=$0; exec "$@" >>"$out"`, n.data + ".stdout"},
		})
		n.p = n.Start()
		s.nodes = append(s.nodes, n)
	}
	for _, n := range s.nodes {
		if err := n.p.AwaitReady(); err != nil {
			t.Fatalf("%s: %v", n.name, err)
		}
	}
	return s
}

// ask sends a request to a node and notes the whole answer. open says that anybody, or any program that watches, sees it.
func (s *site) ask(n *siteNode, method, path, body string, open bool, headers ...string) int {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, n.url+path, strings.NewReader(body))
	if err != nil {
		s.t.Error(err)
		return 0
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	a, err := s.http.Do(r)
	if err != nil {
		return 0 // the server may end a connection on what it does not like
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		s.t.Errorf("%s: %s: %v", n.name, path, err)
	}
	all := fmt.Appendf(nil, "%s %v\n%s", a.Status, a.Header, text)
	s.said.add(n.name+" answers "+path, all)
	if open {
		s.servers.add(n.name+" answers "+path, all)
	}
	if path == api.PathHealth || path == api.PathReady || path == api.PathMetrics {
		s.open.add(n.name+" answers "+path, all)
	}
	return a.StatusCode
}

// mq runs mq with all tokens in the environment and notes what it says.
func (s *site) mq(env []string, args ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, mqBinary(s.t), args...)
	c.Env = append(append(os.Environ(), s.env...), env...)
	out, _ := c.CombinedOutput() // many of these are meant to fail
	s.said.add("mq "+strings.Join(args, " "), out)
	return string(out)
}

func (s *site) node(name string) *siteNode {
	for _, n := range s.nodes {
		if n.name == name {
			return n
		}
	}
	s.t.Fatalf("no node %q", name)
	return nil
}

// TestSecretsAreNowhere runs all roles and everything that talks to them, well and badly, and searches all output and all
// files for the tokens, and the logs and open pages for the content of records.
func TestSecretsAreNowhere(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	hostile := s.hostile()
	for _, step := range []struct {
		name string
		do   func()
	}{
		{"work", s.work}, {"bad requests", s.badRequests}, {"commands", func() { s.commands(hostile) }}, {"strangers", func() { s.strangers(hostile) }},
		{"wrong usage", s.wrongUsage}, {"profiler", s.profiler}, {"processes", s.processes}, {"damage", s.damage}, {"dump", s.dump},
	} {
		began := time.Now()
		step.do()
		t.Logf("%s: %v", step.name, time.Since(began).Round(time.Millisecond))
	}

	for _, n := range s.nodes {
		for _, kind := range []string{".stdout", ".stderr"} {
			text, err := os.ReadFile(n.data + kind)
			if err != nil {
				t.Fatal(err)
			}
			s.said.add(n.name+kind, text)
			s.servers.add(n.name+kind, text)
		}
		s.said.addTree(t, "data of "+n.name, n.data)
	}
	s.said.addTree(t, "backups", filepath.Join(s.dir, "backups"))

	secrets := append(of("token", "URL"), newSecret("TLS key", s.id.keyText), newSecret("file of the TLS key", s.id.keyLine))
	s.said.mustNotHold(t, secrets)
	s.open.mustNotHold(t, append(secrets, of("value", "key", "id", "topic", "group")...))
	s.servers.mustNotHold(t, append(secrets, of("value", "key", "id", "refuses", "not")...))
	t.Logf("%d parts with %d bytes searched for %d secrets in %d spellings", len(s.said.parts), s.said.bytes, len(secrets), len(secrets[0].spellings))

	// What was searched is what there is.
	for _, place := range []string{"data of alone", "data of follower", "data of node 1", "backups"} {
		for _, name := range []string{"record key", "name of a topic", "name of a group"} {
			if !s.said.holds(place, canaries[name]) {
				t.Errorf("%s: the %s is not found: nothing is searched there", place, name)
			}
		}
	}
	for part, text := range map[string]string{
		"alone.stderr": "goroutine ", "leader.stderr": `"msg":"`, "node 2.stderr": "msg=", "alone answers /metrics": "mq_ready",
		"follower.stderr": "refused a leader", "mq log dump": "INDEX", "alone answers /v1/fetch": "data_corrupt",
	} {
		if !s.said.holds(part, text) {
			t.Errorf("%s does not hold %q: it was not searched, or what should be in it did not happen", part, text)
		}
	}
}

// hostile is a server that sends back all that it gets, in one way after another.
func (s *site) hostile() *httptest.Server {
	calls := 0
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls++
		got := fmt.Sprint(r.Header)
		quoted, err := json.Marshal(got)
		if err != nil {
			s.t.Error(err)
		}
		w.Header().Set("Location", "http://127.0.0.1:1"+r.URL.Path+"?"+r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "application/json")
		switch calls % 5 {
		case 0:
			w.WriteHeader(401)
			fmt.Fprintf(w, `{"code":"unauthenticated","message":%s}`, quoted)
		case 1:
			w.WriteHeader(307)
			fmt.Fprintf(w, `{"code":"not_leader","message":%s,"leader":%s}`, quoted, quoted)
		case 2:
			w.WriteHeader(502)
			fmt.Fprintf(w, `<html>%s</html>`, got)
		case 3:
			w.WriteHeader(400)
			fmt.Fprintf(w, `{"code":"invalid_argument","field":%s,"message":%s}`, quoted, quoted)
		default:
			fmt.Fprintf(w, `{"role":%s,"reason":%s}`, quoted, quoted)
		}
	}))
	s.t.Cleanup(h.Close)
	return h
}

// work publishes and reads everywhere.
func (s *site) work() {
	value, key := []byte(canaries["record value"]), []byte(canaries["record key"])
	body, err := json.Marshal(api.PublishRequest{Topic: "t", Key: key, Value: value, RequestID: canaries["request id"]})
	if err != nil {
		s.t.Fatal(err)
	}
	named, err := json.Marshal(map[string]any{"topic": canaries["name of a topic"], "value": value})
	if err != nil {
		s.t.Fatal(err)
	}
	commit, err := json.Marshal(map[string]any{"topic": canaries["name of a topic"], "group": canaries["name of a group"], "next_offset": 1})
	if err != nil {
		s.t.Fatal(err)
	}
	admin := []string{"Authorization", "Bearer " + canaries["admin token"]}
	done := 0
	for _, n := range s.nodes {
		if s.ask(n, "POST", api.PathPublish, string(body), false, admin...) == 200 {
			done++
			for range 3 { // without a repeat, of more than a few bytes
				s.ask(n, "POST", api.PathPublish, fmt.Sprintf(`{"topic":"t","key":"%s","value":"%s"}`, "YQ==", strings.Repeat("YWFh", 50000)), false, admin...)
			}
		}
		s.ask(n, "POST", api.PathPublish, string(named), false, admin...)
		s.ask(n, "POST", api.PathGroupsCommit, string(commit), false, admin...)
		s.ask(n, "POST", api.PathFetch, `{"topic":"t","offset":0}`, false, admin...)
		s.ask(n, "POST", api.PathGroupsCommit, `{"topic":"t","group":"g","next_offset":1}`, false, admin...)
		s.ask(n, "POST", api.PathSnapshot, ``, false, admin...)
	}
	if done != 3 {
		s.t.Errorf("%d nodes took a publish, want one of each system", done)
	}
}

// badRequests sends each token where it should be, where it should not, and in what cannot be read.
func (s *site) badRequests() {
	var all sync.WaitGroup
	for _, n := range s.nodes {
		all.Go(func() { s.badRequestsTo(n) }) // ends by the timeouts of its connections
	}
	all.Wait()
}

func (s *site) badRequestsTo(n *siteNode) {
	for path, r := range expected {
		method := "POST"
		if r.get {
			method = "GET"
		}
		open := r.get && r.scope != "scopePeer" && r.scope != "scopeRaft"
		for _, name := range []string{"client token", "admin token", "replication token", "raft token", "wrong token"} {
			token := canaries[name]
			s.ask(n, method, path, "x", open, "Authorization", "Bearer "+token, api.HeaderReplicationToken, token, api.HeaderRaftToken, token)
			if name == "admin token" || name == "wrong token" {
				s.ask(n, method, path, "x", open, "Authorization", token, "Cookie", "t="+token)
				s.ask(n, "PUT", path, "x", open, "Authorization", "Bearer "+token, "Origin", "http://evil.example")
			}
		}
	}
	s.ask(n, "GET", api.PathReady+"?verbose", "", true, "Authorization", "Bearer "+canaries["client token"])
	s.ask(n, "GET", api.PathReady+"?verbose", "", true)
	// In the target: that is for everybody to see, but nothing of ours repeats it.
	for _, path := range []string{"/v1/publish?token=", "/nothing/", "/raft/role?", "/v1//"} {
		s.ask(n, "POST", path+canaries["wrong token"][10:], "", true)
	}
	// The answer may name the field, to the one who sent it. The log may not.
	if r, err := http.NewRequest("POST", n.url+api.PathPublish, strings.NewReader(fmt.Sprintf(`{"topic":"t","value":%q,%q:1}`,
		canaries["value that mqd refuses"], canaries["field that mqd does not"]))); err == nil {
		r.Header.Set("Authorization", "Bearer "+canaries["client token"])
		if a, err := s.http.Do(r); err == nil {
			a.Body.Close()
		}
	}
	s.raw(n)
}

// raw sends what net/http would not, over TLS.
func (s *site) raw(n *siteNode) {
	token := canaries["admin token"]
	for _, message := range []string{
		"GET /" + token + " HTTP/1.1\r\n\r\n", token + "\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\x00\r\n\r\n",
		"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization : Bearer " + token + "\r\n\r\n",
		"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\n Bearer " + token + "\r\n\r\n",
		"POST /v1/publish HTTP/1.1\nHost: localhost\nAuthorization: Bearer " + token + "\n\n",
		"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + token + "\r\n\r\n",
		"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: " + token + "\r\n\r\n",
		"POST /v1/publish HTTP/9.9\r\nHost: localhost\r\nAuthorization: Bearer " + token + "\r\n\r\n",
		"POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer " + strings.Repeat(token, 500) + "\r\n\r\n",
		"POST /raft/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + token + "\r\nX-Raft-Token: " + canaries["raft token"] + "\r\n\r\n",
		"POST /raft/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: mq-raft/1\r\nX-Raft-Token: " + canaries["raft token"] + "\r\n\r\n" + token + strings.Repeat("\x00", 100),
		"POST /replication/stream HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + api.ProtocolReplication + "\r\nX-Replication-Token: " +
			canaries["replication token"] + "\r\n\r\n" + token + token + strings.Repeat("x", 100),
	} {
		conn, err := tlsDial(n.url, s.id)
		if err != nil {
			s.t.Errorf("%s: %v", n.name, err)
			return
		}
		conn.SetDeadline(time.Now().Add(time.Second))
		conn.Write([]byte(message))
		conn.CloseWrite()
		conn.NetConn().(*net.TCPConn).CloseWrite()
		answer, _ := io.ReadAll(conn) // a reset is as good as an answer
		conn.Close()
		s.said.add(n.name+" answers raw requests", answer)
		s.servers.add(n.name+" answers raw requests", answer)
	}
}

func tlsDial(url string, id *identity) (*tls.Conn, error) {
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{RootCAs: id.pool}}
	conn, err := d.Dial("tcp", strings.TrimPrefix(url, "https://"))
	if err != nil {
		return nil, err
	}
	return conn.(*tls.Conn), nil
}

// commands runs mq through its commands, with the right tokens, wrong ones and none, against nodes and a hostile server.
func (s *site) commands(hostile *httptest.Server) {
	alone, leader := s.node("alone").url, s.node("leader").url
	pair := leader + "," + s.node("follower").url
	cluster := s.node("node 0").url + "," + s.node("node 1").url + "," + s.node("node 2").url
	backups := filepath.Join(s.dir, "backups")
	if err := os.Mkdir(backups, 0o700); err != nil {
		s.t.Fatal(err)
	}
	var wrong []string
	for _, name := range []string{"CLIENT", "ADMIN", "REPLICATION", "RAFT"} {
		wrong = append(wrong, "MQ_"+name+"_TOKEN="+canaries["wrong token"])
	}
	for i, url := range []string{alone, pair, cluster, hostile.URL, "https://127.0.0.1:1"} {
		for j, env := range [][]string{nil, wrong} {
			if i >= 3 && j > 0 {
				continue
			}
			where := []string{"--url", url, "--timeout", "10s"}
			if i >= 3 {
				where[3] = "50ms" // it is the same as often as it is tried
			}
			for k, words := range [][]string{
				{"pub", "t2", "v"}, {"fetch", "t"}, {"fetch", "t", "-o", "json"}, {"tail", "t"}, {"topic", "list"}, {"topic", "describe", "t"},
				{"topic", "configure", "t", "--records", "1000000"}, {"topic", "retain", "t", "0"}, {"topic", "delete", "none"}, {"group", "fetch", "g", "t"},
				{"group", "commit", "g", "t", "1"}, {"group", "list"}, {"group", "describe", "g", "t"}, {"group", "seek", "g", "t", "--start"},
				{"group", "delete", "none", "t"}, {"snapshot"}, {"pair", "status"}, {"cluster", "status"}, {"cluster", "status", "-o", "json"}, {"cluster", "transfer", "--to", "9"},
				{"backup", "take", filepath.Join(backups, fmt.Sprintf("%d-%d", i, j))},
			} {
				// The backups are looked at below.
				if always := j == 0 && words[0] == "backup"; always || (22*(2*i+j)+k)%s.stride == 0 {
					s.mq(env, append(words, where...)...)
				}
			}
		}
	}
	s.mq(nil, "bench", "latency", "--url", alone, "--for", "100ms")
	for i := range 3 {
		taken := filepath.Join(backups, fmt.Sprintf("%d-0", i))
		if out := s.mq(nil, "backup", "verify", taken); !strings.Contains(out, "INDEX") && !strings.Contains(out, "good") {
			s.t.Errorf("backup of %d: %s", i, out)
		}
		restored := filepath.Join(backups, fmt.Sprintf("restored-%d", i))
		s.mq(nil, "restore", taken, restored)
		s.mq(nil, "log", "dump", restored)
		s.mq(nil, "log", "verify", restored)
	}
	stream := s.mq(nil, "backup", "take", "-", "--url", alone)
	if len(stream) < 1000 {
		s.t.Errorf("the stream of a backup: %s", stream)
	}
	for _, n := range s.nodes {
		s.mq(nil, "log", "dump", n.data)
		s.mq(nil, "log", "dump", n.data, "-o", "json")
	}
	// Help, and mistakes.
	file := filepath.Join(s.dir, "keys", "admin-token")
	for _, words := range [][]string{
		{"--help"}, {"pub", "--help"}, {"cluster", "status", "--help"}, {"--version"}, {}, {"nothing"}, {"fetch"}, {"fetch", "t", "--limit", "x"}, {"fetch", "t", "--no-such-flag"},
		{"topic", "list", "--admin-token-file", file}, {"topic", "list", "--client-token-file", s.dir}, {"topic", "list", "--ca", s.id.key},
		{"topic", "list", "--url", "https://u:" + canaries["password in a URL"] + "@127.0.0.1:1"}, {"topic", "list", "--url", "https://u:" + canaries["password in a URL"] + "@[::1"},
		{"cluster", "status", "--url", "https://u:" + canaries["password in a URL"] + "@127.0.0.1:1"}, {"topic", "list", "--url", "http://10.255.255.1:1"},
	} {
		s.mq(nil, words...)
	}
	for _, env := range []string{"MQ_CLIENT_TOKEN=" + canaries["wrong token"] + " x", "MQ_RAFT_TOKEN=\t" + canaries["raft token"], "MQ_ADMIN_TOKEN=é" + canaries["admin token"],
		"MQ_URL=https://u:" + canaries["password in a URL"] + "@h:1", "MQ_CA=" + file} {
		s.mq([]string{env}, "topic", "list", "--timeout", "50ms")
		s.mq([]string{env}, "cluster", "status", "--url", cluster)
		s.mq([]string{env}, "--help")
	}
}

// run runs another mqd until it says what is expected or ends, and notes what it says.
func (s *site) run(until string, env []string, args ...string) {
	s.t.Helper()
	log := filepath.Join(s.dir, "stranger.stderr")
	os.Remove(log)
	address, err := process.FreeAddress()
	if err != nil {
		s.t.Fatal(err)
	}
	data := filepath.Join(s.dir, "stranger-data")
	defer os.RemoveAll(data)
	p, err := process.Start(process.Config{Binary: process.Binary(s.t), Data: data, Listen: address, Log: log, Args: args, Env: append(append([]string{}, s.env...), env...)})
	if err != nil {
		s.t.Fatal(err)
	}
	defer p.Kill()
	await(s.t, "mqd "+strings.Join(args, " "), func() string {
		text, err := os.ReadFile(log)
		if err != nil {
			return err.Error()
		}
		if until != "" && strings.Contains(string(text), until) {
			return ""
		}
		select {
		case <-p.Ended():
			return ""
		default:
			return "it runs, and has said: " + string(text)
		}
	})
	p.Kill()
	text, err := os.ReadFile(log)
	if err != nil {
		s.t.Fatal(err)
	}
	if until != "" && !bytes.Contains(text, []byte(until)) {
		s.t.Errorf("mqd %v does not say %q: %s", args, until, text)
	}
	s.said.add("mqd "+strings.Join(args, " "), text)
	s.servers.add("mqd "+strings.Join(args, " "), text)
	if _, err := os.Stat(data); err == nil {
		s.said.addTree(s.t, "data of strangers", data)
	}
}

// strangers are nodes that do not belong to these, or talk to one that does not.
func (s *site) strangers(hostile *httptest.Server) {
	wrongPair, wrongRaft := "MQ_REPLICATION_TOKEN="+canaries["wrong token"], "MQ_RAFT_TOKEN="+canaries["wrong token"]
	follower, ca := s.node("follower").url, s.id.cert
	node0, node1 := s.node("node 0").url, s.node("node 1").url
	leader := []string{"-role", "leader", "-epoch", "9"}
	const unreached, unconnected = "the follower is not reached", "no connection to another node"
	s.run(unreached, []string{wrongPair}, append(leader, "-replica", follower, "-tls-ca", ca)...)
	s.run("refused by the other node", nil, append(leader, "-replica", follower, "-tls-ca", ca)...)
	s.run(unreached, nil, append(leader, "-replica", follower)...) // does not trust its certificate
	for range max(1, 5/s.stride) {
		s.run(unreached, nil, append(leader, "-replica", hostile.URL)...)
	}
	if s.stride == 1 {
		s.run(unreached, nil, append(leader, "-replica", node0, "-tls-ca", ca)...) // of another kind
	}
	s.run(unconnected, []string{wrongRaft}, "-role", "cluster", "-raft-self", "2", "-raft-peers", node0+","+node1+",https://127.0.0.1:1", "-tls-ca", ca)
	s.run(unconnected, nil, "-role", "cluster", "-raft-self", "2", "-raft-peers", hostile.URL+","+follower+",https://127.0.0.1:1", "-tls-ca", ca)
}

// wrongUsage starts mqd in ways that it refuses.
func (s *site) wrongUsage() {
	url := "https://u:" + canaries["password in a URL"] + "@127.0.0.1:1"
	file := filepath.Join(s.dir, "keys", "admin-token")
	for _, args := range [][]string{
		{"-no-such-flag"}, {"-help"}, {"-listen", "0.0.0.0:0"}, {"-client-token-file", s.dir}, {"-client-token-file", "/dev/null"},
		{"-tls-cert", s.id.key, "-tls-key", s.id.key}, {"-tls-cert", file, "-tls-key", s.id.key}, {"-tls-cert", s.id.cert, "-tls-key", file},
		{"-role", "nobody"}, {"-role", "leader", "-epoch", "1", "-replica", url}, {"-role", "leader", "-epoch", "1", "-replica", url + "/x"},
		{"-role", "leader", "-epoch", "1", "-replica", "https://u:" + canaries["password in a URL"] + "@[::1"},
		{"-role", "cluster", "-raft-self", "0", "-raft-peers", url}, {"-role", "leader", "-epoch", "1", "-replica", "https://127.0.0.1:1", "-tls-ca", s.id.key},
		{"-client-token-file", file, "-admin-token-file", s.id.key},
	} {
		s.run("", nil, args...)
	}
	for _, env := range []string{"MQ_CLIENT_TOKEN=" + canaries["wrong token"] + " x", "MQ_ADMIN_TOKEN=é" + canaries["wrong token"], "MQ_CLIENT_TOKEN=" + strings.Repeat(canaries["wrong token"], 300)} {
		s.run("", []string{env})
	}
}

// profiler asks for what the profiler has.
func (s *site) profiler() {
	n := s.node("alone")
	text, err := os.ReadFile(n.data + ".stderr")
	if err != nil {
		s.t.Fatal(err)
	}
	m := regexp.MustCompile(`"msg":"profiler","address":"([^"]+)"`).FindSubmatch(text)
	if m == nil {
		s.t.Fatalf("no profiler: %s", text)
	}
	for _, path := range []string{"", "cmdline", "goroutine?debug=1", "goroutine?debug=2", "heap?debug=1", "heap", "allocs?debug=1", "threadcreate?debug=1", "block?debug=1", "mutex?debug=1", "symbol"} {
		a, err := http.Get("http://" + string(m[1]) + "/debug/pprof/" + path)
		if err != nil {
			s.t.Fatal(err)
		}
		body, err := io.ReadAll(a.Body)
		a.Body.Close()
		if err != nil {
			s.t.Fatal(err)
		}
		s.said.add("profiler "+path, body)
		s.servers.add("profiler "+path, body)
	}
}

// processes notes what a process list shows.
func (s *site) processes() {
	for _, n := range s.nodes {
		for _, name := range []string{"cmdline", "comm", "status", "stat", "maps"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", n.p.PID, name))
			if err != nil {
				s.t.Fatal(err)
			}
			s.said.add(n.name+" /proc "+name, text)
			s.servers.add(n.name+" /proc "+name, text)
		}
	}
}

// damage flips a byte of the record, so that the node that is alone has to speak of it, and of what is around it.
func (s *site) damage() {
	n := s.node("alone")
	if err := n.p.Stop(); err != nil {
		s.t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(n.data, "log", "*.seg"))
	if err != nil {
		s.t.Fatal(err)
	}
	flipped := false
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			s.t.Fatal(err)
		}
		if i := bytes.Index(text, []byte(canaries["record value"])); i >= 0 {
			flipped = true
			text[i+len(canaries["record value"])-1] ^= 1
			if err := os.WriteFile(name, text, 0o600); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	if !flipped {
		s.t.Fatal("the record is not found in the log")
	}
	n.p = n.Start()
	await(s.t, "the node says that it is damaged or ready", func() string {
		select {
		case <-n.p.Ended():
			return ""
		default:
		}
		if status, _, err := n.p.Get(api.PathReady); err != nil || status != 200 {
			return fmt.Sprint(status, err)
		}
		return ""
	})
	s.ask(n, "POST", api.PathFetch, `{"topic":"t","offset":0}`, true, "Authorization", "Bearer "+canaries["admin token"])
	s.ask(n, "GET", api.PathReady+"?verbose", "", true, "Authorization", "Bearer "+canaries["client token"])
	s.ask(n, "GET", api.PathReady, "", true)
	s.ask(n, "GET", api.PathMetrics, "", true, "Authorization", "Bearer "+canaries["client token"])
	s.mq(nil, "log", "verify", n.data)
	s.mq(nil, "log", "dump", n.data)
}

// dump has every node write its goroutines to its log, as a crash would.
func (s *site) dump() {
	for _, n := range s.nodes {
		select {
		case <-n.p.Ended():
			continue
		default:
		}
		if err := syscall.Kill(n.p.PID, syscall.SIGQUIT); err != nil {
			s.t.Fatal(err)
		}
		<-n.p.Ended()
	}
}
