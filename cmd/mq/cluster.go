package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"example.com/mq/api"
)

type clusterCmd struct {
	Status   clusterStatusCmd   `cmd:"" help:"How the nodes of a cluster stand, and whether all is well. Fails when it is not."`
	Transfer clusterTransferCmd `cmd:"" help:"Hand the lead over to another node, and wait until it leads."`
}

// raftToken are the flags for the token of a cluster.
type raftToken struct {
	RaftToken     *string `env:"MQ_RAFT_TOKEN" placeholder:"TOKEN" help:"Token of the cluster. Others can see it in the process list: better use the environment or a file."`
	RaftTokenFile string  `env:"MQ_RAFT_TOKEN_FILE" placeholder:"FILE" help:"File that holds the token of the cluster."`
}

var clusterOf = system{
	of: "a cluster", path: api.PathRaftStatus, header: api.HeaderRaftToken, token: "raft token",
	otherRole: "another -role than cluster",
}

// asker returns what asks the nodes of the cluster. The caller closes it.
func (t *raftToken) asker(g *Global) (*asker, error) {
	token, err := readToken("raft-token", t.RaftToken, t.RaftTokenFile)
	if err != nil {
		return nil, err
	}
	if token == "" {
		return nil, usagef("the token of the cluster is needed: --raft-token-file, MQ_RAFT_TOKEN or --raft-token")
	}
	return g.asker(clusterOf, token)
}

// member is what a node of a cluster said, or why it said nothing.
type member struct {
	URL   string `json:"url"`
	Error string `json:"error,omitempty"`
	*api.RaftStatus
}

// members asks all nodes, and answers in the order of the URLs.
func (a *asker) members(ctx context.Context, urls []string) []member {
	list := make([]member, len(urls))
	a.each(urls, func(i int, base string) {
		list[i].URL = base
		s := new(api.RaftStatus)
		if err := a.get(ctx, base, s, func() bool { return isRaftRole(s.Role) && s.Node >= 0 && s.Node < len(s.Nodes) }); err != nil {
			list[i].Error = err.Error()
			return
		}
		list[i].RaftStatus = s
	})
	return list
}

func isRaftRole(role string) bool {
	return role == api.RaftLeader || role == api.RaftFollower || role == api.RaftCandidate
}

type clusterStatusCmd struct{ raftToken }

func (clusterStatusCmd) Help() string {
	return `Asks each --url what it knows of the cluster, and shows all nodes: what a node says of itself, or, where it was not asked,
what the leader knows of it. The last line on standard error says whether all is well, or what is wrong: one node leads,
all others are connected to it, have what they need, and have room on their disks. One URL is enough, best the leader's; with
all of them it is also known what each node thinks. A node that does not answer within 5 seconds counts as gone.

Example:
  mq cluster status -u https://a:8080,https://b:8080,https://c:8080 --raft-token-file /etc/mq/raft-token`
}

func (c *clusterStatusCmd) Run(ctx context.Context, g *Global, std streams) error {
	asker, err := c.asker(g)
	if err != nil {
		return err
	}
	defer asker.close()
	members := asker.members(ctx, g.URL)
	if err := writeCluster(std.out, g.Output, members); err != nil {
		return err
	}
	verdict, ok := judgeCluster(members)
	if !ok {
		return errors.New(verdict)
	}
	fmt.Fprintf(std.err, "mq: %s\n", verdict)
	return nil
}

// bestView returns the node whose word on the others counts: the leader of the highest term, or, without one, who knows
// the highest term; nil when no node answered.
func bestView(members []member) *member {
	var best *member
	for i := range members {
		m := &members[i]
		if m.RaftStatus == nil {
			continue
		}
		leads, led := m.Role == api.RaftLeader, best != nil && best.Role == api.RaftLeader
		if best == nil || leads && !led || leads == led && m.Term > best.Term {
			best = m
		}
	}
	return best
}

// nodesOf returns all nodes of the cluster by number: what each says of itself, where it was asked, and else what the one
// with the best view knows.
func nodesOf(members []member) []api.RaftNode {
	best := bestView(members)
	if best == nil {
		return nil
	}
	nodes := append([]api.RaftNode(nil), best.Nodes...)
	for _, m := range members {
		if m.RaftStatus == nil || m.Node >= len(nodes) {
			continue
		}
		n := &nodes[m.Node]
		n.Role, n.Term, n.Phase, n.NodeID = m.Role, m.Term, m.Phase, m.NodeID
		n.LastIndex, n.DurableIndex, n.AppliedIndex = m.LastIndex, m.DurableIndex, m.AppliedIndex
		n.SnapshotIndex, n.DiskFull = m.SnapshotIndex, m.DiskFull
	}
	return nodes
}

// writeCluster prints a line for each node of the cluster, and then why one is not as it should be. As json it prints
// what each node that was asked said.
func writeCluster(w io.Writer, output string, members []member) error {
	objects := []any{}
	for _, m := range members {
		objects = append(objects, m)
	}
	head := []string{"NODE", "URL", "ROLE", "TERM", "PHASE", "SENDING", "MATCH", "LAG", "LAST", "APPLIED", "SNAPSHOT", "CONTACT", "DISK"}
	best, nodes := bestView(members), nodesOf(members)
	rows := make([][]string, 0, len(nodes))
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	for i, n := range nodes {
		lead := best.Role == api.RaftLeader
		match, lag, contact := "-", "-", "-"
		if lead {
			match, lag = number(n.MatchIndex), number(n.LagEntries)
		}
		switch {
		case i == best.Node:
		case n.LastContactMS < 0:
			contact = "never"
		default:
			contact = short(time.Duration(n.LastContactMS)*time.Millisecond) + " ago"
		}
		disk := "ok"
		if n.DiskFull {
			disk = "FULL"
		}
		row := []string{strconv.Itoa(i), n.URL, n.Role, number(n.Term), n.Phase, n.State, match, lag,
			number(n.LastIndex), number(n.AppliedIndex), number(n.SnapshotIndex), contact, disk}
		for j := range row {
			if row[j] == "" {
				row[j] = "-"
			}
			row[j] = visible(row[j])
		}
		rows = append(rows, row)
	}
	if err := writeRows(w, output, head, rows, objects); err != nil || output == "json" {
		return err
	}
	for _, m := range members {
		if m.RaftStatus == nil || m.Reason == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s: %s\n", m.URL, visible(m.Reason)); err != nil {
			return err
		}
	}
	return nil
}

func visible(s string) string { return string(appendVisible(nil, []byte(s))) }

type clusterTransferCmd struct {
	raftToken
	To *int `placeholder:"N" help:"Number of the node that is to lead, counted from 0 in the order of -raft-peers. Without it, the one that is the furthest."`
}

func (clusterTransferCmd) Help() string {
	return `Asks the nodes who leads, and has that one hand over the lead. Only nodes that are given by --url are asked, so give all of
them. Writes go on after a fraction of a second; clients that know all nodes try again by themselves.

Example:
  mq cluster transfer -u https://a:8080,https://b:8080,https://c:8080 --raft-token-file /etc/mq/raft-token --to 2`
}

func (c *clusterTransferCmd) Run(ctx context.Context, g *Global, std streams) error {
	if c.To != nil && *c.To < 0 {
		return usagef("--to is the number of a node, from 0 on")
	}
	asker, err := c.asker(g)
	if err != nil {
		return err
	}
	defer asker.close()
	members := asker.members(ctx, g.URL)
	leader, err := leaderOf(members)
	if err != nil {
		return err
	}
	if c.To != nil && *c.To >= len(leader.Nodes) {
		return usagef("--to is %d, and the cluster has nodes 0 to %d", *c.To, len(leader.Nodes)-1)
	}
	body, err := json.Marshal(api.TransferRequest{To: c.To})
	if err != nil {
		return err
	}
	asker.timeout = max(g.Timeout, statusTimeout)
	answer, err := asker.do(ctx, http.MethodPost, leader.URL+api.PathRaftTransfer, body)
	if err != nil {
		return errors.New(visible(leader.URL + ": " + err.Error()))
	}
	var role api.TransferAnswer
	if err := asker.decode(answer, &role, func() bool { return isRaftRole(role.Role) }); err != nil {
		return fmt.Errorf("%s: %w", leader.URL, err)
	}
	if g.Output == "json" {
		return writeJSON(std.out, role)
	}
	who := "another node"
	if role.Leader != nil {
		who = visible(*role.Leader)
	}
	_, err = fmt.Fprintf(std.out, "%s leads, in term %d\n", who, role.Term)
	return err
}

// leaderOf finds the leader among the nodes that were asked.
func leaderOf(members []member) (*member, error) {
	best := bestView(members)
	switch {
	case best == nil:
		var wrong []string
		for _, m := range members {
			wrong = append(wrong, m.URL+": "+m.Error)
		}
		return nil, errors.New(visible(strings.Join(wrong, "; ")))
	case best.Role == api.RaftLeader:
		return best, nil
	case best.Leader == nil:
		return nil, fmt.Errorf("no node leads, as far as %s knows", best.URL)
	}
	for i := range members {
		if sameNode(members[i].URL, *best.Leader) {
			return nil, fmt.Errorf("%s leads, as %s says, but it does not say so: %s", visible(*best.Leader), best.URL,
				visible(cmp.Or(members[i].Error, "try again")))
		}
	}
	return nil, fmt.Errorf("%s leads, as %s says: give its URL, too", visible(*best.Leader), best.URL)
}

// sameNode reports whether two URLs lead to the same node, as far as their text tells.
func sameNode(a, b string) bool {
	u, err := url.Parse(a)
	v, err2 := url.Parse(b)
	return err == nil && err2 == nil && u.Scheme == v.Scheme && strings.EqualFold(u.Host, v.Host)
}
