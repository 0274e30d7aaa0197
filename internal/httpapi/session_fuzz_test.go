package httpapi

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/clock"
)

// Bits of how a client behaves in FuzzSession.
const (
	clientCloses = 1 << iota // it closes when all was sent, instead of waiting for the server to do that
	clientStalls             // it pauses, for longer than the server waits, at one place
	clientDeaf               // it does not read before all was sent
	clientFast               // it sends all at once
)

// patience is longer than a server keeps any connection on which nothing comes.
const patience = 10 * time.Minute

// FuzzSession sends any bytes, in any pieces, to a server with every route on a whole node in memory. Nothing panics; all that
// is sent back is well-formed HTTP/1.1 with JSON as the contract has it; the server ends the connection by itself; a clean request is
// answered afterwards; no goroutine is left. What the server takes for a request is one for net/http, too, with the same path and
// the same records: so nothing can be smuggled past one of them.
func FuzzSession(f *testing.F) {
	good := func(path, body string, headers ...string) string { return request1(path, body, headers...) }
	publish := good(api.PathPublish, goodBodies[api.PathPublish])
	chunk := func(parts ...string) string {
		var b strings.Builder
		for _, p := range parts {
			fmt.Fprintf(&b, "%x\r\n%s\r\n", len(p), p)
		}
		return b.String() + "0\r\n\r\n"
	}
	const head = "POST " + api.PathPublish + " HTTP/1.1\r\nHost: localhost\r\n"
	for i, s := range []string{
		"", "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", "HEAD /readyz?verbose HTTP/1.1\r\nHost: localhost\r\n\r\n",
		publish, publish + publish + good(api.PathFetch, `{"topic":"t","offset":0}`),
		good(api.PathPublishBatch, goodBodies[api.PathPublishBatch]) + "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
		good(api.PathFetch, `{"topic":"t","offset":2,"wait_ms":20000}`), good(api.PathFetch, `{"topic":"t","offset":2,"wait_ms":20000}`) + publish,
		good(api.PathTopicsList, ``) + good(api.PathGroupsList, `{}`) + good(api.PathTopicsDescribe, `{"topic":"t"}`),
		good(api.PathTopicsDelete, `{"topic":"t"}`, "Authorization", "Bearer "+fuzzAdmin) + good(api.PathFetch, `{"topic":"t","offset":0}`),
		good(api.PathSnapshot, ``, "Authorization", "Bearer "+fuzzAdmin) + good(api.PathBackupBegin, `{}`, "Authorization", "Bearer "+fuzzAdmin),
		good(api.PathRaftTransfer, `{"to":1}`, api.HeaderRaftToken, fuzzRaft),
		"GET " + api.PathRaftRole + " HTTP/1.1\r\nHost: localhost\r\n" + api.HeaderRaftToken + ": " + fuzzRaft + "\r\n\r\n",
		"GET " + api.PathRaftStream + " HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + api.ProtocolRaft + "\r\n" + api.HeaderRaftToken + ": " + fuzzRaft + "\r\n\r\nhello",
		"POST " + api.PathReplicationStream + " HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: " + api.ProtocolReplication + "\r\n" + api.HeaderReplicationToken + ": " + fuzzPair + "\r\n\r\nhello",
		head + "Transfer-Encoding: chunked\r\n\r\n" + chunk(`{"topic":"t",`, `"value":""}`) + publish,
		head + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n" + chunk(`{"topic":"t",`, `"value":""}`),
		head + "Transfer-Encoding: chunked\r\n\r\n5;x=y\r\n{\"top\r\n0\r\nTrailer: x\r\n\r\n",
		head + "Expect: 100-continue\r\nContent-Length: 24\r\n\r\n" + `{"topic":"t","value":""}`,
		head + "Content-Length: 24\r\nContent-Length: 24\r\n\r\n" + `{"topic":"t","value":""}`, head + "Content-Length: 11000000\r\n\r\n{",
		head + "Content-Length: +24\r\n\r\n" + `{"topic":"t","value":""}`, head + " folded: x\r\n\r\n", head + "Connection: close\r\nContent-Length: 0\r\n\r\n" + publish,
		"POST /v1/publish HTTP/1.0\r\nContent-Length: 24\r\n\r\n" + `{"topic":"t","value":""}` + publish, "POST /v1/publish\r\n\r\n", "\r\n\r\n" + publish,
		"POST http://localhost/v1/publish HTTP/1.1\r\nHost: localhost\r\n\r\n", "GET /healthz HTTP/1.1\nHost: localhost\n\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00", head + "X: " + strings.Repeat("y", 9000) + "\r\n\r\n", "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
		"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 31\r\n\r\nPOST /v1/publish HTTP/1.1\r\n\r\nxx" + publish,
	} {
		f.Add([]byte(s), uint64(i), uint8(i))
	}
	mustAnswerOnce(f)
	f.Fuzz(func(t *testing.T, stream []byte, seed uint64, how uint8) {
		if len(stream) > 64<<10 {
			return
		}
		bubble(t, func(t *testing.T) { fuzzSession(t, stream, seed, how) })
	})
}

// bubble runs a server under a clock of its own, and fails if a goroutine is left.
func bubble(t *testing.T, run func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		run(t)
		time.Sleep(time.Minute) // a goroutine of fasthttp that looks for idle ones now and then sees that the server has ended
	})
}

// mustAnswerOnce has a server answer. With its first answer fasthttp starts a goroutine that tells the date and never ends; it must
// not begin in a bubble.
func mustAnswerOnce(t testing.TB) {
	f := newFuzzed(t, clock.System{})
	f.clean(t)
	f.stop(t)
}

func fuzzSession(t *testing.T, stream []byte, seed uint64, how uint8) {
	f := newFuzzed(t, clock.System{})
	began := time.Now()
	c := f.pipes.dial()
	var got bytes.Buffer
	read := make(chan error, 1)
	reading := sync.OnceFunc(func() {
		go func() {
			_, err := io.Copy(&got, c)
			read <- err
		}()
	})
	if how&clientDeaf == 0 {
		reading()
	}
	sent := sendInPieces(c, stream, seed, how)
	reading()
	if how&clientCloses != 0 || bytes.Contains(stream, []byte("Upgrade")) || bytes.Contains(stream, []byte("upgrade")) {
		synctest.Wait()
		time.Sleep(time.Minute) // what is under way is answered
		c.Close()
	}
	if err := <-read; err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the connection: %v", err)
	}
	c.Close()
	if took := time.Since(began); took > patience {
		t.Errorf("the connection lived for %v", took)
	}
	f.judge(t, stream[:sent], got.Bytes(), how)
	f.clean(t)
	f.stop(t)
}

// sendInPieces sends a stream and returns how many bytes the server took.
func sendInPieces(c net.Conn, stream []byte, seed uint64, how uint8) (sent int) {
	rng := rand.New(rand.NewPCG(seed, 0))
	stall := -1
	if how&clientStalls != 0 {
		stall = rng.IntN(len(stream) + 1)
	}
	for sent < len(stream) {
		n := len(stream) - sent
		if how&clientFast == 0 {
			n = min(n, 1+rng.IntN(1+rng.IntN(1+len(stream)/2)))
		}
		if stall >= sent && stall < sent+n {
			if n = stall - sent; n == 0 {
				time.Sleep(time.Duration(rng.IntN(int(2 * time.Minute))))
				stall, n = -1, 1
			}
		}
		c.SetWriteDeadline(time.Now().Add(patience / 2))
		k, err := c.Write(stream[sent : sent+n])
		sent += k
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.Close()
			}
			return sent
		}
		if rng.IntN(4) == 0 {
			time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
		}
	}
	return sent
}

// judge holds what was answered to what was sent.
func (f *fuzzed) judge(t *testing.T, sent, got []byte, how uint8) {
	t.Helper()
	answers, rest, cut, err := parseAnswers(got)
	if err != nil {
		t.Errorf("%v\nin %q", err, got)
		return
	}
	if cut && how&(clientDeaf|clientCloses) == 0 {
		t.Errorf("the last answer is cut off: %q", got)
	}
	for i := range answers {
		a := &answers[i]
		if cut && i == len(answers)-1 {
			continue
		}
		if err := a.check(); err != nil {
			t.Errorf("answer %d: %v\nin %q", i, err, got)
		}
		if a.header["connection"] == "close" && i != len(answers)-1 {
			t.Errorf("answers follow the one that ends the connection: %q", got)
		}
	}
	if rest != nil && !bytes.Contains(sent, rest) {
		t.Errorf("the stream echoes %q", rest)
	}
	f.compare(t, sent, len(answers))
}

// compare reads what was sent with net/http, and compares the requests that the server served.
func (f *fuzzed) compare(t *testing.T, sent []byte, answers int) {
	t.Helper()
	f.seen.mu.Lock()
	list := slices.Clone(f.seen.list)
	f.seen.mu.Unlock()
	if len(list) < answers {
		t.Errorf("%d answers to %d requests", answers, len(list))
	}
	var want []published
	r := bufio.NewReader(bytes.NewReader(sent))
	for i, o := range list {
		req, err := http.ReadRequest(r)
		var body []byte
		if err == nil {
			body, err = io.ReadAll(req.Body)
		}
		served := o.status < 300
		if err != nil {
			if served {
				t.Errorf("request %d was served as %s with %d, and net/http says %v\nin %q", i, o.route, o.status, err, sent)
			}
			break
		}
		if served && req.URL.Path != o.route {
			t.Errorf("request %d was served as %s, and net/http reads %s\nin %q", i, o.route, req.URL.Path, sent)
			break
		}
		if !served {
			if o.status == 101 || req.Close {
				break
			}
			continue
		}
		if o.route == api.PathPublish || o.route == api.PathPublishBatch {
			var q request
			if bad := decodeStrict(body, shapes[o.route], nil, &q); bad != nil {
				t.Errorf("request %d was published, and net/http reads the body %q", i, body)
				break
			}
			for _, record := range q.records {
				want = append(want, published{string(q.topic), string(record.Key), string(record.Value)})
			}
		}
	}
	f.broker.mu.Lock()
	defer f.broker.mu.Unlock()
	i := 0
	for _, p := range want { // what was refused by the broker, with 409, stands in between
		for i < len(f.broker.seen) && f.broker.seen[i] != p {
			i++
		}
		if i == len(f.broker.seen) {
			t.Errorf("published was %q, and net/http reads %q", f.broker.seen, want)
			return
		}
		i++
	}
}

// clean makes sure that the server still serves.
func (f *fuzzed) clean(t testing.TB) {
	t.Helper()
	c := f.pipes.dial()
	defer c.Close()
	r := bufio.NewReader(c)
	for _, q := range []string{
		request1(api.PathPublish, `{"topic":"clean","value":"AA=="}`), request1(api.PathFetch, `{"topic":"clean","offset":0}`),
		"GET " + api.PathHealth + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
	} {
		go io.WriteString(c, q)
		a, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Errorf("a clean request afterwards: %v", err)
			return
		}
		body, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != 200 {
			t.Errorf("a clean request afterwards: %d %s %v", a.StatusCode, body, err)
		}
	}
}

// fuzzPaths are the paths of all calls, in a fixed order, so that a byte of the input stands for the same one in each run.
func fuzzPaths(s *Server) (list []string) {
	for path, r := range s.routes {
		if r.shape != nil {
			list = append(list, path)
		}
	}
	slices.Sort(list)
	return list
}

// FuzzCalls sends bodies that are framed as they should be, of any bytes, to any calls: so it gets behind HTTP. The input is
// a list: the call, two bytes for the length of the body, and the body. Each is answered, none with an error of the server; what is refused
// has logged nothing; and the answers to reads have no entry either.
func FuzzCalls(f *testing.F) {
	one := newFuzzed(f, clock.NewManual(time.UnixMilli(1_700_000_000_000)))
	paths := fuzzPaths(one.Server)
	one.stop(f)
	add := func(list ...string) {
		var p []byte
		for i := 0; i < len(list); i += 2 {
			p = append(p, byte(slices.Index(paths, list[i])), byte(len(list[i+1])), byte(len(list[i+1])>>8))
			p = append(p, list[i+1]...)
		}
		f.Add(p)
	}
	for _, path := range paths {
		add(path, goodBodies[path])
	}
	add(api.PathPublish, `{"topic":"u","value":"AAAA","request_id":"r"}`, api.PathPublish, `{"topic":"u","value":"AAAA","request_id":"r"}`,
		api.PathPublish, `{"topic":"u","value":"AAAB","request_id":"r"}`, api.PathFetch, `{"topic":"u","from_ms":0}`)
	add(api.PathTopicsRetain, `{"topic":"t","start_offset":2}`, api.PathFetch, `{"topic":"t","offset":0}`, api.PathGroupsFetch, `{"group":"g","topic":"t"}`,
		api.PathGroupsSeek, `{"group":"h","topic":"t","time_ms":5,"dry_run":true}`, api.PathGroupsList, `{"cursor":"Z2cAdA"}`)
	add(api.PathTopicsDelete, `{"topic":"t"}`, api.PathGroupsDescribe, `{"group":"g","topic":"t"}`, api.PathPublishBatch, goodBodies[api.PathPublishBatch],
		api.PathSnapshot, ``, api.PathBackupBegin, ``, api.PathBackupRead, `{"backup":"b","offset":0,"bytes":1}`, api.PathRaftTransfer, `{"to":3}`)
	mustAnswerOnce(f)
	f.Fuzz(func(t *testing.T, script []byte) {
		bubble(t, func(t *testing.T) { fuzzCalls(t, script, paths) })
	})
}

func fuzzCalls(t *testing.T, script []byte, paths []string) {
	s := newFuzzed(t, clock.NewManual(time.UnixMilli(1_700_000_000_000)))
	defer s.stop(t)
	c := s.pipes.dial()
	defer c.Close()
	r := bufio.NewReader(c)
	before := s.broker.last(t)
	for calls := 0; len(script) >= 3 && calls < 20; calls++ {
		path := paths[int(script[0])%len(paths)]
		n := min(int(script[1])|int(script[2])<<8, len(script)-3)
		body := string(script[3 : 3+n])
		script = script[3+n:]
		if bytes.Contains([]byte(body), []byte("wait_ms")) {
			continue // the clock stands still
		}
		go io.WriteString(c, request1(path, body, "Authorization", "Bearer "+fuzzAdmin, api.HeaderRaftToken, fuzzRaft))
		a, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatalf("%s %q: %v", path, body, err)
		}
		text, err := io.ReadAll(a.Body)
		if err != nil {
			t.Fatalf("%s %q: %v", path, body, err)
		}
		p := parsedAnswer{status: a.StatusCode, header: map[string]string{"date": a.Header.Get("Date"), "content-type": a.Header.Get("Content-Type")}, body: text}
		if err := p.check(); err != nil || a.StatusCode == 503 {
			t.Fatalf("%s %q: %d %s: %v", path, body, a.StatusCode, text, err)
		}
		if n, err := strconv.Atoi(a.Header.Get("Content-Length")); err != nil || n != len(text) {
			t.Fatalf("%s %q: the length of %d bytes is told as %q", path, body, len(text), a.Header.Get("Content-Length"))
		}
		after := s.broker.last(t)
		dry := strings.Contains(body, `"dry_run":true`)
		if writes := s.routes[path].write; after != before && (a.StatusCode != 200 || !writes || dry) {
			t.Fatalf("%s %q: %d %s, and the log has grown from entry %d to %d", path, body, a.StatusCode, text, before, after)
		}
		before = after
		if a.Close {
			t.Fatalf("%s %q: %d %s, and the connection ends", path, body, a.StatusCode, text)
		}
	}
}
