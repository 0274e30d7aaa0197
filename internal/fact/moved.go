package fact

import "encoding/binary"

// GroupMoved is a decoded KindGroupMoved fact. It aliases the payload.
type GroupMoved struct {
	Topic, Group []byte // 1 to NameMax bytes each
	Next         Offset // the offset that the group reads next
}

// AppendGroupMoved appends the encoding of a KindGroupMoved fact to dst.
func AppendGroupMoved(dst, topic, group []byte, next Offset) []byte {
	dst = appendName(dst, topic)
	dst = appendName(dst, group)
	return binary.AppendUvarint(dst, uint64(next))
}

// DecodeGroupMoved decodes a KindGroupMoved fact.
func DecodeGroupMoved(p []byte) (GroupMoved, error) {
	c := cursor{rest: p}
	var m GroupMoved
	m.Topic = c.name("topic")
	m.Group = c.name("group")
	m.Next = Offset(c.uvarint(OffsetMax, "next offset"))
	c.end()
	if c.bad != "" {
		return GroupMoved{}, c.err("group moved")
	}
	return m, nil
}
