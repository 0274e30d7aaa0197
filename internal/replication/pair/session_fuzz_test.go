package pair

import (
	"encoding/binary"
	"maps"
	"net"
	"slices"
	"testing"
	"time"
)

// FuzzLeaderSession plays a script to a leader that stands in one of the states in which a follower can meet it. Two bytes of the script
// choose a packet, and a bit of its fields that is changed; the checksum is right. Nothing panics, what the leader has committed is in
// its log and was not committed by a bare claim, and a follower that comes afterwards gets all of it.
func FuzzLeaderSession(f *testing.F) {
	states := slices.Sorted(maps.Keys(leaderStates))
	for i := range states {
		f.Add(uint8(i), []byte{0, 0})
		f.Add(uint8(i), []byte{2, 0, 5, 0, 6, 0, 6, 90})
		f.Add(uint8(i), []byte{9, 3, 8, 120, 3, 0, 10, 44})
	}
	f.Fuzz(func(t *testing.T, state uint8, script []byte) {
		if len(script) > 40 {
			return
		}
		inBubble(t, func(t *testing.T, w *world) {
			p := leaderStates[states[int(state)%len(states)]](w)
			w.settled()
			before := w.leader.Status().Committed
			for ; len(script) >= 2; script = script[2:] {
				s := samples[int(script[0])%len(samples)]
				if s.kind == kindRefuse {
					continue // some end a leader for good, and must
				}
				packet := p.enc.encode(s.kind, s.fields)
				if n := len(packet) - packetHeader; n > 0 && script[1] != 0 {
					at := int(script[1]) * 11 % (8 * n)
					packet[packetHeader+at/8] ^= 1 << (at % 8)
					reseal(packet)
				}
				p.raw(packet)
			}
			w.settled()
			if err := w.leader.Err(); err != nil {
				t.Fatalf("the leader has ended for good: %v", err)
			}
			if got := w.leader.Status().Committed; got < before || got > w.a.log.Last() {
				t.Errorf("committed %d, and before %d", got, before)
			}
			sessions := w.sessions()
			p.Close()
			w.b.write("1a20")
			w.follow(18)
			w.setDial(nil)
			w.await("the session ends", func() bool { return w.sessions() > sessions })
			w.streaming()
			w.mustCommit()
			w.sameLogs()
		})
	})
}

// FuzzFollowerBytes sends bytes to a follower as they are, or cut into packets with the right length, checksum and sequence number.
// Nothing panics, the session ends when the connection does, nothing of the follower's log is changed but by the leader's frames, and a
// leader that comes afterwards gets through.
func FuzzFollowerBytes(f *testing.F) {
	for _, s := range samples {
		packet := new(encoder).encode(s.kind, s.fields)
		f.Add(append(binary.LittleEndian.AppendUint32(nil, uint32(len(packet))), packet...), false)
		f.Add(append([]byte{byte(s.kind), byte(len(packet) - packetHeader)}, packet[packetHeader:]...), true)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), false)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff}, false)
	f.Fuzz(func(t *testing.T, b []byte, packets bool) {
		inBubble(t, func(t *testing.T, w *world) {
			w.a.write("1a40")
			w.b.write("1a20")
			w.follow(18)
			before := w.b.content()
			near, far := net.Pipe()
			done := make(chan struct{})
			go func() { w.follower.Serve(NewWire(far)); close(done) }()
			go func() {
				for buf := make([]byte, 4096); ; {
					if _, err := near.Read(buf); err != nil {
						return
					}
				}
			}()
			if packets {
				var enc encoder
				for len(b) >= 2 {
					k, n := kind(b[0]), min(int(b[1]), len(b)-2)
					packet := slices.Clone(enc.finish(append(enc.start(k), b[2:2+n]...), nil))
					b = b[2+n:]
					if _, err := near.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(packet))), packet...)); err != nil {
						break
					}
				}
			} else {
				near.Write(b)
			}
			time.Sleep(time.Second)
			near.Close()
			<-done
			if err := w.follower.Err(); err != nil {
				t.Fatalf("the follower has ended for good: %v", err)
			}
			sameContent(t, before, w.b.content())
			w.lead(1, w.a.log.Last())
			w.streaming()
			w.mustCommit()
			w.sameLogs()
		})
	})
}
