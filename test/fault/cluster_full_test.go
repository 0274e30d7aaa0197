package fault

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// patience is how long anything of a cluster may take that must happen in the end.
const patience = 60 * time.Second

// TestClusterDiskFull fills the disk of one node of a cluster, whose other nodes have room. If it leads, it hands the lead
// over and writes go on; if it follows, nobody notices. When there is room again it is as before.
func TestClusterDiskFull(t *testing.T) {
	const (
		handOverMax = 10 * time.Second // many election timeouts
		gapMax      = 2 * time.Second
		// Who gets the lead must get ready within one election timeout, 0.5 s. Where syncs take too long for that, it is asked
		// again, after pauses.
		handOverSyncs = 60
	)
	im := newImage(t, 96)
	dir := process.KeptDir(t)
	c := process.NewCluster(t, dir, 2, "-segment-bytes", "2097152", "-snapshot-bytes", "2097152")
	address, err := process.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	const full = 2 // the number of the node on the image
	c.Add(dir, process.Config{Listen: address, Data: filepath.Join(im.Dir, "data")}, "http://"+address)
	l := load.New(load.Config{Seed: process.Seed(t), Quiet: true, Large: 10})
	l.Checker.Doubt(true)
	syncs := process.TimeSyncs(t, dir)
	c.Start()
	c.AwaitWhole(patience)
	client := load.Open(load.Options{URLs: c.URLs(), Cluster: true, Patient: true})
	defer client.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // ends with cancel
		defer close(done)
		l.RunBy(ctx, client)
	}()
	stop := func() {
		cancel()
		<-done
	}
	t.Cleanup(stop)
	awaitAck := func() {
		t.Helper()
		after := time.Now()
		c.Await(patience, "writes are taken", func() string {
			if l.LastAcknowledged().After(after) {
				return ""
			}
			return fmt.Sprint(l.Statuses())
		})
	}
	lead := func(i int) {
		t.Helper()
		c.Await(patience, fmt.Sprintf("node %d leads", i), func() string {
			leader := c.Leader(patience)
			if leader == i {
				return ""
			}
			if err := c.Nodes[leader].Process.Transfer(i); err != nil {
				return err.Error()
			}
			return fmt.Sprintf("node %d leads", leader)
		})
	}
	for _, leads := range []bool{true, false} {
		if lead(0); leads {
			lead(full)
		}
		awaitAck()
		l.ForgetGap()
		syncs.Forget()
		filler := im.fill("filler", 0)
		if leads {
			// Until then there is room in its segment and in the one that was prepared: how long depends on the load.
			c.Await(patience, "the leader meets the full disk", func() string {
				met, err := meetsFull(c.Nodes[full].Process)
				if err == nil && met || c.Leader(patience) != full {
					return ""
				}
				return fmt.Sprint(err, l.Statuses())
			})
			met := time.Now()
			syncs.Forget()
			c.Await(2*patience, "another node leads", func() string {
				if leader := c.Leader(patience); leader != full {
					return ""
				}
				return fmt.Sprint(l.Statuses())
			})
			took, slow := time.Since(met), syncs.Slowest()
			most := handOverMax + handOverSyncs*slow
			t.Logf("another node led %v after the leader had met the full disk, with syncs of %v beside it", took, slow)
			if took > most {
				t.Errorf("another node led after %v, want at most %v", took, most)
			}
			awaitAck()
		}
		// More than the segment that was prepared.
		for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
			awaitAck()
		}
		slow := syncs.Slowest()
		if gap, most := l.LongestGap(), gapMax+2*slow; !leads && gap > most { // one for the entry, one that was under way
			t.Errorf("no writes for %v while a follower's disk is full, want %v at most, with syncs of %v beside it", gap, most, slow)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		c.AwaitWhole(patience)
		awaitAck()
		if err := l.Err(); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	c.AwaitWhole(patience)
	if err := l.SettleBy(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	l.Checker.Restarted()
	l.Checker.Doubt(false)
	for i := range c.Nodes {
		lead(i)
		c.Await(patience, "everything is read back", func() string { // a node that was elected may be about to lead
			if err := l.ReadBackBy(t.Context(), client, true); err != nil {
				return err.Error()
			}
			return ""
		})
	}
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	c.Stop()
	report.History(t, l.Checker.Report())
	t.Log(l.Checker.Report(), l.Statuses())
}

// meetsFull reports whether a node of a cluster has found no room for the next segment of its log.
func meetsFull(p *process.Process) (bool, error) {
	r, err := http.NewRequest(http.MethodGet, p.URL+"/raft/status", nil)
	if err != nil {
		return false, err
	}
	r.Header.Set("X-Raft-Token", process.RaftToken)
	answer, err := (&http.Client{Timeout: patience}).Do(r)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	var status struct {
		DiskFull bool `json:"disk_full"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&status); err != nil || answer.StatusCode != http.StatusOK {
		return false, fmt.Errorf("%s, %w", answer.Status, err)
	}
	return status.DiskFull, nil
}
