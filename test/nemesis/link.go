package nemesis

import (
	"container/heap"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Rates say what happens to packets on a Link. Zero means that nothing does.
type Rates struct {
	Drop      float64 // probability that a packet is lost
	Duplicate float64 // that it arrives twice
	Reorder   float64 // that it is held up, so that later ones overtake it
	Corrupt   float64 // that one bit of it is flipped
	Delay     time.Duration
	Jitter    time.Duration // at most this much is added to Delay; it alone changes no order
	HeldUp    time.Duration // how long Reorder holds a packet up; default 10 ms
}

// Packets counts what happened to packets on a Link.
type Packets struct {
	Sent       int64 // into the link
	Arrived    int64 // out of it
	Dropped    int64 // as Rates say
	Duplicated int64
	HeldUp     int64
	Overtaken  int64 // arrived after one that was sent later
	Corrupted  int64
	Delayed    int64
	Lost       int64 // no room in the link
}

func (p Packets) String() string {
	return fmt.Sprintf("sent %d, arrived %d, dropped %d, duplicated %d, held up %d, overtaken %d, corrupted %d, delayed %d, lost %d",
		p.Sent, p.Arrived, p.Dropped, p.Duplicated, p.HeldUp, p.Overtaken, p.Corrupted, p.Delayed, p.Lost)
}

// Link joins two networks by a device in each, between which this program carries the packets.
type Link struct {
	ways [2]*way
	done sync.WaitGroup
}

// NeedLink returns why NewLink cannot work on this machine, or nil.
func NeedLink() error {
	if os.Getuid() != 0 {
		return errors.New("making a network device needs root")
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("no TUN devices: %w", err)
	}
	return nil
}

// NewLink lays a link between two networks, which keep their addresses with each one. The rates are those one way and back,
// for the very first packet, too, which the kernel may send by itself. All that it draws follows from the seed and the
// packets. It ends with Close.
func NewLink(a, b Place, seed uint64, forth, back Rates) (*Link, error) {
	near, err := openDevice(a, b)
	if err != nil {
		return nil, err
	}
	far, err := openDevice(b, a)
	if err != nil {
		near.Close()
		return nil, err
	}
	l := &Link{ways: [2]*way{newWay(near, far, seed, 0), newWay(far, near, seed, 1)}}
	l.Set(forth, back)
	for _, w := range l.ways {
		l.done.Go(w.take) // both end with Close
		l.done.Go(w.give)
	}
	return l, nil
}

// Set changes what happens to the packets, one way and back. What is in the link already keeps its time.
func (l *Link) Set(forth, back Rates) {
	for i, r := range []Rates{forth, back} {
		w := l.ways[i]
		w.mu.Lock()
		w.rates = r
		w.mu.Unlock()
	}
}

// Packets returns what happened so far, one way and back.
func (l *Link) Packets() (forth, back Packets) {
	var p [2]Packets
	for i, w := range l.ways {
		w.mu.Lock()
		p[i] = w.packets
		w.mu.Unlock()
	}
	return p[0], p[1]
}

// Close ends the link, and its devices are gone.
func (l *Link) Close() error {
	err := errors.Join(l.ways[0].from.Close(), l.ways[1].from.Close())
	for _, w := range l.ways {
		w.mu.Lock()
		w.closed = true
		w.mu.Unlock()
		w.wake()
	}
	l.done.Wait()
	return err
}

// openDevice makes a device in a network, by which it reaches another one.
func openDevice(at, to Place) (*os.File, error) {
	var (
		device *os.File
		name   string
	)
	if err := at.Network.Within(func() error {
		fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return fmt.Errorf("open /dev/net/tun: %w", err)
		}
		ifr, err := unix.NewIfreq("link%d") // the kernel sets the number
		if err != nil {
			return errors.Join(err, unix.Close(fd))
		}
		ifr.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
			return errors.Join(fmt.Errorf("make a TUN device: %w", err), unix.Close(fd))
		}
		// Only now: the poller takes no device that has no name yet.
		device, name = os.NewFile(uintptr(fd), ifr.Name()), ifr.Name()
		return nil
	}); err != nil {
		return nil, err
	}
	for _, words := range []string{
		"ip address add " + at.Address + "/32 dev " + name,
		"ip link set " + name + " up",
		"ip route add " + to.Address + "/32 dev " + name + " src " + at.Address,
	} {
		if _, err := at.Network.Command(strings.Fields(words)...); err != nil {
			device.Close()
			return nil, err
		}
	}
	return device, nil
}

// way is one direction of a link. take reads packets and decides what becomes of them, give hands them over in time.
type way struct {
	from, to *os.File
	dice     *rand.Rand    // used by take
	woken    chan struct{} // holds one value when there is something new for give

	mu      sync.Mutex // guards what follows
	rates   Rates
	packets Packets
	queue   packets
	sent    int64     // packets put into queue
	last    time.Time // when the last packet is due that was not held up
	arrived int64     // the highest number that arrived
	closed  bool
}

// packet is on its way.
type packet struct {
	due    time.Time
	number int64 // in the order of sending
	bytes  []byte
}

const (
	packetMax = 64 << 10
	queueMax  = 10_000 // packets in a link, one way
)

func newWay(from, to *os.File, seed, stream uint64) *way {
	return &way{from: from, to: to, dice: rand.New(rand.NewPCG(seed, stream)), woken: make(chan struct{}, 1)}
}

func (w *way) wake() {
	select {
	case w.woken <- struct{}{}:
	default:
	}
}

func (w *way) take() {
	buf := make([]byte, packetMax)
	for {
		n, err := w.from.Read(buf)
		if err != nil {
			return // Close
		}
		w.send(append([]byte(nil), buf[:n]...), time.Now())
		w.wake()
	}
}

// send decides what becomes of a packet.
func (w *way) send(p []byte, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.rates
	// Each packet takes the same draws, whatever the rates are.
	drop, double, hold, corrupt := w.dice.Float64(), w.dice.Float64(), w.dice.Float64(), w.dice.Float64()
	jitter, bit := w.dice.Float64(), w.dice.IntN(packetMax*8)
	w.packets.Sent++
	if drop < r.Drop {
		w.packets.Dropped++
		return
	}
	if len(w.queue) >= queueMax {
		w.packets.Lost++
		return
	}
	due := now.Add(r.Delay + time.Duration(jitter*float64(r.Jitter)))
	if due.After(now) {
		w.packets.Delayed++
	}
	if due.Before(w.last) {
		due = w.last
	}
	if hold < r.Reorder {
		w.packets.HeldUp++
		held := r.HeldUp
		if held == 0 {
			held = 10 * time.Millisecond
		}
		due = due.Add(held)
	} else {
		w.last = due
	}
	if corrupt < r.Corrupt {
		w.packets.Corrupted++
		bit %= len(p) * 8
		p[bit/8] ^= 1 << (bit % 8)
	}
	w.sent++
	heap.Push(&w.queue, packet{due, w.sent, p})
	if double < r.Duplicate {
		w.packets.Duplicated++
		heap.Push(&w.queue, packet{due, w.sent, p})
	}
}

func (w *way) give() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		p, wait, closed := w.next(time.Now())
		switch {
		case closed:
			return
		case p != nil:
			// What the other side cannot take, such as a head that a flipped bit has made senseless, is lost.
			_, _ = w.to.Write(p)
		default:
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-w.woken:
			}
		}
	}
}

// next returns the packet that is due, or how long to wait for one.
func (w *way) next(now time.Time) (p []byte, wait time.Duration, closed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return nil, 0, true
	case len(w.queue) == 0:
		return nil, time.Hour, false
	case w.queue[0].due.After(now):
		return nil, w.queue[0].due.Sub(now), false
	}
	first := heap.Pop(&w.queue).(packet)
	w.packets.Arrived++
	if first.number < w.arrived {
		w.packets.Overtaken++
	}
	w.arrived = max(w.arrived, first.number)
	return first.bytes, 0, false
}

// packets is a heap by time, and by number where that is the same.
type packets []packet

func (q packets) Len() int      { return len(q) }
func (q packets) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *packets) Push(p any)   { *q = append(*q, p.(packet)) }
func (q packets) Less(i, j int) bool {
	return q[i].due.Before(q[j].due) || q[i].due.Equal(q[j].due) && q[i].number < q[j].number
}

func (q *packets) Pop() any {
	old := *q
	p := old[len(old)-1]
	old[len(old)-1] = packet{}
	*q = old[:len(old)-1]
	return p
}
