package crowd

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestStalledFollower: the follower of a pair stands still, publishers pile up at the leader, whose memory is bounded. They
// are told so in time, and writes go on by themselves.
func TestStalledFollower(t *testing.T) {
	g := NewGroup(t, memory)
	dir := process.Dir(t)
	follower, err := process.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	token := []string{"MQ_REPLICATION_TOKEN=" + process.ReplicationToken}
	f := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: filepath.Join(dir, "follower"), Listen: follower, Env: token,
		Args: []string{"-role", "follower"}}).Start()
	leader := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: filepath.Join(dir, "leader"), Wrap: g.Wrap(), Env: token,
		Args: []string{"-role", "leader", "-epoch", "1", "-replica", "http://" + follower}}).StartReady()
	pileUp(t, leader, g, f)
}

// TestLostQuorum: the same for the leader of a cluster whose other nodes stand still. It gives up the lead.
func TestLostQuorum(t *testing.T) {
	var groups [3]*Group // they go after the nodes; each node fits itself into its own when it starts
	for i := range groups {
		groups[i] = NewGroup(t, memory)
	}
	c := process.NewCluster(t, process.Dir(t), len(groups))
	for i, m := range c.Nodes {
		m.Wrap = groups[i].Wrap()
	}
	c.Start()
	leader := c.AwaitWhole(arriveMax)
	var others []*process.Process
	for _, i := range c.Others(leader) {
		others = append(others, c.Nodes[i].Process)
	}
	pileUp(t, c.Nodes[leader].Process, groups[leader], others...)
}

// pileUp has publishers pile up at p while the others stand still.
func pileUp(t *testing.T, p *process.Process, g *Group, others ...*process.Process) {
	t.Helper()
	each := process.Count(t, "MQ_CROWD", 200)
	stand := 5 * time.Second
	if each >= 1000 {
		stand = 15 * time.Second
	}
	publishUntilDone(t, p)
	before := gauges(t, p)
	for _, o := range others {
		if err := o.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), stand)
	defer cancel()
	statuses := publishAll(ctx, p.URL, each)
	for _, o := range others {
		if err := o.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	publishUntilDone(t, p)
	back := time.Since(began)
	awaitCalm(t, p, before)
	u, err := g.Usage()
	if err != nil {
		t.Fatal(err)
	}
	rss, err := peakRSS(p.PID)
	if err != nil {
		t.Fatal(err)
	}
	all := rss + u.SocketPeak + u.KernelPeak
	t.Logf("%d publishers piled up for %v: answers %v; writes again after %v; %d MiB at most (resident %d, buffers of sockets %d, kernel %d), %v",
		each, stand, statuses, back.Round(time.Millisecond), all>>20, rss>>20, u.SocketPeak>>20, u.KernelPeak>>20, u)
	report.Count(t, "publishers piled up", int64(each))
	report.Figure(t, "memory at most, of 256", float64(all>>20), "MiB")
	report.Figure(t, "writes again after", back.Seconds(), "s")
	if all > memory || u.OOMKills > 0 {
		t.Errorf("%d MiB in use at most, want %d; %v", all>>20, memory>>20, u)
	}
	if statuses["503"] == 0 {
		t.Error("nobody was told that writes are not taken")
	}
}

// publishAll has n publishers, each on a connection of its own, publish records of 16 KiB until ctx ends, and counts the
// answers by status.
func publishAll(ctx context.Context, url string, n int) map[string]int {
	body := []byte(fmt.Sprintf(`{"topic":"piled","value":%q}`, base64.StdEncoding.EncodeToString(make([]byte, 16<<10))))
	client := &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: n, DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer client.CloseIdleConnections()
	var mu sync.Mutex // guards the field below
	statuses := map[string]int{}
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				status := post1(ctx, client, url, body)
				mu.Lock()
				statuses[status]++
				mu.Unlock()
				if status != "200" { // as a client that is told to come back later
					t := time.NewTimer(time.Second)
					select {
					case <-ctx.Done():
					case <-t.C:
					}
					t.Stop()
				}
			}
		})
	}
	all.Wait()
	return statuses
}

// post1 publishes once and returns the status, or "none".
func post1(ctx context.Context, client *http.Client, url string, body []byte) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/publish", bytes.NewReader(body))
	if err != nil {
		panic(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		return "none"
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return "none"
	}
	return fmt.Sprint(answer.StatusCode)
}

// publishUntilDone publishes until that is acknowledged, wherever it is redirected to.
func publishUntilDone(t *testing.T, p *process.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := []byte(`{"topic":"piled","value":"AA=="}`)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for last := ""; ; {
		if last = post1(ctx, http.DefaultClient, p.URL, body); last == "200" {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatalf("no write is taken: %s\n%s", last, p.Stderr())
		case <-poll.C:
		}
	}
}
