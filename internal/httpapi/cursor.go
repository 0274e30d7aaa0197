package httpapi

import (
	"bytes"
	"encoding/base64"
	"unicode/utf8"

	"example.com/mq/api"
)

// A cursor says where the next page of a list begins: behind the last one of the page before, which it names. So it needs
// no memory of the server, serves on any node and for ever, and what appears or goes meanwhile does no harm. To clients
// it is opaque. It is the unpadded base64url of a letter for what is listed, and the names, with a zero byte between them,
// which no name has.

// What a cursor goes through.
const (
	cursorTopics byte = 't' // one name: the topic
	cursorGroups byte = 'g' // two: the group and the topic
)

var cursorBase64 = base64.RawURLEncoding.Strict()

// appendCursor appends the cursor that names the last one of a page.
func appendCursor(dst []byte, kind byte, names ...string) []byte {
	var plain [3 + 2*api.NameMax]byte
	b := append(plain[:0], kind)
	for i, name := range names {
		if i > 0 {
			b = append(b, 0)
		}
		b = append(b, name...)
	}
	return cursorBase64.AppendEncode(dst, b)
}

// parseCursor returns the names of a cursor of that kind, or nil if it is none.
func parseCursor(cursor []byte, kind byte, names int) [][]byte {
	if len(cursor) > base64.RawURLEncoding.EncodedLen(3+2*api.NameMax) || bytes.ContainsAny(cursor, "\r\n") {
		return nil
	}
	b, err := cursorBase64.AppendDecode(nil, cursor)
	if err != nil || len(b) == 0 || b[0] != kind {
		return nil
	}
	list := bytes.Split(b[1:], []byte{0})
	if len(list) != names {
		return nil
	}
	for _, name := range list {
		if len(name) == 0 || len(name) > api.NameMax || !utf8.Valid(name) || hasControl(name) {
			return nil
		}
	}
	return list
}
