package broker

import (
	"context"
	"errors"

	"example.com/mq/internal/replication"
)

var errLostMeanwhile = &lostError{"this node has lost the lead meanwhile"}

// confirm returns nil once the role has vouched that the fold, read from now on, is not older than this call; else why not,
// as a *lostError if the lead is in doubt. It ends with Close at the latest.
func (b *Broker) confirm() error {
	b.mu.Lock()
	role := b.role
	b.mu.Unlock()
	if role == nil {
		return nil // not started: nothing is committed but what was recovered
	}
	err := role.Confirm(untilClose{context.Background(), b.stop})
	var unavailable *replication.UnavailableError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unavailable):
		return &lostError{unavailable.Reason}
	case errors.Is(err, context.Canceled):
		return errClosed
	}
	return err
}

// confirmRead is confirm for a read: its error is the answer.
func (b *Broker) confirmRead() error {
	err := b.confirm()
	if err == nil {
		return nil
	}
	unavailable := &UnavailableError{Reason: err.Error()}
	var lost *lostError
	if errors.As(err, &lost) {
		return b.elsewhere(unavailable)
	}
	return unavailable
}

// untilClose is a context that ends when the broker is closed.
type untilClose struct {
	context.Context
	stop <-chan struct{}
}

func (c untilClose) Done() <-chan struct{} { return c.stop }

func (c untilClose) Err() error {
	select {
	case <-c.stop:
		return context.Canceled
	default:
		return nil
	}
}
