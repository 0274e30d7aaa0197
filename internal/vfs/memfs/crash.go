package memfs

import (
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
)

// A power cut leaves of an FS:
//
//   - Of each folder: the names at its last SyncDir, changed by any subset of the creations, renamings and
//     removals since, in their order. A renaming happens whole or not at all.
//   - Of each file whose name survives, even if the file was never synced: the size it had at its last Sync or
//     after any later change; and, for each sector by itself, what it held at the last Sync or after any later
//     change. So of each write any sectors may be lost, and a later write may survive an earlier one, except
//     in the same sector: that goes to disk whole, with all that was in it.
//   - When the size shows that a truncation survived, nothing from before it shows up behind the cut.
//
// File systems in use promise more (journals keep names in order, and so on); mq must not need it.

// Crash is one state that a power cut may leave.
type Crash struct {
	FS *FS // what is found after it; all of it is durable
	// The choices that led to it, for String.
	folders []keptNames
	files   []keptContent
}

// keptNames tells which pending changes of a folder survive.
type keptNames struct {
	name    string
	changes []nameChange
	kept    []bool
}

// keptContent tells what of a file survives.
type keptContent struct {
	name     string
	pending  []change
	size     int   // the size after this many pending changes
	first    int   // number of the first sector in versions
	versions []int // per sector: its content after this many pending changes; -1 for a sector never changed
}

// chooser decides what survives. Implementations: odometer, sampler and the constants all and none.
type chooser interface {
	// names sets which of a folder's changes are kept.
	names(kept []bool)
	// content sets size and versions; each must be one of the candidates that file lists.
	content(f *candidates, k *keptContent)
}

// candidates is what may survive of a file.
type candidates struct {
	pending []change
	sizes   []int   // counts of pending changes with different sizes, ascending, first 0
	first   int     // number of the first sector that a pending change touched
	touched [][]int // per sector from first on: counts of pending changes after which it may be found; nil: unchanged
}

func candidatesOf(n *inode) *candidates {
	c := &candidates{pending: n.pending, sizes: []int{0}}
	end, size := 0, n.synced.size
	c.first = math.MaxInt
	for i, ch := range n.pending {
		if ch.size != size {
			c.sizes = append(c.sizes, i+1)
		}
		c.first = min(c.first, ch.first)
		end = max(end, ch.touchedEnd(size))
		size = ch.size
	}
	c.touched = make([][]int, max(0, end-c.first))
	size = n.synced.size
	for i, ch := range n.pending {
		for s := ch.first; s < ch.touchedEnd(size); s++ {
			t := &c.touched[s-c.first]
			if *t == nil {
				*t = append(*t, 0)
			}
			*t = append(*t, i+1)
		}
		size = ch.size
	}
	return c
}

// touchedEnd returns the number after the last sector that a change touches in a file of a given size.
func (ch *change) touchedEnd(size int64) int {
	end := ch.first + len(ch.sectors)
	if ch.truncate {
		end = max(end, sectorsIn(size)) // the sectors that are cut off become holes
	}
	return end
}

// states returns the number of choices for the file, or less when they are too many to count.
func (c *candidates) states() float64 {
	n := float64(len(c.sizes))
	for _, t := range c.touched {
		n *= float64(max(1, len(t)))
	}
	return n
}

// build returns the content that a choice leaves.
func (k *keptContent) build(synced *content) content {
	c := synced.share()
	if len(k.pending) == 0 {
		return c
	}
	floor := 0 // the last truncation that survived: sectors are at least as new
	size := synced.size
	for i, ch := range k.pending[:k.size] {
		if ch.truncate && ch.size < size {
			floor = i + 1
		}
		size = ch.size
	}
	c.sectors, c.shared = slices.Clone(c.sectors), false
	c.resize(size)
	for i, version := range k.versions {
		at := k.first + i
		if version < 0 || at >= len(c.sectors) {
			continue
		}
		c.sectors[at] = k.sector(synced, at, max(version, floor))
	}
	if tail := size % sectorBytes; tail != 0 {
		if last := &c.sectors[len(c.sectors)-1]; *last != nil {
			s := **last
			clear(s[tail:])
			*last = &s
		}
	}
	return c
}

// sector returns what a sector holds after some pending changes.
func (k *keptContent) sector(synced *content, at, version int) *sector {
	for i := version - 1; i >= 0; i-- {
		ch := &k.pending[i]
		switch {
		case at >= ch.first && at < ch.first+len(ch.sectors):
			return ch.sectors[at-ch.first]
		case ch.truncate && at >= ch.first:
			return nil
		}
	}
	if at < len(synced.sectors) {
		return synced.sectors[at]
	}
	return nil
}

// crash builds the state that a chooser chooses. The caller owns m, and all calls come from one goroutine.
func (m *FS) crash(choose chooser) *Crash {
	c := &Crash{FS: &FS{capacity: m.capacity, open: make(map[*file]struct{})}}
	c.FS.root = c.folder(m.root, ".", choose, c.FS)
	return c
}

func (c *Crash) folder(d *folder, path string, choose chooser, to *FS) *folder {
	names := d.synced
	if len(d.pending) > 0 {
		k := keptNames{name: path, changes: d.pending, kept: make([]bool, len(d.pending))}
		choose.names(k.kept)
		c.folders = append(c.folders, k)
		names = maps.Clone(names)
		for i, change := range d.pending {
			if k.kept[i] {
				if change.to != "" {
					// A file has at most one name, even when an earlier renaming of it was lost.
					maps.DeleteFunc(names, func(_ string, n node) bool { return n == change.node })
				}
				change.apply(names)
			}
		}
	}
	out := newFolder()
	for _, name := range slices.Sorted(maps.Keys(names)) { // sorted: a seed must give the same state again
		switch n := names[name].(type) {
		case *folder:
			out.names[name] = c.folder(n, join(path, name), choose, to)
		case *inode:
			file := c.file(n, join(path, name), choose)
			to.used += file.now.allocated()
			out.names[name] = file
		}
	}
	out.synced = maps.Clone(out.names)
	return out
}

func join(folder, name string) string {
	if folder == "." {
		return name
	}
	return folder + "/" + name
}

func (c *Crash) file(n *inode, name string, choose chooser) *inode {
	if len(n.pending) == 0 {
		return &inode{now: n.synced.share(), synced: n.synced.share(), named: true}
	}
	f := candidatesOf(n)
	k := keptContent{name: name, pending: n.pending, first: f.first, versions: make([]int, len(f.touched))}
	choose.content(f, &k)
	c.files = append(c.files, k)
	left := k.build(&n.synced)
	return &inode{now: left.share(), synced: left.share(), named: true}
}

// CrashStates yields states that a power cut at this moment may leave. When there are at most limit of them,
// it yields every one. Otherwise it yields limit: first the one in which nothing and the one in which
// everything survived that was not durable, then such as seed chooses, with a liking for the states that
// real disks leave (a prefix of the writes, the last of them torn; one lost sector).
func (m *FS) CrashStates(seed uint64, limit int) iter.Seq[*Crash] {
	c := m.Clone() // the iterator must not hold the lock while the caller uses a state
	return func(yield func(*Crash) bool) {
		if c.crashStates() <= float64(limit) {
			for o := new(odometer); ; {
				if !yield(c.crash(o)) || !o.next() {
					return
				}
			}
		}
		for i := range limit {
			if !yield(c.sample(seed, i)) {
				return
			}
		}
	}
}

// Crash returns one of the states that CrashStates(seed, ...) yields when there are too many to yield all.
// Number 0 is the one in which nothing survives that was not durable, and number 1 the one in which all does.
func (m *FS) Crash(seed uint64, number int) *Crash { return m.Clone().sample(seed, number) }

func (m *FS) sample(seed uint64, number int) *Crash {
	switch number {
	case 0:
		return m.crash(constant(false))
	case 1:
		return m.crash(constant(true))
	}
	return m.crash(&sampler{rand.New(rand.NewPCG(seed, uint64(number)))})
}

// CrashCount returns how many states a power cut at this moment may leave; it is a little too high when some
// of them lack files, or are equal.
func (m *FS) CrashCount() float64 { return m.Clone().crashStates() }

func (m *FS) crashStates() float64 {
	n := 1.0
	seen := make(map[node]bool)
	var count func(d *folder)
	count = func(d *folder) {
		visit := func(f node) {
			if seen[f] {
				return
			}
			seen[f] = true
			switch f := f.(type) {
			case *folder:
				count(f)
			case *inode:
				n *= candidatesOf(f).states()
			}
		}
		for range d.pending {
			n *= 2
		}
		for _, f := range d.synced {
			visit(f)
		}
		for _, c := range d.pending {
			visit(c.node)
		}
	}
	count(m.root)
	return n
}

// String tells what survived, and what did not, for messages of failed tests.
func (c *Crash) String() string {
	var b strings.Builder
	for _, k := range c.folders {
		for i, change := range k.changes {
			fmt.Fprintf(&b, "%s in %s: %s\n", change, k.name, keptWord(k.kept[i]))
		}
	}
	for _, k := range c.files {
		k.describe(&b)
	}
	if b.Len() == 0 {
		return "all was durable\n"
	}
	return b.String()
}

func keptWord(kept bool) string {
	if kept {
		return "kept"
	}
	return "lost"
}

func (c nameChange) String() string {
	switch {
	case c.from == "":
		return "create " + c.to
	case c.to == "":
		return "remove " + c.from
	}
	return "rename " + c.from + " to " + c.to
}

func (k *keptContent) describe(b *strings.Builder) {
	fmt.Fprintf(b, "%s: size after %d of %d changes\n", k.name, k.size, len(k.pending))
	for i := range k.pending {
		ch := &k.pending[i]
		if ch.truncate {
			fmt.Fprintf(b, "  %d: truncate to %d\n", i+1, ch.size)
			continue
		}
		var lost []string
		for s, run := ch.first, 0; s <= ch.first+len(ch.sectors); s++ {
			if s < ch.first+len(ch.sectors) && k.versions[s-k.first] < i+1 {
				run++
				continue
			}
			if run > 0 {
				lost = append(lost, fmt.Sprintf("%d-%d", (s-run)*sectorBytes, s*sectorBytes))
			}
			run = 0
		}
		text := "kept"
		if lost != nil {
			text = "lost at " + strings.Join(lost, " ")
		}
		fmt.Fprintf(b, "  %d: write %d-%d: %s\n", i+1, ch.offset, ch.offset+int64(ch.length), text)
	}
}
