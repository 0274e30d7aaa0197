package tidy

import (
	"fmt"
	"strings"
	"testing"
)

// layers from top to bottom. A package imports only packages of lower layers, and what lies in its own folder.
var layers = [][]string{
	{"cmd", "test", "internal/tidy"},
	{"client"},
	{"internal/backup"},
	{"internal/node"},
	{"internal/metrics"}, // its observers fit what the parts below declare
	{"internal/mesh"},
	{"internal/httpapi", "internal/peer"},
	{"api"},
	{"internal/broker"},
	{"internal/catchup"},
	{"internal/replication"},
	{"internal/index", "internal/snapshot"},
	{"internal/wal"},
	{"internal/state"},
	{"internal/vfs"},
	{"internal/fact"},
	{"internal/clock", "internal/entry"},
	{"internal/invariant"},
}

// rules forbid imports that the layers would allow, and some of the standard library.
var rules = []struct {
	in, deny []string
	why      string
}{
	{
		in:   []string{"internal/fact", "internal/state", "internal/entry"},
		deny: []string{"os", "net", "time", "sync", "context", "math/rand", "log/slog", "internal/vfs"},
		why:  "it is pure: the same entries give the same state on every node",
	},
	{
		in:   []string{"internal/wal"},
		deny: []string{"internal/fact", "internal/state"},
		why:  "the log knows frames and bytes, not topics",
	},
	{
		in:   []string{"internal/index"},
		deny: []string{"internal/wal", "internal/state"},
		why:  "the index never reads the log, it is told",
	},
	{
		in:   []string{"internal/httpapi"},
		deny: []string{"internal/wal", "internal/vfs", "internal/index", "internal/snapshot", "internal/replication"},
		why:  "HTTP knows nothing of files and roles",
	},
	{
		in:   []string{"internal/broker"},
		deny: []string{"internal/vfs", "internal/snapshot", "os", "net"},
		why:  "the broker decides; files belong to the log, the index and the node",
	},
	{
		in:   []string{"client"},
		deny: []string{"internal"},
		why:  "the client knows the broker by its API only",
	},
	{
		in:   []string{"api"},
		deny: []string{"internal", "client", "net", "os"},
		why:  "it is the contract and nothing else",
	},
}

// checkImports returns the imports of production code that the layers or the rules forbid.
func checkImports(m *module) (problems []string) {
	for _, s := range m.production() {
		from := layerOf(s.folder)
		if from < 0 {
			problems = append(problems, fmt.Sprintf("%s: package %s is in no layer: give it one in internal/tidy", s.name, s.folder))
			continue
		}
		for _, p := range s.imports() {
			if to := layerOf(p); to >= 0 && !within(p, layerRoot(s.folder)) && to <= from {
				problems = append(problems, fmt.Sprintf("%s: imports %s, which is not in a lower layer than %s", s.name, p, s.folder))
			}
			for _, r := range rules {
				if anyWithin(s.folder, r.in) && anyWithin(p, r.deny) {
					problems = append(problems, fmt.Sprintf("%s: imports %s: %s", s.name, p, r.why))
				}
			}
			// Metrics counts what the parts below observe, those of roles too.
			if role, ok := strings.CutPrefix(p, "internal/replication/"); ok && !anyWithin(s.folder, []string{"internal/node", "internal/metrics", p}) {
				problems = append(problems, fmt.Sprintf("%s: imports the role %s: only node knows which role runs", s.name, role))
			}
		}
	}
	return problems
}

// layerOf returns the layer of a package of this module, -1 for others and for those that have none.
func layerOf(p string) int {
	for i, layer := range layers {
		if anyWithin(p, layer) {
			return i
		}
	}
	return -1
}

// layerRoot returns the entry of layers that a package lies in.
func layerRoot(p string) string {
	for _, root := range layers[layerOf(p)] {
		if within(p, root) {
			return root
		}
	}
	return p
}

func anyWithin(p string, parents []string) bool {
	for _, parent := range parents {
		if within(p, parent) {
			return true
		}
	}
	return false
}

func TestImports(t *testing.T) { report(t, checkImports(real(t))) }
