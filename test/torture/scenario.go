package main

import (
	"fmt"
	"hash/fnv"
	"math"
	"slices"
	"strings"
	"time"
)

// scenario is one thing that is tried: tests of one package, with what they break, and what looks at the outcome.
type scenario struct {
	name, group string
	what        string // is tried
	nemeses     string
	checkers    string
	guarantees  string // of docs/guarantees.md, by number
	pkg, run    string // of the tests; run is a regular expression
	tags        string // of the build
	sizes       []size
	env         []string // further variables
	flags       []string // of the test binary
	seedless    bool     // draws nothing from the seed of the run
	simulated   bool     // takes its first seed from MQ_SIM_FIRST, not from MQ_SEED
	once        bool     // in the first round only
	lane        lane     // beside what it may run
	special     func(*round, scenario) result
}

// lane says beside what a scenario may run.
type lane int

const (
	// waits: it waits for timers, networks and disks most of the time, and something is measured. One such scenario runs at
	// a time.
	waits lane = iota
	// fills: it needs the processors and nothing else, and nothing in it depends on real time. It runs at the lowest
	// priority beside those that wait.
	fills
	// alone: nothing runs beside it, because of what it measures, or because it needs all there is.
	alone
)

// size is a variable that says how much a scenario does.
type size struct {
	name        string
	short, long int // long is multiplied when rounds are short
	unit        string
	fixed       bool // never multiplied
}

// text is the variable.
func (v size) text(short bool, grow float64) string {
	n := v.short
	if !short {
		n = v.long
		if !v.fixed {
			n = int(math.Ceil(float64(n) * grow))
		}
	}
	return fmt.Sprintf("%s=%d%s", v.name, n, v.unit)
}

// variables are all that the scenario sets by itself, without a seed.
func (s scenario) variables(short bool, grow float64) []string {
	var list []string
	for _, v := range s.sizes {
		list = append(list, v.text(short, grow))
	}
	return append(list, s.env...)
}

// folder is the package below the module.
func (s scenario) folder() string { return strings.TrimPrefix(s.pkg, "./") }

// choose returns the scenarios that only names, by name or group; all if it is empty.
func choose(all []scenario, only string) ([]scenario, error) {
	if only == "" {
		return all, nil
	}
	var list []scenario
	names := strings.Split(only, ",")
	for _, name := range names {
		known := func(s scenario) bool { return s.name == name || s.group == name }
		if !slices.ContainsFunc(all, known) {
			return nil, fmt.Errorf("there is no scenario and no group %q: see -list", name)
		}
	}
	for _, s := range all {
		if slices.Contains(names, s.name) || slices.Contains(names, s.group) {
			list = append(list, s)
		}
	}
	return list, nil
}

// derive is the seed of a scenario in a round: all that is random follows from the seed of the run.
func derive(seed uint64, name string, round int) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", seed, name, round)
	return h.Sum64() >> 16 // easy to copy
}

// timeoutOf a scenario: long enough for a machine with much else to do.
func timeoutOf(short bool) time.Duration {
	if short {
		return 20 * time.Minute
	}
	return 2 * time.Hour
}
