package nemesis

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"example.com/mq/test/load"
	"example.com/mq/test/process"
	"example.com/mq/test/report"
)

// tortured is an mqd whose clock jumps, built once.
var tortured = sync.OnceValues(func() (binary string, err error) {
	dir, err := os.MkdirTemp("", "mqd-torture-")
	if err != nil {
		return "", err
	}
	leftovers = append(leftovers, dir)
	binary = filepath.Join(dir, "mqd")
	if out, err := exec.Command("go", "build", "-tags", "torture", "-o", binary, "example.com/mq/cmd/mqd").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build mqd: %w\n%s", err, out)
	}
	return binary, nil
})

func torture(t *testing.T) (binary string) {
	t.Helper()
	binary, err := tortured()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// ask posts a request as JSON. Anything but 200 fails the test.
func ask(t *testing.T, url, path string, in map[string]any, out any) {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.Post(url+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var text json.RawMessage
	if err := json.NewDecoder(answer.Body).Decode(&text); err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s %v: %s, %s, %v", path, in, answer.Status, text, err)
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
}

// times checks that the times of a topic's records never go back, and returns the last.
func times(t *testing.T, url, topic string) (last time.Time) {
	t.Helper()
	var describe struct {
		Start uint64 `json:"start_offset"`
	}
	ask(t, url, "/v1/topics/describe", map[string]any{"topic": topic}, &describe)
	for from, n := describe.Start, int64(0); ; {
		var page struct {
			Records []struct {
				Offset uint64 `json:"offset"`
				TimeMS int64  `json:"timestamp_ms"`
			} `json:"records"`
			Next uint64 `json:"next_offset"`
			End  uint64 `json:"end_offset"`
		}
		ask(t, url, "/v1/fetch", map[string]any{"topic": topic, "offset": from, "limit": 1000}, &page)
		for _, r := range page.Records {
			if r.TimeMS < n {
				t.Fatalf("%q: offset %d has the time %d, one before it %d", topic, r.Offset, r.TimeMS, n)
			}
			n = r.TimeMS
		}
		if from = page.Next; from == page.End {
			return time.UnixMilli(n)
		}
	}
}

// setClock sets a clock, and waits until it is sure to be read.
func setClock(t *testing.T, file string, off time.Duration) {
	t.Helper()
	if _, err := SetClock(file, off); err != nil {
		t.Fatal(err)
	}
	pause(t.Context(), 20*time.Millisecond)
}

// jumps are how far a clock is off: forth and back, each once before any again.
type jumps struct {
	dice  *rand.Rand
	left  []time.Duration
	drawn int
}

func (j *jumps) next() time.Duration {
	if len(j.left) == 0 {
		j.left = []time.Duration{time.Hour, -time.Hour, 0, time.Duration(j.dice.Int64N(int64(2*time.Hour))) - time.Hour}
		j.dice.Shuffle(len(j.left), func(a, b int) { j.left[a], j.left[b] = j.left[b], j.left[a] })
	}
	off := j.left[0]
	j.left = j.left[1:]
	j.drawn++
	return off
}

// window is longer than all jumps together may move the time of the log.
var window = []string{"-request-id-window", "3h"}

// wantJumped checks that the time of the log has followed a clock that was ahead by an hour, and never more.
func wantJumped(t *testing.T, last time.Time) {
	t.Helper()
	if ahead := time.Until(last); ahead < 50*time.Minute || ahead > time.Hour+time.Minute {
		t.Errorf("the time of the log is %v ahead, want about an hour", ahead)
	}
}

// ahead returns what is lacking until a topic has a record whose time is about an hour ahead.
func ahead(url, topic string) string {
	body, err := json.Marshal(map[string]any{"topic": topic, "from_ms": time.Now().Add(55 * time.Minute).UnixMilli(), "limit": 1})
	if err != nil {
		return err.Error()
	}
	answer, err := (&http.Client{Timeout: patience}).Post(url+"/v1/fetch", "application/json", bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer answer.Body.Close()
	var page struct {
		Records []struct{} `json:"records"`
	}
	if err := json.NewDecoder(answer.Body).Decode(&page); err != nil || len(page.Records) == 0 {
		return fmt.Sprintf("%s, %d records, %v", answer.Status, len(page.Records), err)
	}
	return ""
}

// TestClockJumps lets the wall clock of mqd jump by an hour forth and back, under load and across restarts. Nobody notices
// but by the times of records, which never go back. MQ_CLOCK_JUMPS says how often.
func TestClockJumps(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 91))
	dir := process.KeptDir(t)
	file := filepath.Join(dir, "clock")
	node := process.NewNode(t, process.Config{
		Binary: torture(t), Data: filepath.Join(dir, "data"), Args: append(append([]string{}, small...), window...), Env: []string{ClockVariable + "=" + file},
	})
	l := load.New(load.Config{Seed: seed})
	p := node.StartReady()
	off := jumps{dice: dice}
	for i := range process.Count(t, "MQ_CLOCK_JUMPS", 4) {
		client := load.NewClient(p.URL)
		stop := begin(t, l, client)
		awaitAck(t, l, time.Now(), p.Stderr)
		setClock(t, file, off.next())
		awaitAck(t, l, time.Now(), p.Stderr)
		if i%2 == 1 {
			p.Kill()
		}
		stop()
		client.Close()
		if i%2 == 1 {
			l.Checker.Restarted()
			p = node.StartReady()
			if err := l.ReadBack(t.Context(), p.URL, true); err != nil {
				t.Fatalf("%v\n%s", err, p.Stderr())
			}
		}
		if err := l.Err(); err != nil {
			t.Fatalf("%v\n%s", err, p.Stderr())
		}
	}
	setClock(t, file, time.Hour)
	client := load.NewClient(p.URL)
	defer client.Close()
	if a := l.Probe(t.Context(), client, 0); a.Outcome != load.Done { // to "orders"
		t.Errorf("publish with the clock an hour ahead: %v\n%s", a, p.Stderr())
	}
	// A fetch that waits does so by another clock.
	ended := make(chan time.Duration)
	go func() { // ends with the answer
		began := time.Now()
		answer, err := http.Post(p.URL+"/v1/fetch", "application/json", bytes.NewReader([]byte(`{"topic":"orders","from_ms":253402300799999,"wait_ms":1000}`)))
		if err == nil {
			answer.Body.Close()
		}
		ended <- time.Since(began)
	}()
	setClock(t, file, time.Hour)
	setClock(t, file, -time.Hour)
	if took := <-ended; took < time.Second || took > 10*time.Second {
		t.Errorf("a fetch that waits for 1 s took %v", took)
	}
	if err := l.Settle(t.Context(), p.URL); err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
	if err := l.ReadBack(t.Context(), p.URL, true); err != nil {
		t.Fatalf("%v\n%s", err, p.Stderr())
	}
	wantJumped(t, times(t, p.URL, "orders"))
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	if err := l.Err(); err != nil {
		t.Error(err)
	}
	report.Count(t, "jumps of a clock", int64(off.drawn))
	report.History(t, l.Checker.Report())
	t.Logf("clock: %v, answers by status %v", l.Checker.Report(), l.Statuses())
}

// TestClockRequestIDs repeats publishes while the clock jumps by more than request ids are remembered. They are remembered
// for that long by the time of the log, which did not move.
func TestClockRequestIDs(t *testing.T) {
	dir := process.KeptDir(t)
	file := filepath.Join(dir, "clock")
	node := process.NewNode(t, process.Config{
		Binary: torture(t), Data: filepath.Join(dir, "data"), Args: []string{"-request-id-window", "30m"}, Env: []string{ClockVariable + "=" + file},
	})
	p := node.StartReady()
	type published struct {
		Offset    uint64 `json:"offset"`
		Duplicate bool   `json:"duplicate"`
	}
	publish := func(id string) (out published) {
		t.Helper()
		ask(t, p.URL, "/v1/publish", map[string]any{"topic": "orders", "value": "", "request_id": id}, &out)
		return out
	}
	setClock(t, file, time.Hour) // as far as it will ever be
	first := map[string]published{}
	for i, off := range []time.Duration{time.Hour, -time.Hour, 0, time.Hour, -time.Hour, time.Hour} {
		setClock(t, file, off)
		id := fmt.Sprint("id ", i)
		if first[id] = publish(id); first[id].Duplicate {
			t.Errorf("%s is new, and a repeat", id)
		}
		if i == 4 {
			p.Kill()
			p = node.StartReady()
		}
		for id, want := range first {
			if got := publish(id); !got.Duplicate || got.Offset != want.Offset {
				t.Errorf("with the clock off by %v: %s is at %+v, want a repeat of %d", off, id, got, want.Offset)
			}
		}
	}
	wantJumped(t, times(t, p.URL, "orders"))
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// TestClusterClockJumps lets the clocks of a cluster's nodes jump, each for itself, while the lead changes. MQ_CLOCK_JUMPS
// says how often.
func TestClusterClockJumps(t *testing.T) {
	seed := process.Seed(t)
	dice := rand.New(rand.NewPCG(seed, 92))
	dir, binary := process.KeptDir(t), torture(t)
	c := process.NewCluster(t, dir, 3, append(append([]string{}, small...), window...)...)
	file := func(i int) string { return filepath.Join(dir, fmt.Sprint("clock-", i)) }
	for i, m := range c.Nodes {
		m.Binary = binary
		m.Env = append(m.Env, ClockVariable+"="+file(i))
		setClock(t, file(i), []time.Duration{-time.Hour, 0, time.Hour}[i]) // whoever leads first
	}
	g, stop := gatherGroup(t, c, load.Options{}, load.Config{Seed: seed})
	off := jumps{dice: dice}
	for range process.Count(t, "MQ_CLOCK_JUMPS", 4) {
		leader := g.Leader(patience)
		setClock(t, file(leader), off.next())
		setClock(t, file(dice.IntN(3)), off.next())
		awaitAck(t, g.load, time.Now(), g.Said)
		if dice.IntN(2) == 0 {
			g.Kill(leader)
			g.Start(leader)
		} else if err := g.Nodes[leader].Process.Transfer(g.Others(leader)[dice.IntN(2)]); err != nil {
			t.Log(err) // it need not succeed
		}
		awaitAck(t, g.load, time.Now(), g.Said)
		g.AwaitWhole(patience)
	}
	// Once an hour ahead for sure, whoever leads, and then behind.
	topics := []string{"orders", "audit log"}
	for _, topic := range topics {
		await(t, fmt.Sprintf("%q gets a record that is ahead", topic), func() string {
			leader := g.Leader(patience)
			setClock(t, file(leader), time.Hour)
			return ahead(g.Nodes[leader].URL, topic)
		})
	}
	setClock(t, file(g.Leader(patience)), -time.Hour)
	awaitAck(t, g.load, time.Now(), g.Said)
	stop()
	g.AwaitWhole(patience)
	for _, topic := range topics {
		wantJumped(t, times(t, g.Nodes[g.Leader(patience)].URL, topic))
	}
	g.finish()
	report.Count(t, "jumps of a clock", int64(off.drawn))
	report.History(t, g.load.Checker.Report())
	t.Logf("clocks of a cluster: %v, answers by status %v", g.load.Checker.Report(), g.load.Statuses())
}

// TestClockIsReal sets the variable for an mqd that was built as users get it: it means nothing.
func TestClockIsReal(t *testing.T) {
	dir := process.KeptDir(t)
	file := filepath.Join(dir, "clock")
	setClock(t, file, time.Hour)
	p := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: filepath.Join(dir, "data"), Env: []string{ClockVariable + "=" + file}}).StartReady()
	ask(t, p.URL, "/v1/publish", map[string]any{"topic": "orders", "value": ""}, &struct{}{})
	if off := time.Until(times(t, p.URL, "orders")).Abs(); off > time.Minute {
		t.Errorf("the clock is off by %v", off)
	}
}
