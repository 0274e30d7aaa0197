package fault

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// patience is how long anything of a cluster may take that must happen in the end.
const patience = 30 * time.Second

// TestClusterDiskFull fills the disk of one node of a cluster, whose other nodes have room. If it leads, it hands the lead
// over and writes go on; if it follows, nobody notices. When there is room again it is as before.
func TestClusterDiskFull(t *testing.T) {
	const (
		handOverMax = 10 * time.Second // 2 election timeouts, on a machine that is not busy with other tests
		gapMax      = 2 * time.Second
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
		filler := im.fill("filler", 0)
		filled := time.Now()
		if leads {
			c.Await(patience, "another node leads", func() string {
				if leader := c.Leader(patience); leader != full {
					return ""
				}
				return fmt.Sprint(l.Statuses())
			})
			t.Logf("another node led %v after the disk was full", time.Since(filled))
			if took := time.Since(filled); took > handOverMax {
				t.Errorf("another node led after %v, want at most %v", took, handOverMax)
			}
			awaitAck()
		}
		// More than the segment that was prepared.
		for until := time.Now().Add(2 * time.Second); time.Now().Before(until); {
			awaitAck()
		}
		if gap := l.LongestGap(); !leads && gap > gapMax {
			t.Errorf("no writes for %v while a follower's disk is full", gap)
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
