package node

import (
	"fmt"
	"testing"

	"example.com/mq/internal/fact"
)

// What was given out and cannot be read is told by what follows; where offsets jumped, only from there on.
func TestSpansFill(t *testing.T) {
	const step = fact.RestoreStep
	for _, test := range []struct {
		have, want Spans
		from       fact.Offset
	}{
		{nil, nil, 5},
		{Spans{{5, 7}}, Spans{{5, 7}}, 5},
		{Spans{{6, 7}}, Spans{{5, 7}}, 5},
		{Spans{{2, 3}, {6, 7}, {9, 12}}, Spans{{2, 3}, {5, 12}}, 5},
		{Spans{{step, step + 2}}, Spans{{step, step + 2}}, 5},
		{Spans{{step + 1, step + 2}}, Spans{{step, step + 2}}, 5},
		{Spans{{7, 8}, {3*step + 4, 3*step + 5}}, Spans{{5, 8}, {3 * step, 3*step + 5}}, 5},
		{Spans{{step + 4, step + 5}}, Spans{{step + 2, step + 5}}, step + 2},
	} {
		got := append(Spans{}, test.have...)
		got.fill(test.from)
		if fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%v from %d on: %v, want %v", test.have, test.from, got, test.want)
		}
	}
}
