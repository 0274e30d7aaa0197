package fact

import "encoding/binary"

// TopicRetained is a decoded KindTopicRetained fact. It aliases the payload.
type TopicRetained struct {
	Topic []byte // 1 to NameMax bytes
	Start Offset // the offset of the first record that is kept
	Cum   uint64 // bytes of keys and values of all records of the topic before Start, ever
}

// AppendTopicRetained appends the encoding of a KindTopicRetained fact to dst.
func AppendTopicRetained(dst, topic []byte, start Offset, cum uint64) []byte {
	dst = appendName(dst, topic)
	dst = binary.AppendUvarint(dst, uint64(start))
	return binary.AppendUvarint(dst, cum)
}

// DecodeTopicRetained decodes a KindTopicRetained fact.
func DecodeTopicRetained(p []byte) (TopicRetained, error) {
	c := cursor{rest: p}
	var r TopicRetained
	r.Topic = c.name("topic")
	r.Start = Offset(c.uvarint(OffsetMax, "start offset"))
	r.Cum = c.uvarint(CumMax, "bytes before it")
	c.end()
	if c.bad != "" {
		return TopicRetained{}, c.err("topic retained")
	}
	return r, nil
}
