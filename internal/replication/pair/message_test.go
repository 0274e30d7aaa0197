package pair

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash/crc32"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"example.com/mq/internal/wal"
)

// samples are one packet of each kind, with all fields in use.
var samples = []struct {
	kind   kind
	fields any
}{
	{kindHello, &hello{Version: 1, LogID: hexID(testID), Node: node('a'), Epoch: 7, LeaseMS: 2000, Tip: point{100, 6, 0xfeedbeef}, Commit: 99}},
	{kindWelcome, &welcome{LogID: hexID(testID), Node: node('b'), Leader: node('a'), First: 20, Commit: point{90, 5, 0x01020304}, Tip: point{101, 6, 0x05060708}}},
	{kindRefuse, &refuse{Code: CodeStaleEpoch, Message: "epoch 7 is over", Epoch: 8, Leader: node('c')}},
	{kindPull, &pull{After: 100, To: 101}},
	{kindBegin, &begin{From: 91, End: 101, Committed: 99}},
	{kindBegin, &begin{From: 91, End: 101, Committed: 99, Sync: &plan{
		Fresh: true, Segment: 91, Size: 4096, Prev: 0xa1a2a3a4, Snapshot: planSnapshot{Index: 40, Bytes: 1000},
		Segments: []planSegment{{First: 20, Last: 60, Bytes: 4096}, {First: 61, Last: 90, Bytes: 8192}},
	}}},
	{kindBegun, &begun{Snapshot: 1000, Segments: []int64{4096, 17}}},
	{kindFrames, &frames{stamp: 0x1122334455667788, commit: 99, place: wal.Place{Segment: 91, Size: 4096, Prev: 0xa1a2a3a4, Offset: 512}, raw: []byte("raw frames")}},
	{kindBeat, &beat{stamp: 0x1122334455667788, commit: 99}},
	{kindAck, &ack{stamp: 0x1122334455667788, durable: 100, applied: 98}},
	{kindChunk, &chunk{file: 61, offset: 512, data: []byte("a piece of a file")}},
	{kindGot, &got{file: 61, bytes: 8192, state: gotAll}},
	{kindWhole, &whole{}},
}

// encode returns a whole packet.
func (e *encoder) encode(k kind, fields any) []byte {
	switch m := fields.(type) {
	case *frames:
		return bytes.Join([][]byte{e.frames(m), m.raw}, nil)
	case *beat:
		return bytes.Clone(e.beat(m))
	case *ack:
		return bytes.Clone(e.ack(m))
	case *chunk:
		return bytes.Join([][]byte{e.chunk(m), m.data}, nil)
	case *got:
		return bytes.Clone(e.got(m))
	default:
		return bytes.Clone(e.json(k, fields))
	}
}

// decodeFields reads what follows the header. It returns nil fields for a kind that is none.
func decodeFields(k kind, b []byte) (any, error) {
	switch k {
	case kindFrames:
		m := new(frames)
		return m, m.decode(b)
	case kindBeat:
		m := new(beat)
		return m, m.decode(b)
	case kindAck:
		m := new(ack)
		return m, m.decode(b)
	case kindChunk:
		m := new(chunk)
		return m, m.decode(b)
	case kindGot:
		m := new(got)
		return m, m.decode(b)
	}
	fields := map[kind]any{kindHello: new(hello), kindWelcome: new(welcome), kindRefuse: new(refuse), kindPull: new(pull),
		kindBegin: new(begin), kindBegun: new(begun), kindWhole: new(whole)}[k]
	if fields == nil {
		return nil, nil
	}
	return fields, decodeJSON(b, fields)
}

// The bytes of each packet are those in the file: another format needs another version.
func TestGoldenPackets(t *testing.T) {
	datadriven.RunTest(t, "testdata/packets", func(t *testing.T, d *datadriven.TestData) string {
		var out strings.Builder
		enc := encoder{seq: 0x0102030405060707}
		for _, s := range samples {
			if s.kind.String() == d.Cmd {
				out.WriteString(hex.Dump(enc.encode(s.kind, s.fields)))
			}
		}
		if out.Len() == 0 {
			t.Fatalf("%s: no such packet", d.Cmd)
		}
		return out.String()
	})
}

func TestPacketsRoundTrip(t *testing.T) {
	var enc encoder
	var dec decoder
	seen := make(map[kind]bool)
	for _, s := range samples {
		k, b, err := dec.packet(enc.encode(s.kind, s.fields))
		if err != nil || k != s.kind {
			t.Fatalf("%v: got %v, %v", s.kind, k, err)
		}
		got, err := decodeFields(k, b)
		if err != nil || !reflect.DeepEqual(got, s.fields) {
			t.Errorf("%v: got %+v, %v, want %+v", k, got, err, s.fields)
		}
		seen[k] = true
	}
	for k := kindHello; k <= kindWhole; k++ {
		if !seen[k] {
			t.Errorf("no sample of %v", k)
		}
	}
	if kindWhole.String() != "whole" || kind(13).String() != "kind 13" || kind(0).String() != "kind 0" {
		t.Error("the names of kinds do not fit the kinds")
	}
}

// The numbers of a packet may be anything that its type takes, within the limits of the decoder.
func TestNumbersRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		any64 := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
		in := ack{stamp: int64(any64()), durable: 1 << 62 >> rng.IntN(63), applied: 1 << 62 >> rng.IntN(63)}
		var enc encoder
		var dec decoder
		_, b, err := dec.packet(enc.ack(&in))
		var out ack
		if err == nil {
			err = out.decode(b)
		}
		if err != nil || out != in {
			t.Fatalf("got %+v, %v, want %+v", out, err, in)
		}
	}
}

// A decoder takes the next packet, whole and unchanged, and nothing else; and what it refused does not move it.
func TestDecoderRefuses(t *testing.T) {
	var enc encoder
	first := enc.encode(kindBeat, &beat{stamp: 1, commit: 2})
	second := enc.encode(kindBeat, &beat{stamp: 3, commit: 4})
	third := enc.encode(kindBeat, &beat{stamp: 5, commit: 6})
	var dec decoder
	refused := func(what string, packet []byte) {
		t.Helper()
		if _, _, err := dec.packet(packet); !errors.Is(err, errMalformed) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	refused("a packet in place of the one before it", second)
	if _, _, err := dec.packet(first); err != nil {
		t.Fatal(err)
	}
	refused("the same packet again", first)
	refused("a packet after the next", third)
	refused("nothing", nil)
	refused("too much", make([]byte, packetMax+1))
	for n := range len(second) {
		refused("a part of a packet", second[:n])
	}
	for bit := range 8 * len(second) {
		flipped := bytes.Clone(second)
		flipped[bit/8] ^= 1 << (bit % 8)
		refused("a packet with one bit changed", flipped)
	}
	for i := 13; i < 16; i++ {
		odd := bytes.Clone(second)
		odd[i] = 1
		refused("a packet with reserved bytes in use", reseal(odd))
	}
	for _, packet := range [][]byte{second, third} {
		if _, _, err := dec.packet(packet); err != nil {
			t.Fatal(err)
		}
	}
}

// reseal makes the checksum of a packet right.
func reseal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

// Fields that are possible as bytes and impossible as numbers.
func TestFieldsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		kind   kind
		fields any
	}{
		{"commit out of range", kindBeat, &beat{commit: indexMax + 1}},
		{"durable out of range", kindAck, &ack{durable: math.MaxUint64}},
		{"applied out of range", kindAck, &ack{applied: indexMax + 1}},
		{"no frames", kindFrames, &frames{}},
		{"frames: commit", kindFrames, &frames{commit: math.MaxUint64, raw: []byte{1}}},
		{"frames: segment", kindFrames, &frames{place: wal.Place{Segment: math.MaxUint64}, raw: []byte{1}}},
		{"frames: size", kindFrames, &frames{place: wal.Place{Size: -1}, raw: []byte{1}}},
		{"frames: offset", kindFrames, &frames{place: wal.Place{Offset: -8}, raw: []byte{1}}},
		{"an empty chunk", kindChunk, &chunk{}},
		{"chunk: file", kindChunk, &chunk{file: math.MaxUint64, data: []byte{1}}},
		{"chunk: offset", kindChunk, &chunk{offset: -1, data: []byte{1}}},
		{"got: bytes", kindGot, &got{bytes: -1}},
		{"got: file", kindGot, &got{file: indexMax + 1}},
		{"got: state", kindGot, &got{state: gotBad + 1}},
	} {
		var enc encoder
		if _, err := decodeFields(c.kind, enc.encode(c.kind, c.fields)[packetHeader:]); !errors.Is(err, errMalformed) {
			t.Errorf("%s: got %v", c.name, err)
		}
	}
	prev := new(encoder).encode(kindFrames, &frames{raw: []byte{1}})[packetHeader:]
	prev[44] = 1 // above the 32 bits of a CRC
	if _, err := decodeFields(kindFrames, prev); !errors.Is(err, errMalformed) {
		t.Errorf("frames: prev: got %v", err)
	}
	for _, k := range []kind{kindFrames, kindBeat, kindAck, kindChunk, kindGot} {
		for n := range 16 {
			if _, err := decodeFields(k, make([]byte, n)); !errors.Is(err, errMalformed) {
				t.Errorf("%v of %d bytes: got %v", k, n, err)
			}
		}
	}
	for _, k := range []kind{kindBeat, kindAck, kindGot} {
		if _, err := decodeFields(k, make([]byte, 64)); !errors.Is(err, errMalformed) {
			t.Errorf("%v of 64 bytes: got %v", k, err)
		}
	}
	for _, text := range []string{
		"", "{", "[]", `{"index":1}{}`, `{"after":1,"after":2}`, `{"After":1}`, `{"after":-1}`, `{"after":1.5}`, `{"after":"1"}`,
		`{"after":18446744073709551616}`, `{"other":1}`, "{\"after\":1,\"to\":\"\xff\"}",
	} {
		if _, err := decodeFields(kindPull, []byte(text)); !errors.Is(err, errMalformed) {
			t.Errorf("%q: got %v", text, err)
		}
	}
	for _, text := range []string{`{"node_id":"00"}`, `{"node_id":"` + strings.Repeat("0", 33) + `"}`, `{"node_id":"` + strings.Repeat("g", 32) + `"}`, `{"log_id":1}`} {
		if _, err := decodeFields(kindHello, []byte(text)); !errors.Is(err, errMalformed) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// FuzzPacket: no bytes make a decoder panic, and what it takes is what its encoder makes of the fields.
func FuzzPacket(f *testing.F) {
	for _, s := range samples {
		packet := new(encoder).encode(s.kind, s.fields)
		f.Add(packet, false)
		f.Add(packet[packetHeader:], true)
	}
	f.Fuzz(func(t *testing.T, b []byte, seal bool) {
		if seal { // for what is behind the checksum
			packet := append(make([]byte, packetHeader), b...)
			if len(b) > 0 {
				packet[12] = b[0] % 16
				packet = append(packet[:packetHeader], b[1:]...)
			}
			binary.LittleEndian.PutUint64(packet[4:], 1)
			b = reseal(packet)
		}
		var dec decoder
		k, fields, err := dec.packet(b)
		if err != nil {
			if dec.seq != 0 {
				t.Fatal("a packet that was refused counts")
			}
			return
		}
		m, err := decodeFields(k, fields)
		if err != nil || m == nil {
			return
		}
		again := new(encoder).encode(k, m)
		switch m.(type) {
		case *frames, *beat, *ack, *chunk, *got:
			if !bytes.Equal(again, b) {
				t.Fatalf("%v: %x decodes, and encodes as %x", k, b, again)
			}
		default: // JSON has more than one form
			other, err := decodeFields(k, again[packetHeader:])
			if err != nil || !reflect.DeepEqual(other, m) {
				t.Fatalf("%v: %+v comes back as %+v, %v", k, m, other, err)
			}
		}
	})
}
