package broker

// Tail is what the end of the log would change that is not known to be committed. It may have been acknowledged before a
// restart, so an answer that depends on it must not be given.
type Tail struct {
	Topics   map[string]struct{}    // that have records there
	Groups   map[GroupName]struct{} // whose offsets are moved there, or that are deleted there
	Retained map[string]struct{}    // topics whose start is moved there, or that are deleted there
	Kept     map[string]struct{}    // topics with records that stand there once more: where they stood may be gone
	Other    bool                   // something else is there that changes the fold, such as settings
}

// GroupName names a group of a topic.
type GroupName struct{ Topic, Group string }

// Unsettled is called before the first request when the log ends with entries that are not known to be committed. Until
// Lead, a fetch that would say "there is no record" of a topic that has some there, a fetch by a group that moves or is
// deleted there, and one of a topic whose start moves or that is deleted there answer an *UnavailableError at once; so does
// one that does not find records of a topic that has some there once more. All other fetches are served. What tells of topics
// and groups, and a backup, answers an *UnavailableError, too. The maps are the broker's from then on.
func (b *Broker) Unsettled(t Tail) {
	if len(t.Topics)+len(t.Groups)+len(t.Retained)+len(t.Kept) > 0 || t.Other {
		b.unsettled.Store(&t)
	}
}

var (
	errUnsettled = &UnavailableError{
		Reason: "records may follow of which this node cannot know before its follower is back"}
	errGroupUnsettled = &UnavailableError{
		Reason: "the group may have moved on, which this node cannot know before its follower is back"}
	errKeptUnsettled = &UnavailableError{
		Reason: "the records have been moved in the log, to where this node cannot read before its follower is back"}
	errStartUnsettled = &UnavailableError{
		Reason: "the topic's start may have moved on, or the topic be deleted, which this node cannot know before its follower is back"}
)

// doubt returns the error for a fetch whose answer depends on the tail, or nil. none says that the answer would be that
// there is no record. Settings of a topic change no answer to a fetch.
func (t *Tail) doubt(q *Fetch, none bool) error {
	if len(q.Group) > 0 {
		if _, ok := t.Groups[GroupName{Topic: string(q.Topic), Group: string(q.Group)}]; ok {
			return errGroupUnsettled
		}
	}
	if _, ok := t.Retained[string(q.Topic)]; ok { // every answer tells the start
		return errStartUnsettled
	}
	if none {
		if _, ok := t.Topics[string(q.Topic)]; ok {
			return errUnsettled
		}
	}
	return nil
}

// moved reports whether records of a topic that are not found may stand in the tail.
func (t *Tail) moved(topic []byte) bool {
	if t == nil {
		return false
	}
	_, ok := t.Kept[string(topic)]
	return ok
}
