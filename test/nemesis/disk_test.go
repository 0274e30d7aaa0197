package nemesis

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"example.com/mq/test/process"
)

func newImage(t *testing.T, mib int64) *Image {
	t.Helper()
	if err := NeedImage(); err != nil {
		process.Skip(t, err.Error())
	}
	im, err := NewImage(process.Dir(t), mib)
	if err != nil {
		process.Skip(t, err.Error())
	}
	t.Cleanup(func() {
		if err := im.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return im
}

// write writes a file, and syncs it if it is told to.
func write(t *testing.T, name, text string, sync bool) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	if sync {
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestImage cuts the power of a file system, fills it, and lets it fail.
func TestImage(t *testing.T) {
	im := newImage(t, 16)
	kept, lost := filepath.Join(im.Dir, "kept"), filepath.Join(im.Dir, "lost")
	write(t, kept, "kept", true)
	write(t, lost, "lost", false)
	if err := im.CutPower(NothingFlushed); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(kept, []byte("late"), 0o600); err == nil {
		t.Error("a write without power is no error")
	}
	if err := im.Remount(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "kept" {
		t.Errorf("what was synced is %q, %v", text, err)
	}
	if text, err := os.ReadFile(lost); err == nil && string(text) == "lost" {
		t.Error("what was not synced is there after a power cut")
	}

	filler, err := im.Fill("filler", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lost, make([]byte, 8192), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a write to a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := im.Sync(); err != nil {
		t.Fatal(err)
	}
	if free, err := im.Free(); err != nil || free < 4<<20 {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	if _, err := im.Fill("filler", 1<<20); err != nil {
		t.Fatal(err)
	}
	if free, err := im.Free(); err != nil || free < 1<<20 || free > 2<<20 {
		t.Errorf("%d bytes are free, %v, want 1 MiB", free, err)
	}

	undo := WriteBack(t.Context(), rand.New(rand.NewPCG(1, 1)), im.Dir)
	if err := im.FailReadOnly(); err != nil {
		t.Fatal(err)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(lost, nil, 0o600); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write to a file system that has failed: %v", err)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "kept" {
		t.Errorf("what was synced is %q, %v", text, err)
	}
	if err := im.Repair(); err != nil {
		t.Fatal(err)
	}
	write(t, kept, "more", true)
}

// syncer writes a file and syncs it, again and again, when it is told to, and says what came of it.
func syncer(t *testing.T, wrap []string, name string) (pid int, again func() string) {
	t.Helper()
	words := append(append([]string{}, wrap...), os.Args[0], "-test.run=^TestSyncer$")
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), "MQ_NEMESIS_SYNCER="+name)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // ends it
		cmd.Wait()
	})
	return cmd.Process.Pid, func() string {
		fmt.Fprintln(in)
		buf := make([]byte, 1000)
		n, err := out.Read(buf)
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(string(buf[:n]))
	}
}

// TestSyncer is the program behind syncer, not a test.
func TestSyncer(t *testing.T) {
	name := os.Getenv("MQ_NEMESIS_SYNCER")
	if name == "" {
		return
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	for {
		if n, err := os.Stdin.Read(make([]byte, 1)); n == 0 || err != nil {
			os.Exit(0)
		}
		began := time.Now()
		_, err := f.WriteAt([]byte("written"), 0)
		if err == nil {
			err = f.Sync()
		}
		fmt.Println(time.Since(began).Round(time.Millisecond), err)
	}
}

// TestTrace meddles with the syncs of a process in all ways.
func TestTrace(t *testing.T) {
	if err := NeedTrace(); err != nil {
		process.Skip(t, err.Error())
	}
	dir := process.Dir(t)
	name := filepath.Join(dir, "file")
	pid, again := syncer(t, nil, name)
	fine := func(when string) {
		t.Helper()
		if said := again(); !strings.HasSuffix(said, "<nil>") {
			t.Fatalf("%s: %s", when, said)
		}
	}
	fine("before")
	other := filepath.Join(dir, "other")
	write(t, other, "", false)
	for _, c := range []struct {
		name string
		Meddling
		want string // what is said ends so
		met  bool
	}{
		{"EIO", Meddling{Calls: Syncs, How: Fail("EIO")}, "input/output error", true},
		{"no space", Meddling{Calls: Writes, How: Fail("ENOSPC"), Path: name}, "no space left on device", true},
		{"another file", Meddling{Calls: Syncs, How: Fail("EIO"), Path: other}, "<nil>", false},
		{"late", Meddling{Calls: Syncs, How: Fail("EIO"), First: 60_000}, "<nil>", false},
		{"a lie", Meddling{Calls: Syncs, How: Lie()}, "<nil>", true},
		{"slow", Meddling{Calls: Syncs, How: Delay(200 * time.Millisecond)}, "<nil>", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.Output = filepath.Join(t.TempDir(), "trace")
			tracer, err := c.Trace(pid)
			if err != nil {
				t.Fatal(err)
			}
			said := again()
			if err := tracer.Detach(); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(said, c.want) {
				t.Errorf("%q, want %q", said, c.want)
			}
			took, _ := time.ParseDuration(strings.Fields(said)[0]) // it prints one
			if slow := took >= 200*time.Millisecond; c.name == "slow" && !slow {
				t.Errorf("a slow sync took %v", took)
			}
			calls, err := ReadTrace(c.Output)
			if err != nil {
				t.Fatal(err)
			}
			met := 0
			for _, call := range calls {
				if call.Met {
					met++
					if call.Path != name || call.Ended == 0 {
						t.Errorf("met %+v", call)
					}
				}
			}
			if c.met != (met > 0) {
				t.Errorf("%d calls were met: %+v", met, calls)
			}
			fine("detached")
		})
	}
	t.Run("hang", func(t *testing.T) {
		tracer, err := Meddling{Calls: Syncs, How: Hang()}.Trace(pid)
		if err != nil {
			t.Fatal(err)
		}
		said := make(chan string)
		go func() { said <- again() }() // ends with Detach
		select {
		case s := <-said:
			t.Errorf("a sync that hangs: %s", s)
		case <-time.After(300 * time.Millisecond):
		}
		if err := tracer.Detach(); err != nil {
			t.Fatal(err)
		}
		select {
		case s := <-said:
			if !strings.HasSuffix(s, "<nil>") {
				t.Error(s)
			}
		case <-time.After(patience):
			t.Fatal("it hangs still")
		}
	})
	t.Run("from the start", func(t *testing.T) {
		_, again := syncer(t, Meddling{Calls: Syncs, How: Fail("EIO"), First: 2}.Wrap(), name+"2")
		if said := again(); !strings.HasSuffix(said, "<nil>") {
			t.Errorf("the first sync: %s", said)
		}
		// The goroutine may be on another thread by now, and each has its own count.
		failed := false
		for range 50 {
			failed = failed || strings.HasSuffix(again(), "input/output error")
		}
		if !failed {
			t.Error("no sync failed")
		}
	})
}

// TestLie lets syncs lie and cuts the power: what was called durable is gone. So the lie is one.
func TestLie(t *testing.T) {
	if err := NeedTrace(); err != nil {
		process.Skip(t, err.Error())
	}
	im := newImage(t, 16)
	for _, lies := range []bool{false, true} {
		t.Run(fmt.Sprint(lies), func(t *testing.T) {
			name := filepath.Join(im.Dir, fmt.Sprint(lies))
			pid, again := syncer(t, nil, name)
			var tracer *Tracer
			if lies {
				var err error
				if tracer, err = (Meddling{Calls: Syncs, How: Lie()}).Trace(pid); err != nil {
					t.Fatal(err)
				}
			}
			if said := again(); !strings.HasSuffix(said, "<nil>") {
				t.Fatal(said)
			}
			if err := im.CutPower(NothingFlushed); err != nil {
				t.Fatal(err)
			}
			if err := Kill(pid); err != nil {
				t.Fatal(err)
			}
			if tracer != nil {
				tracer.Wait()
			}
			await(t, "the process ends", func() string {
				if err := im.Remount(); err != nil {
					return err.Error()
				}
				return ""
			})
			text, err := os.ReadFile(name)
			if there := err == nil && string(text) == "written"; there == lies {
				t.Errorf("after the power cut: %q, %v", text, err)
			}
		})
	}
}
