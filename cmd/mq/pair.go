package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"example.com/mq/api"
)

type pairCmd struct {
	Status pairStatusCmd `cmd:"" help:"How the two nodes stand, and whether the pair is in step. Fails when it is not."`
}

type pairStatusCmd struct {
	ReplicationToken     *string `env:"MQ_REPLICATION_TOKEN" placeholder:"TOKEN" help:"Token of the pair. Others can see it in the process list: better use the environment or a file."`
	ReplicationTokenFile string  `env:"MQ_REPLICATION_TOKEN_FILE" placeholder:"FILE" help:"File that holds the token of the pair."`
}

func (pairStatusCmd) Help() string {
	return `Asks each --url what it knows of the pair. The last line on standard error says whether the pair is in step, or what
is wrong: exactly one node leads and takes writes, the other one follows it, has all of the log, and both say the same.
With one URL only what that node says is judged. A node that does not answer within 5 seconds counts as gone.

Example:
  mq pair status -u https://a:8080,https://b:8080 --replication-token-file /etc/mq/replication-token`
}

const pairNodes = 2

var pairOf = system{
	of: "a pair", path: api.PathReplicationStatus, header: api.HeaderReplicationToken, token: "replication token",
	otherRole: "another -role than leader and follower",
}

// nodeStatus is what a node said, or why it said nothing.
type nodeStatus struct {
	URL   string `json:"url"`
	Error string `json:"error,omitempty"`
	*api.PairStatus
}

func (c *pairStatusCmd) Run(ctx context.Context, g *Global, std streams) error {
	token, err := readToken("replication-token", c.ReplicationToken, c.ReplicationTokenFile)
	if err != nil {
		return err
	}
	if token == "" {
		return usagef("the token of the pair is needed: --replication-token-file, MQ_REPLICATION_TOKEN or --replication-token")
	}
	if len(g.URL) > pairNodes {
		return usagef("a pair has %d nodes, not %d: give the URLs of both, or of one", pairNodes, len(g.URL))
	}
	asker, err := g.asker(pairOf, token)
	if err != nil {
		return err
	}
	defer asker.close()
	nodes := make([]nodeStatus, len(g.URL))
	asker.each(g.URL, func(i int, base string) {
		nodes[i].URL = base
		s := new(api.PairStatus)
		if err := asker.get(ctx, base, s, func() bool { return s.Role == roleLeader || s.Role == roleFollower }); err != nil {
			nodes[i].Error = err.Error()
			return
		}
		nodes[i].PairStatus = s
	})
	if err := writePairStatus(std.out, g.Output, nodes); err != nil {
		return err
	}
	verdict, ok := judgePair(nodes)
	if !ok {
		return errors.New(verdict)
	}
	fmt.Fprintf(std.err, "mq: %s\n", verdict)
	return nil
}

// writePairStatus prints a column for each node, and then why a node is not as it should be.
func writePairStatus(w io.Writer, output string, nodes []nodeStatus) error {
	head, objects, answered := []string{""}, []any{}, false
	for _, n := range nodes {
		head, objects, answered = append(head, n.URL), append(objects, n), answered || n.PairStatus != nil
	}
	var rows [][]string
	row := func(name string, always bool, cell func(s *api.PairStatus) string) {
		cells, empty := []string{name}, true
		for _, n := range nodes {
			text := ""
			if n.PairStatus != nil {
				text = string(appendVisible(nil, []byte(cell(n.PairStatus))))
			}
			if text != "" {
				empty = false
			} else {
				text = "-"
			}
			cells = append(cells, text)
		}
		if always && answered || !empty {
			rows = append(rows, cells)
		}
	}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	role := []string{"ROLE"}
	for _, n := range nodes {
		if n.PairStatus == nil {
			role = append(role, "NO STATUS")
		} else {
			role = append(role, n.Role)
		}
	}
	rows = append(rows, role)
	row("STATE", true, func(s *api.PairStatus) string { return s.State })
	row("WRITABLE", true, writable)
	row("EPOCH", true, func(s *api.PairStatus) string { return number(s.Epoch) })
	row("NODE", true, func(s *api.PairStatus) string { return shortID(s.NodeID) })
	row("LOG", true, func(s *api.PairStatus) string { return shortID(s.LogID) })
	row("LAST INDEX", true, func(s *api.PairStatus) string { return number(s.LastIndex) })
	row("DURABLE", true, func(s *api.PairStatus) string { return number(s.DurableIndex) })
	row("COMMITTED", true, func(s *api.PairStatus) string { return number(s.CommittedIndex) })
	row("APPLIED", true, func(s *api.PairStatus) string { return number(s.AppliedIndex) })
	row("OTHER NODE", true, func(s *api.PairStatus) string { return shortID(s.Peer.NodeID) })
	row("OTHER AT", false, func(s *api.PairStatus) string { return s.Peer.Address })
	row("OTHER DURABLE", true, func(s *api.PairStatus) string { return number(s.Peer.DurableIndex) })
	row("OTHER APPLIED", true, func(s *api.PairStatus) string { return number(s.Peer.AppliedIndex) })
	row("LAG", true, func(s *api.PairStatus) string { return number(s.Peer.LagEntries) })
	row("LAST CONTACT", true, lastContact)
	row("FULL SYNC", false, fullSync)
	if err := writeRows(w, output, head, rows, objects); err != nil || output == "json" {
		return err
	}
	for _, n := range nodes {
		if n.PairStatus == nil || n.Reason == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s: %s\n", n.URL, appendVisible(nil, []byte(n.Reason))); err != nil {
			return err
		}
	}
	return nil
}

func writable(s *api.PairStatus) string {
	switch {
	case s.Role != roleLeader:
		return ""
	case s.Writable:
		return "yes"
	}
	return "NO"
}

// shortID is enough of an id of 32 digits to tell nodes apart, such that both columns fit a small terminal.
func shortID(id string) string {
	if len(id) == 32 {
		return id[:12] + ".."
	}
	return id
}

func lastContact(s *api.PairStatus) string {
	if s.Peer.LastContactMS < 0 {
		return "never"
	}
	return short(time.Duration(s.Peer.LastContactMS)*time.Millisecond) + " ago"
}

func fullSync(s *api.PairStatus) string {
	if s.Sync == nil {
		return ""
	}
	done, total := float64(s.Sync.DoneBytes), float64(s.Sync.TotalBytes)
	part := 0.0
	if total > 0 {
		part = min(1, done/total)
	}
	return fmt.Sprintf("%.0f%% of %.1f MB", 100*part, total/1e6)
}
