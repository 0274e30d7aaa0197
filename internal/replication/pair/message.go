package pair

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// version is that of the protocol. Two nodes that speak different ones refuse each other.
const version = 1

// The format of packets is in docs/format/replication.md. All integers are little-endian.
//
//	0     4      12     13     16
//	| crc | seq  | type | 0    | fields of the type, fixed or JSON | body |
//
// The link adds the length and delivers packets whole.
const (
	packetHeader = 16
	// packetMax bounds a packet: the largest group commit of one operation, and room for the fields.
	packetMax = 16 << 20

	framesFields = 48
	beatFields   = 16
	ackFields    = 24
	chunkFields  = 16
	gotFields    = 24
)

// kind says what a packet is.
type kind uint8

const (
	kindHello   kind = 1 + iota // leader: who I am, what I have
	kindWelcome                 // follower: who I am, what I have
	kindRefuse                  // either: why not
	kindPull                    // leader: send me what I lost
	kindBegin                   // leader: we go on from here
	kindBegun                   // follower: I am ready, and have this much of the history
	kindFrames                  // leader, and follower after a pull: frames of the log, and where they stand
	kindBeat                    // leader: I live, this is committed
	kindAck                     // follower: I live, this is durable
	kindChunk                   // leader: a piece of a file of the history
	kindGot                     // follower: how much of a file is there
	kindWhole                   // follower: the history is complete
)

func (k kind) String() string {
	names := [...]string{"", "hello", "welcome", "refuse", "pull", "begin", "begun", "frames", "beat", "ack", "chunk", "got", "whole"}
	if k == 0 || int(k) >= len(names) {
		return fmt.Sprintf("kind %d", uint8(k))
	}
	return names[k]
}

// NodeID names a data folder for as long as it exists.
type NodeID [16]byte

func (id NodeID) String() string { return hex.EncodeToString(id[:]) }

// IsZero reports whether no node is named.
func (id NodeID) IsZero() bool { return id == NodeID{} }

// MarshalText and UnmarshalText make it 32 hex digits in JSON.
func (id NodeID) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, id[:]), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *NodeID) UnmarshalText(text []byte) error { return unhex(id[:], text) }

// hexID is a log id in JSON: 32 hex digits.
type hexID entry.LogID

func (id hexID) MarshalText() ([]byte, error)     { return hex.AppendEncode(nil, id[:]), nil }
func (id *hexID) UnmarshalText(text []byte) error { return unhex(id[:], text) }

func unhex(dst, text []byte) error {
	if hex.DecodedLen(len(text)) != len(dst) || len(text)%2 != 0 {
		return fmt.Errorf("want %d hex digits", 2*len(dst))
	}
	_, err := hex.Decode(dst, text)
	return err
}

// point is a wal.Point in JSON.
type point struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
	CRC   uint32 `json:"crc"`
}

func pointOf(p wal.Point) point {
	return point{Index: uint64(p.Index), Term: uint64(p.Term), CRC: p.CRC}
}

// hello opens a session.
type hello struct {
	Version int    `json:"version"`
	LogID   hexID  `json:"log_id"`
	Node    NodeID `json:"node_id"`
	Epoch   uint64 `json:"epoch"`
	// LeaseMS is for how long, in milliseconds, an acknowledgement of the follower lets the leader acknowledge.
	LeaseMS int64  `json:"lease_ms"`
	Tip     point  `json:"tip"`    // the last entry of the leader's log
	Commit  uint64 `json:"commit"` // what the leader knows to be committed
}

// welcome answers a hello that is in order. The log id is zero when the follower has no log.
type welcome struct {
	LogID hexID  `json:"log_id"`
	Node  NodeID `json:"node_id"`
	// Leader is the node that the follower has promised to follow before this session, zero for none.
	Leader NodeID `json:"leader"`
	// First is the first entry of the log if its history is not complete, else 0.
	First  uint64 `json:"first"`
	Commit point  `json:"commit"` // the last entry that the follower knows to be committed
	Tip    point  `json:"tip"`    // the last entry of its log
}

// refuse ends a session, or the attempt at one.
type refuse struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	Epoch   uint64 `json:"epoch"`  // the highest that the sender has seen
	Leader  NodeID `json:"leader"` // of that epoch
}

// pull asks for the entries behind the leader's tip, up to To.
type pull struct {
	After uint64 `json:"after"`
	To    uint64 `json:"to"`
}

// begin tells where the session starts.
type begin struct {
	// From is the first entry that the leader will send, End the last that its log holds now. What the follower has
	// from From on is compared; what does not match, or lies behind End, is cut.
	From uint64 `json:"from"`
	End  uint64 `json:"end"`
	// Committed is what the follower must reach before it is whole again.
	Committed uint64 `json:"committed"`
	// Alone says that the follower may have nothing of what was acknowledged last, whatever it has at these indexes.
	Alone bool `json:"alone"`
	// Sync, if not nil, starts a full sync, or goes on with it.
	Sync *plan `json:"sync,omitzero"`
}

// plan is what a full sync consists of: the log begins with Place, and the history before it comes as files.
type plan struct {
	Fresh    bool          `json:"fresh"` // forget what an earlier full sync has brought
	Segment  uint64        `json:"segment"`
	Size     int64         `json:"size"`
	Prev     uint32        `json:"prev"`
	Snapshot planSnapshot  `json:"snapshot"`
	Segments []planSegment `json:"segments"`
}

func (p *plan) place() wal.Place {
	return wal.Place{Segment: entry.Index(p.Segment), Size: p.Size, Prev: p.Prev}
}

// planSnapshot is the snapshot that the history begins with; Bytes is 0 when there is none.
type planSnapshot struct {
	Index uint64 `json:"index"`
	Bytes int64  `json:"bytes"`
}

// planSegment is a sealed segment.
type planSegment struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	Bytes int64  `json:"bytes"`
}

// begun says that the follower is ready, and how much it has of each file of the plan.
type begun struct {
	Snapshot int64   `json:"snapshot"`
	Segments []int64 `json:"segments"`
}

// whole says that a full sync is complete.
type whole struct{}

// frames carries frames of the log and where they stand.
type frames struct {
	stamp  int64 // of the leader's clock
	commit entry.Index
	place  wal.Place
	raw    []byte
}

// beat keeps the session alive while nothing is written.
type beat struct {
	stamp  int64
	commit entry.Index
}

// ack says what is durable at the follower. It echoes the newest stamp that came before.
type ack struct {
	stamp   int64
	durable entry.Index
	applied entry.Index
}

// chunk is a piece of a file of the history: of the segment that begins with file, or, when that is 0, of the snapshot.
type chunk struct {
	file   entry.Index
	offset int64
	data   []byte
}

// got says how much of a file is there. Bad means that it was damaged on its way, or at its source, and must be
// sent again from the beginning.
type got struct {
	file  entry.Index
	bytes int64
	state gotState
}

type gotState uint64

const (
	gotSome gotState = iota
	gotAll           // verified and in its place
	gotBad
)

// Code says why a session was refused.
type Code string

// The codes of a refusal.
const (
	CodeVersion    Code = "version"     // the nodes speak different versions
	CodeMalformed  Code = "malformed"   // a packet made no sense
	CodeStaleEpoch Code = "stale_epoch" // a higher epoch has begun
	CodeEpochTaken Code = "epoch_taken" // another node leads with the same epoch
	CodeOtherLog   Code = "other_log"   // the folders hold different logs
	CodeSameNode   Code = "same_node"   // both folders are the same, or one is a copy of the other
	CodeDiverged   Code = "diverged"    // the logs differ in what was acknowledged
	CodeFailed     Code = "failed"      // the disk of the node has failed
	CodeNotNow     Code = "not_now"     // the node is starting or stopping
	CodeBehind     Code = "behind"      // the leader has dropped what the follower lacks
)

// Codes lists all codes that this version knows.
func Codes() []Code {
	return []Code{CodeVersion, CodeMalformed, CodeStaleEpoch, CodeEpochTaken, CodeOtherLog, CodeSameNode, CodeDiverged, CodeFailed, CodeNotNow, CodeBehind}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var errMalformed = errors.New("malformed packet")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errMalformed, fmt.Sprintf(format, args...))
}

// encoder builds packets in a buffer that it keeps.
type encoder struct {
	buf []byte
	seq uint64
}

// start begins a packet. Fields are appended to what it returns; finish completes it.
func (e *encoder) start(k kind) []byte {
	e.buf = append(e.buf[:0], make([]byte, packetHeader)...)
	e.buf[12] = byte(k)
	return e.buf
}

// finish numbers and seals the packet whose header and fields are in b, and whose body follows.
func (e *encoder) finish(b, body []byte) []byte {
	e.buf = b
	e.seq++
	binary.LittleEndian.PutUint64(b[4:], e.seq)
	crc := crc32.Update(0, castagnoli, b[4:])
	binary.LittleEndian.PutUint32(b, crc32.Update(crc, castagnoli, body))
	return b
}

// json encodes a packet whose fields are JSON.
func (e *encoder) json(k kind, fields any) []byte {
	text, err := json.Marshal(fields, json.Deterministic(true))
	if err != nil {
		panic(fmt.Sprintf("BUG: pair: %v cannot be written as JSON: %v", k, err)) // structs of numbers and text can
	}
	return e.finish(append(e.start(k), text...), nil)
}

func (e *encoder) frames(m *frames) []byte {
	b := e.start(kindFrames)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.stamp))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.commit))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.place.Segment))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.place.Size))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.place.Offset))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.place.Prev))
	return e.finish(b, m.raw)
}

func (e *encoder) beat(m *beat) []byte {
	b := e.start(kindBeat)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.stamp))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.commit))
	return e.finish(b, nil)
}

func (e *encoder) ack(m *ack) []byte {
	b := e.start(kindAck)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.stamp))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.durable))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.applied))
	return e.finish(b, nil)
}

func (e *encoder) chunk(m *chunk) []byte {
	b := e.start(kindChunk)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.file))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.offset))
	return e.finish(b, m.data)
}

func (e *encoder) got(m *got) []byte {
	b := e.start(kindGot)
	b = binary.LittleEndian.AppendUint64(b, uint64(m.file))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.bytes))
	b = binary.LittleEndian.AppendUint64(b, uint64(m.state))
	return e.finish(b, nil)
}

// decoder reads packets. It accepts only the next one in order, so that what a network lost, repeated or mixed up
// ends the session.
type decoder struct{ seq uint64 }

// packet checks what all packets have in common and returns the kind and what follows the header.
func (d *decoder) packet(b []byte) (kind, []byte, error) {
	if len(b) < packetHeader || len(b) > packetMax {
		return 0, nil, malformed("%d bytes", len(b))
	}
	if crc32.Update(0, castagnoli, b[4:]) != binary.LittleEndian.Uint32(b) {
		return 0, nil, malformed("the checksum is wrong")
	}
	if seq := binary.LittleEndian.Uint64(b[4:]); seq != d.seq+1 {
		return 0, nil, malformed("packet %d comes after packet %d", seq, d.seq)
	}
	if b[13] != 0 || b[14] != 0 || b[15] != 0 {
		return 0, nil, malformed("reserved bytes are not zero")
	}
	d.seq++
	return kind(b[12]), b[packetHeader:], nil
}

// decodeJSON reads fields that are JSON, strictly.
func decodeJSON(b []byte, fields any) error {
	err := json.Unmarshal(b, fields, json.RejectUnknownMembers(true), jsontext.AllowDuplicateNames(false))
	if err != nil {
		return malformed("%v", err)
	}
	return nil
}

// indexMax keeps indexes far from where adding to them would wrap.
const indexMax = 1 << 62

// reader takes fixed fields off a packet. Its error is looked at once, at the end.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) u64() uint64 {
	v := binary.LittleEndian.Uint64(r.b)
	r.b = r.b[8:]
	return v
}

func (r *reader) index() entry.Index {
	v := r.u64()
	r.bad = r.bad || v > indexMax
	return entry.Index(v)
}

func (r *reader) size() int64 {
	v := r.u64()
	r.bad = r.bad || v > indexMax
	return int64(v)
}

// fields checks the length of the fixed fields; rest says whether a body may follow.
func fields(b []byte, n int, rest bool) (reader, error) {
	if len(b) < n || !rest && len(b) > n {
		return reader{}, malformed("%d bytes of fields, want %d", len(b), n)
	}
	return reader{b: b}, nil
}

func (r *reader) err() error {
	if r.bad {
		return malformed("a number is out of range")
	}
	return nil
}

func (m *frames) decode(b []byte) error {
	r, err := fields(b, framesFields, true)
	if err != nil {
		return err
	}
	m.stamp, m.commit = int64(r.u64()), r.index()
	m.place.Segment, m.place.Size, m.place.Offset = r.index(), r.size(), r.size()
	prev := r.u64()
	r.bad = r.bad || prev > 1<<32-1 || len(r.b) == 0
	m.place.Prev, m.raw = uint32(prev), r.b
	return r.err()
}

func (m *beat) decode(b []byte) error {
	r, err := fields(b, beatFields, false)
	if err != nil {
		return err
	}
	m.stamp, m.commit = int64(r.u64()), r.index()
	return r.err()
}

func (m *ack) decode(b []byte) error {
	r, err := fields(b, ackFields, false)
	if err != nil {
		return err
	}
	m.stamp, m.durable, m.applied = int64(r.u64()), r.index(), r.index()
	return r.err()
}

func (m *chunk) decode(b []byte) error {
	r, err := fields(b, chunkFields, true)
	if err != nil {
		return err
	}
	m.file, m.offset = r.index(), r.size()
	m.data = r.b
	r.bad = r.bad || len(m.data) == 0
	return r.err()
}

func (m *got) decode(b []byte) error {
	r, err := fields(b, gotFields, false)
	if err != nil {
		return err
	}
	m.file, m.bytes = r.index(), r.size()
	m.state = gotState(r.u64())
	r.bad = r.bad || m.state > gotBad
	return r.err()
}
