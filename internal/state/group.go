package state

import "example.com/mq/internal/fact"

// Group is where a group stands in a topic.
type Group struct {
	Topic TopicID
	Name  string
	// Next is the offset that the group reads next, as it was set: it may be below the topic's start by now, and where a
	// gap begins. It is never inside a gap, and never above the topic's end.
	Next   fact.Offset
	TimeMS int64 // of the entry that moved it last
}

// groupRow is a group in the table.
type groupRow struct {
	topic  TopicID
	name   string
	next   fact.Offset
	timeMS int64
}

type groupKey struct {
	topic TopicID
	name  string
}

func (g *groupRow) group() Group {
	return Group{Topic: g.topic, Name: g.name, Next: g.next, TimeMS: g.timeMS}
}

// Groups is the number of groups, counted once in each topic.
func (s *State) Groups() int { return s.groups.len }

// GroupsVersion changes whenever a group appears or is deleted. It says nothing across restarts.
func (s *State) GroupsVersion() uint64 { return s.groupsVersion }

// Group finds a group of a topic. It answers false for a group whose offset was never set.
func (s *State) Group(topic TopicID, group []byte) (Group, bool) {
	i, ok := s.groupIDs[groupKey{topic: topic, name: string(group)}]
	if !ok {
		return Group{}, false
	}
	return s.groups.at(int(i)).group(), true
}

func (s *State) addGroup(g groupRow) {
	s.groupIDs[groupKey{topic: g.topic, name: g.name}] = uint32(s.groups.len)
	s.groups.push(g)
	s.topics.edit(int(g.topic)).groups++
	s.groupsVersion++
}

// removeGroup removes row i. The last row takes its place.
func (s *State) removeGroup(i int) {
	g := s.groups.at(i)
	delete(s.groupIDs, groupKey{topic: g.topic, name: g.name})
	s.topics.edit(int(g.topic)).groups--
	s.groups.remove(i)
	if i < s.groups.len {
		moved := s.groups.at(i)
		s.groupIDs[groupKey{topic: moved.topic, name: moved.name}] = uint32(i)
	}
	s.groupsVersion++
}

// removeGroups removes all groups of a topic, from the last row to the first: what takes the place of a row is then
// one that was looked at already. It costs nothing for a topic without groups.
func (s *State) removeGroups(topic TopicID) {
	for i := s.groups.len - 1; s.topics.at(int(topic)).groups > 0; i-- {
		if s.groups.at(i).topic == topic {
			s.removeGroup(i)
		}
	}
}
