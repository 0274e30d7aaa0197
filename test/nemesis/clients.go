package nemesis

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
)

// head returns the head of a request, up to the empty line.
func (t Target) head(path string, lines ...string) string {
	text := "POST " + path + " HTTP/1.1\r\nHost: " + t.Address + "\r\nContent-Type: application/json\r\n"
	if t.Token != "" {
		text += "Authorization: Bearer " + t.Token + "\r\n"
	}
	for _, l := range lines {
		text += l + "\r\n"
	}
	return text
}

// request returns a whole request.
func (t Target) request(path, body string) string {
	return t.head(path, fmt.Sprintf("Content-Length: %d", len(body))) + "\r\n" + body
}

func (t Target) topic() string {
	if t.Topic == "" {
		return "crowd"
	}
	return t.Topic
}

// fetch asks for all records from the first on.
func (t Target) fetch() string {
	return t.request("/v1/fetch", fmt.Sprintf(`{"topic":%q,"offset":0,"limit":1000}`, t.topic()))
}

// poll waits for the next record.
func (t Target) poll() string {
	return t.request("/v1/fetch", fmt.Sprintf(`{"topic":%q,"from_ms":253402300799999,"limit":1,"wait_ms":20000}`, t.topic()))
}

func (t Target) publish() string {
	return t.request("/v1/publish", fmt.Sprintf(`{"topic":%q,"value":"Y3Jvd2Q="}`, t.topic()))
}

func always(text string) func(int) []byte { return func(int) []byte { return []byte(text) } }

// SlowReaders ask for as much as there is, and read one byte of the answer at each Pace.
func SlowReaders(ctx context.Context, t Target, n int) (*Crowd, error) {
	return gather(ctx, t, n, script{first: always(strings.Repeat(t.fetch(), 4)), read: readSlow})
}

// PollReaders wait for the next record, each in a long poll, with one more request waiting behind it all the time.
func PollReaders(ctx context.Context, t Target, n int) (*Crowd, error) {
	poll := t.poll()
	return gather(ctx, t, n, script{first: always(poll + poll), drip: func(_, k int) []byte {
		if k%30 != 29 {
			return nil
		}
		return []byte(poll)
	}})
}

// Pipeliners send request after request, as fast as the server takes them, and never read an answer.
func Pipeliners(ctx context.Context, t Target, n int) (*Crowd, error) {
	many := []byte(strings.Repeat(t.fetch(), 16))
	return gather(ctx, t, n, script{first: always(t.fetch()), drip: func(int, int) []byte { return many }, fast: true, read: readNone})
}

// SlowHeaders send a head that never ends, one byte at each Pace.
func SlowHeaders(ctx context.Context, t Target, n int) (*Crowd, error) {
	head := t.head("/v1/publish") + "X-Slow: "
	return gather(ctx, t, n, script{first: always(""), drip: func(_, k int) []byte {
		if k < len(head) {
			return []byte{head[k]}
		}
		return []byte("x")
	}})
}

// SlowBodies send the head of a publish of 1 MiB at once, and its body one byte at each Pace.
func SlowBodies(ctx context.Context, t Target, n int) (*Crowd, error) {
	body := fmt.Sprintf(`{"topic":%q,"value":"`, t.topic())
	return gather(ctx, t, n, script{first: always(t.head("/v1/publish", "Content-Length: 1048576") + "\r\n"), drip: func(_, k int) []byte {
		if k < len(body) {
			return []byte{body[k]}
		}
		return []byte("A")
	}})
}

// SlowWriters are SlowHeaders and SlowBodies, in turn, and bodies that end before their length is reached.
func SlowWriters(ctx context.Context, t Target, n int) (*Crowd, error) {
	head := t.head("/v1/publish") + "X-Slow: "
	declared := t.head("/v1/publish", "Content-Length: 1048576") + "\r\n"
	body := fmt.Sprintf(`{"topic":%q,"value":"`, t.topic())
	return gather(ctx, t, n, script{first: func(i int) []byte {
		switch i % 3 {
		case 0:
			return nil
		case 1:
			return []byte(declared)
		}
		return []byte(declared + body + strings.Repeat("A", 64<<10))
	}, drip: func(i, k int) []byte {
		switch {
		case i%3 == 0 && k < len(head):
			return []byte{head[k]}
		case i%3 == 1 && k < len(body):
			return []byte{body[k]}
		case i%3 == 2:
			return nil
		}
		return []byte("A")
	}})
}

var block = bytes.Repeat([]byte("A"), 32<<10)

// OversizeBodies send a body that is far longer than any that is taken, and says so.
func OversizeBodies(ctx context.Context, t Target, n int) (*Crowd, error) {
	head := t.head("/v1/publish", "Content-Length: 68719476736") + "\r\n" + fmt.Sprintf(`{"topic":%q,"value":"`, t.topic())
	return gather(ctx, t, n, script{first: always(head), drip: func(int, int) []byte { return block }, fast: true})
}

// OversizeChunks send a body that never ends, in chunks.
func OversizeChunks(ctx context.Context, t Target, n int) (*Crowd, error) {
	begin := fmt.Sprintf(`{"topic":%q,"value":"`, t.topic())
	head := t.head("/v1/publish", "Transfer-Encoding: chunked") + "\r\n" + fmt.Sprintf("%x\r\n%s\r\n", len(begin), begin)
	chunk := []byte(fmt.Sprintf("%x\r\n%s\r\n", len(block), block))
	return gather(ctx, t, n, script{first: always(head), drip: func(int, int) []byte { return chunk }, fast: true})
}

// TinyChunks send a body in chunks of one byte, each with a long extension, one at each Pace.
func TinyChunks(ctx context.Context, t Target, n int) (*Crowd, error) {
	chunk := []byte("1;" + strings.Repeat("x", 1000) + "\r\n \r\n")
	return gather(ctx, t, n, script{first: always(t.head("/v1/publish", "Transfer-Encoding: chunked") + "\r\n"), drip: func(int, int) []byte { return chunk }})
}

// ExpectWithoutBody ask whether they may send a body, and never do.
func ExpectWithoutBody(ctx context.Context, t Target, n int) (*Crowd, error) {
	return gather(ctx, t, n, script{first: always(t.head("/v1/publish", "Content-Length: 1000", "Expect: 100-continue") + "\r\n")})
}

// Flood opens n connections and says nothing on them.
func Flood(ctx context.Context, t Target, n int) (*Crowd, error) {
	return gather(ctx, t, n, script{first: always("")})
}

// HalfOpen send half a head, and are silent from then on.
func HalfOpen(ctx context.Context, t Target, n int) (*Crowd, error) {
	text := t.publish()
	return gather(ctx, t, n, script{first: always(text[:40])})
}

// HalfClosed send a long poll, close their side, and wait for the answer.
func HalfClosed(ctx context.Context, t Target, n int) (*Crowd, error) {
	return gather(ctx, t, n, script{first: always(t.poll()), half: true})
}

// ReconnectStorm is n clients each of which connects, asks for something, and goes, again and again: some when the
// answer is there, and one in three, drawn by the dice, by a reset before it.
func ReconnectStorm(ctx context.Context, t Target, n int, dice *rand.Rand) (*Crowd, error) {
	seed := dice.Uint64()
	return gather(ctx, t, n, script{first: always(t.fetch()), leave: func(i, k int) departure {
		if rand.New(rand.NewPCG(seed+uint64(i), uint64(k))).IntN(3) == 0 {
			return atOnce
		}
		return afterReply
	}})
}

// Garbage is clients that speak TLS, or nothing known, to a plain port.
func Garbage(ctx context.Context, t Target, n int, dice *rand.Rand) (*Crowd, error) {
	texts := make([][]byte, n)
	for i := range texts {
		texts[i] = make([]byte, 1+dice.IntN(2048))
		for j := range texts[i] {
			texts[i][j] = byte(dice.Uint32())
		}
		if i%2 == 0 { // the beginning of a TLS handshake, of which the rest is noise
			texts[i] = append([]byte{22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3}, texts[i]...)
		}
	}
	return gather(ctx, t, n, script{first: func(i int) []byte { return texts[i] }})
}

// malformed are beginnings of requests that are no HTTP/1.1, or are two things at once.
var malformed = []string{
	"POST\r\n\r\n",
	"POST /v1/publish\r\n\r\n",
	"POST /v1/publish HTTP/9.9\r\nHost: a\r\n\r\n",
	"POST  /v1/publish  HTTP/1.1\r\nHost: a\r\n\r\n",
	"POST /v1/publish HTTP/1.1\nHost: a\n\n",
	"P\x00ST /v1/publish HTTP/1.1\r\nHost: a\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\nHost: b\r\nContent-Length: 0\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\nX y: 1\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\n folded: 1\r\n\r\n",
	"POST /v1/publish HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
	"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	"GET /" + strings.Repeat("a", 70_000) + " HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("a", 70_000) + "\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\n" + strings.Repeat("X: a\r\n", 10_000) + "\r\n",
}

// MalformedKinds is how many kinds of malformed requests there are.
func MalformedKinds() int { return len(malformed) }

// Malformed send requests that are none: client i sends the i-th kind, all over again after MalformedKinds.
func Malformed(ctx context.Context, t Target, n int) (*Crowd, error) {
	return gather(ctx, t, n, script{first: func(i int) []byte { return []byte(malformed[i%len(malformed)]) }})
}
