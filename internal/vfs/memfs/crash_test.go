package memfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"testing"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, f vfs.FS, name string) vfs.File {
	t.Helper()
	h, err := f.Create(name)
	must(t, err)
	return h
}

// sectors repeats each byte of text over one sector.
func sectors(text string) string {
	var b strings.Builder
	for _, c := range text {
		b.WriteString(strings.Repeat(string(c), 512))
	}
	return b.String()
}

func write(t *testing.T, h vfs.File, content string, off int64) {
	t.Helper()
	_, err := h.WriteAt([]byte(content), off)
	must(t, err)
}

func read(t *testing.T, f vfs.FS, name string) string {
	t.Helper()
	h, err := f.OpenRead(name)
	must(t, err)
	defer h.Close()
	content, err := io.ReadAll(io.NewSectionReader(h, 0, 1<<30))
	must(t, err)
	return string(content)
}

// dump returns the files of some folders as text: each name with its content, a letter per run of a byte.
func dump(t *testing.T, f vfs.FS, dirs ...string) string {
	t.Helper()
	if dirs == nil {
		dirs = []string{"."}
	}
	var out []string
	for _, dir := range dirs {
		names, err := f.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			out = append(out, "no "+dir)
			continue
		}
		must(t, err)
		for _, name := range names {
			name = path.Join(dir, name)
			out = append(out, name+"="+short(read(t, f, name)))
		}
	}
	return strings.Join(out, " ")
}

// short writes AA...A as A, or as A*512 when the run is not a multiple of a sector, and a zero as 0.
func short(content string) string {
	var b strings.Builder
	for len(content) > 0 {
		n := min(512, len(content))
		sector := content[:n]
		content = content[n:]
		for len(sector) > 0 {
			c := sector[0]
			run := len(sector) - len(strings.TrimLeft(sector, string(c)))
			sector = sector[run:]
			if c == 0 {
				c = '0'
			}
			b.WriteByte(c)
			if run < 512 {
				fmt.Fprintf(&b, "*%d,", run)
			}
		}
	}
	return b.String()
}

// crashStates returns the different dumps of all crash states, sorted.
func crashStates(t *testing.T, m *memfs.FS, dirs ...string) []string {
	t.Helper()
	const limit = 10000
	if n := m.CrashCount(); n > limit {
		t.Fatalf("%v crash states are too many", n)
	}
	var out []string
	for c := range m.CrashStates(0, limit) {
		d := dump(t, c.FS, dirs...)
		out = append(out, d)
		if n := c.FS.CrashCount(); n != 1 {
			t.Errorf("the state after the crash may itself be lost: %v crash states", n)
		}
		checkGrowth(t, c)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// checkGrowth checks that no byte from behind the end of a file comes back when the file grows.
func checkGrowth(t *testing.T, c *memfs.Crash) {
	t.Helper()
	names, err := c.FS.List(".")
	must(t, err)
	for _, name := range names {
		before := read(t, c.FS, name)
		h := open(t, c.FS, name)
		must(t, h.Truncate(int64(len(before))+1000))
		must(t, h.Close())
		if got, want := read(t, c.FS, name), before+string(make([]byte, 1000)); got != want {
			t.Errorf("%s after a crash and growth: got %s, want %s, after\n%v", name, short(got), short(want), c)
		}
	}
}

func TestCrashStates(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, m *memfs.FS) // each test starts with a file a=AA that is durable
		want []string
	}{
		{"nothing", func(t *testing.T, m *memfs.FS) {}, []string{"a=AA"}},
		{"read", func(t *testing.T, m *memfs.FS) { read(t, m, "a") }, []string{"a=AA"}},

		{"create", func(t *testing.T, m *memfs.FS) {
			create(t, m, "b")
		}, []string{"a=AA", "a=AA b="}},
		{"create, sync of the folder", func(t *testing.T, m *memfs.FS) {
			create(t, m, "b")
			must(t, m.SyncDir("."))
		}, []string{"a=AA b="}},
		{"sync of a file is none of its name", func(t *testing.T, m *memfs.FS) {
			h := create(t, m, "b")
			write(t, h, "B", 0)
			must(t, h.Sync())
		}, []string{"a=AA", "a=AA b=B*1,"}},
		{"sync of a folder is none of its files", func(t *testing.T, m *memfs.FS) {
			write(t, create(t, m, "b"), "B", 0)
			must(t, m.SyncDir("."))
		}, []string{"a=AA b=", "a=AA b=0*1,", "a=AA b=B*1,"}},
		{"remove", func(t *testing.T, m *memfs.FS) {
			must(t, m.Remove("a"))
		}, []string{"", "a=AA"}},
		{"remove and create again", func(t *testing.T, m *memfs.FS) {
			must(t, m.Remove("a"))
			create(t, m, "a")
		}, []string{"", "a=", "a=AA"}},
		{"rename", func(t *testing.T, m *memfs.FS) {
			must(t, m.Rename("a", "b"))
		}, []string{"a=AA", "b=AA"}},
		{"rename twice", func(t *testing.T, m *memfs.FS) {
			must(t, m.Rename("a", "b"))
			must(t, m.Rename("b", "c"))
		}, []string{"a=AA", "b=AA", "c=AA"}},
		{"replace, all durable but the name", func(t *testing.T, m *memfs.FS) {
			h := create(t, m, "tmp")
			write(t, h, sectors("B"), 0)
			must(t, h.Sync())
			must(t, m.SyncDir("."))
			must(t, m.Rename("tmp", "a"))
		}, []string{"a=AA tmp=B", "a=B"}},
		{"replace without sync", func(t *testing.T, m *memfs.FS) {
			write(t, create(t, m, "tmp"), sectors("B"), 0)
			must(t, m.Rename("tmp", "a"))
			must(t, m.SyncDir("."))
		}, []string{"a=", "a=0", "a=B"}},
		{"rename, a new file under the old name", func(t *testing.T, m *memfs.FS) {
			must(t, m.Rename("a", "b"))
			create(t, m, "a")
		}, []string{"a=", "a= b=AA", "a=AA", "b=AA"}},
		{"folder", func(t *testing.T, m *memfs.FS) {
			must(t, m.Mkdir("d"))
			h := create(t, m, "d/b")
			write(t, h, "B", 0)
			must(t, h.Sync())
			must(t, m.SyncDir("d"))
		}, []string{"a=AA d/b=B*1,", "a=AA no d"}},
		{"folder, durable", func(t *testing.T, m *memfs.FS) {
			must(t, m.Mkdir("d"))
			must(t, m.SyncDir("."))
			create(t, m, "d/b")
		}, []string{"a=AA", "a=AA d/b="}},
		{"lock file", func(t *testing.T, m *memfs.FS) {
			_, err := m.Lock("L")
			must(t, err)
		}, []string{"L= a=AA", "a=AA"}},

		{"overwrite", func(t *testing.T, m *memfs.FS) {
			write(t, open(t, m, "a"), sectors("BC"), 0)
		}, []string{"a=AA", "a=AC", "a=BA", "a=BC"}},
		{"overwrite, sync", func(t *testing.T, m *memfs.FS) {
			h := open(t, m, "a")
			write(t, h, sectors("BC"), 0)
			must(t, h.Sync())
		}, []string{"a=BC"}},
		{"overwrite in two writes: the later may survive alone", func(t *testing.T, m *memfs.FS) {
			h := open(t, m, "a")
			write(t, h, sectors("B"), 0)
			write(t, h, sectors("C"), 512)
		}, []string{"a=AA", "a=AC", "a=BA", "a=BC"}},
		{"overwrite twice: any age", func(t *testing.T, m *memfs.FS) {
			h := open(t, m, "a")
			write(t, h, sectors("B"), 0)
			write(t, h, sectors("C"), 0)
		}, []string{"a=AA", "a=BA", "a=CA"}},
		{"two writes in a sector: the later only with the earlier", func(t *testing.T, m *memfs.FS) {
			h := open(t, m, "a")
			write(t, h, strings.Repeat("B", 100), 0)
			write(t, h, strings.Repeat("C", 100), 100)
		}, []string{"a=AA", "a=B*100,A*412,A", "a=B*100,C*100,A*312,A"}},
		{"write over a sector border", func(t *testing.T, m *memfs.FS) {
			write(t, open(t, m, "a"), "BB", 511)
		}, []string{"a=A*511,B*1,A", "a=A*511,B*1,B*1,A*511,", "a=AA", "a=AB*1,A*511,"}},
		{"append: the size alone may survive", func(t *testing.T, m *memfs.FS) {
			write(t, open(t, m, "a"), sectors("BC"), 1024)
		}, []string{"a=AA", "a=AA00", "a=AA0C", "a=AAB0", "a=AABC"}},
		{"append a part of a sector", func(t *testing.T, m *memfs.FS) {
			h := open(t, m, "a")
			write(t, h, "BB", 1024)
			write(t, h, "CC", 1026)
		}, []string{"a=AA", "a=AA0*2,", "a=AA0*4,", "a=AAB*2,", "a=AAB*2,0*2,", "a=AAB*2,C*2,"}},

		{"truncate", func(t *testing.T, m *memfs.FS) {
			must(t, open(t, m, "a").Truncate(512))
		}, []string{"a=A", "a=A0", "a=AA"}},
		{"truncate, sync", func(t *testing.T, m *memfs.FS) {
			h := open(t, m, "a")
			must(t, h.Truncate(512))
			must(t, h.Sync())
		}, []string{"a=A"}},
		{"truncate and grow: what was cut off stays away", func(t *testing.T, m *memfs.FS) {
			h := open(t, m, "a")
			must(t, h.Truncate(0))
			must(t, h.Sync())
			must(t, h.Truncate(1024))
		}, []string{"a=", "a=00"}},
		{"truncate and grow before a sync", func(t *testing.T, m *memfs.FS) {
			h := open(t, m, "a")
			must(t, h.Truncate(700))
			must(t, h.Truncate(1025))
		}, []string{
			"a=AA", "a=AA*188,0*324,", // the old size
			"a=AA*188,",           // cut
			"a=AA*188,0*324,0*1,", // grown
		}},
		{"grow", func(t *testing.T, m *memfs.FS) {
			must(t, open(t, m, "a").Truncate(1536))
		}, []string{"a=AA", "a=AA0"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := memfs.New()
			h := create(t, m, "a")
			write(t, h, sectors("AA"), 0)
			must(t, h.Sync())
			must(t, m.SyncDir("."))
			c.run(t, m)
			dirs := []string{"."}
			if slices.ContainsFunc(c.want, func(s string) bool { return strings.Contains(s, "d/") }) {
				dirs = append(dirs, "d")
			}
			before := dump(t, m, dirs...)
			got := crashStates(t, m, dirs...)
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Errorf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(c.want, "\n  "))
			}
			if after := dump(t, m, dirs...); after != before {
				t.Errorf("crash states changed the original from %s to %s", before, after)
			}
			if !slices.Contains(got, before) {
				t.Errorf("%s may be left, but is not among the states", before)
			}
		})
	}
}

func open(t *testing.T, f vfs.FS, name string) vfs.File {
	t.Helper()
	h, err := f.Open(name)
	must(t, err)
	return h
}

// With few states, samples are the same ones that an enumeration finds, and all of them.
func TestSamplesReachAllStates(t *testing.T) {
	m := memfs.New()
	h := create(t, m, "a")
	write(t, h, sectors("AAA"), 0)
	must(t, h.Sync())
	must(t, m.SyncDir("."))
	write(t, h, sectors("BB"), 0)
	write(t, h, sectors("CC"), 512)
	write(t, h, "D", 1535)
	write(t, h, sectors("E"), 1536)
	create(t, m, "b")
	want := crashStates(t, m)
	missing := make(map[string]bool)
	for _, s := range want {
		missing[s] = true
	}
	for i := range 8000 {
		c := m.Crash(7, i)
		d := dump(t, c.FS)
		if _, ok := missing[d]; !ok {
			t.Fatalf("sample %d: %s is not among the crash states; it is\n%v", i, d, c)
		}
		missing[d] = false
		switch {
		case i == 0 && d != "a=AAA":
			t.Errorf("sample 0: got %s, want nothing kept", d)
		case i == 1 && d != dump(t, m):
			t.Errorf("sample 1: got %s, want all kept", d)
		}
		if i < 100 {
			if again := m.Crash(7, i); dump(t, again.FS) != d || again.String() != c.String() {
				t.Fatalf("sample %d: got %s, again %s", i, d, dump(t, again.FS))
			}
		}
	}
	for s, not := range missing {
		if not {
			t.Errorf("no sample is %s", s)
		}
	}
	n := 0
	for c := range m.CrashStates(7, 10) {
		if got, want := dump(t, c.FS), dump(t, m.Crash(7, n).FS); got != want {
			t.Errorf("state %d of CrashStates: got %s, want %s", n, got, want)
		}
		n++
	}
	if n != 10 {
		t.Errorf("CrashStates with limit 10 gave %d", n)
	}
}

func TestCrashString(t *testing.T) {
	m := memfs.New()
	h := create(t, m, "a")
	write(t, h, sectors("ABC"), 0)
	must(t, h.Truncate(700))
	must(t, m.Rename("a", "b"))
	create(t, m, "x")
	must(t, m.Remove("x"))
	const want = `create a in .: kept
rename a to b in .: kept
create x in .: kept
remove x in .: kept
b: size after 2 of 2 changes
  1: write 0-1536: kept
  2: truncate to 700
`
	if got := m.Crash(0, 1).String(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	write(t, h, sectors("DEF"), 700)
	must(t, m.SyncDir("."))
	for c := range m.CrashStates(0, 1000) {
		if strings.Contains(c.String(), "3: write 700-2236: lost at 512-1536 2048-2560\n") {
			return
		}
	}
	t.Error("no state is described as lost at 512-1536 2048-2560")
}

// A program that replaces a file: the crash states must show each sync that it forgets, and nothing when it
// forgets none.
func TestFindsForgottenSync(t *testing.T) {
	for _, c := range []struct {
		forget string
		bad    bool
	}{{"", false}, {"sync", true}, {"syncdir", true}} {
		m := memfs.New()
		acked, bad := 0, 0
		check := func(op memfs.Op) {
			for s := range m.CrashStates(1, 50) {
				got := ""
				if _, err := s.FS.Size("value"); err == nil {
					got = read(t, s.FS, "value")
				}
				// The value acknowledged last, or the next one.
				if got != value(acked) && got != value(acked+1) {
					bad++
				}
			}
		}
		m.OnOp(check)
		for i := range 5 {
			h := create(t, m, "value.tmp")
			write(t, h, value(i+1), 0)
			if c.forget != "sync" {
				must(t, h.Sync())
			}
			must(t, h.Close())
			must(t, m.Rename("value.tmp", "value"))
			if c.forget != "syncdir" {
				must(t, m.SyncDir("."))
			}
			acked++
			check(memfs.Op{})
		}
		if (bad > 0) != c.bad {
			t.Errorf("forgetting %q: %d bad states", c.forget, bad)
		}
	}
}

func value(i int) string {
	if i == 0 {
		return ""
	}
	return strings.Repeat(fmt.Sprint(i), 2000)
}

// Random runs against a model of the two extremes: nothing kept and everything kept.
func TestRandomRuns(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20 {
		randomRun(t, r)
		if t.Failed() {
			return
		}
	}
}

func randomRun(t *testing.T, r *rand.Rand) {
	type content struct{ now, synced []byte }
	m := memfs.New()
	now, synced := make(map[string]*content), make(map[string]*content)
	text := func(names map[string]*content, of func(*content) []byte) string {
		var out []string
		for name, c := range names {
			out = append(out, name+"="+short(string(of(c))))
		}
		slices.Sort(out)
		return strings.Join(out, " ")
	}
	for range 40 {
		name := string(rune('a' + r.IntN(3)))
		other := string(rune('a' + r.IntN(3)))
		if now[name] == nil {
			must(t, create(t, m, name).Close())
			now[name] = &content{}
			continue
		}
		h := open(t, m, name)
		c := now[name]
		switch r.IntN(10) {
		case 0:
			must(t, m.Remove(name))
			delete(now, name)
		case 1:
			must(t, m.Rename(name, other))
			delete(now, name)
			now[other] = c
		case 2:
			must(t, m.SyncDir("."))
			synced = make(map[string]*content)
			for name, c := range now {
				synced[name] = c
			}
		case 3, 4:
			must(t, h.Sync())
			c.synced = bytes.Clone(c.now)
		case 5:
			size := r.IntN(3000)
			must(t, h.Truncate(int64(size)))
			c.now = append(bytes.Clone(c.now), make([]byte, 3000)...)[:max(size, 0)]
			if old := len(c.now); old > size {
				c.now = c.now[:size]
			}
		default:
			off, p := r.IntN(2000), bytes.Repeat([]byte{byte('A' + r.IntN(26))}, 1+r.IntN(1500))
			write(t, h, string(p), int64(off))
			c.now = append(c.now, make([]byte, max(0, off+len(p)-len(c.now)))...)
			copy(c.now[off:], p)
		}
		must(t, h.Close())
		all := text(now, func(c *content) []byte { return c.now })
		for what, pair := range map[string][2]string{
			"live":      {dump(t, m), all},
			"clone":     {dump(t, m.Clone()), all},
			"all kept":  {dump(t, m.Crash(0, 1).FS), all},
			"none kept": {dump(t, m.Crash(0, 0).FS), text(synced, func(c *content) []byte { return c.synced })},
			"clone, none kept": {dump(t, m.Clone().Crash(0, 0).FS),
				text(synced, func(c *content) []byte { return c.synced })},
		} {
			if pair[0] != pair[1] {
				t.Errorf("%s: got %s, want %s", what, pair[0], pair[1])
			}
		}
		for i := range 10 { // whatever is left must be usable
			left := m.Crash(r.Uint64(), i+2).FS
			dump(t, left)
			if got, low := used(t, left), usedBy(t, left); got < low || low == 0 && got > 3*3584 {
				t.Errorf("used space after a crash: got %d, files hold %d", got, low)
			}
		}
	}
}

// A clone shares memory with its original; what one does next must not show in the other's crash states.
func TestCloneIsApart(t *testing.T) {
	for _, sync := range []bool{false, true} {
		m := memfs.New()
		h := create(t, m, "a")
		must(t, m.SyncDir("."))
		for i := range 3 { // an odd number, so that a slice that grew by doubling has room
			write(t, h, sectors("A"), int64(i)*512)
		}
		c := m.Clone()
		if sync {
			must(t, h.Sync())
		}
		write(t, h, sectors("B"), 3*512)
		h2 := open(t, c, "a")
		if !sync {
			write(t, h2, sectors("C"), 3*512)
			write(t, h, sectors("B"), 4*512)
		}
		for name, f := range map[string]*memfs.FS{"original": m, "clone": c} {
			live, kept := dump(t, f), dump(t, f.Crash(0, 1).FS)
			if live != kept {
				t.Errorf("%s, sync %v: %s after a crash that lost nothing, want %s", name, sync, kept, live)
			}
		}
	}
}

func TestClone(t *testing.T) {
	m := memfs.New()
	lock, err := m.Lock("LOCK")
	must(t, err)
	h := create(t, m, "a")
	write(t, h, sectors("A"), 0)
	must(t, m.SyncDir("."))
	c := m.Clone()
	if len(c.OpenFiles()) != 0 {
		t.Errorf("open files of the clone: %v", c.OpenFiles())
	}
	if _, err := m.Lock("LOCK"); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("Lock in the original: got error %v", err)
	}
	if _, err := c.Lock("LOCK"); err != nil {
		t.Errorf("Lock in the clone: %v", err)
	}
	if got, want := dump(t, c), "LOCK= a=A"; got != want {
		t.Errorf("clone: got %s, want %s", got, want)
	}
	// Neither changes the other.
	write(t, h, sectors("B"), 0)
	write(t, open(t, c, "a"), sectors("C"), 512)
	if got, want := dump(t, m)+", "+dump(t, c), "LOCK= a=B, LOCK= a=AC"; got != want {
		t.Errorf("original, clone: got %s, want %s", got, want)
	}
	// What was not durable still is not, until the clone syncs it.
	if got, want := dump(t, c.Crash(0, 0).FS), "LOCK= a="; got != want {
		t.Errorf("clone after a power cut: got %s, want %s", got, want)
	}
	must(t, open(t, c, "a").Sync())
	if got, want := dump(t, c.Crash(0, 0).FS), "LOCK= a=AC"; got != want {
		t.Errorf("clone after sync and power cut: got %s, want %s", got, want)
	}
	if got, want := dump(t, m.Crash(0, 0).FS), "LOCK= a="; got != want {
		t.Errorf("original after a power cut: got %s, want %s", got, want)
	}
	// A crash state holds no lock, and the run that it was taken from still does.
	if _, err := m.Crash(0, 1).FS.Lock("LOCK"); err != nil {
		t.Errorf("Lock after a crash: %v", err)
	}
	must(t, lock.Close())
	must(t, h.Close())
}
