package httpapi

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"example.com/mq/api"
)

// The tables of this file are made of the router's own: of each call's shape, that is, so that a new call, and a new field, is in
// them by itself.

// fieldSample has a legal value for every field, as JSON.
var fieldSample = [fieldCount]string{
	fieldTopic: `"t"`, fieldGroup: `"g"`, fieldRequestID: `"r"`, fieldKey: `"a2V5"`, fieldValue: `"AA//"`, fieldMessages: `[{"value":"AA//","key":""},{"value":""}]`,
	fieldOffset: `0`, fieldFromMS: `0`, fieldNextOffset: `0`, fieldStartOffset: `0`, fieldLimit: `10`, fieldWaitMS: `0`, fieldTo: `1`,
	fieldPrefix: `"t"`, fieldCursor: `"dHQ"`, fieldBackup: `"b"`, fieldSeekTo: `"start"`, fieldTimeMS: `0`, fieldSegment: `1`, fieldBytes: `100`,
	fieldRetentionMS: `1`, fieldRetentionBytes: `2`, fieldRetentionRecords: `null`, fieldReset: `false`, fieldDryRun: `true`,
}

// member is a field with its value, as JSON.
type member struct {
	f           field
	name, value string
}

// legalMembers are all fields that one request to the call may have at once.
func legalMembers(path string, sh *shape) (list []member) {
	other := false
	for f := range fieldCount {
		if !sh.allowed.has(f) || sh.oneOf.has(f) && other {
			continue
		}
		other = other || sh.oneOf.has(f)
		m := member{f, fieldNames[f], fieldSample[f]}
		if path == api.PathGroupsList && f == fieldCursor {
			m.value = `"Z2cAdA"`
		}
		list = append(list, m)
	}
	return list
}

func object(list []member) string {
	var parts []string
	for _, m := range list {
		parts = append(parts, fmt.Sprintf("%q:%s", m.name, m.value))
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// with returns a copy of the list in which the value of member i is another one.
func with(list []member, i int, value string) []member {
	list = slices.Clone(list)
	list[i].value = value
	return list
}

// wrongValues are values that a field must not have.
func wrongValues(f field) (list []string) {
	long := func(n int) string { return `"` + strings.Repeat("x", n) + `"` }
	list = []string{`{}`, `{"topic":"t"}`, `[[]]`, `nul`, `NULL`, `undefined`, `NaN`, `'t'`, `t`}
	if !f.nullable() {
		list = append(list, `null`)
	}
	req := new(request)
	number, low, high := req.number(f)
	switch {
	case f == fieldMessages:
		return append(list, `[]`, `0`, `"x"`, `true`, `[null]`, `[{}]`, `[[]]`, `[0]`, `[{"value":""},{"value":0}]`, `[{"value":""},{"value":"","value":""}]`,
			`[{"value":""}`, `[{"value":""},]`, `[{"Value":""}]`, `[{"value":"","topic":"t"}]`, `[{"key":""}]`, `[{"value":"A"}]`, `[{"value":null}]`,
			`[`+strings.Repeat(`{"value":""},`, api.BatchMax)+`{"value":""}]`)
	case number != nil:
		list = append(list, `""`, `"1"`, `true`, `[1]`, `-1`, `-0`, `+1`, `01`, `1.`, `.5`, `1.0`, `1.5`, `1e0`, `1E2`, `0e0`, `0x1`, `1_0`, `1e400`, `-`, `٣`,
			fmt.Sprint(high+1), `18446744073709551615`, `18446744073709551616`, `18446744073709551617`, `99999999999999999999999999999999999999`)
		if low > 0 {
			list = append(list, fmt.Sprint(low-1))
		}
		return list
	case req.flag(f) != nil:
		return append(list, `0`, `1`, `"true"`, `""`, `[]`, `[true]`, `True`, `tru`)
	}
	list = append(list, `0`, `true`, `[]`, `["t"]`, `"`, `"t`, `"\ud800"`, `"\udc00\ud800"`, `"\ud800\u0041"`, "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\"", `"\x41"`, `"\u12"`, "\"\t\"", "\"\x00\"", "\"\x1f\"", `"\'"`)
	if f == fieldKey || f == fieldValue {
		return append(list, `"A"`, `"AA"`, `"AA="`, `"AA==AA=="`, `"AB=="`, `"AAB="`, `"AA==\n"`, `"\nAA=="`, `"AA\r\n=="`, `"-_-_"`, `" AA=="`, `"AA== "`, `"===="`, `"é"`, `"AA\u0000="`)
	}
	most := api.NameMax
	if f == fieldCursor {
		most = api.CursorMax
		list = append(list, `"x"`, `"dHQ="`, `"dHT"`, `"d HQ"`, `"+/+/"`, `"eHQ"`, `"dAB0"`, `"ZwB0"`)
	}
	if f == fieldSeekTo {
		list = append(list, `"Start"`, `"end "`, `"middle"`, `"startend"`)
	}
	list = append(list, long(most+1), long(6*most), long(6*most+3))
	if f != fieldPrefix {
		list = append(list, `""`)
	}
	if f != fieldRequestID {
		list = append(list, `"\u0000"`, `"a\u001f"`, `"\n"`, "\"\x7f\"", `"\u007f"`, "\"\u0085\"", `"\u009f"`)
	}
	return list
}

// TestEveryFieldOfEveryCall: whatever is wrong with one field of a legal request, the answer is 400 and names the field, and the
// broker hears nothing of it.
func TestEveryFieldOfEveryCall(t *testing.T) {
	s := start(t, everyRoute)
	s.fake.seed()
	before := s.fake.callCount()
	sent := map[string]int{}
	for path, r := range s.routes {
		if r.shape == nil {
			continue
		}
		good := legalMembers(path, r.shape)
		c := s.dial()
		refused := func(field, body string) {
			t.Helper()
			sent[path]++
			c.send(request1(path, body, "Authorization", "Bearer "+fuzzAdmin, api.HeaderRaftToken, fuzzRaft))
			a := c.receive("POST")
			named := a.field()
			if field == "messages" { // or what is in it
				named, _, _ = strings.Cut(named, "[")
			}
			message := fmt.Sprint(a.json["message"])
			told := named == field && strings.Contains(message, field)
			if !json.Valid([]byte(body)) { // what is wrong may show only behind the value
				told = told || strings.Contains(message, "at byte ") || strings.Contains(message, "in field ")
			}
			if a.status != 400 || a.code() != "invalid_argument" || !told || a.closed {
				t.Errorf("%s %.200q: %d %s, want 400 that names %q", path, body, a.status, a.body, field)
			}
			if a.closed {
				c = s.dial()
			}
		}
		for i, m := range good {
			for _, v := range wrongValues(m.f) {
				refused(m.name, object(with(good, i, v)))
				if i > 0 && !strings.ContainsAny(v, "\"'[{") { // it comes last, so that nothing after it is wrong, too
					refused(m.name, object(append(slices.Delete(slices.Clone(good), i, i+1), member{m.f, m.name, v})))
				}
			}
			refused(m.name, object(append(slices.Clone(good), m)))
			refused(m.name, strings.TrimSuffix(object(good), "}")+fmt.Sprintf(`,"\u%04x%s":%s}`, m.name[0], m.name[1:], m.value))
			for _, name := range []string{strings.ToUpper(m.name[:1]) + m.name[1:], strings.ToUpper(m.name), m.name + " ", " " + m.name, m.name + "s", m.name[:len(m.name)-1]} {
				other := slices.Clone(good)
				other[i].name = name
				if r.shape.field(name) == fieldCount {
					refused(name, object(other))
				}
			}
			if r.shape.required.has(m.f) || r.shape.oneOf.has(m.f) {
				refused(m.name, object(slices.Delete(slices.Clone(good), i, i+1)))
			}
			for f := range fieldCount {
				if r.shape.oneOf.has(m.f) && r.shape.oneOf.has(f) && f != m.f {
					refused(fieldNames[f], object(append(slices.Clone(good), member{f, fieldNames[f], fieldSample[f]})))
				}
			}
		}
		for f := range fieldCount {
			if r.shape.field(fieldNames[f]) == fieldCount {
				refused(fieldNames[f], object(append(slices.Clone(good), member{f, fieldNames[f], fieldSample[f]})))
				refused(fieldNames[f], object(append([]member{{f, fieldNames[f], fieldSample[f]}}, good...)))
			}
		}
		c.Close()
	}
	if n := s.fake.callCount() - before; n != 0 {
		t.Errorf("%d hostile bodies reached the broker", n)
	}
	for path, n := range sent {
		if n < 20 {
			t.Errorf("%s: only %d bodies", path, n)
		}
	}
	if len(sent) < 19 {
		t.Errorf("only %d calls", len(sent))
	}
}

// escaped writes every character of the strings in a JSON text as an escape; names says whether those of names, too.
func escaped(text string, names bool) string {
	var b strings.Builder
	inside, isName, depth := false, false, 0
	for i, c := range text {
		switch {
		case c == '"' && !inside:
			inside = true
			end := i + 1 + strings.IndexByte(text[i+1:], '"')
			isName = end+1 < len(text) && text[end+1] == ':'
			b.WriteRune(c)
		case c == '"':
			inside = false
			b.WriteRune(c)
		case inside && (names || !isName):
			if depth++; depth%2 == 0 {
				fmt.Fprintf(&b, `\u%04X`, c)
			} else {
				fmt.Fprintf(&b, `\u%04x`, c)
			}
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// spaced puts white space between all tokens of a JSON text whose strings have none of the characters that it looks for.
func spaced(text string) string {
	for _, token := range []string{"{", "}", "[", "]", ":", ","} {
		text = strings.ReplaceAll(text, token, "\t\r\n "+token+" \n\r\t")
	}
	return text
}

// TestEveryLegalForm: the same request in other words is taken by every call, and answered in the same way.
func TestEveryLegalForm(t *testing.T) {
	s := start(t, everyRoute)
	s.fake.seed()
	rng := rand.New(rand.NewPCG(3, 0))
	for path, r := range s.routes {
		if r.shape == nil {
			continue
		}
		good := legalMembers(path, r.shape)
		good = slices.DeleteFunc(good, func(m member) bool { return m.f == fieldRequestID }) // or all but one would be duplicates
		plain := object(good)
		post := func(body string) *answer {
			t.Helper()
			return s.post(path, body, "Authorization", "Bearer "+fuzzAdmin, api.HeaderRaftToken, fuzzRaft)
		}
		want := post(plain)
		if want.status != 200 {
			t.Errorf("%s %s: %d %s", path, plain, want.status, want.body)
			continue
		}
		forms := []string{spaced(plain), escaped(plain, false), escaped(plain, true), spaced(escaped(plain, true)), strings.ReplaceAll(plain, "/", `\/`),
			plain + "\n", "\r\n\r\n" + plain + "\t", strings.Repeat(" ", 3000) + plain}
		for range 6 {
			shuffled := slices.Clone(good)
			rng.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
			forms = append(forms, object(shuffled))
		}
		for _, body := range forms {
			a := post(body)
			if a.status != 200 || !r.write && a.body != want.body {
				t.Errorf("%s %q: %d %s, want %d %s", path, body, a.status, a.body, want.status, want.body)
			}
		}
		if r.shape.emptyBody {
			for _, body := range []string{"", " ", "\r\n", "{}", " { } "} {
				if a := post(body); a.status != 200 {
					t.Errorf("%s %q: %d %s", path, body, a.status, a.body)
				}
			}
		}
		legalValues(t, path, good, post)
	}
}

// legalValues sends the values at the ends of what the fields may have. The broker may refuse them, for there may be no such
// topic or offset; but they are well-formed.
func legalValues(t *testing.T, path string, good []member, post func(body string) *answer) {
	t.Helper()
	for i, m := range good {
		var values []string
		req := new(request)
		switch number, low, high := req.number(m.f); {
		case number != nil:
			values = append(values, fmt.Sprint(low), fmt.Sprint(high))
			if m.f == fieldWaitMS {
				values = values[:1] // it would wait
			}
			if m.f.nullable() {
				values = append(values, "null")
			}
		case req.flag(m.f) != nil:
			values = append(values, "true", "false")
		case m.f == fieldKey || m.f == fieldValue:
			values = append(values, `""`, `"AA=="`, `"AAA="`, `"+/+/"`, `"`+strings.Repeat("AAAA", 1000)+`"`)
		case m.f == fieldMessages:
			values = append(values, `[{"value":""}]`, `[`+strings.Repeat(`{"key":"","value":""},`, api.BatchMax-1)+`{"value":""}]`)
		case m.f == fieldCursor, m.f == fieldSeekTo:
		default:
			values = append(values, `"x"`, `".."`, `"/"`, `"../../etc/passwd"`, `" "`, `"é"`, `"\ud83d\ude00"`, "\"\u2028\"", `"\\"`, `"\""`, `"\u00A0"`, `"null"`, "\"\ufeff\"",
				`"`+strings.Repeat("x", api.NameMax)+`"`, `"`+strings.Repeat("é", api.NameMax/2)+`x"`, `"`+strings.Repeat(`\u0041`, api.NameMax)+`"`)
			if m.f == fieldPrefix {
				values = append(values, `""`)
			}
			if m.f == fieldRequestID {
				values = append(values, `"\u0000"`, `"\n"`)
			}
		}
		for _, v := range values {
			a := post(object(with(good, i, v)))
			if a.status >= 500 || a.code() == "invalid_argument" && a.field() == m.name && path != api.PathRaftTransfer && path != api.PathBackupRead {
				t.Errorf("%s with %s %.100s: %d %s", path, m.name, v, a.status, a.body)
			}
		}
	}
}

// TestFieldSamples: every field has a sample.
func TestFieldSamples(t *testing.T) {
	for f, sample := range fieldSample {
		if sample == "" {
			t.Errorf("field %q has none", fieldNames[f])
		}
	}
}
