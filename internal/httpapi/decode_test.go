package httpapi

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"example.com/mq/api"
	asm "github.com/segmentio/asm/base64"
)

var shapes = map[string]*shape{
	api.PathPublish:      &shapePublish,
	api.PathPublishBatch: &shapePublishBatch,
	api.PathFetch:        &shapeFetch,
	api.PathGroupsFetch:  &shapeGroupsFetch,
	api.PathGroupsCommit: &shapeGroupsCommit,
	api.PathTopicsRetain: &shapeTopicsRetain,
	api.PathSnapshot:     &shapeSnapshot,

	api.PathTopicsConfigure: &shapeTopicsConfigure,
	api.PathTopicsList:      &shapeTopicsList,
	api.PathTopicsDescribe:  &shapeTopic,
	api.PathTopicsDelete:    &shapeTopic,
	api.PathGroupsList:      &shapeGroupsList,
	api.PathGroupsDescribe:  &shapeGroup,
	api.PathGroupsDelete:    &shapeGroup,
	api.PathGroupsSeek:      &shapeGroupsSeek,

	api.PathBackupBegin: &shapeBackupBegin,
	api.PathBackupRead:  &shapeBackupRead,
	api.PathBackupEnd:   &shapeBackupEnd,
}

func newArena(body []byte) []byte { return make([]byte, 0, len(body)/4*3+arenaSlack) }

// text shows a request for comparison.
func (r *request) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "given %v topic %q group %q id %q offset %d from %d next %d start %d limit %d wait %d rare %q",
		r.given, r.topic, r.group, r.requestID, r.offset, r.fromMS, r.nextOffset, r.startOffset, r.limit, r.waitMS, fmt.Sprint(r.rare))
	for _, rec := range r.records {
		fmt.Fprintf(&b, "\n%q = %q", rec.Key, rec.Value)
	}
	return b.String()
}

// compareDecoders fails when the fast decoder accepts what the strict one refuses or reads differently.
func compareDecoders(t *testing.T, body []byte) {
	t.Helper()
	for path, sh := range shapes {
		var fast, strict request
		before := bytes.Clone(body)
		took := decodeFast(body, sh, newArena(body), &fast)
		if !bytes.Equal(body, before) {
			t.Fatalf("%s %q: the fast decoder changed the body", path, before)
		}
		if !took {
			continue
		}
		if err := decodeStrict(body, sh, nil, &strict); err != nil {
			t.Fatalf("%s %q: fast accepts, strict says %v", path, body, err)
		}
		if fast.text() != strict.text() {
			t.Fatalf("%s %q:\nfast   %s\nstrict %s", path, body, fast.text(), strict.text())
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, body := range goodBodies {
		f.Add([]byte(body))
	}
	for _, h := range hostileBodies {
		f.Add([]byte(h))
	}
	f.Fuzz(compareDecodersFuzz)
}

func compareDecodersFuzz(t *testing.T, body []byte) { compareDecoders(t, body) }

// TestDecodersAgree changes good requests at random: bytes replaced, cut out, doubled, parts swapped.
func TestDecodersAgree(t *testing.T) {
	const seed = 7
	rnd := rand.New(rand.NewPCG(seed, 0))
	long := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("abc\xff"), 50))
	pool := [][]byte{
		fmt.Appendf(nil, `{"topic":"tö","key":"%s","value":"%s","request_id":"r"}`, long, long),
		fmt.Appendf(nil, `{"topic":"t\\/u","value":"%s"}`, strings.ReplaceAll(long, "/", `\/`)),
		fmt.Appendf(nil, `{"topic":"t","value":"%s"}`, strings.ReplaceAll(long, "/", `\/`)),
		fmt.Appendf(nil, ` { "topic" : "t" , "messages" : [ { "value" : "%s" } , {"key":"","value":""} ] } `, long),
	}
	for _, b := range goodBodies {
		pool = append(pool, []byte(b))
	}
	odd := []string{`"`, `\`, "\n", "\r", "\x00", "\x7f", "\xc3", "=", "==", ",", ":", "0", "1", "-", ".", "e", " ", "{", "}", "[", "]",
		"null", "\\u0000", "\u0085", "\xed\xa0\x80", "9007199254740992", "+", "/", "-", "_", `\/`, "\n\n\n\n", "\r\n\r\n"}
	for range 20000 {
		b := bytes.Clone(pool[rnd.IntN(len(pool))])
		for range 1 + rnd.IntN(3) {
			i := rnd.IntN(len(b) + 1)
			j := i + rnd.IntN(min(len(b)-i, 6)+1)
			switch rnd.IntN(3) {
			case 0:
				b = append(b[:i:i], b[j:]...)
			case 1:
				b = append(append(b[:i:i], odd[rnd.IntN(len(odd))]...), b[j:]...)
			case 2:
				b = append(append(b[:j:j], b[i:j]...), b[j:]...)
			}
		}
		compareDecoders(t, b)
	}
}

// TestFastDecoderIsUsed guards the speed: the fast decoder must take what common clients send.
func TestFastDecoderIsUsed(t *testing.T) {
	long := base64.StdEncoding.EncodeToString(make([]byte, 1000))
	bodies := map[string][]string{
		api.PathPublish: {
			goodBodies[api.PathPublish], `{"value":"","topic":"t"}`, ` {"topic": "é", "value": "` + long + `"}` + "\n",
			`{"topic":"t","value":"AA==","request_id":"0-1"}`, `{"topic":"t","key":"\/\/+\/","value":"` + strings.Repeat(`A\/\/A`, 50) + `"}`,
		},
		api.PathPublishBatch: {goodBodies[api.PathPublishBatch],
			`{"topic":"t","messages":[` + strings.Repeat(`{"value":"`+long+`"},`, 31) + `{"value":""}]}`},
		api.PathFetch:        {goodBodies[api.PathFetch], `{"topic":"t","offset":9007199254740991,"limit":1000,"wait_ms":20000}`},
		api.PathGroupsFetch:  {goodBodies[api.PathGroupsFetch]},
		api.PathGroupsCommit: {goodBodies[api.PathGroupsCommit]},
		api.PathTopicsRetain: {goodBodies[api.PathTopicsRetain]},
		api.PathSnapshot:     {``, `{}`},
	}
	bodies[api.PathFetch] = append(bodies[api.PathFetch], `{"topic":"t","from_ms":1700000000000}`)
	for path, list := range bodies {
		for _, body := range list {
			var req request
			if !decodeFast([]byte(body), shapes[path], newArena([]byte(body)), &req) {
				t.Errorf("%s %s: not taken", path, body)
			}
			compareDecoders(t, []byte(body))
		}
	}
}

// TestBase64Agrees checks the vector code against the standard library for every length, with every kind of
// wrong byte at every place.
func TestBase64Agrees(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 0))
	for n := range 300 {
		plain := make([]byte, n)
		for i := range plain {
			plain[i] = byte(rnd.Uint32())
		}
		good := base64.StdEncoding.EncodeToString(plain)
		if got := string(appendBase64(make([]byte, 0, len(good)+64), plain)); got != good {
			t.Fatalf("encode %d bytes: %q, want %q", n, got, good)
		}
		dst := make([]byte, len(good)+64)
		asm.StdEncoding.Encode(dst[:len(good)], plain)
		if string(dst[:len(good)]) != good || !bytes.Equal(dst[len(good):], make([]byte, 64)) {
			t.Fatalf("vector encode %d bytes: wrong, or more was written", n)
		}
		s := scanner{b: []byte(`"` + good + `"`)}
		if got, _, ok := s.base64(newArena(s.b)); !ok || !bytes.Equal(got, plain) {
			t.Fatalf("decode %d bytes: %v %q, want %q", n, ok, got, plain)
		}
		for range 60 {
			if n == 0 {
				break
			}
			bad := []byte(good)
			if i := rnd.IntN(len(bad) + 1); rnd.IntN(3) == 0 { // breaks that leave the length a multiple of four
				bad = slices.Insert(bad, i, []byte("\r\n\n\n")...)
			}
			if rnd.IntN(3) > 0 {
				bad[rnd.IntN(len(bad))] = "=-_\n\r \x00\x80\xffAz9,.:"[rnd.IntN(15)]
			}
			want, err := strictBase64.DecodeString(string(bad))
			legal := err == nil && !bytes.ContainsAny(bad, "\r\n")
			s := scanner{b: []byte(`"` + string(bad) + `"`)}
			got, _, ok := s.base64(newArena(s.b))
			if ok != legal || ok && !bytes.Equal(got, want) {
				t.Fatalf("decode %q: %v %q, want %v %q", bad, ok, got, legal, want)
			}
		}
	}
}

// TestRequestReset: nothing of a request is left for the next one that uses the same memory.
func TestRequestReset(t *testing.T) {
	zero := new(request).text()
	for path, body := range map[string]string{
		api.PathPublish:      `{"topic":"t","key":"AA==","value":"AA==","request_id":"r"}`,
		api.PathPublishBatch: `{"topic":"t","messages":[{"key":"AA==","value":"AA=="},{"value":"AA=="}],"request_id":"r"}`,
		api.PathFetch:        `{"topic":"t","offset":3,"limit":4,"wait_ms":5}`,
		api.PathGroupsFetch:  `{"group":"g","topic":"t","limit":4,"wait_ms":5}`,
		api.PathGroupsCommit: `{"group":"g","topic":"t","next_offset":3}`,
		api.PathTopicsRetain: `{"topic":"t","start_offset":3}`,

		api.PathTopicsConfigure: `{"topic":"t","retention_ms":1,"retention_bytes":2,"retention_records":3,"reset":true}`,
		api.PathGroupsList:      `{"topic":"t","prefix":"p","cursor":"Z2cAdA","limit":3}`,
		api.PathGroupsSeek:      `{"group":"g","topic":"t","time_ms":4,"dry_run":true}`,
		api.PathBackupRead:      `{"backup":"b","segment":3,"offset":4,"bytes":5}`,
		api.PathBackupEnd:       `{"backup":"b","x":3}`, // refused half way
	} {
		var req request
		if err := decodeStrict([]byte(body), shapes[path], nil, &req); (err == nil) == strings.Contains(body, `"x"`) || req.text() == zero {
			t.Fatalf("%s: %v", path, err)
		}
		req.reset()
		if got := req.text(); got != zero {
			t.Errorf("%s: %s is left", path, got)
		}
		for i, r := range req.store {
			if r.Key != nil || r.Value != nil {
				t.Errorf("%s: record %d is left", path, i)
			}
		}
	}
}

// TestStrictAgreesWithJSON: what the strict decoder takes, encoding/json reads as the same.
func TestStrictAgreesWithJSON(t *testing.T) {
	rnd := rand.New(rand.NewPCG(11, 0))
	pool := []string{
		`{"group":"g","topic":"t","to":"end","dry_run":true}`, `{"group":"g","topic":"t","time_ms":12,"dry_run":true}`,
		`{"topic":"t","retention_ms":null,"retention_bytes":22,"retention_records":333,"reset":true}`, `{"prefix":"p","cursor":"dHQ","limit":7}`,
	}
	for _, path := range slices.Sorted(maps.Keys(goodBodies)) {
		pool = append(pool, goodBodies[path])
	}
	parts := []string{`"topic"`, `"to"`, `"offset"`, `"time_ms"`, `"from_ms"`, `"start"`, `"end"`, "null", "true", "false", "0", "1", "12", ",", ":", " ", `\u0074`, "{", "}", `"`,
		`"retention_ms":5,`, `"reset":false,`, `"limit":3,`, `"prefix":"q",`, `"cursor":"dHR0",`, `"dry_run":false,`}
	taken := map[string]int{}
	for range 30000 {
		body := pool[rnd.IntN(len(pool))]
		for range rnd.IntN(3) {
			i := rnd.IntN(len(body) + 1)
			j := i + rnd.IntN(min(len(body)-i, 8)+1)
			body = body[:i] + parts[rnd.IntN(len(parts))] + body[j:]
		}
		for path, sh := range shapes {
			var req request
			if decodeStrict([]byte(body), sh, nil, &req) != nil {
				continue
			}
			taken[path]++
			var want map[string]any
			if err := json.Unmarshal([]byte(body), &want); err != nil && strings.TrimSpace(body) != "" {
				t.Fatalf("%s %q: taken, and it is no JSON: %v", path, body, err)
			}
			for f := range fieldCount {
				if !req.given.has(f) || f == fieldKey || f == fieldValue || f == fieldMessages {
					continue
				}
				var got any
				if flag := req.flag(f); flag != nil {
					got = *flag
				} else if name := req.name(f); name != nil {
					got = string(*name)
				} else if n, _, _ := req.number(f); *n > 0 || !f.nullable() {
					got = float64(*n)
				}
				if w, ok := want[fieldNames[f]]; !ok || w != got {
					t.Fatalf("%s %q: %s is %v", path, body, fieldNames[f], got)
				}
			}
			if len(want) != req.given.count() {
				t.Fatalf("%s %q: %d fields, %v were read", path, body, len(want), req.given)
			}
		}
	}
	for path := range shapes {
		if taken[path] < 100 {
			t.Errorf("%s: only %d bodies were taken", path, taken[path])
		}
	}
}

func benchBody(n, size int) []byte {
	value := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xa7}, size))
	if n == 1 {
		return fmt.Appendf(nil, `{"topic":"bench","value":"%s"}`, value)
	}
	return []byte(`{"topic":"bench","messages":[` + strings.TrimSuffix(strings.Repeat(`{"value":"`+value+`"},`, n), ",") + `]}`)
}

func BenchmarkDecode(b *testing.B) {
	for _, row := range []struct{ n, size int }{{1, 100}, {1, 1024}, {32, 100}, {32, 1024}, {32, 256 << 10}} {
		body, sh := benchBody(row.n, row.size), &shapePublish
		if row.n > 1 {
			sh = &shapePublishBatch
		}
		for _, strict := range []bool{false, true} {
			name := fmt.Sprintf("fast/%dx%d", row.n, row.size)
			if strict {
				name = "strict" + name[4:]
			}
			b.Run(name, func(b *testing.B) {
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				arena := newArena(body)
				req := new(request)
				for b.Loop() {
					req.reset()
					if strict {
						if err := decodeStrict(body, sh, nil, req); err != nil {
							b.Fatal(err)
						}
					} else if !decodeFast(body, sh, arena, req) {
						b.Fatal("not taken")
					}
				}
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	for _, row := range []struct{ n, size int }{{1, 100}, {1000, 100}, {1000, 1024}, {64, 64 << 10}} {
		b.Run(fmt.Sprintf("%dx%d", row.n, row.size), func(b *testing.B) {
			value := bytes.Repeat([]byte{0xa7}, row.size)
			b.SetBytes(int64(row.n * row.size))
			b.ReportAllocs()
			c := &call{conn: &conn{}}
			for b.Loop() {
				c.beginRecords()
				for i := range row.n {
					c.Record(1234567, nil, value, int64(1700000000000+i))
				}
				c.conn.answerSize = len(c.out)
				if c.bigOut {
					putBuffer(c.out)
					c.out, c.bigOut = nil, false
				}
			}
		})
	}
}
