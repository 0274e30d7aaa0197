package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// RaftToken is what the nodes of a cluster show each other.
const RaftToken = "test-raft-token"

// RaftRole is what a node of a cluster answers to GET /raft/role.
type RaftRole struct {
	Role    string `json:"role"`
	Node    int    `json:"node"`
	Term    uint64 `json:"term"`
	Leader  string `json:"leader"` // its URL; empty: none is known
	Commit  uint64 `json:"commit_index"`
	Applied uint64 `json:"applied_index"`
}

// RaftStatus is the part of what a node of a cluster tells of itself that tests look at.
type RaftStatus struct {
	RaftRole
	Phase   string `json:"phase"`
	Reason  string `json:"reason"`
	Last    uint64 `json:"last_index"`
	Durable uint64 `json:"durable_index"`
}

// Cluster is the nodes of a cluster. Those that run end with the test.
type Cluster struct {
	Nodes []*Member
	Flags []string // of every node
	t     testing.TB
}

// Member is one node of a cluster: a folder, an address, and the mqd that runs there, one after another.
type Member struct {
	*Node
	URL     string
	Process *Process // what runs, or ran last; nil before the first start, and after Stop
}

// NewCluster returns a cluster of n nodes on this machine, with folders below dir, in which nothing runs yet.
func NewCluster(t testing.TB, dir string, n int, flags ...string) *Cluster {
	t.Helper()
	c := &Cluster{t: t, Flags: flags}
	for range n {
		address, err := FreeAddress()
		if err != nil {
			t.Fatal(err)
		}
		c.Add(dir, Config{Listen: address}, "http://"+address)
	}
	return c
}

// Add adds a node, which is not part of any peers list before its cluster starts.
func (c *Cluster) Add(dir string, cfg Config, url string) *Member {
	cfg.Binary = Binary(c.t)
	if cfg.Data == "" {
		cfg.Data = filepath.Join(dir, fmt.Sprintf("node-%d", len(c.Nodes)))
	}
	cfg.Log = filepath.Join(dir, fmt.Sprintf("node-%d.log", len(c.Nodes)))
	cfg.Env = append(cfg.Env, "MQ_RAFT_TOKEN="+RaftToken)
	m := &Member{Node: NewNode(c.t, cfg), URL: url}
	c.Nodes = append(c.Nodes, m)
	return m
}

// URLs returns the URLs of all nodes, in their order.
func (c *Cluster) URLs() (urls []string) {
	for _, m := range c.Nodes {
		urls = append(urls, m.URL)
	}
	return urls
}

// Role returns the flags of a node's role.
func (c *Cluster) Role(i int) []string {
	return []string{"-role", "cluster", "-raft-self", fmt.Sprint(i), "-raft-peers", strings.Join(c.URLs(), ",")}
}

// Start starts some nodes, or all if none is named. They need not be ready.
func (c *Cluster) Start(numbers ...int) {
	c.t.Helper()
	for _, i := range c.each(numbers) {
		c.Run(i, c.Role(i)...)
	}
}

// Run starts a node with the flags of all nodes and these.
func (c *Cluster) Run(i int, flags ...string) *Process {
	c.t.Helper()
	m := c.Nodes[i]
	m.Args = append(append([]string{}, c.Flags...), flags...)
	m.Process = m.Node.Start()
	return m.Process
}

// Kill kills some nodes, or all if none is named. One that has ended by itself fails the test.
func (c *Cluster) Kill(numbers ...int) {
	c.t.Helper()
	for _, i := range c.each(numbers) {
		p := c.Nodes[i].Process
		if p == nil {
			continue
		}
		select {
		case <-p.Ended():
			c.t.Fatalf("node %d ended by itself with status %d\n%s", i, p.ExitCode(), c.Said())
		default:
			p.Kill()
		}
		c.Nodes[i].Process = nil
	}
}

// Stop stops some nodes, or all if none is named, at once by SIGTERM. Each must exit with status 0.
func (c *Cluster) Stop(numbers ...int) {
	c.t.Helper()
	stopped := map[int]chan error{}
	for _, i := range c.each(numbers) {
		if p := c.Nodes[i].Process; p != nil {
			stopped[i] = make(chan error, 1)
			go func() { stopped[i] <- p.Stop() }() // ends with the process, or by its own deadline
		}
	}
	for i, err := range stopped {
		if err := <-err; err != nil {
			c.t.Errorf("node %d: %v", i, err)
		}
		c.Nodes[i].Process = nil
	}
}

// each returns the numbers, or all if there is none.
func (c *Cluster) each(numbers []int) []int {
	if len(numbers) > 0 {
		return numbers
	}
	for i := range c.Nodes {
		numbers = append(numbers, i)
	}
	return numbers
}

// Others returns all numbers but one.
func (c *Cluster) Others(i int) (numbers []int) {
	for n := range c.Nodes {
		if n != i {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// Await waits until lacks returns nothing; else the test fails with what is still lacking.
func (c *Cluster) Await(most time.Duration, what string, lacks func() string) {
	c.t.Helper()
	deadline := time.Now().Add(most)
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		still := lacks()
		if still == "" {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("%s: not within %v: %s\n%s", what, most, still, c.Said())
		}
		<-poll.C
	}
}

// Leader waits until a node says that it leads, and the others of the majority that it names know it, and returns its
// number.
func (c *Cluster) Leader(most time.Duration) (leader int) {
	c.t.Helper()
	c.Await(most, "a leader", func() string {
		roles, text := c.roles()
		for i, r := range roles {
			if r == nil || r.Role != "leader" {
				continue
			}
			known := 0
			for _, other := range roles {
				if other != nil && other.Term == r.Term && other.Leader == c.Nodes[i].URL {
					known++
				}
			}
			if known > len(c.Nodes)/2 {
				leader = i
				return ""
			}
		}
		return text
	})
	return leader
}

// AwaitWhole waits until all nodes run, are whole, and follow one leader, whose number it returns.
func (c *Cluster) AwaitWhole(most time.Duration) (leader int) {
	c.t.Helper()
	c.Await(most, "a whole cluster", func() (text string) {
		leader = -1
		var first RaftStatus
		for i, m := range c.Nodes {
			if m.Process == nil {
				return fmt.Sprintf("node %d does not run", i)
			}
			s, err := m.Process.RaftStatus()
			ready, body, readyErr := m.Process.Get("/readyz")
			text += fmt.Sprintf("node %d: %+v, %v, %v; /readyz %d %q; ", i, s, err, readyErr, ready, body)
			if i == 0 {
				first = s
			}
			if err != nil || readyErr != nil || ready != http.StatusOK || s.Phase != "whole" || s.Term != first.Term || s.Leader != first.Leader {
				return text
			}
			if s.Role == "leader" && s.Leader == m.URL {
				leader = i
			}
		}
		if leader < 0 {
			return text
		}
		return ""
	})
	return leader
}

// roles asks all nodes that run for their roles. text tells the answers.
func (c *Cluster) roles() (roles []*RaftRole, text string) {
	roles = make([]*RaftRole, len(c.Nodes))
	for i, m := range c.Nodes {
		if m.Process == nil {
			text += fmt.Sprintf("node %d: does not run; ", i)
			continue
		}
		r, err := m.Process.RaftRole()
		if err == nil {
			roles[i] = &r
		}
		text += fmt.Sprintf("node %d: %+v, %v; ", i, r, err)
	}
	return roles, text
}

// Said returns the end of what the nodes wrote to standard error.
func (c *Cluster) Said() (text string) {
	for i, m := range c.Nodes {
		if m.Process != nil {
			text += fmt.Sprintf("--- node %d (%s):\n%s", i, m.URL, m.Process.Stderr())
		}
	}
	return text
}

// Wipe removes the folder of a node that does not run.
func (m *Member) Wipe(t testing.TB) {
	t.Helper()
	if err := os.RemoveAll(m.Data); err != nil {
		t.Fatal(err)
	}
}

// RaftRole asks a node of a cluster for its role.
func (p *Process) RaftRole() (r RaftRole, err error) { return r, p.raft("/raft/role", &r) }

// RaftStatus asks a node of a cluster how it stands.
func (p *Process) RaftStatus() (s RaftStatus, err error) { return s, p.raft("/raft/status", &s) }

func (p *Process) raft(path string, out any) error {
	status, body, err := p.get(path, http.Header{"X-Raft-Token": {RaftToken}})
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", status, body)
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), out)
	}
	return err
}

// Transfer asks the node that leads to hand over to another one, and returns when it has answered.
func (p *Process) Transfer(to int) error {
	r, err := http.NewRequest(http.MethodPost, p.URL+"/raft/transfer", strings.NewReader(fmt.Sprintf(`{"to":%d}`, to)))
	if err != nil {
		return err
	}
	r.Header.Set("X-Raft-Token", RaftToken)
	r.Close = true
	answer, err := p.client.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = errors.New(answer.Status + ": " + string(text))
	}
	return err
}
