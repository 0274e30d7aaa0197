package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"example.com/mq/api"
	"example.com/mq/internal/fact"
	"github.com/go-json-experiment/json/jsontext"
)

// strictDecoder reads a body token by token and refuses whatever the contract does not have. It defines what
// a legal request is, and it finds the words when one is not.
type strictDecoder struct {
	d       *jsontext.Decoder
	req     *request
	arena   []byte // decoded keys and values go here while there is room
	scratch []byte // from a pool: the last string that had escapes
}

// textMax is longer than any legal string is as JSON: base64 of the largest record, all escaped. Longer ones
// are refused before they take memory.
const textMax = 2 + 6*((api.MessageMax+2)/3*4)

// decodeStrict decodes body into req, or says what is wrong with it.
// Keys and values go to arena where it has room.
func decodeStrict(body []byte, sh *shape, arena []byte, req *request) *apiError {
	// jsontext refuses invalid UTF-8 and lone surrogates. Repeated names are found here, to name the field.
	s := &strictDecoder{
		d:     jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true)),
		req:   req,
		arena: arena,
	}
	defer func() {
		if s.scratch != nil {
			putBuffer(s.scratch)
		}
	}()
	req.limit, req.to = api.LimitDefault, transferAny
	kind := s.d.PeekKind()
	if kind == 0 {
		if _, err := s.d.ReadToken(); err != io.EOF {
			return s.syntax("", err)
		}
		if sh.emptyBody {
			return nil
		}
		return invalid("", "the body is empty: send one JSON object")
	}
	if kind != '{' {
		return invalid("", "the body must be one JSON object, not %s", kindName(kind))
	}
	seen, err := s.object("", sh, &req.store[0])
	if err != nil {
		return err
	}
	if seen.has(fieldValue) {
		req.records = req.store[:1]
	}
	if _, err := s.d.ReadToken(); err != io.EOF {
		if err != nil {
			return s.syntax("", err)
		}
		return invalid("", "something follows the JSON object: send one object only")
	}
	return nil
}

// object decodes an object of the given shape. Prefix is what the names of its fields begin with in errors.
func (s *strictDecoder) object(prefix string, sh *shape, rec *fact.Record) (seen fields, bad *apiError) {
	if _, err := s.d.ReadToken(); err != nil {
		return 0, s.syntax(strings.TrimSuffix(prefix, "."), err)
	}
	rec.Key, rec.Value = nil, nil
	for s.d.PeekKind() != '}' {
		raw, err := s.d.ReadValue()
		if err != nil {
			return 0, s.syntax(strings.TrimSuffix(prefix, "."), err)
		}
		name := objectName(raw)
		f := sh.field(name)
		full := prefix + clip(name)
		switch {
		case f == fieldCount:
			return 0, invalid(full, "there is no field %q here; the fields are %s", full, sh.allowed)
		case seen.has(f):
			return 0, invalid(full, "field %q is repeated", full)
		}
		seen |= 1 << f
		if prefix == "" {
			s.req.given = seen // at once, so that reset knows what may be set, whatever comes
		}
		if bad := s.field(full, f, rec); bad != nil {
			return 0, bad
		}
	}
	if _, err := s.d.ReadToken(); err != nil {
		return 0, s.syntax(strings.TrimSuffix(prefix, "."), err)
	}
	for f := range fieldCount {
		if sh.required.has(f) && !seen.has(f) {
			return 0, invalid(prefix+fieldNames[f], "field %q is required", prefix+fieldNames[f])
		}
	}
	if bad := sh.checkOneOf(prefix, seen); bad != nil {
		return 0, bad
	}
	if len(rec.Key)+len(rec.Value) > api.MessageMax {
		return 0, &apiError{status: 413, code: api.CodeTooLarge, field: prefix + "value",
			message: fmt.Sprintf("key and value of a record must not exceed %d bytes together, and have %d",
				api.MessageMax, len(rec.Key)+len(rec.Value))}
	}
	return seen, nil
}

// field returns the field of a name in this shape, or fieldCount.
func (sh *shape) field(name string) field {
	for f := range fieldCount {
		if sh.allowed.has(f) && fieldNames[f] == name {
			return f
		}
	}
	return fieldCount
}

// checkOneOf checks that a request has exactly one of the fields of which it must. The answer names the first of them when
// it has none, else the second that it has.
func (sh *shape) checkOneOf(prefix string, seen fields) *apiError {
	given := seen & sh.oneOf
	if sh.oneOf == 0 || given.count() == 1 {
		return nil
	}
	before := ""
	for f := range fieldCount {
		full := prefix + fieldNames[f]
		switch {
		case given == 0 && sh.oneOf.has(f):
			return invalid(full, "field %q is required, or another one of %s", full, sh.oneOf)
		case given.has(f) && before != "":
			return invalid(full, "fields %q and %q exclude each other: send exactly one of %s", before, full, sh.oneOf)
		case given.has(f):
			before = full
		}
	}
	return nil
}

// objectName returns the name of a field as text, or its beginning if it is longer than any that we know.
func objectName(raw jsontext.Value) string {
	if len(raw) > 2+6*clipMax {
		return string(raw[1 : 2+clipMax])
	}
	t, _ := jsontext.AppendUnquote(nil, raw) // the decoder has checked it
	return string(t)
}

// field decodes the value of f.
func (s *strictDecoder) field(full string, f field, rec *fact.Record) (bad *apiError) {
	switch f {
	case fieldTopic, fieldGroup, fieldRequestID, fieldPrefix, fieldCursor, fieldBackup:
		*s.req.name(f), bad = s.name(full, f)
	case fieldSeekTo:
		*s.req.name(f), bad = s.word(full, api.SeekStart, api.SeekEnd)
	case fieldReset, fieldDryRun:
		*s.req.flag(f), bad = s.boolean(full)
	case fieldKey:
		rec.Key, bad = s.base64(full)
	case fieldValue:
		rec.Value, bad = s.base64(full)
	case fieldMessages:
		bad = s.messages(full)
	default:
		bad = s.number(full, f)
	}
	return bad
}

// text reads a string of at most max bytes as JSON; tooLong is the answer to a longer one. The result is valid
// until the next read.
func (s *strictDecoder) text(full string, max int, tooLong func() *apiError) ([]byte, *apiError) {
	if k := s.d.PeekKind(); k != '"' && k != 0 {
		return nil, invalid(full, "field %q must be a string, not %s", full, kindName(k))
	}
	raw, err := s.d.ReadValue()
	if err != nil {
		return nil, s.syntax(full, err)
	}
	if len(raw) > max {
		return nil, tooLong()
	}
	if len(raw) > 1 && bytes.IndexByte(raw, '\\') < 0 {
		return raw[1 : len(raw)-1], nil
	}
	if cap(s.scratch) < len(raw) {
		if s.scratch != nil {
			putBuffer(s.scratch)
		}
		s.scratch = getBuffer(len(raw))
	}
	if s.scratch, err = jsontext.AppendUnquote(s.scratch[:0], raw); err != nil {
		return nil, s.syntax(full, err)
	}
	return s.scratch, nil
}

func (s *strictDecoder) name(full string, f field) ([]byte, *apiError) {
	most := api.NameMax
	if f == fieldCursor {
		most = api.CursorMax
	}
	t, bad := s.text(full, 2+6*most, func() *apiError {
		return invalid(full, "field %q must not exceed %d bytes", full, most)
	})
	switch {
	case bad != nil:
		return nil, bad
	case len(t) == 0 && f != fieldPrefix:
		if f == fieldRequestID || f == fieldCursor {
			return nil, invalid(full, "field %q must not be empty; leave it out instead", full)
		}
		return nil, invalid(full, "field %q must not be empty", full)
	case len(t) > most:
		return nil, invalid(full, "field %q must not exceed %d bytes, and has %d", full, most, len(t))
	case f != fieldRequestID && hasControl(t):
		return nil, invalid(full, "field %q must not have control characters", full)
	}
	return bytes.Clone(t), nil
}

// word reads one of two words.
func (s *strictDecoder) word(full, one, other string) ([]byte, *apiError) {
	wrong := func() *apiError { return invalid(full, "field %q must be %q or %q", full, one, other) }
	t, bad := s.text(full, 2+6*max(len(one), len(other)), wrong)
	if bad != nil {
		return nil, bad
	}
	if string(t) != one && string(t) != other {
		return nil, wrong()
	}
	return bytes.Clone(t), nil
}

func (s *strictDecoder) boolean(full string) (bool, *apiError) {
	if k := s.d.PeekKind(); k != 't' && k != 'f' && k != 0 {
		return false, invalid(full, "field %q must be true or false, not %s", full, kindName(k))
	}
	token, err := s.d.ReadToken()
	if err != nil {
		return false, s.syntax(full, err)
	}
	return token.Bool(), nil
}

func (s *strictDecoder) base64(full string) ([]byte, *apiError) {
	t, bad := s.text(full, textMax, func() *apiError {
		return &apiError{status: 413, code: api.CodeTooLarge, field: full,
			message: fmt.Sprintf("key and value of a record must not exceed %d bytes together", api.MessageMax)}
	})
	if bad != nil {
		return nil, bad
	}
	if len(t) == 0 {
		return nil, nil
	}
	if bytes.ContainsAny(t, "\r\n") { // the standard library skips them
		return nil, invalid(full, "field %q must be base64 without line breaks", full)
	}
	dst := s.arena[len(s.arena):cap(s.arena)]
	if need := strictBase64.DecodedLen(len(t)); len(dst) < need {
		dst = make([]byte, need)
	}
	n, err := strictBase64.Decode(dst, t)
	if err != nil {
		return nil, invalid(full, "field %q must be standard base64 (A-Z a-z 0-9 + /) with padding: %v", full, err)
	}
	if len(s.arena)+n <= cap(s.arena) {
		s.arena = s.arena[:len(s.arena)+n] // dst may be elsewhere: then the room is left unused
	}
	return dst[:n:n], nil
}

func (s *strictDecoder) number(full string, f field) *apiError {
	kind := s.d.PeekKind()
	switch {
	case kind == '0', kind == 0, kind == 'n' && f.nullable():
	case f.nullable():
		return invalid(full, "field %q must be a number, or null for no limit, not %s", full, kindName(kind))
	default:
		return invalid(full, "field %q must be a number, not %s", full, kindName(kind))
	}
	raw, err := s.d.ReadValue()
	if err != nil {
		return s.syntax(full, err)
	}
	dst, low, high := s.req.number(f)
	if kind == 'n' {
		*dst = 0
		return nil
	}
	n := uint64(0)
	for _, c := range raw {
		switch {
		case c < '0' || c > '9':
			return invalid(full, "field %q must be a whole number without sign, fraction and exponent, from %d to %d",
				full, low, high)
		case n <= high:
			n = n*10 + uint64(c-'0') // high is far below what fits, so one digit more does too
		}
	}
	if n < low || n > high {
		return invalid(full, "field %q must be from %d to %d", full, low, high)
	}
	*dst = n
	return nil
}

func (s *strictDecoder) messages(full string) *apiError {
	if k := s.d.PeekKind(); k != '[' && k != 0 {
		return invalid(full, "field %q must be an array, not %s", full, kindName(k))
	}
	if _, err := s.d.ReadToken(); err != nil {
		return s.syntax(full, err)
	}
	n := 0
	for ; s.d.PeekKind() != ']'; n++ {
		if n == api.BatchMax {
			return invalid(full, "field %q must not have more than %d elements", full, api.BatchMax)
		}
		element := fmt.Sprintf("%s[%d]", full, n)
		if k := s.d.PeekKind(); k != '{' && k != 0 {
			return invalid(element, "field %q must be an object, not %s", element, kindName(k))
		}
		if _, bad := s.object(element+".", &shapeMessage, &s.req.store[n]); bad != nil {
			return bad
		}
	}
	if _, err := s.d.ReadToken(); err != nil {
		return s.syntax(full, err)
	}
	if n == 0 {
		return invalid(full, "field %q must have at least one element", full)
	}
	s.req.records = s.req.store[:n]
	return nil
}

// syntax is the answer to text that is not JSON.
func (s *strictDecoder) syntax(full string, err error) *apiError {
	where := fmt.Sprintf("at byte %d", s.d.InputOffset())
	if full != "" {
		where = fmt.Sprintf("in field %q", full)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid(full, "the JSON ends too early, %s", where)
	}
	reason := "this is not JSON"
	var se *jsontext.SyntacticError
	if errors.As(err, &se) {
		reason = se.Err.Error()
	}
	return invalid(full, "the body must be one JSON object in UTF-8; %s: %s", where, reason)
}

// String lists the names of the set.
func (s fields) String() string {
	var names []string
	for f := range fieldCount {
		if s.has(f) {
			names = append(names, fieldNames[f])
		}
	}
	if names == nil {
		return "none"
	}
	return strings.Join(names, ", ")
}

// clipMax is how much an answer repeats of a name that a client made up.
const clipMax = 64

func clip(name string) string {
	if len(name) > clipMax {
		return strings.ToValidUTF8(name[:clipMax], "") + "…"
	}
	return name
}

func kindName(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "this"
}
