package mesh

import (
	"context"
	"fmt"
	"math"
	"sync"

	"example.com/mq/internal/invariant"
)

// Call sends a request of at most RequestMax bytes to another node and returns its answer. It waits for its turn when
// CallsMax calls to the node are under way. The request must not be changed until it returns; the answer is the caller's. An
// error is that of ctx, or an *UnreachableError; the node may have got the request all the same.
func (m *Mesh) Call(ctx context.Context, to int, request []byte) ([]byte, error) {
	p := m.peers[to]
	invariant.Check(p != nil, "a node calls itself")
	if len(request) > RequestMax {
		return nil, fmt.Errorf("call node %d: the request has %d bytes, and may have %d", to, len(request), RequestMax)
	}
	s := p.out[calls].Load()
	if s == nil {
		return nil, &UnreachableError{Node: to, Err: p.links[calls].why()}
	}
	answer, err := s.asked.ask(ctx, s, request)
	if err != nil {
		return nil, err
	}
	m.cfg.Observer.Called(to, len(request), len(answer))
	return answer, nil
}

// asked is what this node asked on a stream.
type asked struct {
	places chan struct{} // one is taken for each call that the other side may be busy with

	mu   sync.Mutex
	last uint64                 // id of the last request
	open map[uint64]chan []byte // by id; those that nobody waits for among them
}

func (a *asked) init() {
	a.places = make(chan struct{}, CallsMax)
	a.open = make(map[uint64]chan []byte)
}

func (a *asked) ask(ctx context.Context, s *stream, request []byte) ([]byte, error) {
	broken := func() error { return &UnreachableError{Node: s.peer.node, Err: reason(s.err)} }
	select {
	case a.places <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-s.ended:
		return nil, broken()
	}
	// From here on the place is given back by answered, or never if the stream ends.
	answer := make(chan []byte, 1)
	a.mu.Lock()
	a.last++
	id := a.last
	a.open[id] = answer
	a.mu.Unlock()
	// CallsMax requests have room. If the box is closed, so is ended.
	s.box.put(item{frame: frameRequest, id: id, body: request}, false, CallsMax*(RequestMax+2*itemBytes))
	select {
	case content := <-answer:
		return content, nil
	case <-ctx.Done():
		s.box.put(item{frame: frameCancel, id: id}, true, CallsMax*(RequestMax+2*itemBytes))
		return nil, ctx.Err()
	case <-s.ended:
		return nil, broken()
	}
}

// answered takes an answer.
func (a *asked) answered(id uint64, content []byte) error {
	a.mu.Lock()
	answer := a.open[id]
	delete(a.open, id)
	a.mu.Unlock()
	if answer == nil {
		return malformed("an answer to request %d, which was not sent", id)
	}
	<-a.places
	answer <- content
	return nil
}

// answering is what this node has to answer on a stream.
type answering struct {
	handlers sync.WaitGroup

	mu   sync.Mutex
	busy map[uint64]context.CancelFunc // by id; until the answer begins to be written, so that no more can wait for that
}

func (a *answering) init() { a.busy = make(map[uint64]context.CancelFunc) }

// begin lets a request be answered. ctx ends with the stream.
func (a *answering) begin(ctx context.Context, s *stream, id uint64, request []byte) error {
	ctx, cancel := context.WithCancel(ctx)
	a.mu.Lock()
	n, again := len(a.busy), a.busy[id] != nil
	if n < CallsMax && !again {
		a.busy[id] = cancel
	}
	a.mu.Unlock()
	if n >= CallsMax || again {
		cancel()
		return malformed("request %d comes while %d are being answered", id, n)
	}
	a.handlers.Go(func() { // ended by Answer, which minds ctx
		answer := s.m.cfg.Answer(ctx, s.peer.node, request)
		cancel()
		if len(answer) > AnswerMax {
			s.m.cfg.Logger.Error("an answer to another node is too large", "peer", s.peer.node, "bytes", len(answer))
			s.end(errAnswerLarge)
			return
		}
		s.box.put(item{frame: frameAnswer, id: id, body: answer}, false, math.MaxInt64)
	})
	return nil
}

// answers notes that an answer is about to be written: the next request may come right after it.
func (a *answering) answers(id uint64) {
	a.mu.Lock()
	delete(a.busy, id)
	a.mu.Unlock()
}

// cancel ends what is done for a request, if it is not done yet.
func (a *answering) cancel(id uint64) {
	a.mu.Lock()
	cancel := a.busy[id]
	a.mu.Unlock()
	if cancel != nil {
		cancel()
	}
}
