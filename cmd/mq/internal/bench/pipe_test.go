package bench

import (
	"bytes"
	"net"
	"testing"
)

// pipe connects a lean connection to a server that reads a request of one write and answers always the same,
// without allocating.
func pipe(t *testing.T) (server net.Listener, c *conn) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { // ended by the end of the connection
		s, err := server.Accept()
		if err != nil {
			return
		}
		defer s.Close()
		answer := []byte("HTTP/1.1 200 OK\r\nServer: mqd\r\nContent-Type: application/json\r\nContent-Length: 13\r\n\r\n" + `{"offset":12}`)
		buf := make([]byte, 4096)
		for have := 0; ; {
			n, err := s.Read(buf[have:])
			if err != nil {
				return
			}
			if have += n; !bytes.HasSuffix(buf[:have], []byte("}")) {
				continue
			}
			have = 0
			if _, err := s.Write(answer); err != nil {
				return
			}
		}
	}()
	c, err = dial(t.Context(), &Target{Nodes: []string{"http://" + server.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.close)
	return server, c
}
