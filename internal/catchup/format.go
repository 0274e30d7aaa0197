package catchup

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// version is that of the protocol.
const version = 1

// The format of packets is in docs/format/catchup.md. All integers are little-endian.
//
//	request  0     4         5      6   8        24
//	         | crc | version | kind | 0 | log id | fields of the kind |
//
//	answer   0     4         5      6      7        8        24     32       40           60
//	         | crc | version | kind | code | leader | log id | term | commit | last entry | fields of the kind, or text |
const (
	requestHeader = 24
	answerHeader  = 60
	// PieceMax is how much of a file, or of frames, goes into one answer, in bytes. Only a larger frame makes an answer
	// larger, up to frameMax.
	PieceMax = 4 << 20
	// frameMax is the largest frame that goes into one answer as a whole; of a larger one a part goes.
	frameMax = 6 << 20
	// RequestMax and AnswerMax bound the packets, in bytes.
	RequestMax = 64 << 10
	AnswerMax  = 8 << 20

	pointsMax   = 64
	nodesMax    = 64
	textMax     = 1 << 10
	pieceFields = 32
	maxIndex    = 1 << 62
)

// kind says what is asked.
type kind uint8

const (
	kindIntroduce kind = 1 + iota // who are you; this is me
	kindForm                      // the cluster is formed
	kindManifest                  // what have you
	kindPoints                    // the points at some indexes
	kindFrames                    // the frames behind a point
	kindSegment                   // bytes of a segment file
	kindSnapshot                  // bytes of a snapshot file
	kindHash                      // the hash of the fold at an index
)

// request is one request; which fields count depends on its kind.
type request struct {
	kind  kind
	logID entry.LogID

	introduction Introduction
	formation    Formation
	indexes      []entry.Index // points: falling
	after        wal.Point     // frames: behind this one
	limit        int           // frames: bytes in the answer; segment, snapshot: bytes from offset on
	have         int           // frames: bytes of the first frame that the asker has already
	file         entry.Index   // segment: its first entry; snapshot, hash: the entry that it covers
	offset       int64         // segment, snapshot
}

func (r *request) encode() []byte {
	b := append(make([]byte, 4, 128), version, byte(r.kind), 0, 0)
	b = append(b, r.logID[:]...)
	switch r.kind {
	case kindIntroduce:
		b = append(b, marshal(&r.introduction)...)
	case kindForm:
		b = append(b, marshal(&r.formation)...)
	case kindPoints:
		for _, i := range r.indexes {
			b = put64(b, uint64(i))
		}
	case kindFrames:
		b = putPoint(b, r.after)
		b = put32(b, uint32(r.limit))
		b = put32(b, uint32(r.have))
	case kindSegment, kindSnapshot:
		b = put64(b, uint64(r.file))
		b = put64(b, uint64(r.offset))
		b = put32(b, uint32(r.limit))
	case kindHash:
		b = put64(b, uint64(r.file))
	}
	return seal(b)
}

// decode parses a request. Whatever b holds, it does not panic; errors wrap ErrVersion or ErrMalformed.
func (r *request) decode(b []byte) error {
	if err := opened(b, requestHeader, RequestMax); err != nil {
		return err
	}
	d := decoder{b: b[requestHeader:], bad: b[6] != 0 || b[7] != 0}
	*r = request{kind: kind(b[5]), logID: entry.LogID(b[8:24])}
	switch r.kind {
	case kindIntroduce:
		return firstError(d.json(&r.introduction), d.end(), r.introduction.check())
	case kindForm:
		return firstError(d.json(&r.formation), d.end(), r.formation.check())
	case kindManifest:
	case kindPoints:
		n := len(d.b) / 8
		d.bad = d.bad || n == 0 || n > pointsMax
		for ; n > 0 && !d.bad; n-- {
			r.indexes = append(r.indexes, d.index())
			if i := len(r.indexes) - 1; i > 0 && r.indexes[i] >= r.indexes[i-1] {
				return malformed("indexes that do not fall")
			}
		}
	case kindFrames:
		r.after, r.limit, r.have = d.point(), d.length(PieceMax), d.length(wal.PayloadMax)
	case kindSegment, kindSnapshot:
		r.file, r.offset, r.limit = d.index(), d.size(), d.length(PieceMax)
		d.bad = d.bad || r.file == 0 || r.limit == 0
	case kindHash:
		r.file = d.index()
	default:
		return malformed("a request of kind %d", r.kind)
	}
	return d.end()
}

func (m *Introduction) check() error {
	switch {
	case m.Nodes < 1 || m.Nodes > nodesMax || m.Self < 0 || m.Self >= m.Nodes:
		return malformed("node %d of %d", m.Self, m.Nodes)
	case len(m.Phase) > textMax || m.Boot > maxIndex || m.Incarnation > maxIndex || m.Term > maxIndex || m.Last > maxIndex || m.LastTerm > maxIndex:
		return malformed("an introduction with boot %d, term %d and last entry %d of term %d", m.Boot, m.Term, m.Last, m.LastTerm)
	}
	return nil
}

func (m *Introduced) check() error {
	if err := m.Introduction.check(); err != nil {
		return err
	}
	if m.Leader < -1 || m.Leader >= m.Nodes || len(m.Members) != 0 && len(m.Members) != m.Nodes ||
		m.Commit > maxIndex || m.Seen > maxIndex || m.Acked > maxIndex || len(m.Role) > textMax || len(m.Objection) > textMax {
		return malformed("leader %d, %d members, commit index %d", m.Leader, len(m.Members), m.Commit)
	}
	switch m.Verdict {
	case VerdictOK, VerdictStale, VerdictStranger, VerdictForeign, VerdictWait:
		return nil
	}
	return malformed("a verdict that is not known")
}

func (m *Formation) check() error {
	if n := len(m.Members); n < 1 || n > nodesMax || m.Incarnation > maxIndex || m.LogID == (entry.LogID{}) {
		return malformed("a formation of log %x with %d members", m.LogID, len(m.Members))
	}
	return nil
}

// answer is one answer; which fields count depends on its kind.
type answer struct {
	kind     kind
	code     code
	text     string // of a code that is not codeOK
	standing Standing

	introduced Introduced
	start      wal.Place // manifest
	snapshots  []SnapshotInfo
	segments   []SegmentInfo
	points     []found
	length     int // frames: of the frame of which the only piece is a part; 0: whole frames
	pieces     []piece
	size       int64  // segment, snapshot: of the file, or of what can be read of it
	offset     int64  // segment, snapshot
	data       []byte // segment, snapshot; aliases the packet
	at         entry.Index
	hash       [32]byte
	known      bool // hash
}

// piece is frames and where they stand. raw aliases the packet.
type piece struct {
	place wal.Place
	raw   []byte
}

// found is what a log has at an index.
type found struct {
	state foundState
	point wal.Point // its index is always that which was asked for
}

type foundState uint8

const (
	notLooked   foundState = iota // ask again
	foundPoint                    // this point
	foundBeyond                   // the log ends before
	foundGone                     // the log begins behind
	foundStates
)

// encode appends the packet to b, but not the bytes of pieces and of data, which the caller puts behind, and unsealed.
func (a *answer) encode(b []byte) []byte {
	leader := byte(0)
	if a.standing.Leader {
		leader = 1
	}
	b = append(b, 0, 0, 0, 0, version, byte(a.kind), byte(a.code), leader)
	b = append(b, a.standing.LogID[:]...)
	b = put64(b, uint64(a.standing.Term))
	b = put64(b, uint64(a.standing.Commit))
	b = putPoint(b, a.standing.Last)
	if a.code != codeOK {
		return append(b, clip(a.text)...)
	}
	switch a.kind {
	case kindIntroduce:
		b = append(b, marshal(&a.introduced)...)
	case kindManifest:
		b = a.encodeManifest(b)
	case kindPoints:
		for _, p := range a.points {
			b = append(b, byte(p.state))
			b = putPoint(b, p.point)
		}
	case kindFrames:
		b = put32(b, uint32(a.length))
	case kindSegment, kindSnapshot:
		b = put64(b, uint64(a.size))
		b = put64(b, uint64(a.offset))
	case kindHash:
		known := byte(0)
		if a.known {
			known = 1
		}
		b = put64(b, uint64(a.at))
		b = append(append(b, known), a.hash[:]...)
	}
	return b
}

func (a *answer) encodeManifest(b []byte) []byte {
	b = put64(b, uint64(a.start.Segment))
	b = put64(b, uint64(a.start.Size))
	b = put64(b, uint64(a.start.Offset))
	b = put32(b, a.start.Prev)
	b = put32(b, uint32(len(a.snapshots)))
	for _, s := range a.snapshots {
		b = put64(put64(b, uint64(s.Index)), uint64(s.Bytes))
	}
	b = put32(b, uint32(len(a.segments)))
	for _, s := range a.segments {
		b = put64(put64(put64(b, uint64(s.First)), uint64(s.Last)), uint64(s.Bytes))
	}
	return b
}

// putPiece appends the fields of a piece of n bytes, which the caller appends next.
func putPiece(b []byte, p wal.Place, n int) []byte {
	b = put64(b, uint64(p.Segment))
	b = put64(b, uint64(p.Size))
	b = put64(b, uint64(p.Offset))
	b = put32(b, p.Prev)
	return put32(b, uint32(n))
}

// decode parses the answer to a request of a kind. Whatever b holds, it does not panic; errors wrap ErrVersion or
// ErrMalformed, or are a *RefusedError: the answer says no; then standing counts, too.
func (a *answer) decode(b []byte, of kind) error {
	if err := opened(b, answerHeader, AnswerMax); err != nil {
		return err
	}
	*a = answer{kind: kind(b[5]), code: code(b[6])}
	if a.kind != of || b[7] > 1 || a.code >= codes {
		return malformed("an answer of kind %d with code %d to a request of kind %d", a.kind, a.code, of)
	}
	h := decoder{b: b[24:answerHeader]}
	a.standing = Standing{LogID: entry.LogID(b[8:24]), Leader: b[7] == 1, Term: entry.Term(h.index())}
	a.standing.Commit, a.standing.Last = h.index(), h.point()
	if s := &a.standing; h.bad || s.Leader && s.Last.Term > s.Term || s.Commit > s.Last.Index {
		return malformed("commit index %d and last entry %d of term %d in term %d", s.Commit, s.Last.Index, s.Last.Term, s.Term)
	}
	d := decoder{b: b[answerHeader:]}
	if a.code != codeOK {
		if len(d.b) > textMax || !utf8.Valid(d.b) {
			return malformed("a refusal of %d bytes", len(d.b))
		}
		a.text = string(d.b)
		return &RefusedError{Err: sentinels[a.code], Message: a.text}
	}
	switch of {
	case kindIntroduce:
		return firstError(d.json(&a.introduced), d.end(), a.introduced.check())
	case kindForm:
	case kindManifest:
		d.manifest(a)
	case kindPoints:
		for len(d.b) > 0 && len(a.points) < pointsMax && !d.bad {
			p := found{state: foundState(d.u8()), point: d.point()}
			d.bad = d.bad || p.state >= foundStates
			a.points = append(a.points, p)
		}
	case kindFrames:
		d.frames(a)
	case kindSegment, kindSnapshot:
		a.size, a.offset, a.data = d.size(), d.size(), d.b
		d.bad = d.bad || a.offset+int64(len(a.data)) > a.size || len(a.data) > PieceMax
		d.b = nil
	case kindHash:
		a.at, a.known = d.index(), d.flag()
		copy(a.hash[:], d.take(len(a.hash)))
	}
	return d.end()
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal puts the checksum into a packet, and returns it. Frames and files have their own, but what says where they belong
// has not.
func seal(b []byte) []byte {
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

// opened checks the size, the version and the checksum of a packet.
func opened(b []byte, least, most int) error {
	switch {
	case len(b) >= 5 && b[4] != version:
		return fmt.Errorf("%w: %d, and this node speaks %d", ErrVersion, b[4], version)
	case len(b) < least || len(b) > most:
		return malformed("a packet of %d bytes", len(b))
	case binary.LittleEndian.Uint32(b) != crc32.Checksum(b[4:], castagnoli):
		return malformed("a packet whose checksum is wrong")
	}
	return nil
}

// decoder reads fields from the front of b. After the first one that is not there, or out of its bounds, it is bad and
// returns zeros.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n < 0 || len(d.b) < n {
		d.bad = true
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) u8() uint8 {
	if b := d.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (d *decoder) u32() uint32 {
	if b := d.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if b := d.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (d *decoder) index() entry.Index {
	v := d.u64()
	if v > maxIndex {
		d.bad = true
		return 0
	}
	return entry.Index(v)
}

func (d *decoder) size() int64 { return int64(d.index()) }

// length reads a number of bytes, at most limit.
func (d *decoder) length(limit int) int {
	v := d.u32()
	if uint64(v) > uint64(limit) {
		d.bad = true
		return 0
	}
	return int(v)
}

func (d *decoder) flag() bool {
	v := d.u8()
	d.bad = d.bad || v > 1
	return v == 1
}

func (d *decoder) point() wal.Point {
	return wal.Point{Index: d.index(), Term: entry.Term(d.index()), CRC: d.u32()}
}

func (d *decoder) place() wal.Place {
	return wal.Place{Segment: d.index(), Size: d.size(), Offset: d.size(), Prev: d.u32()}
}

func (d *decoder) manifest(a *answer) {
	a.start = d.place()
	n := int(d.u32())
	if d.bad = d.bad || n > len(d.b)/16; !d.bad {
		a.snapshots = make([]SnapshotInfo, n)
	}
	for i := range a.snapshots {
		a.snapshots[i] = SnapshotInfo{Index: d.index(), Bytes: d.size()}
	}
	n = int(d.u32())
	if d.bad = d.bad || n > len(d.b)/24; !d.bad {
		a.segments = make([]SegmentInfo, n)
	}
	for i := range a.segments {
		a.segments[i] = SegmentInfo{First: d.index(), Last: d.index(), Bytes: d.size()}
	}
}

func (d *decoder) frames(a *answer) {
	a.length = d.length(wal.PayloadMax + 4<<10)
	for len(d.b) > 0 && !d.bad {
		p := piece{place: d.place()}
		n := d.length(AnswerMax)
		d.bad = d.bad || n == 0
		p.raw = d.take(n)
		a.pieces = append(a.pieces, p)
	}
	d.bad = d.bad || a.length > 0 && (len(a.pieces) != 1 || len(a.pieces[0].raw) > a.length)
}

// json reads the rest as JSON, strictly.
func (d *decoder) json(v any) error {
	b := d.b
	d.b = nil
	if len(b) > RequestMax {
		return malformed("%d bytes of JSON", len(b))
	}
	if err := json.Unmarshal(b, v, json.RejectUnknownMembers(true), jsontext.AllowDuplicateNames(false)); err != nil {
		return malformed("%v", err)
	}
	return nil
}

// end returns an error unless all was read and was good.
func (d *decoder) end() error {
	if d.bad || len(d.b) > 0 {
		return malformed("a field is out of its range, or missing, or something follows the last one")
	}
	return nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func marshal(v any) []byte {
	b, err := json.Marshal(v, json.Deterministic(true))
	if err != nil {
		panic(fmt.Sprintf("BUG: catchup: %T cannot be written as JSON: %v", v, err)) // structs of numbers and text can
	}
	return b
}

func put32(b []byte, v uint32) []byte { return binary.LittleEndian.AppendUint32(b, v) }
func put64(b []byte, v uint64) []byte { return binary.LittleEndian.AppendUint64(b, v) }

func putPoint(b []byte, p wal.Point) []byte {
	return put32(put64(put64(b, uint64(p.Index)), uint64(p.Term)), p.CRC)
}

// clip makes of a text what a packet may hold.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) > textMax {
		s = strings.ToValidUTF8(s[:textMax], "")
	}
	return s
}
