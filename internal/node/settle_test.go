package node

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"testing"

	"example.com/mq/internal/clock"
	"example.com/mq/internal/vfs/memfs"
)

// What a start finds under its name, a power cut does not take away again, though the process before was killed between the
// naming of the file and the sync of the folder: a start acts upon what it reads.
func TestNamesReadAreDurable(t *testing.T) {
	for name, open := range map[string]func(*memfs.FS) (func() error, error){
		"cluster": func(disk *memfs.FS) (func() error, error) {
			n, err := OpenCluster(Config{FS: disk, Clock: clock.System{}}, ClusterConfig{
				Self: 0, URLs: []string{"http://node-0", "http://node-1", "http://node-2"}, Send: func(int, []byte) {},
			})
			if err != nil {
				return nil, err
			}
			return n.Close, nil
		},
		"standalone": func(disk *memfs.FS) (func() error, error) {
			n, err := Open(testConfig(disk))
			if err != nil {
				return nil, err
			}
			return n.Close, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			disk := memfs.New()
			if end, err := open(disk); err != nil { // it makes the files that every folder has
				t.Fatal(err)
			} else if err := end(); err != nil {
				t.Fatal(err)
			}
			f, err := disk.Create("new")
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(f.Sync(), f.Close(), disk.Rename("new", restoredFile)); err != nil {
				t.Fatal(err)
			}
			if _, err := disk.Crash(1, 0).FS.Size(restoredFile); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("the name is durable already: %v", err)
			}
			if end, err := open(disk); err == nil { // what it makes of the file is another question
				defer end()
			}
			if _, err := disk.Crash(1, 0).FS.Size(restoredFile); err != nil {
				t.Errorf("a start has found the file, and a power cut has taken it away: %v", err)
			}
		})
	}
}

// TestSnapshotNamesReadAreDurable: the same for a snapshot that the process before has named, and had no time to make durable:
// segments go because of it.
func TestSnapshotNamesReadAreDurable(t *testing.T) {
	disk := memfs.New()
	n := openNode(t, disk)
	for i := range 30 {
		if _, err := n.Publish((&call{values: []string{fmt.Sprint(i)}}).request()); err != nil {
			t.Fatal(err)
		}
	}
	at, err := n.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	name := path.Join(snapshotDir, fmt.Sprintf("%020d.snap", uint64(at)))
	if err := errors.Join(disk.Rename(name, name+".tmp"), disk.SyncDir(snapshotDir), disk.Rename(name+".tmp", name)); err != nil {
		t.Fatal(err)
	}
	if _, err := disk.Crash(1, 0).FS.Size(name); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the name is durable already: %v", err)
	}
	n = openNode(t, disk)
	defer n.Close()
	if n.keeper.newest.Load() != uint64(at) {
		t.Fatalf("the start has read the snapshot at %d, want %d", n.keeper.newest.Load(), at)
	}
	if _, err := disk.Crash(1, 0).FS.Size(name); err != nil {
		t.Errorf("a start has read the snapshot, and a power cut has taken it away: %v", err)
	}
}
