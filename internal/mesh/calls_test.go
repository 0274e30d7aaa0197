package mesh

import (
	"bytes"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestCalls: calls are answered, all at once, small and large.
func TestCalls(t *testing.T) {
	run(t, 3, func(t *testing.T, c *cluster) {
		var wg sync.WaitGroup
		for _, d := range c.nodes {
			for to := range c.n {
				if to == d.self {
					continue
				}
				for _, n := range []int{0, 1, 100, 100000, RequestMax} {
					wg.Go(func() {
						request := strings.Repeat("r", n)
						answer, err := d.mesh.Call(t.Context(), to, []byte(request))
						if want := string(rune('0'+d.self)) + " asked " + request; err != nil || string(answer) != want {
							t.Errorf("%d calls %d: %.50q, %v", d.self, to, answer, err)
						}
					})
				}
			}
		}
		wg.Wait()
		if _, err := c.nodes[0].mesh.Call(t.Context(), 1, make([]byte, RequestMax+1)); err == nil {
			t.Error("a request that is too large was sent")
		}
	})
}

// TestCallsAtOnce: so many run at once and no more, whoever gives up keeps its place until the other side has stopped, and
// packets go on beside answers that fill the stream.
func TestCallsAtOnce(t *testing.T) {
	run(t, 2, func(t *testing.T, c *cluster) {
		release := make(chan struct{})
		var busy, canceled, answered atomic.Int64
		c.nodes[1].answer = func(ctx context.Context, _ int, _ []byte) []byte {
			busy.Add(1)
			defer busy.Add(-1)
			select {
			case <-ctx.Done():
				canceled.Add(1)
				return nil
			case <-release:
				return make([]byte, AnswerMax)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		for i := range 2 * CallsMax {
			ctx := ctx
			if i%2 == 1 {
				ctx = t.Context()
			}
			wg.Go(func() {
				answer, err := c.nodes[0].mesh.Call(ctx, 1, []byte("x"))
				switch {
				case errors.Is(err, context.Canceled):
				case err != nil || len(answer) != AnswerMax:
					t.Errorf("%d bytes, %v", len(answer), err)
				default:
					answered.Add(1)
				}
			})
		}
		synctest.Wait()
		if n := busy.Load(); n != CallsMax {
			t.Errorf("%d run at once", n)
		}
		time.Sleep(time.Minute) // they take as long as they take
		cancel()
		synctest.Wait()
		if n := busy.Load(); n > CallsMax || n == 0 {
			t.Errorf("%d run after some gave up", n)
		}
		close(release)
		wg.Wait()
		if n := answered.Load(); n != CallsMax {
			t.Errorf("%d answered, %d canceled", n, canceled.Load())
		}
		if len(c.nodes[0].lostTo())+c.nodes[0].dials() != 2 {
			t.Errorf("streams broke: %v, %d connections", c.nodes[0].lostTo(), c.nodes[0].dials())
		}
	})
}

// pausable is a connection whose reader can be held.
type pausable struct {
	net.Conn
	held atomic.Pointer[chan struct{}]
}

func (c *pausable) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if hold := c.held.Load(); hold != nil {
		<-*hold
	}
	return n, err
}

// TestLargeAnswersDoNotHoldUpPackets: packets arrive in both directions while the stream of calls is stuck in an answer.
func TestLargeAnswersDoNotHoldUpPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, func() (net.Conn, net.Conn) {
			a, b := net.Pipe()
			return &pausable{Conn: a}, b
		})
		c.nodes[1].answer = func(context.Context, int, []byte) []byte { return make([]byte, AnswerMax) }
		c.startAll()
		defer c.stopAll()
		hold := make(chan struct{})
		c.nodes[0].mesh.peers[1].out[calls].Load().conn.(*pausable).held.Store(&hold)
		done := make(chan error, 1)
		go func() {
			_, err := c.nodes[0].mesh.Call(t.Context(), 1, nil)
			done <- err
		}()
		time.Sleep(2 * time.Second)
		c.nodes[1].mesh.Send(0, []byte("beat"))
		c.nodes[0].mesh.Send(1, []byte("beat"))
		synctest.Wait()
		if got := append(c.nodes[0].packets(), c.nodes[1].packets()...); !slices.Equal(got, []string{"1 beat", "0 beat"}) {
			t.Errorf("got %q", got)
		}
		select {
		case err := <-done:
			t.Errorf("the answer was not held: %v", err)
		default:
		}
		close(hold)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestCallIsCanceled: who answers a call learns that nobody waits any more, and the place is free again.
func TestCallIsCanceled(t *testing.T) {
	run(t, 2, func(t *testing.T, c *cluster) {
		var busy atomic.Int64
		c.nodes[1].answer = func(ctx context.Context, _ int, _ []byte) []byte {
			busy.Add(1)
			defer busy.Add(-1)
			<-ctx.Done()
			return []byte("too late")
		}
		for range 3 * CallsMax {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := c.nodes[0].mesh.Call(ctx, 1, []byte("x")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
			cancel()
			synctest.Wait()
			if n := busy.Load(); n != 0 {
				t.Fatalf("%d go on", n)
			}
		}
		if len(c.nodes[0].mesh.peers[1].out[calls].Load().asked.open) != 0 {
			t.Error("calls are left over")
		}
	})
}

// TestCallsEnd: calls end with the stream, and so does what answers them.
func TestCallsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 2, pipes)
		var canceled atomic.Int64
		c.nodes[1].answer = func(ctx context.Context, _ int, _ []byte) []byte {
			<-ctx.Done()
			canceled.Add(1)
			return nil
		}
		c.startAll()
		defer c.stopAll()
		done := make(chan error, 2*CallsMax)
		for range 2 * CallsMax {
			go func() {
				_, err := c.nodes[0].mesh.Call(t.Context(), 1, nil)
				done <- err
			}()
		}
		synctest.Wait()
		c.nodes[0].mesh.peers[1].out[calls].Load().conn.Close()
		for range 2 * CallsMax {
			if unreachable := (*UnreachableError)(nil); !errors.As(<-done, &unreachable) {
				t.Error("no UnreachableError")
			}
		}
		synctest.Wait()
		if n := canceled.Load(); n != CallsMax {
			t.Errorf("%d were told", n)
		}
		c.settle() // it connects again
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := c.nodes[0].mesh.Call(ctx, 1, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("with a deadline: %v", err)
		}
	})
}

// TestAnswerTooLarge: an answer above the limit is not sent, and ends the stream, with the caller told.
func TestAnswerTooLarge(t *testing.T) {
	run(t, 2, func(t *testing.T, c *cluster) {
		c.nodes[1].answer = func(context.Context, int, []byte) []byte { return make([]byte, AnswerMax+1) }
		if _, err := c.nodes[0].mesh.Call(t.Context(), 1, nil); err == nil {
			t.Error("no error")
		}
		if n := c.nodes[1].log.count("too large"); n != 1 {
			t.Errorf("log: %s", c.nodes[1].log)
		}
		c.nodes[1].answer = func(context.Context, int, []byte) []byte { return make([]byte, AnswerMax) }
		c.settle()
		if answer, err := c.nodes[0].mesh.Call(t.Context(), 1, nil); err != nil || !bytes.Equal(answer, make([]byte, AnswerMax)) {
			t.Errorf("%d bytes, %v", len(answer), err)
		}
	})
}
