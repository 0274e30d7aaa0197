package httpapi

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"

	"example.com/mq/api"
	"example.com/mq/internal/fact"
	asm "github.com/segmentio/asm/base64"
)

// The fast decoder takes requests as every common client writes them, and allocates nothing. It gives up at
// the first thing out of the ordinary (a string with an escape, a number that is not a plain integer, any
// mistake) without saying what: decodeStrict then decides. So it only has to be right about what it accepts,
// and a test holds it to that: whatever it accepts, the strict decoder accepts with the same result.

// arenaSlack is room beyond the decoded bytes, because vector code writes whole vectors.
const arenaSlack = 64

// scanner is a position in a body.
type scanner struct {
	b []byte
	i int
}

// space skips white space.
func (s *scanner) space() {
	for s.i < len(s.b) {
		switch s.b[s.i] {
		case ' ', '\n', '\r', '\t':
			s.i++
		default:
			return
		}
	}
}

// take skips white space and then the byte c, if it is next.
func (s *scanner) take(c byte) bool {
	if s.i < len(s.b) && s.b[s.i] == c { // most clients send no white space
		s.i++
		return true
	}
	s.space()
	if s.i < len(s.b) && s.b[s.i] == c {
		s.i++
		return true
	}
	return false
}

// text returns what is between two quotes. Whoever uses it must refuse backslashes and control characters.
func (s *scanner) text() ([]byte, bool) {
	if !s.take('"') {
		return nil, false
	}
	n := bytes.IndexByte(s.b[s.i:], '"')
	if n < 0 {
		return nil, false
	}
	t := s.b[s.i : s.i+n]
	s.i += n + 1
	return t, true
}

// name returns a string of 1 to api.NameMax bytes. Only a request id may hold control characters, and those
// must be escaped, so that this never sees them.
func (s *scanner) name() ([]byte, bool) {
	t, ok := s.text()
	if !ok || len(t) == 0 || len(t) > api.NameMax {
		return nil, false
	}
	ascii := true
	for _, c := range t {
		if c < ' ' || c == '\\' || c == 0x7f {
			return nil, false
		}
		ascii = ascii && c < utf8.RuneSelf
	}
	if !ascii && (!utf8.Valid(t) || hasControl(t)) {
		return nil, false
	}
	return t, true
}

// number returns a plain integer of at most 16 digits.
func (s *scanner) number() (uint64, bool) {
	s.space()
	start, n := s.i, uint64(0)
	for s.i < len(s.b) && s.b[s.i]-'0' <= 9 {
		n = n*10 + uint64(s.b[s.i]-'0')
		s.i++
	}
	digits := s.i - start
	if digits == 0 || digits > 16 || s.b[start] == '0' && digits > 1 {
		return 0, false
	}
	return n, true // what follows it is checked by whoever goes on
}

// decodeFast decodes body into req. Keys and values go to arena, which has the room. It reports whether it
// has decoded everything; if not, req holds anything.
func decodeFast(body []byte, sh *shape, arena []byte, req *request) bool {
	s := scanner{b: body}
	req.limit, req.to = api.LimitDefault, transferAny
	if len(body) == 0 {
		return sh.emptyBody
	}
	seen, _, ok := s.object(sh, arena, req, &req.store[0])
	if !ok {
		return false
	}
	req.given = seen
	if seen.has(fieldValue) {
		req.records = req.store[:1]
	}
	s.space()
	return s.i == len(body)
}

// object decodes an object of the given shape. Names and numbers go to req, key and value to rec.
func (s *scanner) object(sh *shape, arena []byte, req *request, rec *fact.Record) (seen fields, rest []byte, ok bool) {
	if !s.take('{') {
		return 0, arena, false
	}
	if s.take('}') {
		return 0, arena, sh.required|sh.oneOf == 0
	}
	rec.Key, rec.Value = nil, nil
	for {
		t, ok := s.text()
		if !ok {
			return 0, arena, false
		}
		f := fieldOf(t)
		if f == fieldCount || !sh.allowed.has(f) || seen.has(f) || !s.take(':') {
			return 0, arena, false
		}
		seen |= 1 << f
		switch f {
		case fieldTopic, fieldGroup, fieldRequestID:
			if *req.name(f), ok = s.name(); !ok {
				return 0, arena, false
			}
		case fieldKey:
			if rec.Key, arena, ok = s.base64(arena); !ok {
				return 0, arena, false
			}
		case fieldValue:
			if rec.Value, arena, ok = s.base64(arena); !ok {
				return 0, arena, false
			}
		case fieldMessages:
			if arena, ok = s.messages(arena, req); !ok {
				return 0, arena, false
			}
		default:
			n, ok := s.number()
			dst, low, high := req.number(f)
			if !ok || n < low || n > high {
				return 0, arena, false
			}
			*dst = n
		}
		if s.take(',') {
			continue
		}
		if !s.take('}') {
			return 0, arena, false
		}
		if one := seen & sh.oneOf; sh.oneOf != 0 && (one == 0 || one&(one-1) != 0) {
			return 0, arena, false
		}
		return seen, arena, seen&sh.required == sh.required && len(rec.Key)+len(rec.Value) <= api.MessageMax
	}
}

// messages decodes a list of 1 to api.BatchMax records into req.records.
func (s *scanner) messages(arena []byte, req *request) (rest []byte, ok bool) {
	if !s.take('[') {
		return arena, false
	}
	for n := 0; n < api.BatchMax; n++ {
		if _, arena, ok = s.object(&shapeMessage, arena, req, &req.store[n]); !ok {
			return arena, false
		}
		if s.take(',') {
			continue
		}
		req.records = req.store[:n+1]
		return arena, s.take(']')
	}
	return arena, false
}

// fieldOf returns the field of a name, or fieldCount for those that this decoder does not know.
func fieldOf(name []byte) field {
	switch string(name) {
	case "topic":
		return fieldTopic
	case "group":
		return fieldGroup
	case "request_id":
		return fieldRequestID
	case "key":
		return fieldKey
	case "value":
		return fieldValue
	case "messages":
		return fieldMessages
	case "offset":
		return fieldOffset
	case "from_ms":
		return fieldFromMS
	case "next_offset":
		return fieldNextOffset
	case "start_offset":
		return fieldStartOffset
	case "limit":
		return fieldLimit
	case "wait_ms":
		return fieldWaitMS
	case "to":
		return fieldTo
	}
	return fieldCount
}

// decodeVectorMin is the length from which the vector code is faster.
const decodeVectorMin = 64

var strictBase64 = base64.StdEncoding.Strict()
var vectorBase64 = asm.StdEncoding.Strict()

// base64 decodes a string of standard base64 to the end of arena.
func (s *scanner) base64(arena []byte) (value, rest []byte, ok bool) {
	t, ok := s.text()
	if !ok {
		return nil, arena, false
	}
	dst := arena[len(arena):cap(arena)]
	n, ok := decodeBase64(dst, t)
	if !ok {
		n, ok = decodeSlashed(dst, t)
	}
	if !ok || n == 0 {
		return nil, arena, ok
	}
	return dst[:n:n], arena[:len(arena)+n], true
}

// decodeBase64 decodes t to the start of dst and returns how many bytes that are.
func decodeBase64(dst, t []byte) (n int, ok bool) {
	if len(t) == 0 {
		return 0, true
	}
	if len(t)%4 != 0 {
		return 0, false
	}
	want := len(t) / 4 * 3
	if t[len(t)-1] == '=' {
		want--
		if t[len(t)-2] == '=' {
			want--
		}
	}
	var err error
	if len(t) < decodeVectorMin {
		n, err = strictBase64.Decode(dst, t)
	} else {
		n, err = vectorBase64.Decode(dst, t)
	}
	// Both decoders skip line breaks. A line break is not legal in a JSON string, and shows as a result that
	// is too short.
	return n, err == nil && n == want
}

// decodeSlashed is decodeBase64 for text in which slashes are escaped, as PHP writes all of its JSON.
func decodeSlashed(dst, t []byte) (n int, ok bool) {
	if len(t) > textMax || bytes.IndexByte(t, '\\') < 0 {
		return 0, false
	}
	plain := getBuffer(len(t))
	defer func() { putBuffer(plain) }()
	for {
		i := bytes.IndexByte(t, '\\')
		if i < 0 {
			plain = append(plain, t...)
			return decodeBase64(dst, plain)
		}
		if i+1 == len(t) || t[i+1] != '/' {
			return 0, false
		}
		plain = append(plain, t[:i]...)
		t = t[i+1:] // goes on with the slash
	}
}
