package cluster

import (
	"encoding/binary"
	"hash/crc32"

	pb "go.etcd.io/raft/v3/raftpb"

	"example.com/mq/internal/entry"
)

// The format of packets is in docs/format/raft.md. All integers are little-endian.
//
//	0     4         5      6      7    8        24     32      40         48       56     64      65        66  68       72
//	| crc | version | type | from | to | log id | term | index | log term | commit | hint | flags | context | 0 | entries | context | lengths | data |
const (
	packetVersion = 1
	packetHeader  = 72
	// PacketMax bounds a packet: the largest entry alone, or a message of messageBytes, and room for the fields.
	PacketMax = 16 << 20

	contextMax = 16
	// frameMin is the length of the shortest frame.
	frameMin = 40
	// segmentExtra is what follows a frame that begins a segment: u64 size of the file, u32 prev of its header.
	segmentExtra = 12

	flagReject = 1 << 0
	flagFull   = 1 << 1 // the sender's disk is full

	indexMax = 1 << 62
	termMax  = 1 << 40
	// termAhead is how far a term may be above ours. A term rises by one with each election.
	termAhead = 1 << 20
)

// The types that come over the network, by their number in a packet; 0 is not valid.
var messageTypes = [...]pb.MessageType{
	1:  pb.MsgApp,
	2:  pb.MsgAppResp,
	3:  pb.MsgVote,
	4:  pb.MsgVoteResp,
	5:  pb.MsgPreVote,
	6:  pb.MsgPreVoteResp,
	7:  pb.MsgHeartbeat,
	8:  pb.MsgHeartbeatResp,
	9:  pb.MsgTimeoutNow,
	10: pb.MsgSnap, // without a snapshot: pull what you lack
}

var messageNames = [...]string{"", "append", "append_answer", "vote", "vote_answer", "pre_vote", "pre_vote_answer",
	"heartbeat", "heartbeat_answer", "timeout_now", "pull"}

// typeNumber returns the number of a type, 0 for those that are not sent.
func typeNumber(t pb.MessageType) int {
	for n, known := range messageTypes {
		if n > 0 && known == t {
			return n
		}
	}
	return 0
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// idOf and nodeOf turn the number of a node into its raft id and back.
func idOf(node int) uint64   { return uint64(node) + 1 }
func nodeOf(id uint64) int   { return int(id) - 1 }
func size(m *pb.Message) int { return packetHeader + len(m.GetContext()) + entryBytes(m.GetEntries()) }

// entryBytes is what entries take in a packet.
func entryBytes(list []*pb.Entry) int {
	n := 4 * len(list)
	for _, e := range list {
		n += len(e.GetData())
	}
	return n
}

// encode returns m as a packet.
func encode(log entry.LogID, m *pb.Message, full bool) []byte {
	b := make([]byte, packetHeader, size(m))
	b[4] = packetVersion
	b[5] = byte(typeNumber(m.GetType()))
	b[6], b[7] = byte(nodeOf(m.GetFrom())), byte(nodeOf(m.GetTo()))
	copy(b[8:24], log[:])
	binary.LittleEndian.PutUint64(b[24:], m.GetTerm())
	binary.LittleEndian.PutUint64(b[32:], m.GetIndex())
	binary.LittleEndian.PutUint64(b[40:], m.GetLogTerm())
	binary.LittleEndian.PutUint64(b[48:], m.GetCommit())
	binary.LittleEndian.PutUint64(b[56:], m.GetRejectHint())
	if m.GetReject() {
		b[64] |= flagReject
	}
	if full {
		b[64] |= flagFull
	}
	b[65] = byte(len(m.GetContext()))
	binary.LittleEndian.PutUint32(b[68:], uint32(len(m.GetEntries())))
	b = append(b, m.GetContext()...)
	for _, e := range m.GetEntries() {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(e.GetData())))
	}
	for _, e := range m.GetEntries() {
		b = append(b, e.GetData()...)
	}
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:], castagnoli))
	return b
}

// received is a message with the memory for its fields.
type received struct {
	pb.Message
	number                                        int // of the type
	typ                                           pb.MessageType
	from, to, term, index, logTerm, commit, hint_ uint64
	reject                                        bool
	full                                          bool
}

// parser decodes a frame and checks it, as (*wal.Log).Parse does.
type parser func([]byte) (entry.Entry, int, error)

// decode checks and decodes a packet, which the message aliases. Whatever it holds, it does not panic; nothing is
// allocated that the packet does not have the bytes for.
func decode(packet []byte, log entry.LogID, from, self int, parse parser) (*received, *RefusedError) {
	switch {
	case len(packet) < packetHeader || len(packet) > PacketMax:
		return nil, refuse(CodeMalformed, "a packet of %d bytes", len(packet))
	case crc32.Checksum(packet[4:], castagnoli) != binary.LittleEndian.Uint32(packet):
		return nil, refuse(CodeMalformed, "its checksum is wrong")
	case packet[4] != packetVersion:
		return nil, refuse(CodeVersion, "version %d of the format", packet[4])
	case entry.LogID(packet[8:24]) != log:
		return nil, refuse(CodeForeign, "it belongs to log %x", packet[8:24])
	case int(packet[6]) != from || int(packet[7]) != self || from == self:
		return nil, refuse(CodeForeign, "it says that it goes from node %d to node %d, and came from node %d to node %d",
			packet[6], packet[7], from, self)
	}
	m := &received{
		number: int(packet[5]), from: idOf(from), to: idOf(self),
		term:    binary.LittleEndian.Uint64(packet[24:]),
		index:   binary.LittleEndian.Uint64(packet[32:]),
		logTerm: binary.LittleEndian.Uint64(packet[40:]),
		commit:  binary.LittleEndian.Uint64(packet[48:]),
		hint_:   binary.LittleEndian.Uint64(packet[56:]),
		reject:  packet[64]&flagReject != 0,
		full:    packet[64]&flagFull != 0,
	}
	contextLen := int(packet[65])
	entries := int64(binary.LittleEndian.Uint32(packet[68:]))
	rest := packet[packetHeader:]
	switch {
	case m.number == 0 || m.number >= len(messageTypes):
		return nil, refuse(CodeMalformed, "type %d", m.number)
	case packet[64]&^(flagReject|flagFull) != 0 || packet[66] != 0 || packet[67] != 0 || contextLen > contextMax:
		return nil, refuse(CodeMalformed, "a field holds an impossible value")
	case m.term == 0 || m.term > termMax || m.logTerm > m.term:
		return nil, refuse(CodeTerm, "term %d, of an entry %d", m.term, m.logTerm)
	case m.index > indexMax || m.commit > indexMax || m.hint_ > indexMax:
		return nil, refuse(CodeMalformed, "an index is too high")
	case int64(contextLen)+(4+frameMin)*entries > int64(len(rest)):
		return nil, refuse(CodeMalformed, "%d entries in %d bytes", entries, len(rest))
	}
	m.typ = messageTypes[m.number]
	m.Type, m.From, m.To, m.Term = &m.typ, &m.from, &m.to, &m.term
	m.Index, m.LogTerm, m.Commit, m.RejectHint, m.Reject = &m.index, &m.logTerm, &m.commit, &m.hint_, &m.reject
	if contextLen > 0 {
		m.Context = rest[:contextLen:contextLen]
	}
	if err := m.shape(int(entries)); err != nil {
		return nil, err
	}
	return m, m.decodeEntries(rest[contextLen:], int(entries), parse)
}

// shape refuses what a message of its type cannot have.
func (m *received) shape(entries int) *RefusedError {
	ok := false
	switch m.typ {
	case pb.MsgApp:
		ok = !m.reject && m.hint_ == 0 && len(m.Context) == 0 && (m.index != 0 || m.logTerm == 0)
	case pb.MsgAppResp:
		ok = m.commit == 0 && len(m.Context) == 0 && m.hint_ <= m.index && (m.reject || m.hint_ == 0 && m.logTerm == 0)
	case pb.MsgVote, pb.MsgPreVote:
		ok = !m.reject && m.hint_ == 0 && m.commit == 0 && m.logTerm < m.term &&
			(len(m.Context) == 0 || m.typ == pb.MsgVote && string(m.Context) == campaignTransfer)
	case pb.MsgVoteResp, pb.MsgPreVoteResp:
		ok = m.index == 0 && m.logTerm == 0 && m.hint_ == 0 && m.commit == 0 && len(m.Context) == 0
	case pb.MsgHeartbeat:
		ok = !m.reject && m.index == 0 && m.logTerm == 0 && m.hint_ == 0 && readContext(m.Context)
	case pb.MsgHeartbeatResp:
		ok = !m.reject && m.index == 0 && m.logTerm == 0 && m.hint_ == 0 && m.commit == 0 && readContext(m.Context)
	case pb.MsgTimeoutNow, pb.MsgSnap:
		ok = !m.reject && m.index == 0 && m.logTerm == 0 && m.hint_ == 0 && m.commit == 0 && len(m.Context) == 0
	}
	if !ok || entries > 0 && m.typ != pb.MsgApp {
		return refuse(CodeMalformed, "a field holds what a message of type %s does not have", messageNames[m.number])
	}
	return nil
}

// campaignTransfer is the context of a vote that the leader itself has asked for.
const campaignTransfer = "CampaignTransfer"

// readContext reports whether b is none, or the number that comes with a heartbeat that confirms reads.
func readContext(b []byte) bool { return len(b) == 0 || len(b) == 8 }

// decodeEntries checks and decodes the entries of an append: whole frames of this log, each with the index that
// follows, with terms that never fall.
func (m *received) decodeEntries(b []byte, n int, parse parser) *RefusedError {
	lengths, data := b[:4*n], b[4*n:]
	list := make([]*pb.Entry, n)
	entries := make([]pb.Entry, n)
	numbers := make([]uint64, 2*n)
	term := m.logTerm
	for i := range n {
		length := int64(binary.LittleEndian.Uint32(lengths[4*i:]))
		if length > int64(len(data)) {
			return refuse(CodeMalformed, "an entry of %d bytes where %d are left", length, len(data))
		}
		one := data[:length:length]
		data = data[length:]
		e, frame, err := parse(one)
		index := m.index + uint64(i) + 1
		switch {
		case err != nil:
			return refuse(CodeMalformed, "entry %d: %v", index, err)
		case int(length) != frame && int(length) != frame+segmentExtra:
			return refuse(CodeMalformed, "entry %d: a frame of %d bytes in %d", index, frame, length)
		case uint64(e.Index) != index:
			return refuse(CodeMalformed, "entry %d where %d belongs", e.Index, index)
		case uint64(e.Term) < term || uint64(e.Term) > m.term || e.Term == 0:
			return refuse(CodeTerm, "entry %d of term %d, behind term %d, in a message of term %d", index, e.Term, term, m.term)
		}
		term = uint64(e.Term)
		numbers[2*i], numbers[2*i+1] = index, term
		entries[i].Index, entries[i].Term, entries[i].Data = &numbers[2*i], &numbers[2*i+1], one
		list[i] = &entries[i]
	}
	if len(data) > 0 {
		return refuse(CodeMalformed, "%d bytes behind the last entry", len(data))
	}
	if n > 0 {
		m.Entries = list
	}
	return nil
}
