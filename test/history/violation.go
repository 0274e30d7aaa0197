package history

import "fmt"

// Kind says which promise a violation breaks.
type Kind int

const (
	Lost       Kind = iota // something acknowledged or seen is no longer there
	Reordered              // a record stands before one that was there when its publish began
	Duplicated             // one publish stands, or was acknowledged, at two places
	Torn                   // a part of a batch was visible without the rest
	Changed                // an offset showed other bytes, or another time, than before
	Foreign                // a record that nobody published
	Refused                // a record whose publish was refused
	Gap                    // offsets of an answer are not dense, or contradict each other
	Group                  // a group's offset is not the one committed last
	Start                  // a topic's start went back, or beyond what was asked for
	Answer                 // an answer that makes no sense
	kindEnd

	Kinds = kindEnd // how many there are
)

func (k Kind) String() string {
	return [...]string{"lost", "reordered", "duplicated", "torn", "changed", "foreign", "refused but stored",
		"gaps", "group offsets wrong", "starts wrong", "answers wrong"}[k]
}

// Violation is one broken promise.
type Violation struct {
	Kind  Kind
	Topic string
	What  string
}

func (v Violation) String() string { return fmt.Sprintf("%s: topic %q: %s", v.Kind, v.Topic, v.What) }

// violated records a violation. c.mu is held.
func (c *Checker) violated(k Kind, topic, format string, args ...any) {
	c.report.Counts[k]++
	if len(c.report.First) < violationsMax {
		c.report.First = append(c.report.First, Violation{k, topic, fmt.Sprintf(format, args...)})
	}
}
