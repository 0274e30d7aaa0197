package nemesis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Image is a file that holds an ext4 file system, mounted by a loop device: a disk that may be broken.
type Image struct {
	File string
	Dir  string // where it is mounted

	mounted bool
}

// NeedImage returns why NewImage cannot work on this machine, or nil.
func NeedImage() error {
	if os.Getuid() != 0 {
		return errors.New("mounting a file system needs root")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount"} {
		if _, err := exec.LookPath(tool); err != nil {
			return err
		}
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		return fmt.Errorf("no loop devices: %w", err)
	}
	return nil
}

// NewImage makes and mounts a file system of so many MiB below a folder. Unmount it.
func NewImage(base string, mib int64) (*Image, error) {
	im := &Image{File: filepath.Join(base, "image"), Dir: filepath.Join(base, "mnt")}
	if err := os.Mkdir(im.Dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.Create(im.File)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(mib << 20); err != nil {
		return nil, err
	}
	// -m 0: root gets no reserve, so full is full.
	if err := command("mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", im.File); err != nil {
		return nil, err
	}
	return im, im.Mount()
}

// Mount mounts the file system again after Unmount.
func (im *Image) Mount() error {
	if err := command("mount", "-o", "loop", im.File, im.Dir); err != nil {
		return err
	}
	im.mounted = true
	return nil
}

// Unmount unmounts the file system, unless it is not mounted. Nobody may have a file open there.
func (im *Image) Unmount() error {
	if !im.mounted {
		return nil
	}
	if err := command("umount", im.Dir); err != nil {
		return err
	}
	im.mounted = false
	return nil
}

func command(words ...string) error {
	if out, err := exec.Command(words[0], words[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(words, " "), err, out)
	}
	return nil
}

// PowerCut is how ext4 goes down at an emergency shutdown (EXT4_GOING_FLAGS_…).
type PowerCut uint32

const (
	JournalFlushed PowerCut = 1 // the journal is written, data is not: names may be there without what they name
	NothingFlushed PowerCut = 2 // as when the power is cut
)

// CutPower shuts the file system down: what was not synced is gone, and every later call fails until it is unmounted and
// mounted again. It may be called by any goroutine.
func (im *Image) CutPower(how PowerCut) error { return CutPower(im.Dir, how) }

// CutPower shuts the file system down that a folder is in.
func CutPower(dir string, how PowerCut) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("shut the file system down: %w", err)
	}
	defer d.Close()
	const ioctlShutdown = 2<<30 | 4<<16 | 'X'<<8 | 125 // _IOR('X', 125, __u32), EXT4_IOC_SHUTDOWN
	if err := unix.IoctlSetPointerInt(int(d.Fd()), ioctlShutdown, int(how)); err != nil {
		return fmt.Errorf("shut the file system down: %w", err)
	}
	return nil
}

// Remount is what happens between a power cut and the next start.
func (im *Image) Remount() error {
	if err := im.Unmount(); err != nil {
		return err
	}
	return im.Mount()
}

// Fill makes a file of the image longer until so many bytes are left, or nothing more goes in, and returns its name. To
// undo it, remove the file and Sync.
func (im *Image) Fill(name string, left int64) (string, error) {
	path := filepath.Join(im.Dir, name)
	return path, Fill(path, left)
}

// Fill makes a file longer until so many bytes are left on its file system, or nothing more goes in.
func Fill(path string, left int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	const block = 4096
	end := info.Size()
	for size := int64(16 << 20); size >= block; {
		if left > 0 {
			free, err := Free(filepath.Dir(path))
			if err != nil {
				return err
			}
			if free-size < left {
				size /= 2
				continue
			}
		}
		switch err := unix.Fallocate(int(f.Fd()), 0, end, size); err {
		case nil:
			end += size
		case unix.ENOSPC:
			size /= 2
		case unix.EINTR:
		default:
			return fmt.Errorf("fill the disk: %w", err)
		}
	}
	return nil
}

// Free returns how many bytes may be written.
func (im *Image) Free() (int64, error) { return Free(im.Dir) }

// Free returns how many bytes may be written to the file system that a folder is in.
func Free(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("statfs %s: %w", dir, err)
	}
	return int64(fs.Bavail) * fs.Bsize, nil
}

// Sync writes what the file system still holds in memory.
func (im *Image) Sync() error {
	d, err := os.Open(im.Dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("sync the file system: %w", err)
	}
	return nil
}

// FailReadOnly lets the file system find an error in itself, on which it refuses all writes and goes on with reads. To
// undo it, Repair.
func (im *Image) FailReadOnly() error {
	if err := command("mount", "-o", "remount,errors=remount-ro", im.Dir); err != nil {
		return err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		// The fifth field is where it is mounted; the second after the dash is the device.
		before, after, _ := strings.Cut(line, " - ")
		if fields := strings.Fields(before); len(fields) > 4 && fields[4] == im.Dir {
			device := filepath.Base(strings.Fields(after)[1])
			return os.WriteFile("/sys/fs/ext4/"+device+"/trigger_fs_error", []byte("nemesis"), 0)
		}
	}
	return fmt.Errorf("%s is not mounted", im.Dir)
}

// Repair unmounts the file system, checks it, and mounts it again.
func (im *Image) Repair() error {
	if err := im.Unmount(); err != nil {
		return err
	}
	var exit *exec.ExitError
	// 1: errors were corrected.
	if err := command("fsck.ext4", "-f", "-y", im.File); err != nil && !(errors.As(err, &exit) && exit.ExitCode() == 1) {
		return err
	}
	return im.Mount()
}

// WriteBack lets the kernel write pieces of the files in a folder, drawn by the dice, so that a power cut finds a part of
// a write on the disk and not another: a tear at a page boundary. It goes on until Undo is called, or ctx is done.
func WriteBack(ctx context.Context, dice *rand.Rand, dir string) Undo {
	own := rand.New(rand.NewPCG(dice.Uint64(), dice.Uint64()))
	ctx, cancel := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { // ends with Undo
		for pause(ctx, 200*time.Microsecond) {
			files, _ := filepath.Glob(filepath.Join(dir, "*")) // an empty answer does no harm
			for _, name := range files {
				writeBackFile(own, name)
			}
		}
	})
	return func() error {
		cancel()
		done.Wait()
		return nil
	}
}

func writeBackFile(dice *rand.Rand, name string) {
	f, err := os.Open(name)
	if err != nil {
		return // it was renamed or dropped
	}
	defer f.Close()
	const page = 4096
	for range 8 {
		from := dice.Int64N(256) * page
		// Its outcome does not matter: it only asks for what the kernel may do at any time.
		_ = unix.SyncFileRange(int(f.Fd()), from, page*(1+dice.Int64N(8)), unix.SYNC_FILE_RANGE_WRITE)
	}
}

// PrivateMounts runs this program anew in a mount namespace of its own, unless the variable is set, which says that it was
// done. So its mounts are seen by nobody else, and they and their loop devices are gone when its processes are, however
// they end. It returns only when it failed, or nothing is to be done. Call it first in main or TestMain.
func PrivateMounts(variable string) error {
	if os.Getuid() != 0 || os.Getenv(variable) != "" {
		return nil
	}
	if err := os.Setenv(variable, "1"); err != nil { // also where it was set to nothing
		return err
	}
	// A namespace belongs to a thread. Exec makes this thread the only one.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return syscall.Exec(self, os.Args, os.Environ())
}
