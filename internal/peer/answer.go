package peer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// Limits of an answer, in bytes.
const (
	headMax = 8 << 10 // status line and header
	bodyMax = 4 << 10 // read of a body that says why not
	textMax = 300     // of a message in an error
)

// RefusedError is an answer other than 101. Code and Message are the node's, empty if it was not a node of ours
// that answered; they never hold the token that was sent.
type RefusedError struct {
	Status  int
	Code    string
	Message string
}

func (e *RefusedError) Error() string {
	s := fmt.Sprintf("refused with status %d", e.Status)
	if e.Code != "" {
		s += fmt.Sprintf(" (%s): %s", e.Code, e.Message)
	}
	return s
}

// Errors of answers. They do not quote what was received: whoever answers may send our token back.
var (
	errHeadTooLarge = errors.New("the header of the answer is longer than 8 KiB")
	errNotHTTP      = errors.New("the answer is not HTTP")
	errNotSwitched  = errors.New("the answer is 101, but not to the protocol that was asked for")
)

// readAnswer returns nil when the answer is 101 to the protocol. It takes not one byte more from r then.
func readAnswer(r io.Reader, protocol, token string) error {
	head, err := readHead(r)
	if err != nil {
		return err
	}
	// The head is complete, and only an answer that is no 101 has a body that could be read on from r.
	body := io.LimitReader(r, bodyMax)
	a, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(head), body)), nil)
	if err != nil {
		return errNotHTTP
	}
	if a.StatusCode != http.StatusSwitchingProtocols {
		return refused(a, token)
	}
	if !hasElement(a.Header, "Connection", "Upgrade") || !hasElement(a.Header, "Upgrade", protocol) {
		return errNotSwitched
	}
	return nil
}

// readHead reads up to and including the empty line that ends a header: byte by byte, because what follows it
// belongs to the protocol. That costs some hundred system calls per connection.
func readHead(r io.Reader) ([]byte, error) {
	var one [1]byte
	var head []byte
	for !bytes.HasSuffix(head, []byte("\r\n\r\n")) {
		if len(head) == headMax {
			return nil, errHeadTooLarge
		}
		if _, err := io.ReadFull(r, one[:]); err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		head = append(head, one[0])
		if len(head) <= len(httpStart) && head[len(head)-1] != httpStart[len(head)-1] {
			return nil, errNotHTTP
		}
	}
	return head, nil
}

// httpStart is what every answer begins with.
const httpStart = "HTTP/1."

// hasElement reports whether a header that is a list has the element, in any case.
func hasElement(h http.Header, name, want string) bool {
	for _, value := range h.Values(name) {
		for element := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.Trim(element, " \t"), want) {
				return true
			}
		}
	}
	return false
}

// refused makes an error of an answer. If its body does not arrive, or is none of ours, the status must do.
func refused(a *http.Response, token string) error {
	e := &RefusedError{Status: a.StatusCode}
	text, err := io.ReadAll(io.LimitReader(a.Body, bodyMax))
	var said struct{ Code, Message string }
	if err != nil || json.Unmarshal(text, &said) != nil {
		return e
	}
	e.Code, e.Message = plainText(said.Code, token), plainText(said.Message, token)
	return e
}

// plainText makes what a stranger may have written fit for a log: one line, not long, without our token.
func plainText(s, token string) string {
	s = strings.ReplaceAll(s, token, "[token]")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
	if len(s) > textMax {
		s = strings.ToValidUTF8(s[:textMax], "") + "..."
	}
	return s
}
