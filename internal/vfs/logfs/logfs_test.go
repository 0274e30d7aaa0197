package logfs_test

import (
	"io"
	"strings"
	"syscall"
	"testing"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/logfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/vfs/vfstest"
)

func TestFS(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) vfs.FS { return logfs.New(memfs.New(), io.Discard) })
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The lines are the same on every FS.
func TestLines(t *testing.T) {
	osFS, err := vfs.Open(t.TempDir())
	must(t, err)
	t.Cleanup(func() { osFS.Close() })
	for name, below := range map[string]vfs.FS{"memfs": memfs.New(), "os": osFS} {
		t.Run(name, func(t *testing.T) {
			faults := faultfs.New(below)
			faults.Inject(faultfs.Fault{Kinds: []faultfs.Kind{faultfs.Sync}, At: 2, Err: syscall.EIO})
			testLines(t, faults)
		})
	}
}

func testLines(t *testing.T, below vfs.FS) {
	var b strings.Builder
	f := logfs.New(below, &b)
	l, err := f.Lock("LOCK")
	must(t, err)
	f.Lock("LOCK")
	must(t, l.Close())
	must(t, f.Mkdir("log"))
	a, err := f.Create("log/a.tmp")
	must(t, err)
	f.Create("log/a.tmp")
	_, err = a.WriteAt(make([]byte, 700), 0)
	must(t, err)
	_, err = a.WriteAt([]byte("xyz"), 700)
	must(t, err)
	_, err = a.ReadAt(make([]byte, 3), 700)
	must(t, err)
	must(t, a.Truncate(702))
	must(t, a.Sync())
	must(t, f.Rename("log/a.tmp", "log/a"))
	must(t, f.SyncDir("log"))
	if err := a.Sync(); err == nil {
		t.Error("no error from a sync with a fault")
	}
	b2, err := f.Create("log/b")
	must(t, err)
	must(t, f.Rename("log/b", "log/a"))
	must(t, a.Close())
	a.Close()
	must(t, f.Remove("log/a"))
	f.Remove("log/a")
	must(t, b2.Close())
	f.Open("log/a")
	f.Rename("log/a", "log/b")
	const want = `lock LOCK
lock LOCK: locked by another process
unlock LOCK
mkdir log
create log/a.tmp
create log/a.tmp: file already exists
write log/a.tmp 0-700 zeros
write log/a.tmp 700-703
truncate log/a.tmp 702
sync log/a.tmp
rename log/a.tmp to log/a
syncdir log
sync log/a: input/output error
create log/b
rename log/b to log/a
close log/a (replaced)
close log/a (replaced): file already closed
remove log/a
remove log/a: file does not exist
close log/a (removed)
open log/a: file does not exist
rename log/a to log/b: file does not exist
`
	if got := b.String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}
