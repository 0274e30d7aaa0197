package process

import "testing"

// Node is one data directory and the mqd that runs on it, one after another. The last one ends with the
// test.
type Node struct {
	Config
	t testing.TB
	p *Process
}

// NewNode returns a Node that runs nothing yet.
func NewNode(t testing.TB, cfg Config) *Node {
	n := &Node{Config: cfg, t: t}
	t.Cleanup(n.Kill)
	return n
}

// Start starts the next mqd, which need not be ready.
func (n *Node) Start() *Process {
	n.t.Helper()
	n.Kill()
	p, err := Start(n.Config)
	if err != nil {
		n.t.Fatal(err)
	}
	n.p = p
	return p
}

// StartReady starts the next mqd and waits until it is ready.
func (n *Node) StartReady() *Process {
	n.t.Helper()
	n.Kill()
	p, err := StartReady(n.Config)
	if err != nil {
		n.t.Fatal(err)
	}
	n.p = p
	return p
}

// Kill kills what runs.
func (n *Node) Kill() {
	if n.p != nil {
		n.p.Kill()
	}
}
