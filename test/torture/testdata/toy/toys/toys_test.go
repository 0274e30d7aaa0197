// Package toys has tests that end in every way.
package toys

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
)

func TestPasses(t *testing.T) {
	t.Log("acknowledged 12, read 34")
	tell(`{"test":"TestPasses","kind":"count","what":"kills","count":3}`)
	tell(`{"test":"TestPasses","kind":"count","what":"kills","count":1000}`)
	tell(`{"test":"TestPasses","kind":"figure","what":"slowest start","value":0.25,"unit":"s"}`)
	if err := os.WriteFile(os.TempDir()+"/rest", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	fmt.Println("a line of its own, of MQ_SEED=" + os.Getenv("MQ_SEED") + " and MQ_SIZE=" + os.Getenv("MQ_SIZE"))
}

func TestFails(t *testing.T) {
	tell(`{"test":"TestFails","kind":"violation","what":"a record is lost"}`)
	tell(`{"test":"TestFails","kind":"again","what":"MQ_SIM_SEED=1 go test ./toys"}`)
	t.Run("below", func(t *testing.T) { t.Error("no") })
}

func TestSkips(t *testing.T) { t.Skip("not here") }

// TestIdle tells of kills, and there were none.
func TestIdle(t *testing.T) {
	tell(`{"test":"TestIdle","kind":"count","what":"kills"}`)
	tell(`{"test":"TestIdle","kind":"count","what":"violations"}`)
	tell(`{"test":"TestIdle","kind":"count","what":"records read","count":2}`)
}

// TestBreaks ends before it tells what it has found.
func TestBreaks(t *testing.T) {
	t.Log("round 1: acknowledged 3, read 4, lost 0, reordered 0, group offsets wrong 0, answers by status map[200:3]")
	t.Fatal("round 2: acknowledged 5, read 6, lost 2, reordered 0, group offsets wrong 10, answers by status map[200:5]")
}

func TestExits(t *testing.T) { os.Exit(3) }

// TestHangs starts a process that outlives it unless its group is killed, and waits for it.
func TestHangs(t *testing.T) {
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv("MQ_PIDS"), fmt.Append(nil, cmd.Process.Pid), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
}

// tell appends a line as package report does.
func tell(line string) {
	f, err := os.OpenFile(os.Getenv("MQ_REPORT"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}
