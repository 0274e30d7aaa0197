package seeds

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// Variables that narrow a seed: it draws the same faults as before, and some of them are not done. What a run draws
// behind the first fault that is left out may differ, because the world is another one then.
const (
	untilVariable   = "MQ_SIM_UNTIL"   // only the first so many faults that are drawn are done
	withoutVariable = "MQ_SIM_WITHOUT" // kinds that are not done, with commas between them
	clientsVariable = "MQ_SIM_CLIENTS" // how many clients there are at most, where there are clients
)

// narrow says which faults of a seed are left out.
type narrow struct {
	until   int // -1: no limit
	without []string
	clients int // 0: no limit
}

// environment is n as variables.
func (n narrow) environment() (list []string) {
	if n.until >= 0 {
		list = append(list, fmt.Sprintf("%s=%d", untilVariable, n.until))
	}
	if len(n.without) > 0 {
		list = append(list, withoutVariable+"="+strings.Join(n.without, ","))
	}
	if n.clients > 0 {
		list = append(list, fmt.Sprintf("%s=%d", clientsVariable, n.clients))
	}
	return list
}

// Faults decides which of the faults that a run draws are done, and counts them. The run calls it with at most one
// goroutine at a time.
type Faults struct {
	narrow narrow
	drawn  int
	done   map[string]int
}

// faults reads the environment.
func (s Simulation[S]) faults(t *testing.T) *Faults {
	n := narrow{until: -1}
	if os.Getenv(untilVariable) != "" {
		n.until = int(number(t, untilVariable, 0))
	}
	if text := os.Getenv(withoutVariable); text != "" {
		n.without = strings.Split(text, ",")
		for _, kind := range n.without {
			if !slices.Contains(s.Kinds, kind) {
				t.Fatalf("%s=%s: there is no kind %q, only %s", withoutVariable, text, kind, strings.Join(s.Kinds, ","))
			}
		}
	}
	n.clients = int(number(t, clientsVariable, 0))
	return &Faults{narrow: n}
}

// Spare reports whether a fault that was drawn is left out. It draws nothing itself.
func (f *Faults) Spare(kind string) bool {
	f.drawn++
	if f.narrow.until >= 0 && f.drawn > f.narrow.until || slices.Contains(f.narrow.without, kind) {
		return true
	}
	if f.done == nil {
		f.done = make(map[string]int)
	}
	f.done[kind]++
	return false
}

// Clients is how many of n clients there are.
func (f *Faults) Clients(n int) int {
	if f.narrow.clients > 0 {
		return min(n, f.narrow.clients)
	}
	return n
}

// count is how many faults were done.
func (f *Faults) count() (n int) {
	for _, times := range f.done {
		n += times
	}
	return n
}

// kinds are those of which some were done, in order.
func (f *Faults) kinds() (list []string) {
	for kind := range f.done {
		list = append(list, kind)
	}
	slices.Sort(list)
	return list
}
