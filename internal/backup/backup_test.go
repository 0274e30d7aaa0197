package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/clock"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs/memfs"
)

// What was restored is the log as it was when the backup began, whatever is published meanwhile: records with their times,
// groups, request ids; and topics go on where nobody has been.
func TestRestoreIsTheBackup(t *testing.T) {
	for seed := range uint64(4) {
		t.Run("", func(t *testing.T) {
			w := newWorld(t, seed)
			w.act(600)
			want := w.facts.clone()
			dir := memfs.New()
			taken, err := Take(context.Background(), &busy{source: w.source(), w: w}, dir, Progress{})
			if err != nil {
				t.Fatal(err)
			}
			w.act(200)
			if len(taken.Manifest.Segments) < 3 {
				t.Fatalf("the log has %d segments: too few for this test", len(taken.Manifest.Segments))
			}
			report, err := Verify(context.Background(), dir, Progress{})
			if err != nil {
				t.Fatal(err)
			}
			records := uint64(0)
			for _, topic := range want.topics {
				records += topic.base + uint64(len(topic.records)) - topic.start
			}
			if report.Fold.LiveRecords() != records || report.Fold.LiveTopics() != len(want.topics) || report.Fold.Groups() != len(want.groups) {
				t.Errorf("the backup holds %d records, %d topics, %d groups; want %d, %d, %d", report.Fold.LiveRecords(), report.Fold.LiveTopics(), report.Fold.Groups(),
					records, len(want.topics), len(want.groups))
			}
			_, n := w.restored(dir)
			want.holds(t, n, nil)
			for name := range want.topics {
				done, err := n.Publish(&broker.Publish{Topic: []byte(name), Records: []fact.Record{{Value: []byte("new")}}})
				if err != nil || done.Base != fact.RestoreStep {
					t.Errorf("the first publish to %s after the restore has offset %d, %v; want %d", name, done.Base, err, fact.Offset(fact.RestoreStep))
				}
				// Who has read all of the backup goes on.
				topic := want.topics[name]
				q := &broker.Fetch{Topic: []byte(name), Offset: fact.Offset(topic.base) + fact.Offset(len(topic.records)), Limit: 1}
				if page, err := n.Fetch(q, sink(func(offset fact.Offset, _, value []byte, _ int64) {
					if offset != fact.RestoreStep || string(value) != "new" {
						t.Errorf("behind the backup %s goes on with %q at %d", name, value, offset)
					}
				})); err != nil || page.Records != 1 {
					t.Errorf("fetch %s at the end of the backup: %+v, %v", name, page, err)
				}
			}
			// A topic that the backup does not know is a new one, and begins above.
			first := &broker.Fetch{Topic: []byte("another"), Limit: 1}
			none := sink(func(fact.Offset, []byte, []byte, int64) { t.Error("a record that is not there") })
			if _, err := n.Fetch(first, none); !errors.Is(err, broker.ErrTopicNotFound) {
				t.Errorf("fetch a topic that the backup does not know: %v", err)
			}
			done, err := n.Publish(&broker.Publish{Topic: []byte("another"), Records: []fact.Record{{Value: []byte("new")}}})
			if err != nil || done.Base != fact.RestoreStep {
				t.Errorf("the first publish to a new topic has offset %d, %v", done.Base, err)
			}
			gone := (*broker.OffsetGoneError)(nil)
			if _, err := n.Fetch(first, none); !errors.As(err, &gone) || gone.Start != fact.RestoreStep || gone.RestoredEnd != nil {
				t.Errorf("fetch a new topic at 0: %v", err)
			}
		})
	}
}

// TestRestoredTwice: where another restore of the same backup has given out offsets, those of this one are above.
func TestRestoredTwice(t *testing.T) {
	w := newWorld(t, 1)
	w.act(100)
	dir := memfs.New()
	if _, err := Take(context.Background(), w.source(), dir, Progress{}); err != nil {
		t.Fatal(err)
	}
	for _, above := range []fact.Offset{fact.RestoreStep - 1, fact.RestoreStep, fact.RestoreStep + 17} {
		data := memfs.New()
		if _, err := Restore(context.Background(), dir, RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true, Above: above}); err != nil {
			t.Fatal(err)
		}
		n := openOn(t, data, w.clock)
		t.Cleanup(func() { n.Close() })
		done, err := n.Publish(&broker.Publish{Topic: []byte("another"), Records: []fact.Record{{Value: []byte("new")}}})
		if want := (above/fact.RestoreStep + 1) * fact.RestoreStep; err != nil || done.Base != want {
			t.Errorf("above %d topics go on at %d, %v; want %d", above, done.Base, err, want)
		}
	}
}

// busy is a source whose node goes on while it is read.
type busy struct {
	*source
	w *world
}

func (s *busy) BackupRead(ctx context.Context, q api.BackupReadRequest) ([]byte, error) {
	s.w.act(5)
	return s.source.BackupRead(ctx, q)
}

func TestRestoredTimesAreTheSame(t *testing.T) {
	w := newWorld(t, 11)
	w.act(300)
	dir := memfs.New()
	w.take(dir)
	data, n := w.restored(dir)
	w.facts.holds(t, n, w.node)
	before, _ := node.ReadIdentity(w.fs)
	after, err := node.ReadIdentity(data)
	if err != nil || after == before {
		t.Errorf("the log of the restored node is %x, %v; want another one than %x", after, err, before)
	}
	// A second start changes nothing.
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = openOn(t, data, w.clock)
	w.facts.holds(t, n, w.node)
	n.Close()
}

// A second backup into the same folder fetches what is new, and no more; what the log has dropped goes.
func TestRenewFetchesWhatIsNew(t *testing.T) {
	w := newWorld(t, 3)
	w.act(500)
	dir := memfs.New()
	first := w.take(dir)
	if first.Fetched < first.Manifest.Bytes() {
		t.Fatalf("the first backup fetched %d of %d bytes", first.Fetched, first.Manifest.Bytes())
	}
	before := first.Manifest
	for _, acts := range []int{0, 1, 150, 150, 0, 150} {
		w.act(acts)
		after := w.take(dir)
		added := added(before, after.Manifest)
		if slack := int64(len(after.Manifest.Segments)+1) * frameHead; after.Fetched < added || after.Fetched > added+slack {
			t.Errorf("after %d acts %d bytes were fetched, and %d are new (and %d to compare)", acts, after.Fetched, added, slack)
		}
		before = after.Manifest
		if _, err := Verify(context.Background(), dir, Progress{}); err != nil {
			t.Fatal(err)
		}
	}
	// Everything old is retained away: its segments leave the log, and the backup.
	for name, topic := range w.facts.topics {
		end := topic.base + uint64(len(topic.records))
		if _, err := w.node.Retain([]byte(name), fact.Offset(end)); err != nil {
			t.Fatal(err)
		}
		topic.start = end
	}
	for range 2 { // two snapshots cover it
		w.act(5)
		if _, err := w.node.Snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	last := w.take(dir)
	names, err := dir.List(".")
	if err != nil {
		t.Fatal(err)
	}
	want := len(last.Manifest.Segments) + 3 // snapshot, manifest, lock
	if len(names) != want || last.Manifest.Segments[0].First == 1 {
		t.Errorf("the folder holds %v, want %d files, from entry %d on", names, want, last.Manifest.Segments[0].First)
	}
	_, n := w.restored(dir)
	w.facts.holds(t, n, w.node)
}

// added returns how many bytes a backup has that the one before has not.
func added(before, after *Manifest) (n int64) {
	for f := range after.files() {
		n += f.Bytes
		for g := range before.files() {
			if g.First == f.First && (f.First > 0 || g.Last == f.Last) {
				n -= g.Bytes
			}
		}
	}
	return n
}

// A backup that breaks off leaves the one before as it is, and the next goes on where it stopped.
func TestBrokenOffBackup(t *testing.T) {
	broken := errors.New("the line is cut")
	w := newWorld(t, 5)
	w.act(300)
	dir := memfs.New()
	w.take(dir)
	old := w.facts.clone()
	w.act(300)
	var total int64
	for after := 0; ; after++ {
		to := dir.Clone()
		src := w.source()
		src.after, src.err = after, broken
		_, err := Take(context.Background(), src, to, Progress{})
		if err == nil {
			if after < 8 {
				t.Fatalf("a backup takes %d reads: too few for this test", after)
			}
			break
		}
		if !errors.Is(err, broken) {
			t.Fatalf("after %d reads: %v", after, err)
		}
		_, n := w.restored(to)
		old.holds(t, n, nil)
		n.Close()
		fetched := src.bytes
		src = w.source()
		if _, err := Take(context.Background(), src, to, Progress{}); err != nil {
			t.Fatal(err)
		}
		if total == 0 {
			total = src.bytes
		}
		if slack := int64(5000); fetched+src.bytes > total+slack {
			t.Errorf("broken off after %d reads and %d bytes, then %d bytes were fetched; all are %d", after, fetched, src.bytes, total)
		}
		if _, err := Verify(context.Background(), to, Progress{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A backup that is over at the broker, as after a change of the lead, begins anew by itself.
func TestBackupOverBeginsAnew(t *testing.T) {
	w := newWorld(t, 6)
	w.act(300)
	dir := memfs.New()
	src := &over{source: w.source(), at: 3}
	taken, err := Take(context.Background(), src, dir, Progress{})
	if err != nil {
		t.Fatal(err)
	}
	if src.begun != 2 || taken.Fetched > taken.Manifest.Bytes()+10_000 {
		t.Errorf("began %d times and fetched %d of %d bytes", src.begun, taken.Fetched, taken.Manifest.Bytes())
	}
	if _, err := Verify(context.Background(), dir, Progress{}); err != nil {
		t.Fatal(err)
	}
	src = &over{source: w.source(), at: 0, always: true}
	if _, err := Take(context.Background(), src, memfs.New(), Progress{}); !errors.Is(err, ErrOver) || src.begun != triesMax {
		t.Errorf("a backup that is always over began %d times: %v", src.begun, err)
	}
}

type over struct {
	*source
	begun, reads, at int
	always           bool
}

func (s *over) BackupBegin(ctx context.Context) (*api.BackupBegun, error) {
	s.begun++
	return s.source.BackupBegin(ctx)
}

func (s *over) BackupRead(ctx context.Context, q api.BackupReadRequest) ([]byte, error) {
	if s.reads++; s.reads == s.at || s.always {
		s.node.BackupEnd(q.Backup)
	}
	return s.source.BackupRead(ctx, q)
}

// A stream is the same backup; one that is cut off anywhere is none.
func TestStream(t *testing.T) {
	w := newWorld(t, 8)
	w.act(300)
	var b bytes.Buffer
	taken, err := Stream(context.Background(), w.source(), &b, Progress{})
	if err != nil {
		t.Fatal(err)
	}
	report, err := VerifyStream(context.Background(), bytes.NewReader(b.Bytes()), Progress{})
	if err != nil || report.Manifest.Index != taken.Manifest.Index {
		t.Fatalf("verify: %v", err)
	}
	data := memfs.New()
	if _, err := RestoreStream(context.Background(), bytes.NewReader(b.Bytes()), RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); err != nil {
		t.Fatal(err)
	}
	n := openOn(t, data, w.clock)
	w.facts.holds(t, n, w.node)
	n.Close()
	end := bytes.LastIndex(b.Bytes(), []byte(`"check"`))
	for cut := 0; cut < end; cut += 1 + end/60 {
		_, err := VerifyStream(context.Background(), bytes.NewReader(b.Bytes()[:cut]), Progress{})
		if err == nil {
			t.Fatalf("a stream that is cut off at byte %d of %d passes", cut, b.Len())
		}
		data := memfs.New()
		if _, err := RestoreStream(context.Background(), bytes.NewReader(b.Bytes()[:cut]), RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); err == nil {
			t.Fatalf("a stream that is cut off at byte %d of %d is restored", cut, b.Len())
		}
		refuses(t, data, w)
	}
	// Behind the manifest there is nothing but zeros, and nothing is missing without them.
	whole := bytes.LastIndexByte(b.Bytes(), '}') + 2
	for cut := whole; cut <= b.Len(); cut += 61 {
		if _, err := VerifyStream(context.Background(), bytes.NewReader(b.Bytes()[:cut]), Progress{}); err != nil {
			t.Errorf("a stream of which %d bytes of zeros are cut off: %v", b.Len()-cut, err)
		}
	}
	for cut := whole - 3; cut < whole; cut++ {
		if _, err := VerifyStream(context.Background(), bytes.NewReader(b.Bytes()[:cut]), Progress{}); !errors.Is(err, errCut) {
			t.Errorf("a stream whose manifest lacks %d bytes: %v", whole-cut, err)
		}
	}
	rest := io.MultiReader(bytes.NewReader(b.Bytes()[:b.Len()-1024]), strings.NewReader(strings.Repeat("x", 512)))
	if _, err := VerifyStream(context.Background(), rest, Progress{}); err == nil || !strings.Contains(err.Error(), "goes on behind its manifest") {
		t.Errorf("a stream with something behind it: %v", err)
	}
	broken := errors.New("the disk fails")
	rest = io.MultiReader(bytes.NewReader(b.Bytes()[:b.Len()-1024]), iotest.ErrReader(broken))
	if _, err := VerifyStream(context.Background(), rest, Progress{}); !errors.Is(err, broken) {
		t.Errorf("a stream that cannot be read to its end: %v", err)
	}
}

// A damaged manifest is called that, whatever it says of its format, and the folder is made good without fetching all anew.
func TestDamagedManifest(t *testing.T) {
	w := newWorld(t, 10)
	w.act(200)
	dir := memfs.New()
	good := w.take(dir).Manifest
	text, err := good.encode()
	if err != nil {
		t.Fatal(err)
	}
	newer := *good
	newer.Format++
	next, err := newer.encode()
	if err != nil {
		t.Fatal(err)
	}
	// A format that is not known may have other fields.
	other := []byte(`{"format":2,"unknown":[1]}`)
	sum := sha256.Sum256(other)
	other = fmt.Appendf(nil, "%s,\n  \"check\":\"%x\"}\n", other[:len(other)-1], sum)
	for _, test := range []struct {
		name    string
		text    []byte
		damaged bool
	}{
		{"another format, by damage", bytes.Replace(text, []byte(`"format": 1`), []byte(`"format": 3`), 1), true},
		{"another format, without a checksum", []byte(`{"format":2}`), true},
		{"half of it", text[:len(text)/2], true},
		{"nothing", nil, true},
		{"other white space", append([]byte(" "), text...), true},
		{"a newer format", next, false},
		{"a newer format with other fields", other, false},
	} {
		bad := dir.Clone()
		if err := replace(bad, manifestTmp, ManifestFile, test.text); err != nil {
			t.Fatal(err)
		}
		_, err := Verify(context.Background(), bad, Progress{})
		if err == nil || errors.Is(err, errManifest) != test.damaged || strings.Contains(err.Error(), "has format") == test.damaged ||
			strings.Contains(err.Error(), "remove "+ManifestFile) != test.damaged {
			t.Errorf("%s: %v", test.name, err)
		}
		if !test.damaged {
			continue
		}
		if _, err := Take(context.Background(), w.source(), bad, Progress{}); !errors.Is(err, errManifest) {
			t.Errorf("%s: the next backup: %v", test.name, err)
		}
		if err := bad.Remove(ManifestFile); err != nil {
			t.Fatal(err)
		}
		if taken := w.take(bad); taken.Fetched > good.Bytes()/10 {
			t.Errorf("%s: %d bytes of %d are fetched again", test.name, taken.Fetched, good.Bytes())
		}
		if _, err := Verify(context.Background(), bad, Progress{}); err != nil {
			t.Errorf("%s: after the next backup: %v", test.name, err)
		}
	}
}

// Before a restore begins, the backup is looked at.
func TestOpen(t *testing.T) {
	w := newWorld(t, 12)
	w.act(200)
	dir := memfs.New()
	m := w.take(dir).Manifest
	last := m.Segments[len(m.Segments)-1].Name
	for what, do := range map[string]func(*memfs.FS) error{
		"a file is missing": func(fs *memfs.FS) error { return fs.Remove(last) },
		"a file is short": func(fs *memfs.FS) error {
			f, err := fs.Open(last)
			if err != nil {
				return err
			}
			return errors.Join(f.Truncate(100), f.Close())
		},
	} {
		bad := dir.Clone()
		if err := do(bad); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(bad); err == nil || !strings.Contains(err.Error(), last) {
			t.Errorf("%s: %v", what, err)
		}
	}
	o, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	data := memfs.New()
	report, err := o.Restore(context.Background(), RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true})
	if err != nil {
		t.Fatal(err)
	}
	if id, err := node.ReadIdentity(data); err != nil || id != report.Restored || id == m.logID() {
		t.Errorf("the new log is %x, %v, and the report says %x", id, err, report.Restored)
	}
}

// refuses checks that no node starts on a folder, unless nothing is there: a restore had not begun.
func refuses(t *testing.T, data *memfs.FS, w *world) {
	t.Helper()
	if names, err := data.List("log"); err != nil || len(names) == 0 {
		return
	}
	n, err := node.Open(configOn(data, w.clock))
	if err == nil {
		err = n.Recover()
		n.Close()
	}
	if !errors.Is(err, node.ErrRestoring) {
		t.Fatalf("a node starts on a restore that was not finished: %v", err)
	}
	_, err = node.BeginRestore(data, nil)
	if !errors.Is(err, node.ErrRestoring) {
		t.Fatalf("another restore begins on it: %v", err)
	}
}

// Whatever byte of a backup is changed, it is noticed, nothing is restored, and the next backup makes it good again.
func TestEveryByteIsChecked(t *testing.T) {
	w := newWorld(t, 9)
	w.act(200)
	dir := memfs.New()
	taken := w.take(dir)
	names := []string{ManifestFile}
	for f := range taken.Manifest.files() {
		names = append(names, f.Name)
	}
	for _, name := range names {
		size, err := dir.Size(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 25 {
			at := w.rng.Int64N(size)
			if i < 10 {
				at = min(int64(i)*8, size-1)
			}
			bad := dir.Clone()
			flip(t, bad, name, at)
			if _, err := Verify(context.Background(), bad, Progress{}); err == nil {
				t.Fatalf("%s with byte %d changed passes", name, at)
			}
			data := memfs.New()
			if _, err := Restore(context.Background(), bad, RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); err == nil {
				t.Fatalf("%s with byte %d changed is restored", name, at)
			}
			refuses(t, data, w)
			if name == ManifestFile {
				continue // which of the files to trust is for the operator to say
			}
			if i%5 == 0 {
				if _, err := Take(context.Background(), w.source(), bad, Progress{}); err != nil {
					t.Fatalf("%s with byte %d changed: the next backup: %v", name, at, err)
				}
				if _, err := Verify(context.Background(), bad, Progress{}); err != nil {
					t.Fatalf("%s with byte %d changed: after the next backup: %v", name, at, err)
				}
			}
		}
	}
}

func flip(t *testing.T, fsys *memfs.FS, name string, at int64) {
	t.Helper()
	f, err := fsys.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], at); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b[:], at); err != nil {
		t.Fatal(err)
	}
}

// A folder that holds something else, the backup of another log, or one that has gone further, is left alone.
func TestFolderOfSomethingElse(t *testing.T) {
	w, other := newWorld(t, 1), newWorld(t, 2)
	w.act(50)
	other.act(50)
	dir := memfs.New()
	w.take(dir)
	_, err := Take(context.Background(), other.source(), dir, Progress{})
	if err == nil || !strings.Contains(err.Error(), "take another folder") {
		t.Errorf("the folder of another log: %v", err)
	}
	if _, err := Take(context.Background(), w.source(), w.fs, Progress{}); err == nil || !strings.Contains(err.Error(), "and no backup") {
		t.Errorf("a data folder: %v", err)
	}
	if _, err := Verify(context.Background(), memfs.New(), Progress{}); !errors.Is(err, ErrNoBackup) {
		t.Errorf("an empty folder: %v", err)
	}
	if _, err := Restore(context.Background(), dir, RestoreConfig{FS: w.fs}); err == nil || !strings.Contains(err.Error(), "not empty") {
		t.Errorf("a restore into a data folder: %v", err)
	}
}

// A log that was cut and went on in another way has other entries at the same indexes: what is there of them is not taken for
// the broker's.
func TestLogThatWentAnotherWay(t *testing.T) {
	w := newWorld(t, 4)
	w.act(150)
	if err := w.node.Close(); err != nil {
		t.Fatal(err)
	}
	fork := w.fs.Clone()
	w.node = openOn(t, w.fs, w.clock)
	for range 3 {
		w.act(100)
	}
	dir := memfs.New()
	w.take(dir)
	w.node.Close()
	// The same log, other entries.
	v := &world{t: t, fs: fork, clock: w.clock, rng: w.rng, facts: known{}.clone()}
	v.node = openOn(t, fork, w.clock)
	t.Cleanup(func() { v.node.Close() })
	for i := range 700 {
		p := broker.Publish{Topic: []byte("fork"), Records: []fact.Record{record("fork", uint64(i), 900)}}
		if _, err := v.node.Publish(&p); err != nil {
			t.Fatal(err)
		}
	}
	taken := v.take(dir)
	if _, err := Verify(context.Background(), dir, Progress{}); err != nil {
		t.Fatal(err)
	}
	fresh := memfs.New()
	want := v.take(fresh)
	for i := range want.Manifest.Segments {
		if a, b := taken.Manifest.Segments[i], want.Manifest.Segments[i]; a.Sealed && b.Sealed && a != b {
			t.Errorf("segment %d is %+v, want %+v", i, a, b)
		}
	}
}

// The same, where the other entries have the same places, so that only their bytes tell.
func TestLogThatWentAParallelWay(t *testing.T) {
	w := newWorld(t, 14)
	w.act(30)
	if err := w.node.Close(); err != nil {
		t.Fatal(err)
	}
	fork := w.fs.Clone()
	at := w.clock.Now()
	dir := memfs.New()
	var indexes []uint64
	for i, disk := range []*memfs.FS{w.fs, fork} {
		v := &world{t: t, fs: disk, clock: clock.NewManual(at), rng: w.rng}
		v.node = openOn(t, disk, v.clock)
		for range 5 {
			if _, err := v.node.Publish(&broker.Publish{Topic: []byte("fork"), Records: []fact.Record{{Value: []byte{byte(i)}}}}); err != nil {
				t.Fatal(err)
			}
		}
		taken := v.take(dir)
		indexes = append(indexes, taken.Manifest.Index)
		_, n := v.restored(dir)
		got := -1
		if _, err := n.Fetch(&broker.Fetch{Topic: []byte("fork"), Limit: 1}, sink(func(_ fact.Offset, _, value []byte, _ int64) { got = int(value[0]) })); err != nil || got != i {
			t.Errorf("backup %d holds the records of backup %d, %v", i, got, err)
		}
		v.node.Close()
	}
	if indexes[0] != indexes[1] {
		t.Fatalf("the backups end with entries %v: this tests nothing", indexes)
	}
}

// What is restored is another log: neither that of the backup nor that of another restore of it.
func TestRestoredLogHasItsOwnIdentity(t *testing.T) {
	w := newWorld(t, 16)
	w.act(30)
	dir := memfs.New()
	seen := map[string]bool{w.take(dir).Manifest.LogID: true}
	for range 2 {
		report, err := Restore(context.Background(), dir, RestoreConfig{FS: memfs.New(), SegmentBytes: testSegment, Inline: true})
		if err != nil {
			t.Fatal(err)
		}
		id := fmt.Sprintf("%x", report.Restored[:])
		if seen[id] {
			t.Errorf("the restored log has the identity %s of another one", id)
		}
		seen[id] = true
	}
}

// A file that is good in itself, and follows those before it, but is that of another backup, is found by its hash alone.
func TestFileOfAnotherBackup(t *testing.T) {
	w := newWorld(t, 15)
	w.act(30)
	if err := w.node.Close(); err != nil {
		t.Fatal(err)
	}
	fork := w.fs.Clone()
	at := w.clock.Now()
	var dirs []*memfs.FS
	var last []File
	for i, disk := range []*memfs.FS{w.fs, fork} {
		v := &world{t: t, fs: disk, clock: clock.NewManual(at), rng: w.rng}
		v.node = openOn(t, disk, v.clock)
		if _, err := v.node.Publish(&broker.Publish{Topic: []byte("fork"), Records: []fact.Record{{Value: []byte{byte(i)}}}}); err != nil {
			t.Fatal(err)
		}
		dir := memfs.New()
		m := v.take(dir).Manifest
		v.node.Close()
		dirs, last = append(dirs, dir), append(last, m.Segments[len(m.Segments)-1])
	}
	if a, b := last[0], last[1]; a.Name != b.Name || a.Bytes != b.Bytes || a.SHA256 == b.SHA256 {
		t.Fatalf("the last files are %+v and %+v: this tests nothing", a, b)
	}
	text := make([]byte, last[1].Bytes)
	from, err := dirs[1].OpenRead(last[1].Name)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if _, err := from.ReadAt(text, 0); err != nil {
		t.Fatal(err)
	}
	to, err := dirs[0].Open(last[0].Name)
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	if _, err := to.WriteAt(text, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := Verify(context.Background(), dirs[0], Progress{}); !errors.Is(err, errHash) {
		t.Errorf("verified: %v", err)
	}
	data := memfs.New()
	if _, err := Restore(context.Background(), dirs[0], RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); !errors.Is(err, errHash) {
		t.Errorf("restored: %v", err)
	}
	refuses(t, data, w)
}

// Damage on the broker's disk is found when it is read, told with its place, and leaves the backup before as it is.
func TestDamagedBroker(t *testing.T) {
	w := newWorld(t, 12)
	w.act(200)
	if _, err := w.node.Snapshot(); err != nil {
		t.Fatal(err)
	}
	dir := memfs.New()
	old := w.take(dir).Manifest
	name := "log/" + old.Segments[1].Name
	w.act(200)
	for _, at := range []int64{40, 513, 2000, 40_000} {
		flip(t, w.fs, name, at)
		to := memfs.New()
		_, err := Take(context.Background(), w.source(), to, Progress{})
		var damage *DamageError
		if !errors.As(err, &damage) || uint64(damage.Damage[0].Segment) != old.Segments[1].First || !strings.Contains(err.Error(), "the files of the broker are damaged") {
			t.Fatalf("with byte %d of %s changed at the broker: %v", at, name, err)
		}
		if _, err := Verify(context.Background(), to, Progress{}); !errors.Is(err, ErrNoBackup) {
			t.Errorf("the folder holds a backup: %v", err)
		}
		if _, err := Stream(context.Background(), w.source(), new(bytes.Buffer), Progress{}); !errors.As(err, &damage) {
			t.Errorf("a stream: %v", err)
		}
		// A folder that has the segment as it was is renewed.
		if _, err := Take(context.Background(), w.source(), dir, Progress{}); err != nil {
			t.Fatalf("with byte %d of %s changed at the broker, into a folder that has it: %v", at, name, err)
		}
		flip(t, w.fs, name, at)
	}
}
