package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/nemesis"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// TestReadOnly lets the file system refuse all writes, as ext4 does when it finds an error in itself. That is a disk that
// has failed: nothing is acknowledged any more, reads go on, and when it was repaired all is there. MQ_EIO_CYCLES says how
// often.
func TestReadOnly(t *testing.T) {
	cycles := process.Count(t, "MQ_EIO_CYCLES", 1)
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 94))
	im := newImage(t, 96)
	l := load.New(load.Config{Seed: seed})
	node := process.NewNode(t, process.Config{
		Binary: process.Binary(t), Data: filepath.Join(im.Dir, "data"), Args: []string{"-segment-bytes", "1048576", "-snapshot-bytes", "1048576"},
	})
	for range cycles {
		p := node.StartReady()
		if err := l.ReadBack(t.Context(), p.URL, true); err != nil {
			t.Fatalf("%v\n%s", err, p.Stderr())
		}
		during(t, l, p, func(context.Context) {
			wait(t, p, time.Duration(20_000+dice.IntN(40_000))*time.Microsecond)
			if err := im.FailReadOnly(); err != nil {
				t.Error(err)
				return
			}
			deadline := time.Now().Add(10 * time.Second)
			for failed := false; !failed; failed, _ = l.Failed() {
				if time.Now().After(deadline) {
					t.Error("no publish failed although the file system is read-only")
					return
				}
				wait(t, p, time.Millisecond)
			}
			wait(t, p, 100*time.Millisecond)
		})
		if _, late := l.Failed(); late > 0 {
			t.Errorf("%d publishes were acknowledged after one had failed\n%s", late, p.Stderr())
		}
		checkFailed(t, l, p)
		p.Kill()
		if err := im.Repair(); err != nil {
			t.Fatal(err)
		}
		l.Checker.Restarted()
	}
	finish(t, l, node, node.StartReady())
	report.Count(t, "file systems that became read-only", int64(cycles))
	report.History(t, l.Checker.Report())
	t.Logf("read-only file system: cycles %d, %v, answers by status %v", cycles, l.Checker.Report(), l.Statuses())
}

// TestClusterLyingDisk lets the disk of one node of a cluster say that it has synced what it has not, and cuts the power
// of that disk. The others have all that was acknowledged, and the node gets it back from them. MQ_LIES says how often.
func TestClusterLyingDisk(t *testing.T) {
	needStrace(t)
	im := newImage(t, 96)
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 93))
	dir := process.KeptDir(t)
	c := process.NewCluster(t, dir, 2, "-segment-bytes", "1048576", "-snapshot-bytes", "1048576")
	address, err := process.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	const liar = 2 // the number of the node on the image
	c.Add(dir, process.Config{Listen: address, Data: filepath.Join(im.Dir, "data")}, "http://"+address)
	l := load.New(load.Config{Seed: seed})
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
			return fmt.Sprint(l.Statuses(), l.Err())
		})
	}
	lost := 0
	for range process.Count(t, "MQ_LIES", 1) {
		trace := filepath.Join(t.TempDir(), "trace")
		lie := nemesis.Meddling{Calls: nemesis.Syncs, How: nemesis.Lie(), Output: trace}
		tracer, err := lie.Trace(c.Nodes[liar].Process.PID)
		if err != nil {
			t.Fatal(err)
		}
		for until := time.Now().Add(time.Duration(100+dice.IntN(400)) * time.Millisecond); time.Now().Before(until); {
			awaitAck()
		}
		before, err := c.Nodes[liar].Process.RaftStatus()
		if err != nil {
			t.Fatal(err)
		}
		im.cutPower(nemesis.NothingFlushed)
		c.Kill(liar)
		tracer.Wait()
		calls, err := nemesis.ReadTrace(trace)
		if err != nil {
			t.Fatal(err)
		}
		for _, call := range calls {
			if call.Met {
				lost++
			}
		}
		if err := im.Remount(); err != nil {
			t.Fatal(err)
		}
		awaitAck()
		c.Start(liar)
		c.AwaitWhole(patience)
		awaitAck()
		c.Await(patience, "the node has again what it had", func() string { // if it led, nobody but it knew, and it gets it as news
			after, err := c.Nodes[liar].Process.RaftStatus()
			if err != nil || after.Durable < before.Durable {
				return fmt.Sprintf("the node is back with %+v, %v; it had %+v", after, err, before)
			}
			return ""
		})
		if err := l.Err(); err != nil {
			t.Fatalf("%v\n%s", err, c.Said())
		}
	}
	if lost == 0 {
		t.Error("no sync was a lie")
	}
	stop()
	c.AwaitWhole(patience)
	if err := l.SettleBy(t.Context(), client); err != nil {
		t.Fatal(err)
	}
	l.Checker.Restarted()
	l.Checker.Doubt(false)
	for i := range c.Nodes {
		c.Await(patience, fmt.Sprintf("node %d leads", i), func() string {
			leader := c.Leader(patience)
			if leader == i {
				return ""
			}
			return fmt.Sprintf("node %d leads, %v", leader, c.Nodes[leader].Process.Transfer(i))
		})
		c.Await(patience, "everything is read back", func() string {
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
	report.Count(t, "lying syncs", int64(lost))
	report.History(t, l.Checker.Report())
	t.Logf("lying disk: %d syncs were lies; %v, answers by status %v", lost, l.Checker.Report(), l.Statuses())
}
