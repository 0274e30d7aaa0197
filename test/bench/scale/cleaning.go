package main

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"example.com/mq/api"
)

const (
	cleaningSize = 1024 // of a record
	shortTopics  = 180  // keep the default of cleaningFlags
	longTopics   = 20   // keep longRecords each, and get every longShare-th record
	longRecords  = 10_000
	longShare    = 4
	segmentBytes = 64 << 20 // the default of mqd
	lookEvery    = 200 * time.Millisecond
)

var cleaningFlags = []string{"-retention-records", "200"}

// cleaning measures publishers while the cleaner works, against a server that keeps all, and the space that the log takes.
// Records that live long stand among many that do not, so that no segment dies by itself.
func cleaning(b *bench) error {
	kept, err := b.newServer("kept")
	if err != nil {
		return err
	}
	cleaned, err := b.newServer("cleaned")
	if err != nil {
		return err
	}
	if _, err := kept.start(); err != nil {
		return err
	}
	if _, err := cleaned.start(cleaningFlags...); err != nil {
		return err
	}
	if err := cleaned.configureLong(b.of(longRecords)); err != nil {
		return err
	}
	look := cleaned.lookAtSpace()
	for _, s := range []*server{kept, cleaned} {
		began := time.Now()
		n := 3 * longShare * longTopics * b.of(longRecords) / batch
		if err := s.fill("a mix of topics", 16, n, func() func(*conn, int) error {
			publish := publisher(cleaningSize, batch, mixed)
			return func(c *conn, _ int) error { return publish(c) }
		}); err != nil {
			return err
		}
		if s == cleaned {
			rate := float64(n) * batch * cleaningSize / 1e6 / time.Since(began).Seconds()
			b.spaceRows(fmt.Sprintf("batches come, %.0f MB/s", rate), look())
		}
	}
	cleaned.quiet()
	return b.cleaningInTurn(kept, cleaned)
}

// configureLong makes the topics whose records live long, and gives them their settings.
func (s *server) configureLong(records int) error {
	c, err := s.dial()
	if err != nil {
		return err
	}
	defer c.close()
	for i := range longTopics {
		if _, err := c.call(api.PathPublish, fmt.Appendf(nil, `{"topic":"long-%d","value":"YQ=="}`, i)); err != nil {
			return err
		}
		if _, err := c.call(api.PathTopicsConfigure, fmt.Appendf(nil, `{"topic":"long-%d","retention_records":%d}`, i, records)); err != nil {
			return err
		}
	}
	return nil
}

// mixed chooses a topic.
func mixed() string {
	if rand.IntN(longShare) == 0 {
		return fmt.Sprintf("long-%d", rand.IntN(longTopics))
	}
	return topicName(rand.IntN(shortTopics))
}

func (b *bench) cleaningInTurn(kept, cleaned *server) error {
	mix := func(int) operation { return publisher(cleaningSize, 1, mixed) }
	pause := func(s *server, on bool) error {
		if on {
			return s.cmd.Process.Signal(syscall.SIGSTOP)
		}
		return s.cmd.Process.Signal(syscall.SIGCONT)
	}
	// Who is not measured stands still, so that the cleaner finds no time to get ahead.
	if err := pause(cleaned, true); err != nil {
		return err
	}
	var seen []space
	moved, working := int64(0), 0.0
	c, err := b.inTurn(
		func(stop func() bool) (*outcome, error) { return kept.load(producers, stop, mix) },
		func(stop func() bool) (*outcome, error) {
			if err := pause(cleaned, false); err != nil {
				return nil, err
			}
			before, err := cleaned.verbose()
			if err != nil {
				return nil, err
			}
			look := cleaned.lookAtSpace()
			o, err := cleaned.load(producers, stop, mix)
			seen = append(seen, look()...)
			if err != nil {
				return nil, err
			}
			after, err := cleaned.verbose()
			if err != nil {
				return nil, err
			}
			moved += after.Cleaner.MovedBytes - before.Cleaner.MovedBytes
			working += o.seconds
			return o, pause(cleaned, true)
		})
	if err != nil {
		return err
	}
	b.compare("publish", "without a cleaner", "with a busy one", "", "p99 at most 1.5", &c)
	b.row("moved meanwhile", "", "%s in %.0f s, %.1f MB/s", mib(moved), working, float64(moved)/1e6/working)
	if err := pause(cleaned, false); err != nil {
		return err
	}
	b.spaceRows("publishers run", seen)
	cleaned.quiet()
	end, err := cleaned.verbose()
	if err != nil {
		return err
	}
	at := space{cleaned.space(), end.Cleaner.LiveBytes}
	b.row("space taken when all is done", "2 x what lives + 2 segments", "%s", at)
	b.row("memory after that", "", "%s", cleaned.memory())
	return nil
}

// space is what the log's files take, and what of it lives.
type space struct{ taken, live int64 }

// part says how much of the promise is used up.
func (s space) part() float64 { return float64(s.taken) / float64(2*s.live+2*segmentBytes) }

func (s space) String() string {
	return fmt.Sprintf("%s, %s live, %.2f of the promise", mib(s.taken), mib(s.live), s.part())
}

// spaceRows tells how the space went.
func (b *bench) spaceRows(while string, seen []space) {
	if len(seen) == 0 {
		return
	}
	most := seen[0]
	var some []space
	for i, s := range seen {
		if s.part() > most.part() {
			most = s
		}
		if i%(len(seen)/8+1) == 0 {
			some = append(some, s)
		}
	}
	b.row("space taken at most, while "+while, "2 x what lives + 2 segments", "%s", most)
	b.row("space over time, while "+while, "", "%s", list(some, func(s space) string { return mib(s.taken) + " of " + mib(2*s.live+2*segmentBytes) }))
}

// lookAtSpace looks from now on, and returns what ends that and tells what was seen.
func (s *server) lookAtSpace() (seen func() []space) {
	end, result := make(chan struct{}), make(chan []space)
	go func() { // ended and awaited by seen
		var all []space
		for {
			select {
			case <-end:
				result <- all
				return
			case <-time.After(lookEvery):
			}
			if v, err := s.verbose(); err == nil && v.Cleaner.LiveBytes > 0 {
				all = append(all, space{s.space(), v.Cleaner.LiveBytes})
			}
		}
	}()
	return func() []space {
		close(end)
		return <-result
	}
}
