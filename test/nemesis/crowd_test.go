package nemesis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
)

// patience is how long anything may take that must happen in the end.
const patience = 30 * time.Second

// await waits until lacks returns nothing.
func await(t testing.TB, what string, lacks func() string) {
	t.Helper()
	deadline := time.Now().Add(patience)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		still := lacks()
		if still == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v: %s", what, patience, still)
		}
		<-poll.C
	}
}

// newNode returns a standalone mqd on a disk that runs nothing yet.
func newNode(t testing.TB, args ...string) *process.Node {
	t.Helper()
	return process.NewNode(t, process.Config{Binary: process.Binary(t), Data: filepath.Join(process.Dir(t), "data"), Args: args})
}

// crowds is every kind of crowd, with what a server must show that it really met this kind: what Counts must lack for that.
var crowds = []struct {
	name   string
	gather func(ctx context.Context, t Target, n int) (*Crowd, error)
	lacks  func(c Counts, n int64) bool
}{
	{"slow readers", SlowReaders, func(c Counts, n int64) bool { return c.Answers[200] < n || c.Received < 20*n }},
	{"readers that wait", PollReaders, func(c Counts, n int64) bool { return c.Alive < n || c.Sent < 600*n }},
	{"pipeliners", Pipeliners, func(c Counts, n int64) bool { return c.Closed+c.Reset < n && c.Sent < 100_000*n }},
	{"slow headers", SlowHeaders, func(c Counts, n int64) bool { return c.Sent < 100*n && c.Closed+c.Reset < n }},
	{"slow bodies", SlowBodies, func(c Counts, n int64) bool { return c.Sent < 200*n && c.Closed+c.Reset < n }},
	{"slow writers", SlowWriters, func(c Counts, n int64) bool { return c.Sent < 100*n && c.Closed+c.Reset < n }},
	{"oversize bodies", OversizeBodies, func(c Counts, n int64) bool { return c.Answers[413] < n || c.Closed+c.Reset < n }},
	// Few: where the size is not known, the memory for bodies may run out before the limit is reached.
	{"oversize chunks", func(ctx context.Context, t Target, n int) (*Crowd, error) {
		return OversizeChunks(ctx, t, min(n, 4))
	}, func(c Counts, n int64) bool { return c.Answers[413] == 0 || c.Closed+c.Reset < c.Opened }},
	{"tiny chunks", TinyChunks, func(c Counts, n int64) bool { return c.Sent < 3000*n && c.Closed+c.Reset < n }},
	{"expect without body", ExpectWithoutBody, func(c Counts, n int64) bool { return c.Answers[100]+c.Answers[417] < n }},
	{"a flood of connections", Flood, func(c Counts, n int64) bool { return c.Opened < n }},
	{"half open", HalfOpen, func(c Counts, n int64) bool { return c.Sent < 40*n }},
	{"half closed", HalfClosed, func(c Counts, n int64) bool { return c.Sent < 100*n }},
	{"a storm of reconnects", func(ctx context.Context, t Target, n int) (*Crowd, error) {
		return ReconnectStorm(ctx, t, n, rand.New(rand.NewPCG(1, 2)))
	}, func(c Counts, n int64) bool { return c.Opened < 20*n || c.Answers[200] < 5*n }},
	{"garbage", func(ctx context.Context, t Target, n int) (*Crowd, error) {
		return Garbage(ctx, t, n, rand.New(rand.NewPCG(1, 2)))
	}, func(c Counts, n int64) bool { return c.Opened < n || c.Sent == 0 }},
	{"malformed", Malformed, func(c Counts, n int64) bool { return c.Answers[400] < n/2 }},
}

// TestCrowds lets each kind of crowd meet a real mqd, one after another. Each must do what it is named for, mqd must
// answer others meanwhile, and no connection may be left afterwards.
func TestCrowds(t *testing.T) {
	p := newNode(t).StartReady()
	l := load.New(load.Config{Topics: []string{"crowd"}})
	client := load.NewClient(p.URL)
	defer client.Close()
	for range 30 {
		if a := l.Probe(t.Context(), client, 20_000); a.Outcome != load.Done {
			t.Fatal(a)
		}
	}
	all, err := p.Metrics()
	before := all["process_open_fds"]
	if err != nil || before == 0 {
		t.Fatal(all, err)
	}
	for _, c := range crowds {
		t.Run(c.name, func(t *testing.T) {
			const n = 20
			target := Target{Address: strings.TrimPrefix(p.URL, "http://"), Pace: 2 * time.Millisecond}
			crowd, err := c.gather(t.Context(), target, n)
			if err != nil {
				t.Fatal(err)
			}
			defer crowd.Stop()
			await(t, c.name, func() string {
				if counts := crowd.Counts(); c.lacks(counts, n) {
					return counts.String()
				}
				return ""
			})
			if a := l.Probe(t.Context(), client, 100); a.Outcome != load.Done {
				t.Errorf("a publish meanwhile: %v", a)
			}
			crowd.Stop()
			counts := crowd.Counts()
			if counts.Alive != 0 || counts.Opened == 0 || counts.Answers[500] > 0 {
				t.Errorf("after the end: %v", counts)
			}
			t.Log(counts)
		})
	}
	// Long polls see that nobody waits for them any more when they have something to say.
	if a := l.Probe(t.Context(), client, 100); a.Outcome != load.Done {
		t.Error(a)
	}
	await(t, "the connections end", func() string {
		// Beside those that were open before: the one that asks.
		all, err := p.Metrics()
		if open := all["process_open_fds"]; err != nil || open > before+1 {
			return fmt.Sprintf("%v files are open, %v were; %v", open, before, err)
		}
		return ""
	})
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// TestCrowdCounts lets a server of a few lines end connections in all ways, which a crowd must tell apart.
func TestCrowdCounts(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() { // ends with ln
		var open []net.Conn // one that nobody holds is closed when its memory is reclaimed
		defer func() {
			for _, conn := range open {
				conn.Close()
			}
		}()
		for i := 0; ; i++ {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 4096))
			switch i % 3 {
			case 0:
				conn.Write([]byte("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"))
				conn.Close()
			case 1:
				conn.(*net.TCPConn).SetLinger(0)
				conn.Close()
			case 2:
				open = append(open, conn)
			}
		}
	}()
	target := Target{Address: ln.Addr().String(), Pace: time.Millisecond}
	for _, c := range []struct {
		name   string
		gather func(context.Context, Target, int) (*Crowd, error)
		reads  bool
	}{{"reads", HalfOpen, true}, {"reads slowly", SlowReaders, true}, {"does not read", Pipeliners, false}} {
		t.Run(c.name, func(t *testing.T) {
			const n = 9
			crowd, err := c.gather(t.Context(), target, n)
			if err != nil {
				t.Fatal(err)
			}
			defer crowd.Stop()
			await(t, "all ends", func() string {
				got := crowd.Counts()
				ended := got.Closed == 3 && got.Reset == 3
				if !c.reads || c.name == "reads slowly" { // what is closed with bytes unread may end either way
					ended = got.Closed+got.Reset == 6
				}
				if got.Opened == n && got.Alive == 3 && ended {
					return ""
				}
				return got.String()
			})
			if got := crowd.Counts(); c.name == "reads" && (got.Answers[100] != 3 || got.Answers[200] != 3 || got.Answers[404] != 3) {
				t.Errorf("answers: %v, want 3 of 100, 200 and 404 each", got.Answers)
			}
			crowd.Stop()
			if got := crowd.Counts(); got.Alive != 0 || got.Closed+got.Reset != 6 {
				t.Errorf("after Stop: %v", got)
			}
		})
	}
	ln.Close()
	if _, err := Flood(t.Context(), target, 3); err == nil {
		t.Error("a crowd that cannot connect is no error")
	}
}

// TestCrowdReturns checks that a crowd keeps its size when it is told to.
func TestCrowdReturns(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() { // ends with ln
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	crowd, err := Flood(t.Context(), Target{Address: ln.Addr().String(), Pace: time.Millisecond, Return: true}, 5)
	if err != nil {
		t.Fatal(err)
	}
	defer crowd.Stop()
	await(t, "all come back", func() string {
		if got := crowd.Counts(); got.Opened < 50 || got.Closed+got.Reset < 45 {
			return got.String()
		}
		return ""
	})
}
