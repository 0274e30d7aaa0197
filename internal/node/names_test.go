package node

import (
	"bytes"
	"math/rand/v2"
	"regexp"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"example.com/mq/internal/broker"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/vfs/memfs"
)

// G13: whatever topics, groups and request ids are called, the files that a node touches have the names that they always have,
// and each of the names is a thing of its own, after a restart, too.
func TestNamesNeverBecomePaths(t *testing.T) {
	files := regexp.MustCompile(`^(\.|LOCK|(identity|clean)\.json(\.tmp)?|ballast(\.tmp)?|log|log/\d{20}\.(seg|idx)|` +
		`log/(next\.seg|prepare\.tmp|index\.tmp)|snapshots|snapshots/\d{20}\.snap(\.tmp)?)$`)
	mem := memfs.New()
	var mu sync.Mutex
	touched := map[string]bool{}
	mem.OnOp(func(op memfs.Op) {
		mu.Lock()
		defer mu.Unlock()
		touched[op.Name] = true
		if op.NewName != "" {
			touched[op.NewName] = true
		}
	})
	n := openNode(t, mem)
	defer func() { n.Close() }()
	names := hostileNames(4000)
	for i, name := range names {
		p := &broker.Publish{Topic: name, RequestID: names[len(names)-1-i], Records: []fact.Record{{Value: name}}}
		if _, err := n.Publish(p); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
		if _, err := n.CommitGroup(name, names[(i*7)%len(names)], 1); err != nil {
			t.Fatalf("%q: %v", name, err)
		}
	}
	if _, err := n.Snapshot(); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	n = openNode(t, mem)
	var got values
	for _, name := range names {
		got = got[:0]
		if _, err := n.Fetch(&broker.Fetch{Topic: name, Limit: 10}, &got); err != nil || len(got) != 1 || !bytes.Equal(got[0], name) {
			t.Fatalf("%q: %q, %v", name, got, err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for name := range touched {
		if !files.MatchString(name) {
			t.Errorf("a file is called %q", name)
		}
	}
	if len(touched) < 6 {
		t.Errorf("only %v touched", touched)
	}
}

// hostileNames returns so many different names that are legal, and would be trouble as a path.
func hostileNames(n int) (names [][]byte) {
	parts := []string{"..", ".", "/", "//", "\\", "~", "log", "snapshots", "identity.json", "00000000000000000001.seg", "next.seg", "LOCK", "etc", "passwd", "%2e%2e",
		"\u202e", "\u00e9", "e\u0301", "\u2215", "\uff0f", "con", "nul", ":", "*", "?", "\"", "'", "`", "$(id)", ";", "|", "&", " ", "-", "--", "a", "A", "\ufeff", "\U0001f4a3"}
	names = [][]byte{[]byte("."), []byte(".."), []byte("/"), []byte("../../etc/passwd"), []byte("log/00000000000000000001.seg"), []byte(strings.Repeat("../", 85)), []byte(strings.Repeat("x", 255))}
	seen := map[string]bool{}
	for _, name := range names {
		seen[string(name)] = true
	}
	for dice := rand.New(rand.NewPCG(13, 1)); len(names) < n; {
		name := ""
		for range 1 + dice.IntN(8) {
			name += parts[dice.IntN(len(parts))]
		}
		if len(name) <= 255 && utf8.ValidString(name) && !seen[name] {
			seen[name] = true
			names = append(names, []byte(name))
		}
	}
	return names
}

// values receives the values of records.
type values [][]byte

func (v *values) Record(_ fact.Offset, _, value []byte, _ int64) { *v = append(*v, bytes.Clone(value)) }
