package fact

// TopicDeleted is a decoded KindTopicDeleted fact. It aliases the payload.
type TopicDeleted struct {
	Topic []byte // 1 to NameMax bytes
}

// AppendTopicDeleted appends the encoding of a KindTopicDeleted fact to dst.
func AppendTopicDeleted(dst, topic []byte) []byte { return appendName(dst, topic) }

// DecodeTopicDeleted decodes a KindTopicDeleted fact.
func DecodeTopicDeleted(p []byte) (TopicDeleted, error) {
	c := cursor{rest: p}
	var d TopicDeleted
	d.Topic = c.name("topic")
	c.end()
	if c.bad != "" {
		return TopicDeleted{}, c.err("topic deleted")
	}
	return d, nil
}

// GroupDeleted is a decoded KindGroupDeleted fact. It aliases the payload.
type GroupDeleted struct {
	Topic, Group []byte // 1 to NameMax bytes each
}

// AppendGroupDeleted appends the encoding of a KindGroupDeleted fact to dst.
func AppendGroupDeleted(dst, topic, group []byte) []byte {
	return appendName(appendName(dst, topic), group)
}

// DecodeGroupDeleted decodes a KindGroupDeleted fact.
func DecodeGroupDeleted(p []byte) (GroupDeleted, error) {
	c := cursor{rest: p}
	var d GroupDeleted
	d.Topic = c.name("topic")
	d.Group = c.name("group")
	c.end()
	if c.bad != "" {
		return GroupDeleted{}, c.err("group deleted")
	}
	return d, nil
}
