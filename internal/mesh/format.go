package mesh

import (
	"encoding/binary"
	"hash/crc32"
	"strings"
	"unicode/utf8"
)

// The bytes of docs/format/mesh.md.

// frame is the type of a frame.
type frame uint8

const (
	frameHello   frame = 1 // who the sender is; the first in each direction, unless that is a refusal
	frameRefuse  frame = 2 // why there will be no stream: text
	framePing    frame = 3 // nothing else was sent for a while
	framePacket  frame = 4
	frameRequest frame = 5 // id, request
	frameAnswer  frame = 6 // id, answer
	frameCancel  frame = 7 // id: nobody waits for the answer any more
)

// kind is what a stream is for.
type kind uint8

const (
	packets kind = iota
	calls
	kinds // how many there are
)

func (k kind) String() string {
	if k == packets {
		return "packets"
	}
	return "calls"
}

const (
	headerBytes = 8 // length, CRC
	idBytes     = 8
	nodesMax    = 64 // more than a cluster has
	refusalMax  = 500

	helloMagic   = "mqmesh\x00\x00"
	helloVersion = 1
	helloMax     = 1024 // of any version
	helloBytes   = 16 + 32 + 16 + 16 + 8 + 8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// counter numbers the frames of one direction, and knows their checksums.
type counter struct {
	number uint64   // of the next frame
	first  [13]byte // here, because it would be allocated anew for each frame otherwise
}

// sum is the CRC of the next frame, whose content is head and rest.
func (c *counter) sum(length uint32, t frame, head, rest []byte) uint32 {
	first := c.first[:]
	binary.LittleEndian.PutUint64(first, c.number)
	binary.LittleEndian.PutUint32(first[8:], length)
	first[12] = byte(t)
	sum := crc32.Update(0, castagnoli, first)
	sum = crc32.Update(sum, castagnoli, head)
	return crc32.Update(sum, castagnoli, rest)
}

// appendHeader appends what stands before head and rest in the next frame, and counts it.
func (c *counter) appendHeader(dst []byte, t frame, head, rest []byte) []byte {
	length := uint32(1 + len(head) + len(rest))
	dst = binary.LittleEndian.AppendUint32(dst, length)
	dst = binary.LittleEndian.AppendUint32(dst, c.sum(length, t, head, rest))
	c.number++
	return append(dst, byte(t))
}

// greeting is the content of a hello frame.
type greeting struct {
	kind            kind
	from, to, nodes int
	hello           Hello
}

func appendHello(dst []byte, g *greeting) []byte {
	dst = append(dst, helloMagic...)
	dst = binary.LittleEndian.AppendUint16(dst, helloVersion)
	dst = append(dst, byte(g.kind), byte(g.from), byte(g.to), byte(g.nodes), 0, 0)
	dst = append(dst, g.hello.Fingerprint[:]...)
	dst = append(dst, g.hello.NodeID[:]...)
	dst = append(dst, g.hello.LogID[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, g.hello.Boot)
	return binary.LittleEndian.AppendUint64(dst, g.hello.Nonce)
}

// decodeHello reads a hello frame. It checks the form, not what is said.
func decodeHello(p []byte) (*greeting, error) {
	if len(p) < 10 || string(p[:8]) != helloMagic {
		return nil, malformed("no hello")
	}
	if v := binary.LittleEndian.Uint16(p[8:]); v != helloVersion {
		return nil, malformed("version %d of it; this node speaks version %d", v, helloVersion)
	}
	if len(p) != helloBytes || p[14] != 0 || p[15] != 0 {
		return nil, malformed("a hello of %d bytes", len(p))
	}
	g := &greeting{kind: kind(p[10]), from: int(p[11]), to: int(p[12]), nodes: int(p[13])}
	if g.kind >= kinds || g.nodes > nodesMax || g.from >= g.nodes || g.to >= g.nodes {
		return nil, malformed("a hello for kind %d from node %d to node %d of %d", g.kind, g.from, g.to, g.nodes)
	}
	p = p[16:]
	p = p[copy(g.hello.Fingerprint[:], p):]
	p = p[copy(g.hello.NodeID[:], p):]
	p = p[copy(g.hello.LogID[:], p):]
	g.hello.Boot = binary.LittleEndian.Uint64(p)
	g.hello.Nonce = binary.LittleEndian.Uint64(p[8:])
	return g, nil
}

// plainText makes what comes from another node fit for a log: one line of valid UTF-8, not long.
func plainText(s string) string {
	if len(s) > refusalMax {
		s = s[:refusalMax]
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return ' '
		}
		return r
	}, s)
}
