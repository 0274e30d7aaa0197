package node

import (
	"errors"
	"io"
	"path"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs/memfs"
)

// old makes a garden whose head segments nothing needs any more, but for a backup that begins before.
func old(t *testing.T) (*garden, broker.BackupInfo) {
	t.Helper()
	g := newGarden(t, 5, 2)
	for range 60 {
		g.publish(0, 2, 1000)
	}
	info, err := g.n.BackupBegin()
	if err != nil {
		t.Fatal(err)
	}
	g.retain(0, g.topics[0].end())
	for range 3 {
		g.publish(1, 1, 100)
		if _, err := g.n.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	g.settle(time.Second)
	return g, info
}

func (g *garden) head() entry.Index { return g.n.log.Segments()[0].First }

// All that a backup needs stays until its end, or until nobody has asked for it in a minute.
func TestBackupHoldsTheLog(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g, info := old(t)
		if g.head() != 1 {
			t.Fatalf("the log begins with entry %d while a backup is taken", g.head())
		}
		read := func(want error) {
			t.Helper()
			p := make([]byte, 100)
			for _, one := range append(info.Segments, broker.BackupSegment{}) {
				n, err := g.n.BackupRead(info.Backup, one.First, 0, p)
				if !errors.Is(err, want) || want == nil && n != len(p) {
					t.Fatalf("read segment %d: %d bytes, %v; want %v", one.First, n, err, want)
				}
			}
		}
		for range 4 {
			time.Sleep(50 * time.Second)
			read(nil)
		}
		if g.head() != 1 {
			t.Fatalf("the log begins with entry %d after a while", g.head())
		}
		time.Sleep(70 * time.Second)
		if g.head() == 1 {
			t.Error("the head stays, though nobody has asked for the backup in a minute")
		}
		read(broker.ErrBackupGone)
		if err := g.n.BackupEnd(info.Backup); !errors.Is(err, broker.ErrBackupGone) {
			t.Errorf("end of a backup that is over: %v", err)
		}
		g.check()
		g.close()
	})
}

func TestBackupLetsGo(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g, info := old(t)
		if err := g.n.BackupEnd(info.Backup); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(100 * time.Millisecond)
		if g.head() == 1 {
			t.Error("the head stays after the end of the backup")
		}
		g.close()
	})
}

// Where room is short the head goes, and the backup is told so.
func TestBackupGivesWay(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g, info := old(t)
		used, err := g.disk.Usage()
		if err != nil {
			t.Fatal(err)
		}
		g.disk.SetCapacity(used.TotalBytes - used.FreeBytes + 8<<10)
		for published := 0; g.head() == 1; published++ { // through the segment that is prepared
			// For a moment it may be refused: nobody has seen the disk fill up.
			if _, err := g.n.Publish(&broker.Publish{Topic: []byte("more"), Records: []fact.Record{{Value: make([]byte, 500)}}}); err != nil && !errors.Is(err, broker.ErrStorageFull) || published == 50 {
				t.Fatalf("after %d publishes the head stays for a backup, and: %v", published, err)
			}
			time.Sleep(200 * time.Millisecond)
		}
		if _, err := g.n.BackupRead(info.Backup, 1, 0, make([]byte, 10)); !errors.Is(err, broker.ErrBackupGone) {
			t.Errorf("a read of what was dropped: %v", err)
		}
		if _, err := g.n.BackupRead(info.Backup, 0, 0, make([]byte, 10)); !errors.Is(err, broker.ErrBackupGone) {
			t.Errorf("a read of a backup that has lost a file: %v", err)
		}
		if _, err := g.n.Publish(&broker.Publish{Topic: []byte("more"), Records: []fact.Record{{Value: make([]byte, 500)}}}); err != nil {
			t.Errorf("a publish after room was made: %v", err)
		}
	})
}

// A backup has what is applied when it begins, and is what the disk has: the last segment up to the last entry, and no byte
// more can be had.
func TestBackupEndsWithItsLastEntry(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 7, 1)
		for range 50 {
			g.publish(0, 1, 900)
		}
		info, err := g.n.BackupBegin()
		if err != nil {
			t.Fatal(err)
		}
		if at := g.n.broker.Load().Applied(); info.Index != at || info.LogID != g.n.identity.logID() {
			t.Errorf("the backup ends with entry %d of log %x; applied is %d", info.Index, info.LogID, at)
		}
		next := entry.Index(1)
		for i, one := range info.Segments {
			if one.First != next || one.Sealed != (i+1 < len(info.Segments)) {
				t.Errorf("segment %+v follows entry %d", one, next-1)
			}
			next = one.Last + 1
		}
		last := info.Segments[len(info.Segments)-1]
		if end := g.n.log.Next(); last.Last != info.Index || end.Segment != last.First || end.Offset != last.Bytes {
			t.Errorf("the last segment is %+v, the backup ends with entry %d, and the log at %+v", last, info.Index, end)
		}
		g.publish(0, 1, 900)
		whole := make([]byte, last.Bytes+1000)
		n, err := g.n.BackupRead(info.Backup, last.First, 0, whole)
		if err != nil || int64(n) != last.Bytes {
			t.Fatalf("the last segment has %d bytes, %v; want %d", n, err, last.Bytes)
		}
		f, err := g.disk.OpenRead(segmentFile(last.First))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		disk := make([]byte, n)
		if _, err := f.ReadAt(disk, 0); err != nil && err != io.EOF || string(disk) != string(whole[:n]) {
			t.Errorf("other bytes than on disk: %v", err)
		}
		for _, bad := range []struct {
			segment entry.Index
			offset  int64
		}{{last.First, last.Bytes + 1}, {last.First, -1}, {last.First + 1, 0}, {0, info.Snapshot.Bytes + 1}} {
			if _, err := g.n.BackupRead(info.Backup, bad.segment, bad.offset, whole); !errors.Is(err, broker.ErrBackupRange) {
				t.Errorf("read %+v: %v", bad, err)
			}
		}
		if n, err := g.n.BackupRead(info.Backup, last.First, last.Bytes, whole); n != 0 || err != nil {
			t.Errorf("read at the end: %d, %v", n, err)
		}
		g.close()
	})
}

func TestBackupsAtOnce(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 8, 1)
		g.publish(0, 1, 10)
		names := map[string]bool{}
		for range backupsMax {
			info, err := g.n.BackupBegin()
			if err != nil || names[info.Backup] {
				t.Fatalf("%v %v", info, err)
			}
			names[info.Backup] = true
		}
		_, err := g.n.BackupBegin()
		if unavailable := (*broker.UnavailableError)(nil); !errors.As(err, &unavailable) || unavailable.Unknown {
			t.Errorf("one more: %v", err)
		}
		if _, err := g.n.BackupRead("nobody", 1, 0, make([]byte, 1)); !errors.Is(err, broker.ErrBackupGone) {
			t.Errorf("a backup that never was: %v", err)
		}
		time.Sleep(backupIdle)
		if _, err := g.n.BackupBegin(); err != nil {
			t.Errorf("after a minute: %v", err)
		}
		g.close()
	})
}

// A damaged snapshot is passed over; with none that is good, one is taken.
func TestBackupTakesAGoodSnapshot(t *testing.T) {
	onVirtualTime(t, func(t *testing.T) {
		g := newGarden(t, 9, 1)
		var at []entry.Index
		for range 2 {
			g.publish(0, 1, 100)
			i, err := g.n.Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			at = append(at, i)
		}
		begin := func(want entry.Index) {
			t.Helper()
			info, err := g.n.BackupBegin()
			if err != nil || info.Snapshot.Index != want {
				t.Fatalf("the backup takes the snapshot at %d, %v; want %d", info.Snapshot.Index, err, want)
			}
		}
		begin(at[1])
		flipSnapshot(t, g.disk)
		begin(at[0])
		names, _ := g.disk.List(snapshotDir)
		for _, name := range names {
			if err := g.disk.Remove(path.Join(snapshotDir, name)); err != nil {
				t.Fatal(err)
			}
		}
		g.publish(0, 1, 100)
		begin(g.n.broker.Load().Applied())
		g.close()
	})
}

// flipSnapshot damages the newest snapshot.
func flipSnapshot(t *testing.T, disk *memfs.FS) {
	t.Helper()
	names, err := disk.List(snapshotDir)
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	flipAt(t, disk, path.Join(snapshotDir, names[len(names)-1]), 100)
}

// Backups are taken of whoever serves clients.
func TestBackupOfAPair(t *testing.T) {
	c := newCouple(t)
	follower := c.start(1, Follower, 0)
	leader := c.start(0, Leader, 1)
	c.await("a pair that takes writes", func() bool { return c.publish(0, "t", "v") == nil })
	info, err := leader.BackupBegin()
	if err != nil || info.Index == 0 {
		t.Fatalf("%+v, %v", info, err)
	}
	if _, err := leader.BackupRead(info.Backup, 1, 0, make([]byte, 10)); err != nil {
		t.Error(err)
	}
	if err := leader.BackupEnd(info.Backup); err != nil {
		t.Error(err)
	}
	for _, err := range []error{
		second(follower.BackupBegin()), second(follower.BackupRead(info.Backup, 1, 0, make([]byte, 10))), follower.BackupEnd(info.Backup),
	} {
		if !errors.As(err, new(*broker.NotLeaderError)) {
			t.Errorf("the follower: %v", err)
		}
	}
}

// A leader that is back without its follower cannot know the end of what was acknowledged: a backup of what it knows would lack
// that without a word.
func TestBackupWaitsForTheEnd(t *testing.T) {
	c := newCouple(t)
	c.start(1, Follower, 0)
	leader := c.start(0, Leader, 1)
	c.await("a pair that takes writes", func() bool { return c.publish(0, "t", "first") == nil })
	var last entry.Index
	var dead *memfs.FS
	c.await("a log that ends with what was acknowledged", func() bool { // and not yet with a marker behind it
		last = leader.log.Last() + 1
		if err := c.publish(0, "t", "acknowledged"); err != nil {
			t.Fatal(err)
		}
		dead = c.fs[0].Clone()
		return leader.log.Last() == last
	})
	c.stop(0)
	c.stop(1)
	c.fs[0] = dead
	leader = c.start(0, Leader, 1)
	info, err := leader.BackupBegin()
	if !errors.As(err, new(*broker.UnavailableError)) || !strings.Contains(err.Error(), "before its follower is back") {
		t.Fatalf("without its follower: %+v, %v", info, err)
	}
	c.start(1, Follower, 0)
	c.await("a backup", func() bool {
		info, err = leader.BackupBegin()
		return err == nil
	})
	if info.Index < last {
		t.Errorf("it ends with entry %d, and the log had %d", info.Index, last)
	}
}

func second[T any](_ T, err error) error { return err }

func TestBackupOfACluster(t *testing.T) {
	c := newTrio(t)
	c.start(0, 1, 2)
	c.publish("v")
	leaders := 0
	for i := range 3 {
		n := c.node(i)
		info, err := n.BackupBegin()
		if errors.As(err, new(*broker.NotLeaderError)) {
			if _, err := n.BackupRead("x", 1, 0, make([]byte, 10)); !errors.As(err, new(*broker.NotLeaderError)) {
				t.Errorf("a read from node %d: %v", i, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		leaders++
		last := info.Segments[len(info.Segments)-1]
		if n, err := n.BackupRead(info.Backup, last.First, 0, make([]byte, last.Bytes)); err != nil || int64(n) != last.Bytes {
			t.Errorf("read: %d bytes, %v; want %d", n, err, last.Bytes)
		}
		if err := n.BackupEnd(info.Backup); err != nil {
			t.Error(err)
		}
	}
	if leaders != 1 {
		t.Errorf("%d nodes begin a backup", leaders)
	}
}
