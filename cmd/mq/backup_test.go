package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"example.com/mq/client"
)

// feed publishes to a few topics, as fast as it goes, and knows what was acknowledged.
type feed struct {
	mq     *client.Client
	cancel context.CancelFunc
	wait   sync.WaitGroup

	mu    sync.Mutex
	acked map[string]uint64 // records of a topic
}

const (
	feedTopics = 3
	feedBatch  = 8 // records of a publish, so that a slow disk has not as many syncs to do
)

// feedRecords is the publish whose first record is at offset.
func feedRecords(topic string, offset uint64) (records []client.Record, opts client.PublishOptions) {
	for i := range uint64(feedBatch) {
		records = append(records, feedRecord(topic, offset+i))
	}
	return records, client.PublishOptions{RequestID: fmt.Sprint("id-", offset)}
}

func feedRecord(topic string, offset uint64) client.Record {
	return client.Record{Key: fmt.Append(nil, offset), Value: fmt.Appendf(nil, "%s %d %s", topic, offset, strings.Repeat("x", int(offset%1500)))}
}

func startFeed(t *testing.T, s *server) *feed {
	t.Helper()
	c, err := client.New(client.Config{Nodes: []string{s.url}, Retry: client.Retry{For: -1}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	f := &feed{mq: c, cancel: cancel, acked: map[string]uint64{}}
	for i := range feedTopics {
		topic := fmt.Sprint("feed-", i)
		f.wait.Go(func() { // ended by stop
			for next := uint64(0); ctx.Err() == nil; {
				records, opts := feedRecords(topic, next)
				p, err := c.PublishBatch(ctx, topic, records, opts)
				if err != nil {
					return
				}
				if p.Offset != next {
					t.Errorf("%s: published at %d, want %d", topic, p.Offset, next)
					return
				}
				next += feedBatch
				f.mu.Lock()
				f.acked[topic] = next
				f.mu.Unlock()
			}
		})
	}
	t.Cleanup(f.stop)
	return f
}

func (f *feed) stop() {
	f.cancel()
	f.wait.Wait()
	f.mq.Close()
}

func (f *feed) now() map[string]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := map[string]uint64{}
	for topic, n := range f.acked {
		list[topic] = n
	}
	return list
}

// await waits until each topic has n records, for as long as there come more.
func (f *feed) await(t *testing.T, n uint64) {
	t.Helper()
	had := uint64(0)
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		list := f.now()
		least, all := n, uint64(0)
		for i := range feedTopics {
			has := list[fmt.Sprint("feed-", i)]
			least, all = min(least, has), all+has
		}
		if least >= n {
			return
		}
		if all > had {
			had, deadline = all, time.Now().Add(time.Minute)
		}
		if time.Now().After(deadline) {
			t.Fatalf("only %v was published", list)
		}
	}
}

// holds checks that a restored broker has all that was acknowledged before the backup, and nothing that was not published;
// that request ids are remembered, offsets behind the end are refused, and new records go on elsewhere.
func holds(t *testing.T, s *server, before map[string]uint64) {
	t.Helper()
	ctx := context.Background()
	c, err := client.New(client.Config{Nodes: []string{s.url}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const floor = 1_000_000_000_000
	for topic, acked := range before {
		page, err := c.Fetch(ctx, topic, 0, client.FetchOptions{Limit: 1})
		var gone *client.Error
		if errors.As(err, &gone) && gone.Code == client.ErrOffsetGone && gone.StartOffset != nil {
			page, err = c.Fetch(ctx, topic, *gone.StartOffset, client.FetchOptions{Limit: 1})
		}
		if err != nil || len(page.Records) == 0 {
			t.Fatalf("%s: the first record: %v", topic, err)
		}
		at := page.StartOffset
		for at < floor {
			page, err := c.Fetch(ctx, topic, at, client.FetchOptions{Limit: 1000})
			if err != nil {
				t.Fatal(err)
			}
			if len(page.Records) == 0 {
				break
			}
			for i := range page.Records {
				r := &page.Records[i]
				if want := feedRecord(topic, r.Offset); r.Offset != at || !bytes.Equal(r.Key, want.Key) || !bytes.Equal(r.Value, want.Value) {
					t.Fatalf("%s: record %d stands at %d, with key %q", topic, r.Offset, at, r.Key)
				}
				at++
			}
		}
		if at < acked {
			t.Errorf("%s: the records end at %d, and %d were acknowledged before the backup", topic, at, acked)
		}
		if at%feedBatch != 0 {
			t.Fatalf("%s: the records end at %d, in the middle of a publish", topic, at)
		}
		records, opts := feedRecords(topic, at-feedBatch)
		if p, err := c.PublishBatch(ctx, topic, records, opts); err != nil || !p.Duplicate || p.Offset != at-feedBatch {
			t.Errorf("%s: the last publish again: %+v, %v; want a duplicate at %d", topic, p, err, at-feedBatch)
		}
		_, err = c.Fetch(ctx, topic, at+1, client.FetchOptions{})
		if !errors.As(err, &gone) || gone.Code != client.ErrOffsetGone || gone.RestoredEnd == nil || *gone.RestoredEnd != at {
			t.Errorf("%s: fetch at %d, behind the end: %v", topic, at+1, err)
		}
		if p, err := c.Publish(ctx, topic, client.Record{Value: []byte("new")}, client.PublishOptions{}); err != nil || p.Offset != floor {
			t.Errorf("%s: a new record: %+v, %v", topic, p, err)
		}
	}
}

func verifyGood(t *testing.T, dir string) backupReport {
	t.Helper()
	var r backupReport
	out, errs, err := mq(t, &server{}, "backup", "verify", dir, "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &r)
	}
	if err != nil {
		t.Fatalf("verify %s: %v: %s", dir, err, errs)
	}
	return r
}

// flags make a broker whose log moves: small segments, often a snapshot, records that go away, and a cleaner that has work.
var busyBroker = []string{"-admin-token", "a", "-segment-bytes", "1048576", "-snapshot-bytes", "2097152", "-retention-records", "250"}

// Backups of a broker under load, with retention and cleaner at work, hold all that was acknowledged before they began.
func TestBackupUnderLoad(t *testing.T) {
	t.Setenv("MQ_ADMIN_TOKEN", "a")
	dir := t.TempDir()
	s, err := startServer(filepath.Join(dir, "data"), busyBroker...)
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	f := startFeed(t, s)
	var before map[string]uint64
	headGone := func() bool {
		_, err := os.Stat(filepath.Join(dir, "backup", fmt.Sprintf("%020d.seg", 1)))
		return err != nil
	}
	// The last ones are taken until the head of the log has been given back.
	var deadline time.Time
	for round := 0; round < 4 || !headGone(); round++ {
		if round == 4 {
			deadline = time.Now().Add(time.Minute)
		}
		if round > 4 && time.Now().After(deadline) {
			t.Error("the head of the log was not given back: this tests too little")
			break
		}
		f.await(t, uint64(800*(round+1)))
		before = f.now()
		out, errs, err := mq(t, s, "backup", filepath.Join(dir, "backup"), "-o", "json")
		var taken takenBackup
		if err == nil {
			err = json.Unmarshal([]byte(out), &taken)
		}
		if err != nil {
			t.Fatalf("backup: %v: %s", err, errs)
		}
		if r := verifyGood(t, filepath.Join(dir, "backup")); r.Index != taken.Index || r.Records == 0 {
			t.Errorf("taken is %+v, verified %+v", taken, r)
		}
	}
	f.stop()
	stream := mqCommand(t, s, "backup", "-")
	tar, err := os.Create(filepath.Join(dir, "backup.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer tar.Close()
	stream.Stdout = tar
	if err := stream.Run(); err != nil {
		t.Fatal(err)
	}
	s.kill()
	for _, src := range []string{filepath.Join(dir, "backup"), "-"} {
		data := filepath.Join(dir, "restored"+filepath.Base(src))
		restore := mqCommand(t, s, "restore", src, data)
		if src == "-" {
			tar.Seek(0, 0)
			restore.Stdin = tar
		}
		if out, err := restore.CombinedOutput(); err != nil {
			t.Fatalf("restore: %v: %s", err, out)
		}
		r, err := startServer(data, busyBroker...)
		if err != nil {
			t.Fatal(err)
		}
		holds(t, r, before)
		r.kill()
		if r, err = startServer(data, busyBroker...); err != nil { // the restore is settled once
			t.Fatal(err)
		}
		c, err := client.New(client.Config{Nodes: []string{r.url}})
		if err != nil {
			t.Fatal(err)
		}
		if p, err := c.Publish(context.Background(), "feed-0", client.Record{Value: []byte("new")}, client.PublishOptions{}); err != nil || p.Offset != 1_000_000_000_001 {
			t.Errorf("a record after another start: %+v, %v", p, err)
		}
		c.Close()
		r.kill()
	}
}

// mq backup is killed again and again: the folder holds a good backup at any time, and in the end the last one is complete.
func TestKillBackup(t *testing.T) {
	t.Setenv("MQ_ADMIN_TOKEN", "a")
	dir := t.TempDir()
	to := filepath.Join(dir, "backup")
	s, err := startServer(filepath.Join(dir, "data"), "-admin-token", "a", "-segment-bytes", "1048576")
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	f := startFeed(t, s)
	f.await(t, 200)
	if out, err := mqCommand(t, s, "backup", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	last := verifyGood(t, to)
	killed := 0
	for round := range 15 {
		f.await(t, uint64(200+round*20))
		cmd := mqCommand(t, s, "backup", to)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(5+round*4)*time.Millisecond, func() { cmd.Process.Kill() })
		err := cmd.Wait()
		timer.Stop()
		r := verifyGood(t, to)
		switch {
		case err == nil:
		case r.Index < last.Index:
			t.Fatalf("the backup went back from entry %d to %d", last.Index, r.Index)
		default:
			killed++
		}
		last = r
	}
	t.Logf("killed %d of 15", killed)
	// The broker is killed in the middle: the command fails, and the backup before is as it was.
	cmd := mqCommand(t, s, "backup", to, "--timeout", "500ms")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.kill()
	if err := cmd.Wait(); err != nil {
		if r := verifyGood(t, to); r.Index != last.Index {
			t.Errorf("the backup ends with entry %d, want %d", r.Index, last.Index)
		}
	}
	f.stop()
	if s, err = startServer(filepath.Join(dir, "data"), "-admin-token", "a"); err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	before := f.now()
	if out, err := mqCommand(t, s, "backup", to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	restored(t, s, to, filepath.Join(dir, "restored"), before)
}

func restored(t *testing.T, s *server, from, data string, before map[string]uint64) {
	t.Helper()
	if out, err := mqCommand(t, s, "restore", from, data).CombinedOutput(); err != nil {
		t.Fatalf("restore: %v: %s", err, out)
	}
	r, err := startServer(data)
	if err != nil {
		t.Fatal(err)
	}
	defer r.kill()
	holds(t, r, before)
}

// mq restore is killed at random moments: the directory is empty, or refused with a line that says what to do, or complete.
func TestKillRestore(t *testing.T) {
	t.Setenv("MQ_ADMIN_TOKEN", "a")
	dir := t.TempDir()
	from := filepath.Join(dir, "backup")
	s, err := startServer(filepath.Join(dir, "data"), "-admin-token", "a", "-segment-bytes", "1048576")
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	f := startFeed(t, s)
	f.await(t, 500)
	f.stop()
	before := f.now()
	for round := range 2 {
		out, errs, err := mq(t, s, "backup", from, "-o", "json")
		var taken takenBackup
		if err == nil {
			err = json.Unmarshal([]byte(out), &taken)
		}
		if err != nil {
			t.Fatalf("%v: %s", err, errs)
		}
		if again := taken.FetchedBytes < taken.Bytes/2; again != (round > 0) {
			t.Errorf("backup %d of the same: %+v", round, taken)
		}
	}
	stream := mqCommand(t, s, "backup", "-")
	tar, err := stream.Output()
	if err != nil {
		t.Fatal(err)
	}
	s.kill()

	// A kill in the middle for certain: the end of the backup has not come yet.
	data := filepath.Join(dir, "half")
	cmd := mqCommand(t, s, "restore", "-", data)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := stdin.Write(tar[:len(tar)/10*9]); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !restoring(data); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the restore does not begin")
		}
	}
	cmd.Process.Kill()
	cmd.Wait()
	refusesHalf(t, s, from, data)

	unfinished, complete := 0, 0
	for round := range 12 {
		data := filepath.Join(dir, fmt.Sprint("restored-", round))
		cmd := mqCommand(t, s, "restore", from, data)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(time.Duration(10+round*25)*time.Millisecond, func() { cmd.Process.Kill() })
		finished := cmd.Wait() == nil
		timer.Stop()
		if restoring(data) {
			unfinished++
			if finished {
				t.Fatal("the restore is finished, and says that it is not")
			}
			refusesHalf(t, s, from, data)
			continue
		}
		if _, err := os.Stat(filepath.Join(data, "identity.json")); err != nil {
			if finished {
				t.Fatal(err)
			}
			continue // it had not begun
		}
		complete++
		r, err := startServer(data)
		if err != nil {
			t.Fatal(err)
		}
		holds(t, r, before)
		r.kill()
	}
	t.Logf("%d times it was not finished, %d times complete", unfinished, complete)
}

func restoring(data string) bool {
	_, err := os.Stat(filepath.Join(data, "log", "restoring"))
	return err == nil
}

// refusesHalf checks that nothing is made of a folder into which a restore was not finished, and removes it.
func refusesHalf(t *testing.T, s *server, from, data string) {
	t.Helper()
	if !restoring(data) {
		t.Fatal("what is half restored does not say so")
	}
	out, err := mqCommand(t, s, "restore", from, data).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a restore into this folder was not finished: remove the folder and restore again") {
		t.Fatalf("another restore into it: %v: %s", err, out)
	}
	binary, err := mqdBinary()
	if err != nil {
		t.Fatal(err)
	}
	out, err = exec.Command(binary, "-listen", "127.0.0.1:0", "-data", data).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "a restore into this folder was not finished") {
		t.Fatalf("a broker on it: %v: %s", err, out)
	}
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
}

// A backup for which nobody reads standard output is a failure.
func TestBackupIntoAClosedPipe(t *testing.T) {
	t.Setenv("MQ_ADMIN_TOKEN", "a")
	s, err := startServer(filepath.Join(t.TempDir(), "data"), "-admin-token", "a")
	if err != nil {
		t.Fatal(err)
	}
	defer s.kill()
	cmd := mqCommand(t, s, "backup", "-")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	reader.Close()
	var errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = writer, &errs
	err = cmd.Run()
	writer.Close()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(errs.String(), "closed before the backup was complete") {
		t.Errorf("%v: %s", err, errs.String())
	}
}
