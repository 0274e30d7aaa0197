package fact

// TopicConfigured is a decoded KindTopicConfigured fact. It aliases the payload.
type TopicConfigured struct {
	Topic     []byte    // 1 to NameMax bytes
	Retention Retention // all of the topic's own settings, those included that stay as they were
}

// AppendTopicConfigured appends the encoding of a KindTopicConfigured fact to dst.
func AppendTopicConfigured(dst, topic []byte, retention Retention) []byte {
	return appendRetention(appendName(dst, topic), retention)
}

// DecodeTopicConfigured decodes a KindTopicConfigured fact.
func DecodeTopicConfigured(p []byte) (TopicConfigured, error) {
	c := cursor{rest: p}
	var t TopicConfigured
	t.Topic = c.name("topic")
	t.Retention = c.retention()
	c.end()
	if c.bad != "" {
		return TopicConfigured{}, c.err("topic configured")
	}
	return t, nil
}
