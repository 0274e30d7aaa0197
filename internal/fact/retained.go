package fact

import "encoding/binary"

// TopicRetained is a decoded KindTopicRetained fact. It aliases the payload.
type TopicRetained struct {
	Topic []byte // 1 to NameMax bytes
	Start Offset // the offset of the first record that is kept
}

// AppendTopicRetained appends the encoding of a KindTopicRetained fact to dst.
func AppendTopicRetained(dst, topic []byte, start Offset) []byte {
	dst = appendName(dst, topic)
	return binary.AppendUvarint(dst, uint64(start))
}

// DecodeTopicRetained decodes a KindTopicRetained fact.
func DecodeTopicRetained(p []byte) (TopicRetained, error) {
	c := cursor{rest: p}
	var r TopicRetained
	r.Topic = c.name("topic")
	r.Start = Offset(c.uvarint(OffsetMax, "start offset"))
	c.end()
	if c.bad != "" {
		return TopicRetained{}, c.err("topic retained")
	}
	return r, nil
}
