package vfs

import (
	"errors"
	"path/filepath"
	"syscall"
	"testing"
)

// After a failed Sync the kernel is not asked again. A FIFO is what fdatasync refuses.
func TestFailedSyncIsFinal(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	h, err := o.Open("fifo")
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	f := h.(*osFile)
	calls, fdatasync := 0, f.sync
	f.sync = func(fd uintptr) {
		calls++
		fdatasync(fd)
	}
	for range 3 {
		if err := f.Sync(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("got error %v, want %v", err, syscall.EINVAL)
		}
	}
	if calls != 1 {
		t.Errorf("%d calls of fdatasync, want 1", calls)
	}
}

func TestRetry(t *testing.T) {
	answers := []error{syscall.EINTR, syscall.EINTR, syscall.EIO, nil}
	err := retry(func() error {
		answer := answers[0]
		answers = answers[1:]
		return answer
	})
	if err != syscall.EIO || len(answers) != 1 {
		t.Errorf("got error %v, %d answers left, want %v and 1", err, len(answers), syscall.EIO)
	}
}
