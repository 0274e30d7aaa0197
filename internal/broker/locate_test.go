package broker

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
	"example.com/mq/internal/wal"
)

// sickLog is a log whose frames can be damaged, and which counts what is read.
type sickLog struct {
	Log
	mu    sync.Mutex // guards the fields below
	bad   map[entry.Position]bool
	gone  int   // so many reads find that the segment is gone
	err   error // of every read
	reads int
	hook  func() // called before a read, if not nil
}

// sicken puts a sickLog between the broker and its log.
func (r *rig) sicken() *sickLog {
	s := &sickLog{Log: r.log, bad: make(map[entry.Position]bool)}
	r.Broker.log = s
	return s
}

func (s *sickLog) ReadAt(p []byte, segment entry.Index, off int64) (int, error) {
	if s.hook != nil {
		s.hook()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.gone > 0 {
		s.gone--
		return 0, wal.ErrSegmentGone
	}
	if s.err != nil {
		return 0, s.err
	}
	n, err := s.Log.ReadAt(p, segment, off)
	for at, bad := range s.bad {
		if i := at.Offset + 50 - off; bad && at.Segment == segment && i >= 0 && i < int64(n) { // within the payload
			p[i] ^= 1
		}
	}
	return n, err
}

// frameAt is a frame of a topic and the records it holds.
type frameAt struct {
	at    entry.Position // without its length
	base  fact.Offset
	count int
}

// frames returns where the records of a topic stand.
func (r *rig) frames(topic string) (frames []frameAt) {
	r.t.Helper()
	t := r.topic(topic)
	for n := uint64(0); n < t.Records(); {
		off := t.Nth(n)
		run, err := r.index.Find([]byte(topic), off)
		if err != nil {
			r.t.Fatal(err)
		}
		buf := make([]byte, run.End-run.Pos)
		if _, err := r.log.ReadAt(buf, run.Segment, run.Pos); err != nil {
			r.t.Fatal(err)
		}
		for at := 0; at < len(buf); {
			e, size, err := r.log.Parse(buf[at:])
			if err != nil {
				r.t.Fatal(err)
			}
			s, _, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
			if err != nil {
				r.t.Fatal(err)
			}
			if s.Base+fact.Offset(s.Count) > off {
				frames = append(frames, frameAt{entry.Position{Segment: run.Segment, Offset: run.Pos + int64(at)}, s.Base, s.Count})
			}
			at += size
		}
		n = t.Between(t.Start, run.Last+1)
	}
	return frames
}

func (r *rig) topic(name string) state.Topic {
	r.t.Helper()
	r.view.RLock()
	defer r.view.RUnlock()
	t, ok := r.state.Topic([]byte(name))
	if !ok {
		r.t.Fatalf("there is no topic %q", name)
	}
	return t
}

// restore has the log say that it was restored from a backup, and opens the broker again.
func (r *rig) restore(floor fact.Offset) {
	r.t.Helper()
	r.Broker.Close()
	var f wal.Frames
	f.End(fact.AppendRestored(f.Begin(fact.KindRestored, r.clock.Now().UnixMilli()), floor))
	if _, err := r.log.Append(&f, entry.StandaloneTerm, 0); err != nil {
		r.t.Fatal(err)
	}
	if err := r.log.Sync(); err != nil {
		r.t.Fatal(err)
	}
	if err := r.log.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.open(false, nil)
}

// modelRecord is a record as it was published, or cannot be read.
type modelRecord struct {
	off     fact.Offset
	cum     uint64
	size    uint64
	timeMS  int64
	damaged bool
}

// publishSome publishes records of random sizes, in batches, at times that rise now and then, and returns them.
func (r *rig) publishSome(rng *rand.Rand, topic string, batches int, cum uint64) (model []modelRecord) {
	r.t.Helper()
	for range batches {
		r.clock.Step(time.Duration(rng.IntN(4)) * time.Millisecond)
		p := &Publish{Topic: []byte(topic)}
		for range 1 + rng.IntN(3)*rng.IntN(3) {
			p.Records = append(p.Records, fact.Record{Key: make([]byte, rng.IntN(3)), Value: make([]byte, rng.IntN(40))})
		}
		done, err := r.Publish(p)
		if err != nil {
			r.t.Fatal(err)
		}
		for i, record := range p.Records {
			size := uint64(len(record.Key) + len(record.Value))
			model = append(model, modelRecord{off: done.Base + fact.Offset(i), cum: cum, size: size, timeMS: r.clock.Now().UnixMilli()})
			cum += size
		}
		if rng.IntN(3) == 0 { // or the whole topic is one run
			r.publish("other", "", "between")
		}
	}
	return model
}

// searchModel is what a search must find: off, and its cum if that is to be exact.
func searchModel(t state.Topic, model []modelRecord, measure func(*modelRecord) uint64, target uint64, byCum bool) found {
	want := found{off: t.Nth(0), cum: t.StartCum, exact: true}
	if target <= want.cum && byCum || target == 0 {
		return want
	}
	if t.Records() == 0 {
		want.off = t.End
	}
	for i := range model {
		m := &model[i]
		switch {
		case m.off < t.Start:
			continue
		case m.damaged:
			continue
		case measure(m) >= target:
			want.exact = want.off == m.off || byCum && want.cum >= target
			return want
		}
		want.off, want.cum = t.End, m.cum+m.size
		if i+1 < len(model) {
			want.off = model[i+1].off
		}
		if byCum && want.cum >= target {
			break
		}
	}
	want.exact = want.off == t.End || byCum && want.cum >= target
	return want
}

// Every search finds what reading all records from the start would find: without and with damage, with retained records, with
// some that were kept once more, and across what a restore has jumped over.
func TestSearchFindsWhatReadingAllWould(t *testing.T) {
	for seed := range uint64(30) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 5))
			r := newRig(t, nil)
			model := r.publishSome(rng, "a", 1+rng.IntN(60), 0)
			if seed%3 == 1 {
				r.restore(fact.RestoreStep)
				last := model[len(model)-1]
				model = append(model, r.publishSome(rng, "a", rng.IntN(30), last.cum+last.size)...)
			}
			log := r.sicken()
			if seed%2 == 1 {
				if _, err := r.Retain([]byte("a"), model[rng.IntN(len(model))].off); err != nil {
					t.Fatal(err)
				}
			}
			if seed%5 > 2 {
				r.keepSome(rng, "a")
				r.checkSearch(model)
				return // with damage, what stood there before might still be read
			}
			r.checkSearch(model)
			for _, f := range r.frames("a") {
				if rng.IntN(1+int(seed%4)) == 0 {
					log.bad[f.at] = true
					for i := range model {
						if off := model[i].off; off >= f.base && off < f.base+fact.Offset(f.count) {
							model[i].damaged = true
						}
					}
				}
			}
			r.checkSearch(model)
		})
	}
}

func (r *rig) checkSearch(model []modelRecord) {
	r.t.Helper()
	topic := r.topic("a")
	l, err := r.lookAt([]byte("a"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer l.release()
	check := func(what string, target uint64, by measure, of func(*modelRecord) uint64, byCum bool) {
		r.t.Helper()
		got, err := l.search(by, target)
		if want := searchModel(topic, model, of, target, byCum); err != nil || got != want {
			r.t.Fatalf("%s %d: got %+v, %v, want %+v", what, target, got, err, want)
		}
	}
	for i := range model {
		for d := range uint64(3) {
			if target := model[i].cum + d; target > topic.StartCum {
				check("bytes", target-1, cumOf, func(m *modelRecord) uint64 { return m.cum }, true)
			}
			check("time", uint64(model[i].timeMS)+d-1, timeOf, func(m *modelRecord) uint64 { return uint64(m.timeMS) }, false)
		}
	}
	check("bytes", topic.EndCum, cumOf, func(m *modelRecord) uint64 { return m.cum }, true)
	check("time", 0, timeOf, func(m *modelRecord) uint64 { return uint64(m.timeMS) }, false)
	for i := range model {
		m := &model[i]
		got, err := r.cumAt([]byte("a"), m.off)
		if m.off < topic.Start {
			if !errors.As(err, new(*OffsetRangeError)) {
				r.t.Fatalf("bytes before %d, which is gone: %v", m.off, err)
			}
			continue
		}
		want := topic.EndCum
		if !m.damaged || m.off == topic.Start || i > 0 && !model[i-1].damaged && model[i-1].off >= topic.Start {
			want = m.cum
		} else {
			for _, next := range model[i:] {
				if !next.damaged {
					want = next.cum
					break
				}
			}
		}
		if err != nil || got != want {
			r.t.Fatalf("bytes before %d: %d, %v, want %d", m.off, got, err, want)
		}
	}
}

// keepSome appends some frames of a topic once more.
func (r *rig) keepSome(rng *rand.Rand, topic string) {
	r.t.Helper()
	start := r.topic(topic).Start
	for _, f := range r.frames(topic) {
		if rng.IntN(3) > 0 || f.base < start {
			continue
		}
		var k recordsOf
		if _, err := r.Fetch(&Fetch{Topic: []byte(topic), Offset: f.base, Limit: f.count}, &k); err != nil {
			r.t.Fatal(err)
		}
		cum, err := r.cumAt([]byte(topic), f.base)
		if err != nil {
			r.t.Fatal(err)
		}
		if err := r.Keep(&Keep{Runs: []KeptRun{{Topic: []byte(topic), Base: f.base, Cum: cum, Records: k}}}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// recordsOf collects the records of a fetch as they were.
type recordsOf []fact.KeptRecord

func (k *recordsOf) Record(_ fact.Offset, key, value []byte, timeMS int64) {
	*k = append(*k, fact.KeptRecord{TimeMS: timeMS,
		Record: fact.Record{Key: []byte(strings.Clone(string(key))), Value: []byte(strings.Clone(string(value)))}})
}

// A search reads no more runs than a binary search has steps: here the topic's records stand one by one, between others.
func TestSearchReadsLittle(t *testing.T) {
	r := newRig(t, nil)
	const n = 5000
	for i := range n {
		r.clock.Step(time.Duration(i%7) * time.Millisecond)
		r.publish("a", "", strings.Repeat("x", i%50))
		r.publish("other", "", "between")
	}
	log := r.sicken()
	topic := r.topic("a")
	all := 0
	for i := range uint64(200) {
		log.reads = 0
		off, err := r.offsetAt([]byte("a"), testStart.UnixMilli()+int64(i*75))
		if err != nil || log.reads > 27 {
			t.Fatalf("time %d: %d, %v with %d reads", i, off, err, log.reads)
		}
		all += log.reads
		log.reads = 0
		l, _ := r.lookAt([]byte("a"))
		f, err := l.startFor(topic.EndCum * i / 200)
		l.release()
		if err != nil || log.reads > 26 {
			t.Fatalf("bytes %d: %+v, %v with %d reads", i, f, err, log.reads)
		}
		all += log.reads
	}
	if all > 400*8 { // a binary search has 12 steps
		t.Fatalf("%d reads for 400 searches", all)
	}
	if _, err := r.Retain([]byte("a"), n/2); err != nil {
		t.Fatal(err)
	}
	log.reads = 0
	if off, err := r.offsetAt([]byte("a"), 1); err != nil || off != n/2 || log.reads != 1 {
		t.Fatalf("the first record that is kept: %d, %v with %d reads", off, err, log.reads)
	}
}

// Damage without end costs a bounded number of reads, and its outcome is not above the record searched for.
func TestSearchInMuchDamage(t *testing.T) {
	r := newRig(t, nil)
	const n = 3000
	for range n {
		r.clock.Step(time.Millisecond)
		r.publish("a", "", "x")
		r.publish("other", "", "between")
	}
	log := r.sicken()
	for i, f := range r.frames("a") {
		log.bad[f.at] = i >= 100 && i < 2900
	}
	for _, at := range []int64{1, 50, 101, 102, 1500, 2900, 2901, 2950, 3000, 3001} {
		log.reads = 0
		off, err := r.offsetAt([]byte("a"), testStart.UnixMilli()+at)
		want := fact.Offset(at - 1)
		if at > 101 && at < 2902 {
			want = 100
		}
		if err != nil || off > want || off < min(want, 100) || log.reads > 1000 {
			t.Fatalf("time %d: %d, %v with %d reads, want %d", at, off, err, log.reads, want)
		}
	}
	for at := range log.bad {
		log.bad[at] = true
	}
	if off, err := r.offsetAt([]byte("a"), testStart.UnixMilli()+1); err != nil || off != 0 {
		t.Fatalf("all is damaged: %d, %v", off, err)
	}
}

// Records that move to another segment while they are looked at are looked up again; a log that cannot be read now is not
// taken for a damaged one.
func TestLookWhileRecordsMove(t *testing.T) {
	r := newRig(t, nil)
	r.publish("a", "", "one", "two", "three")
	log := r.sicken()
	log.gone = lookTries - 1
	if got, err := r.cumAt([]byte("a"), 1); err != nil || got != 4 {
		t.Fatalf("after the records moved: %d, %v", got, err)
	}
	log.err = syscall.EMFILE
	var un *UnavailableError
	if _, err := r.cumAt([]byte("a"), 1); !errors.As(err, &un) || un.Unknown {
		t.Fatalf("while no file can be opened: %v", err)
	}
	if _, err := r.offsetAt([]byte("a"), testStart.UnixMilli()); !errors.As(err, &un) {
		t.Fatalf("while no file can be opened: %v", err)
	}
	log.err = syscall.EIO // damage: nothing can be read, so the first record may be the one
	if off, err := r.offsetAt([]byte("a"), testStart.UnixMilli()+1); err != nil || off != 0 {
		t.Fatalf("on a damaged disk: %d, %v", off, err)
	}
	if _, err := r.cumAt([]byte("b"), 1); !errors.Is(err, ErrTopicNotFound) {
		t.Fatalf("a topic that is not there: %v", err)
	}
}
