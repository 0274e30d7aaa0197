package crowd

import (
	"fmt"
	"strings"
	"time"

	"example.com/mq/api"
)

// kind is one way to be a nuisance.
type kind struct {
	name string
	act  func(m *member)
}

// post is the header of a request with a body of n bytes.
func post(path string, n int, more ...string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n%s\r\n", path, n, strings.Join(more, ""))
}

func request(path, body string) string { return post(path, len(body)) + body }

// all asks for as much as one answer can hold, of the topic that has it.
func (m *member) all() string {
	return request(api.PathFetch, fmt.Sprintf(`{"topic":%q,"offset":0,"limit":1000}`, m.Topic))
}

// poll waits for a record that does not come.
func (m *member) poll() string {
	return request(api.PathGroupsFetch, fmt.Sprintf(`{"topic":%q,"group":"g","wait_ms":20000}`, m.Quiet))
}

// readers ask, and do not take the answer.
var readers = []kind{
	{"reads 1 byte/s", func(m *member) {
		if m.write(m.all()) {
			m.sip()
		}
	}},
	{"reads nothing", func(m *member) {
		if m.write(m.all()) {
			m.stare()
		}
	}},
	{"pipelines", func(m *member) {
		if m.write(strings.Repeat(m.all(), 20)) {
			m.stare()
		}
	}},
	{"polls", func(m *member) {
		for m.write(m.poll()) && m.sleep(21*time.Second) {
		}
	}},
	{"small pipeline", func(m *member) {
		if m.write(strings.Repeat(m.poll()+request(api.PathTopicsList, "{}"), 30)) {
			m.stare()
		}
	}},
}

const (
	large  = api.BodyMax - 1<<20
	medium = 64 << 10
	opened = `{"topic":"crowd","value":"`
)

// writers begin a request, and do not end it.
var writers = []kind{
	{"header byte by byte", func(m *member) {
		m.drip("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nX-Long: "+strings.Repeat("x", 200), 1)
	}},
	{"says nothing", func(m *member) { m.stare() }},
	{"small body byte by byte", func(m *member) {
		if m.write(post(api.PathPublish, 4000) + opened) {
			m.drip("A", 4000)
		}
	}},
	{"medium body byte by byte", func(m *member) {
		if m.write(post(api.PathPublish, medium) + opened + strings.Repeat("A", 9<<10)) {
			m.drip("A", medium)
		}
	}},
	{"large body that stalls", func(m *member) {
		if m.write(post(api.PathPublishBatch, large) + opened + strings.Repeat("A", 9<<10)) {
			m.drip("A", large)
		}
	}},
	{"large body that was not begun", func(m *member) {
		if m.write(post(api.PathPublishBatch, large)) {
			m.drip("{", 1000)
		}
	}},
	{"chunks byte by byte", func(m *member) {
		if m.write("POST /v1/publish-batch HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" +
			fmt.Sprintf("%x\r\n%s\r\n", 20<<10, strings.Repeat(" ", 20<<10))) {
			m.drip("1\r\n \r\n", 1000)
		}
	}},
	{"extends chunks", func(m *member) {
		if m.write("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;") {
			m.drip("x", 100_000)
		}
	}},
	{"expects 100", func(m *member) {
		if m.write(post(api.PathPublish, medium, "Expect: 100-continue\r\n")) {
			m.drip("A", 1000)
		}
	}},
	{"announces too much", func(m *member) {
		if m.write(post(api.PathPublish, 100<<30) + opened) {
			m.drip("A", 1000)
		}
	}},
	{"sends too much in chunks", func(m *member) {
		if !m.write("POST /v1/publish HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n") {
			return
		}
		chunk := fmt.Sprintf("%x\r\n%s\r\n", 16<<10, strings.Repeat(" ", 16<<10))
		done := make(chan struct{})
		go func() { // ends with the connection
			defer close(done)
			m.readStatus()
		}()
		for m.write(chunk) && m.sleep(beat/4) { // 64 KiB a second: half of what a client must send at least
		}
		m.conn.SetReadDeadline(time.Unix(1, 0))
		<-done
	}},
}
