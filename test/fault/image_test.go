package fault

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"example.com/mq/test/process"
)

// image is a file that holds an ext4 file system, mounted by a loop device.
type image struct {
	t       *testing.T
	file    string
	dir     string // where it is mounted
	mounted bool
}

// newImage makes and mounts a file system of so many MiB. It is unmounted when the test ends.
func newImage(t *testing.T, mib int64) *image {
	t.Helper()
	if os.Getuid() != 0 {
		process.Skip(t, "mounting a file system needs root")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			process.Skip(t, err.Error())
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		process.Skip(t, "no loop devices: "+err.Error())
	}
	base := process.Dir(t)
	im := &image{t: t, file: filepath.Join(base, "image"), dir: filepath.Join(base, "mnt")}
	if err := os.Mkdir(im.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(im.file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(mib << 20); err != nil {
		t.Fatal(err)
	}
	// -m 0: root gets no reserve, so full is full.
	im.command("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", im.file)
	t.Cleanup(func() {
		if im.mounted {
			im.unmount()
		}
	})
	if out, err := exec.Command("mount", "-o", "loop", im.file, im.dir).CombinedOutput(); err != nil {
		process.Skip(t, fmt.Sprintf("mount: %v: %s", err, out))
	}
	im.mounted = true
	return im
}

func (im *image) command(words ...string) {
	im.t.Helper()
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		im.t.Fatalf("%s: %v\n%s", words[0], err, out)
	}
}

func (im *image) mount() {
	im.t.Helper()
	im.command("mount", "-o", "loop", im.file, im.dir)
	im.mounted = true
}

func (im *image) unmount() {
	im.t.Helper()
	im.command("umount", im.dir)
	im.mounted = false
}

// How ext4 goes down at an emergency shutdown (EXT4_GOING_FLAGS_…).
const (
	journalFlushed = 1 // the journal is written, data is not: names may be there without what they name
	nothingFlushed = 2 // as when the power is cut
)

// cutPower shuts the file system down: what was not synced is gone, and every later call fails. It may be
// called by any goroutine.
func (im *image) cutPower(how uint32) {
	im.t.Helper()
	d, err := os.Open(im.dir)
	if err != nil {
		im.t.Errorf("shut the file system down: %v", err)
		return
	}
	defer d.Close()
	const ioctlShutdown = 2<<30 | 4<<16 | 'X'<<8 | 125 // _IOR('X', 125, __u32), EXT4_IOC_SHUTDOWN
	if err := unix.IoctlSetPointerInt(int(d.Fd()), ioctlShutdown, int(how)); err != nil {
		im.t.Errorf("shut the file system down: %v", err)
	}
}

// fill makes a file longer until so many bytes are left, or nothing more goes in, and returns its name.
func (im *image) fill(name string, left int64) string {
	im.t.Helper()
	path := filepath.Join(im.dir, name)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		im.t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		im.t.Fatal(err)
	}
	const block = 4096
	end := info.Size()
	for size := int64(16 << 20); size >= block; {
		if left > 0 && im.free()-size < left {
			size /= 2
			continue
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, end, size); err {
		case nil:
			end += size
		case unix.ENOSPC:
			size /= 2
		case unix.EINTR:
		default:
			im.t.Fatalf("fill the disk: %v", err)
		}
	}
	return path
}

// free returns how many bytes may be written.
func (im *image) free() int64 {
	im.t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(im.dir, &fs); err != nil {
		im.t.Fatal(err)
	}
	return int64(fs.Bavail) * fs.Bsize
}

// sync writes what the file system still holds in memory.
func (im *image) sync() {
	im.t.Helper()
	d, err := os.Open(im.dir)
	if err != nil {
		im.t.Fatal(err)
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		im.t.Fatalf("sync the file system: %v", err)
	}
}
