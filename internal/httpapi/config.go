package httpapi

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// Broker is what the calls need. Its methods are called from many goroutines at once, block until the
// outcome is known, and return the errors of package broker. They keep none of the slices they are given.
type Broker interface {
	Publish(*broker.Publish) (broker.Published, error)
	Fetch(*broker.Fetch, broker.Sink) (broker.Page, error)
	CommitGroup(topic, group []byte, next fact.Offset) (fact.Offset, error)
	Retain(topic []byte, start fact.Offset) (fact.Offset, error)
	ConfigureTopic(*broker.Configure) (broker.Settings, error)
	DeleteTopic(topic []byte) (end fact.Offset, err error)
	ListTopics(*broker.List) (page []broker.TopicSummary, more bool, err error)
	DescribeTopic(topic []byte, groups int) (broker.TopicDescription, error)
	ListGroups(*broker.List) (page []broker.GroupState, more bool, err error)
	DescribeGroup(topic, group []byte) (broker.GroupState, error)
	DeleteGroup(topic, group []byte) (next fact.Offset, err error)
	SeekGroup(*broker.Seek) (broker.Sought, error)
	Snapshot() (entry.Index, error)
}

// Observer is told of every answered request. Route is the path of the call, or "other". It is called on
// the request's goroutine and must return at once.
type Observer interface {
	Request(route string, status int, d time.Duration)
}

// Config says what a Server serves. Only Broker and Logger are required.
type Config struct {
	Broker Broker
	Logger *slog.Logger

	// ClientToken guards all calls, AdminToken the admin calls (and it serves client calls too). Empty
	// means that there is none: client calls are then open, admin calls refused.
	ClientToken string
	AdminToken  string

	// TLS, if not nil, is what the listener speaks. LoadTLS makes one.
	TLS *tls.Config

	// Ready tells whether the node can serve, and gives more for the answer of /readyz: any value that
	// encoding/json can write. Default: always ready.
	Ready func() (ok bool, detail any)

	// Verbose gives all that is known of the node, for /readyz?verbose, which needs the client token where there is one.
	// Default: what Ready gives.
	Verbose func() any

	// Replication serves another node. Default: the paths for it do not exist.
	Replication *Replication

	// Raft serves the other nodes of a cluster. Default: the paths for them do not exist.
	Raft *Raft

	// MayAnswer, if not nil, is asked right before the bytes of an answer "done" to a write go out. When it says no, the
	// connection is closed instead: another node may lead, and this one must not acknowledge anything.
	MayAnswer func() bool

	// Metrics serves /metrics. Default: the path does not exist.
	Metrics http.Handler

	// Observe is told of every request. Default: nobody is.
	Observe Observer

	// EndWaits, if not nil, is called when the server begins to stop; it makes the broker's waiting fetches
	// return what they have. Without it they notice within about a second.
	EndWaits func()

	// ConnectionsMax is how many connections of clients may be open at once; more are answered 503 and closed. Those
	// that became streams do not count, and where Replication or Raft is served, other nodes get in beyond it.
	// Default: 16384.
	ConnectionsMax int

	// HeaderTimeout is how long a client may take from the first byte of a request to the end of its header.
	// A connection on which nothing at all arrives is closed after it. Default: 5 s.
	HeaderTimeout time.Duration

	// IdleTimeout is how long a connection may be without a request. Default: 120 s.
	IdleTimeout time.Duration

	// TransferTimeout is how long a body may take to arrive, and an answer to be taken, beyond 1 s for every
	// 128 KiB. Default: 10 s.
	TransferTimeout time.Duration

	// SingleBudgetBytes is how much memory request bodies from 8 to 512 KiB may take at once, decoded form included. A
	// request that gets no share within 5 s is answered 503. Default: 16 MiB.
	SingleBudgetBytes int64

	// BodyBudgetBytes is the same for larger ones and those that do not announce their size. One body above 1 MiB that does not announce
	// its size (chunked) may be read on top of it. Default: 64 MiB.
	BodyBudgetBytes int64

	// AnswerBudgetBytes is how much memory answers above 64 KiB may take at once, until the client has taken
	// them. When it runs short, answers to fetches have fewer records; one whose first record finds no room
	// within 5 s is answered 503. Default: 64 MiB.
	AnswerBudgetBytes int64

	// Fatal is called with what the Broker, or a stream, panicked with, after it was logged. Locks of the Broker
	// may be held for ever then, so it must end the process. Default: it panics again, which does.
	Fatal func(any)
}

// validate fills in defaults.
func (c *Config) validate() error {
	if c.Broker == nil || c.Logger == nil {
		return errors.New("httpapi: Broker and Logger are required")
	}
	if c.Replication != nil {
		if err := c.Replication.validate(); err != nil {
			return err
		}
	}
	if c.Raft != nil {
		if err := c.Raft.validate(); err != nil {
			return err
		}
	}
	if c.Ready == nil {
		c.Ready = func() (bool, any) { return true, nil }
	}
	if c.ConnectionsMax == 0 {
		c.ConnectionsMax = 16384
	}
	c.HeaderTimeout = cmp.Or(c.HeaderTimeout, 5*time.Second)
	c.IdleTimeout = cmp.Or(c.IdleTimeout, 120*time.Second)
	c.TransferTimeout = cmp.Or(c.TransferTimeout, 10*time.Second)
	if c.SingleBudgetBytes == 0 {
		c.SingleBudgetBytes = 16 << 20
	}
	if c.SingleBudgetBytes < bodyCharge(singleMax) {
		return errors.New("httpapi: SingleBudgetBytes is too small for the largest record")
	}
	if c.BodyBudgetBytes == 0 {
		c.BodyBudgetBytes = 64 << 20
	}
	if c.BodyBudgetBytes < bodyCharge(bodyMax) {
		return errors.New("httpapi: BodyBudgetBytes is too small for the largest legal request")
	}
	if c.AnswerBudgetBytes == 0 {
		c.AnswerBudgetBytes = 64 << 20
	}
	if c.AnswerBudgetBytes < answerMin {
		return errors.New("httpapi: AnswerBudgetBytes is too small for the largest record")
	}
	if c.Fatal == nil {
		c.Fatal = func(p any) { panic(fmt.Sprintf("BUG: the broker panicked: %v", p)) }
	}
	return nil
}
