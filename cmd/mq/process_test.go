package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"example.com/mq/client"
)

// hook is a line of a JSONL file.
type hook struct{ Topic, Key, Value string }

// readHooks reads a JSONL file with a parser other than the one under test.
func readHooks(t *testing.T, name string) map[string][]hook {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	byTopic := map[string][]hook{}
	for line := range bytes.Lines(data) {
		var h hook
		if err := json.Unmarshal(line, &h); err != nil {
			t.Fatal(err)
		}
		byTopic[h.Topic] = append(byTopic[h.Topic], h)
	}
	return byTopic
}

// wantTopics reads each topic back with mq and compares it byte for byte.
func wantTopics(t *testing.T, s *server, want map[string][]hook) {
	t.Helper()
	for topic, hooks := range want {
		out, errs, err := mq(t, s, "fetch", topic, "-n", "0", "-o", "json")
		if err != nil {
			t.Fatalf("fetch %s: %v: %s", topic, err, errs)
		}
		n := 0
		for line := range strings.Lines(out) {
			var r jsonRecord
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				t.Fatal(err)
			}
			if n == len(hooks) {
				t.Fatalf("%s: more than %d records came back", topic, n)
			}
			if h := hooks[n]; r.Offset != uint64(n) || r.Topic != topic || string(r.Key) != h.Key || string(r.Value) != h.Value {
				t.Fatalf("%s: record %d is %q %q, want %q %q", topic, n, r.Key, r.Value, h.Key, h.Value)
			}
			n++
		}
		if n != len(hooks) {
			t.Fatalf("%s: %d of %d records came back", topic, n, len(hooks))
		}
	}
}

// TestWebhooks imports deliveries as a code host sends them, each event type into its topic, and compares
// what comes back, also after a kill -9.
func TestWebhooks(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s, err := startServer(dir)
	if err != nil {
		t.Fatal(err)
	}
	want := readHooks(t, "testdata/webhooks.jsonl")
	out, errs, err := mq(t, s, "pub", "--jsonl", "testdata/webhooks.jsonl")
	if err != nil || strings.Count(out, "\n") != 1+len(want) {
		t.Fatalf("pub: %v: %s%s", err, out, errs)
	}
	wantTopics(t, s, want)
	s.kill()
	if s, err = startServer(dir); err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	wantTopics(t, s, want)
}

// TestImportSurvivesKill kills the server in the middle of an import, runs the import again, and compares what
// comes back, also after one more kill: once with many small records, once with deliveries as a code host sends
// them.
func TestImportSurvivesKill(t *testing.T) {
	t.Run("many", func(t *testing.T) {
		t.Parallel()
		const topics, each = 7, 3000
		var b bytes.Buffer
		for i := range topics * each {
			fmt.Fprintf(&b, `{"topic":"t%d","key":"%d","value":"value %d %s"}`+"\n", i*i%topics, i, i, strings.Repeat("x", i%300))
		}
		importSurvivesKill(t, b.Bytes(), "t1", 1000)
	})
	t.Run("webhooks", func(t *testing.T) {
		t.Parallel()
		// So often that a kill comes in the middle; the round in the key tells records apart.
		data, err := os.ReadFile("testdata/webhooks.jsonl")
		if err != nil {
			t.Fatal(err)
		}
		const rounds = 150
		var b bytes.Buffer
		for round := range rounds {
			b.Write(bytes.ReplaceAll(data, []byte(`, "key": "`), fmt.Appendf(nil, `, "key": "%d `, round)))
		}
		importSurvivesKill(t, b.Bytes(), "hooks.push", 100)
	})
}

// importSurvivesKill kills the server when topic holds so many records. The first import gets the last tenth of
// the events only after that: however fast it is, it has not ended before.
func importSurvivesKill(t *testing.T, events []byte, topic string, records uint64) {
	dir := t.TempDir()
	file := filepath.Join(dir, "events.jsonl")
	if err := os.WriteFile(file, events, 0o600); err != nil {
		t.Fatal(err)
	}
	want := readHooks(t, file)
	data := filepath.Join(dir, "data")
	s, err := startServer(data)
	if err != nil {
		t.Fatal(err)
	}
	publish := []string{"pub", "--import-id", "import", "--jsonl"}
	first := mqCommand(t, s, append(publish, "-", "--timeout", "5s")...) // it is tried so long again after the kill
	stdin, err := first.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	first.Stderr = &errs
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	killed := make(chan struct{})
	tell := sync.OnceFunc(func() { close(killed) })
	defer tell()
	go func() {
		stdin.Write(events[:len(events)/10*9])
		<-killed
		stdin.Write(events[len(events)/10*9:]) // or it has ended, and nobody reads
		stdin.Close()
	}()
	awaitRecords(t, s, topic, records)
	s.kill()
	tell()
	if err := first.Wait(); err == nil || !strings.Contains(errs.String(), "the same command can be run again") {
		t.Fatalf("the import ended with %v: %s", err, errs.String())
	}
	if s, err = startServer(data); err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	out, text, err := mq(t, s, append(publish, file)...)
	if err != nil {
		t.Fatalf("the second import: %v: %s", err, text)
	}
	if !strings.Contains(out, topic) {
		t.Errorf("summary: %s", out)
	}
	wantTopics(t, s, want)
	s.kill()
	if s, err = startServer(data); err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	wantTopics(t, s, want)
}

// awaitRecords waits until a topic holds n records.
func awaitRecords(t *testing.T, s *server, topic string, n uint64) {
	t.Helper()
	c, err := client.New(client.Config{Nodes: []string{s.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	k, err := c.Consume(client.ConsumerConfig{Topic: topic, Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for position := uint64(0); position < n; position, _ = k.Position() {
		if _, err := k.NextPage(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestInterruptedImport: an interrupt ends an import cleanly: what the summary says is what is stored.
func TestInterruptedImport(t *testing.T) {
	s, err := startServer(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	cmd := mqCommand(t, s, "pub", "t", "-l", "-o", "json")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(stdin, "one\ntwo\n") // published at once, though there may be more
	awaitRecords(t, s, "t", 2)
	cmd.Process.Signal(os.Interrupt) // it waits for the next line
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 || errs.String() != "mq: interrupted after 2 records\n" {
		t.Errorf("mq ended with %v: %s", err, errs.String())
	}
	stdin.Close()
	var total topicTotal
	if err := json.Unmarshal(out.Bytes(), &total); err != nil {
		t.Fatalf("%s: %v", out.String(), err)
	}
	stored, _, err := mq(t, s, "fetch", "t", "-r")
	if err != nil || uint64(strings.Count(stored, "\n")) != total.Records || total.Records != 2 {
		t.Errorf("the summary says %+v, stored is %q, %v", total, stored, err)
	}
	// So does one that waits for a value.
	one := mqCommand(t, s, "pub", "t", "-")
	in, half, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	one.Stdin = in
	if err := one.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	if _, err := half.WriteString("half a value"); err != nil {
		t.Fatal(err)
	}
	// Once it has read that, it catches signals.
	for deadline := time.Now().Add(20 * time.Second); ; {
		if unread, err := unix.IoctlGetInt(int(half.Fd()), unix.TIOCINQ); err != nil {
			t.Fatal(err)
		} else if unread == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("mq does not read")
		}
		runtime.Gosched()
	}
	one.Process.Signal(syscall.SIGTERM)
	if err := one.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("mq ended with %v", err)
	}
}

// TestPublishInTwoReads: lines of one publish with a request id of its own are one request, though the input pauses
// between them.
func TestPublishInTwoReads(t *testing.T) {
	s, err := startServer(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	const publish = `{"index":2,"topic":"t","value":"eA==","request_id":"r"}` + "\n"
	cmd := mqCommand(t, s, "pub", "--jsonl", "-", "--base64", "-o", "json")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	io.WriteString(stdin, `{"index":1,"topic":"before","value":"eA=="}`+"\n"+publish)
	awaitRecords(t, s, "before", 1) // published because the input pauses
	io.WriteString(stdin, publish)
	stdin.Close()
	const want = `{"topic":"before","records":1,"duplicates":0,"first_offset":0,"last_offset":0}` + "\n" +
		`{"topic":"t","records":2,"duplicates":0,"first_offset":0,"last_offset":1}` + "\n"
	if err := cmd.Wait(); err != nil || out.String() != want {
		t.Errorf("%v: %s%s", err, out.String(), errs.String())
	}
}

// TestTailFollows prints what is published while it runs, and takes an interrupt as its end.
func TestTailFollows(t *testing.T) {
	s, err := startServer(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	cmd := mqCommand(t, s, "tail", "-f", "t", "-r") // before the topic exists
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(stdout)
	for _, value := range []string{"first", "second", "third"} {
		if _, text, err := mq(t, s, "pub", "t", value); err != nil {
			t.Fatal(text)
		}
		if line, err := lines.ReadString('\n'); line != value+"\n" {
			t.Fatalf("tail printed %q, %v", line, err)
		}
	}
	cmd.Process.Signal(os.Interrupt)
	if rest, err := io.ReadAll(lines); err != nil || len(rest) > 0 {
		t.Errorf("tail printed %q, %v", rest, err)
	}
	if err := cmd.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("tail ended with %v: %s", err, errs.String())
	}
}

// TestBrokenPipe: when the reader of our output has enough, that is no failure, and not a word is said.
func TestBrokenPipe(t *testing.T) {
	s, err := startServer(filepath.Join(t.TempDir(), "data"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	var input strings.Builder
	for range 2000 {
		input.WriteString(strings.Repeat("x", 200) + "\n")
	}
	pub := mqCommand(t, s, "pub", "t", "-l", "-q")
	pub.Stdin = strings.NewReader(input.String())
	if out, err := pub.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, args := range [][]string{
		{"fetch", "t", "-n", "0"}, {"tail", "t", "-n", "2000", "-f"}, {"group", "fetch", "g", "t", "-n", "1000", "--commit"},
	} {
		cmd := mqCommand(t, s, args...)
		reader, writer, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		var errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = writer, &errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		writer.Close()
		io.ReadFull(reader, make([]byte, 10))
		reader.Close()
		if err := cmd.Wait(); err != nil || errs.Len() > 0 {
			t.Errorf("%v: ended with %v: %s", args, err, errs.String())
		}
	}
	// A reader that is gone from the beginning, and an output that fits into a buffer.
	cmd := mqCommand(t, s, "group", "fetch", "g", "t", "-n", "1", "--commit")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	cmd.Stdout = writer
	if err := cmd.Run(); err != nil {
		t.Error(err)
	}
	writer.Close()
	// Not printed is not committed.
	if out, _, err := mq(t, s, "group", "fetch", "g", "t", "-n", "1", "-o", "json"); err != nil || !strings.Contains(out, `"offset":0,`) {
		t.Errorf("the group goes on with %s, %v", out, err)
	}
}

// TestConnectionBrokenPipe: a broken connection is not mistaken for a broken pipe.
func TestConnectionBrokenPipe(t *testing.T) {
	err := fmt.Errorf("write: %w", syscall.EPIPE)
	if errors.Is(err, errOutputClosed) {
		t.Error("it is")
	}
	_, err = output{failingWriter{syscall.EPIPE}}.Write(nil)
	if !errors.Is(err, errOutputClosed) {
		t.Errorf("a closed output is %v", err)
	}
	if _, err = (output{failingWriter{syscall.ENOSPC}}).Write(nil); errors.Is(err, errOutputClosed) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a full disk is %v", err)
	}
}

type failingWriter struct{ err error }

func (w failingWriter) Write([]byte) (int, error) { return 0, w.err }
