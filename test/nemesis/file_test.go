package nemesis

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// tree returns the content of all files below a folder, by name.
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	if err := filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(name)
		rel, _ := filepath.Rel(dir, name) // it is below dir
		files[rel] = string(content)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return files
}

// TestFiles does each thing to a file or a folder, looks at what has changed, and undoes it.
func TestFiles(t *testing.T) {
	dice := rand.New(rand.NewPCG(1, 1))
	content := make([]byte, 5*SectorSize+100)
	for i := range content {
		content[i] = byte(dice.Uint32())
	}
	old := bytes.Repeat([]byte("o"), SectorSize)
	for _, c := range []struct {
		name string
		do   func(dir string) (Undo, error)
		want func(files map[string]string)
	}{
		{"flip", func(dir string) (Undo, error) { return FlipBit(dir+"/log/a", 8*700+3) }, func(files map[string]string) {
			files["log/a"] = files["log/a"][:700] + string([]byte{files["log/a"][700] ^ 8}) + files["log/a"][701:]
		}},
		{"zero", func(dir string) (Undo, error) { return ZeroSector(dir+"/log/a", 2) }, func(files map[string]string) {
			files["log/a"] = files["log/a"][:1024] + string(make([]byte, 512)) + files["log/a"][1536:]
		}},
		{"zero the end", func(dir string) (Undo, error) { return ZeroSector(dir+"/log/a", 5) }, func(files map[string]string) {
			files["log/a"] = files["log/a"][:2560] + string(make([]byte, 100))
		}},
		{"swap sectors", func(dir string) (Undo, error) { return SwapSectors(dir+"/log/a", 0, 3) }, func(files map[string]string) {
			a := files["log/a"]
			files["log/a"] = a[1536:2048] + a[512:1536] + a[:512] + a[2048:]
		}},
		{"stale", func(dir string) (Undo, error) { return ServeOld(dir+"/log/a", 1, old) }, func(files map[string]string) {
			files["log/a"] = files["log/a"][:512] + string(old) + files["log/a"][1024:]
		}},
		{"truncate", func(dir string) (Undo, error) { return Truncate(dir+"/log/a", 999) }, func(files map[string]string) {
			files["log/a"] = files["log/a"][:999]
		}},
		{"empty", func(dir string) (Undo, error) { return Empty(dir + "/log/a") }, func(files map[string]string) { files["log/a"] = "" }},
		{"remove", func(dir string) (Undo, error) { return Remove(dir+"/log/a", dir+"x") }, func(files map[string]string) { delete(files, "log/a") }},
		{"remove all", func(dir string) (Undo, error) { return Remove(dir+"/log", dir+"x") }, func(files map[string]string) {
			delete(files, "log/a")
			delete(files, "log/b")
		}},
		{"swap files", func(dir string) (Undo, error) { return SwapFiles(dir+"/log/a", dir+"/id") }, func(files map[string]string) {
			files["log/a"], files["id"] = files["id"], files["log/a"]
		}},
		{"extra", func(dir string) (Undo, error) { return Extra(dir+"/log/c", []byte("no")) }, func(files map[string]string) { files["log/c"] = "no" }},
		{"replace", func(dir string) (Undo, error) { return Replace(dir+"/log", dir+"/../other", dir+"x") }, func(files map[string]string) {
			delete(files, "log/a")
			files["log/b"] = "of another"
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			base := t.TempDir()
			dir := filepath.Join(base, "data")
			for name, text := range map[string][]byte{"data/log/a": content, "data/log/b": []byte("b"), "data/id": []byte("id"), "other/b": []byte("of another")} {
				name = filepath.Join(base, name)
				if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, text, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			check := func(when string, want map[string]string) {
				t.Helper()
				got := tree(t, dir)
				for name := range got {
					if _, ok := want[name]; !ok {
						t.Errorf("%s: %s is there", when, name)
					}
				}
				for name, text := range want {
					if g, ok := got[name]; !ok || g != text {
						t.Errorf("%s: %s differs (%t)", when, name, ok)
					}
				}
			}
			before, want := tree(t, dir), tree(t, dir)
			c.want(want)
			undo, err := c.do(dir)
			if err != nil {
				t.Fatal(err)
			}
			check("done", want)
			if err := undo(); err != nil {
				t.Fatal(err)
			}
			check("undone", before)
		})
	}
}

// TestFilesRefuse asks for what cannot be done: nothing is changed then.
func TestFilesRefuse(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "a")
	content := bytes.Repeat([]byte("0123456789"), 60) // a sector and a part of one
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, do := range map[string]func() (Undo, error){
		"a bit behind the end":       func() (Undo, error) { return FlipBit(name, 8*600) },
		"a sector behind the end":    func() (Undo, error) { return ZeroSector(name, 2) },
		"a sector and a part of one": func() (Undo, error) { return SwapSectors(name, 0, 1) },
		"a cut behind the end":       func() (Undo, error) { return Truncate(name, 601) },
		"a name that is taken":       func() (Undo, error) { return Extra(name, nil) },
		"aside that is taken":        func() (Undo, error) { return Remove(name, dir) },
		"a copy of nothing":          func() (Undo, error) { return Replace(name, dir+"/none", dir+"/aside") },
		"no file":                    func() (Undo, error) { return FlipBit(dir+"/none", 0) },
	} {
		if _, err := do(); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
	if got := tree(t, dir); len(got) != 1 || !slices.Equal([]byte(got["a"]), content) {
		t.Errorf("something has changed: %d files", len(got))
	}
}
