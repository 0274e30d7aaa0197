package httpapi

import (
	"bytes"
	"encoding/json"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"example.com/mq/api"
)

// FuzzStrict holds the decoder that defines what a legal request is against encoding/json: what it takes is one JSON object with exactly
// the names and values that encoding/json reads, each once; what it refuses is told in an answer that is JSON; and it takes memory in
// proportion to the body only.
func FuzzStrict(f *testing.F) {
	for _, body := range goodBodies {
		f.Add([]byte(body))
	}
	f.Add([]byte(`{"to":1}`))
	for _, body := range hostileBodies {
		if len(body) < 300 {
			f.Add([]byte(body))
		}
	}
	list := map[string]*shape{api.PathRaftTransfer: &shapeTransfer}
	for path, sh := range shapes {
		list[path] = sh
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, sh := range list {
			decodeStrict(body, sh, nil, new(request))
		}
		runtime.ReadMemStats(&after)
		if spent, most := after.TotalAlloc-before.TotalAlloc, uint64(512<<10+len(list)*(16<<10+4*len(body))); spent > most {
			t.Errorf("%d bytes took %d bytes of memory", len(body), spent)
		}
		for path, sh := range list {
			var req request
			if bad := decodeStrict(body, sh, nil, &req); bad != nil {
				checkRefusal(t, path, body, bad)
				continue
			}
			if len(bytes.TrimSpace(body)) == 0 {
				if !sh.emptyBody {
					t.Errorf("%s: nothing is taken", path)
				}
				continue
			}
			checkTaken(t, path, body, sh, &req)
		}
	})
}

func checkRefusal(t *testing.T, path string, body []byte, bad *apiError) {
	t.Helper()
	text := appendError(nil, bad)
	if !json.Valid(text) || !utf8.Valid(text) || bad.message == "" || bad.status != 400 && bad.status != 413 {
		t.Errorf("%s %q: the answer is %d %q", path, body, bad.status, text)
	}
	if len(text) > 2000 { // what a client made up is not repeated at length
		t.Errorf("%s: an answer of %d bytes", path, len(text))
	}
}

// checkTaken compares a request with what encoding/json reads.
func checkTaken(t *testing.T, path string, body []byte, sh *shape, req *request) {
	t.Helper()
	var want map[string]json.RawMessage
	if err := json.Unmarshal(body, &want); err != nil || !utf8.Valid(body) {
		t.Fatalf("%s %q is taken: %v", path, body, err)
	}
	if len(want) != req.given.count() || req.given&^sh.allowed != 0 || sh.required&^req.given != 0 {
		t.Fatalf("%s %q: the fields are %v", path, body, req.given)
	}
	var values struct {
		Key, Value []byte
		Messages   []struct{ Key, Value []byte }
	}
	if err := json.Unmarshal(body, &values); err != nil {
		t.Fatalf("%s %q: %v", path, body, err)
	}
	if values.Messages == nil && req.given.has(fieldValue) {
		values.Messages = append(values.Messages, struct{ Key, Value []byte }{values.Key, values.Value})
	}
	if len(values.Messages) != len(req.records) {
		t.Fatalf("%s %q: %d records", path, body, len(req.records))
	}
	for i, m := range values.Messages {
		if !bytes.Equal(m.Key, req.records[i].Key) || !bytes.Equal(m.Value, req.records[i].Value) {
			t.Fatalf("%s %q: record %d is %q: %q", path, body, i, req.records[i].Key, req.records[i].Value)
		}
	}
	for f := range fieldCount {
		if !req.given.has(f) {
			continue
		}
		raw, ok := want[fieldNames[f]]
		if !ok {
			t.Fatalf("%s %q has no %s", path, body, fieldNames[f])
		}
		var same bool
		if name := req.name(f); name != nil {
			var s string
			same = json.Unmarshal(raw, &s) == nil && s == string(*name)
		} else if number, low, high := req.number(f); number != nil {
			var n *uint64
			err := json.Unmarshal(raw, &n)
			same = err == nil && (n == nil && f.nullable() && *number == 0 || n != nil && *n == *number && low <= *n && *n <= high)
		} else if flag := req.flag(f); flag != nil {
			var b bool
			same = json.Unmarshal(raw, &b) == nil && b == *flag
		} else {
			same = true // records, see above
		}
		if !same {
			t.Fatalf("%s %q: %s", path, body, fieldNames[f])
		}
	}
}

// FuzzHost: what passes for the name of this machine is one for package net, too.
func FuzzHost(f *testing.F) {
	for _, s := range []string{"localhost", "LOCALHOST.:80", "127.0.0.1:8080", "[::1]:1", "[::ffff:127.0.0.1]", "::1", "127.1", "localhost:x", "[::1", "[::1%lo]:80", "127.0.0.1.evil.example", "localhost@evil", "0x7f.1", "[127.0.0.1]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, host []byte) {
		if !isLoopbackHost(host) || len(host) == 0 {
			return
		}
		name := string(host)
		if h, port, err := net.SplitHostPort(name); err == nil && strings.Trim(port, "0123456789") == "" {
			name = h
		} else {
			name = strings.TrimSuffix(strings.TrimPrefix(strings.TrimSuffix(name, ":"), "["), "]")
		}
		if strings.EqualFold(strings.TrimSuffix(name, "."), "localhost") {
			return
		}
		if a, err := netip.ParseAddr(name); err != nil || !a.Unmap().IsLoopback() {
			t.Errorf("%q passes", host)
		}
	})
}

// FuzzFraming: a header block that passes has lines in CRLF alone, no folded one, and no two ways to tell where the body ends.
func FuzzFraming(f *testing.F) {
	for _, s := range []string{
		"Host: x\r\nContent-Length: 5\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n", "Content-Length: 1\r\ncontent-length: 1\r\n\r\n",
		"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n", "Transfer-Encoding: gzip, chunked\r\n\r\n", "A: b\r\n c\r\n\r\n", "A : b\r\n\r\n", "A: b\n\r\n", "\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if framing(raw) != refuseNone {
			return
		}
		head, _, _ := strings.Cut(string(raw), "\r\n\r\n")
		lengths, codings := 0, 0
		for _, line := range strings.Split(strings.TrimSuffix(head, "\r\n"), "\r\n") {
			if line == "" {
				break
			}
			name, value, ok := strings.Cut(line, ":")
			if !ok || name == "" || strings.ContainsAny(line, "\r\n") || strings.Contains(name, " ") || line[0] == '\t' {
				t.Fatalf("%q passes with the line %q", raw, line)
			}
			switch strings.ToLower(name) {
			case "content-length":
				lengths++
			case "transfer-encoding":
				if codings++; !strings.EqualFold(strings.Trim(value, " \t"), "chunked") {
					t.Fatalf("%q passes with the coding %q", raw, value)
				}
			}
		}
		if lengths+codings > 1 {
			t.Fatalf("%q passes", raw)
		}
	})
}
