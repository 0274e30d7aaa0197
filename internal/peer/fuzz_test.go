package peer

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// FuzzAnswer: no answer makes readAnswer take what belongs to the protocol, or say the token.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: mq-replication/1\r\n\r\nrest",
		"HTTP/1.1 503 x\r\nContent-Length: 40\r\n\r\n" + `{"code":"` + token + `","message":"` + token + `"}`,
		"HTTP/1.1 401 x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
		"HTTP/1.0 200 " + token + "\r\n" + token + ": x\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		err := readAnswer(r, replication.Name, token)
		if end := bytes.Index(data, []byte("\r\n\r\n")) + 4; err == nil && r.Len() != len(data)-end {
			t.Errorf("%d bytes are left of %d, the header has %d", r.Len(), len(data), end)
		}
		if err == nil {
			return
		}
		if text := err.Error(); strings.Contains(text, token) || len(text) > 2*textMax+200 {
			t.Errorf("%q", text)
		}
		var refused *RefusedError
		if errors.As(err, &refused) && refused.Status == 101 {
			t.Error("101 is no refusal")
		}
	})
}
