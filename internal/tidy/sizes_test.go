package tidy

import (
	"cmp"
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// TestSizes prints the longest files, functions and packages of production code (go test -v), to be looked at;
// it never fails. The aims: files of 100 to 300 lines, functions below 40, packages below 2,500.
func TestSizes(t *testing.T) {
	m := real(t)
	var files, functions sizes
	packages := make(map[string]int)
	for _, s := range m.production() {
		n := strings.Count(s.text, "\n")
		files = append(files, size{s.name, n})
		packages[s.folder] += n
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				n := m.fset.Position(f.End()).Line - m.fset.Position(f.Pos()).Line + 1
				functions = append(functions, size{m.at(f) + " " + f.Name.Name, n})
			}
		}
	}
	var folders sizes
	for name, n := range packages {
		folders = append(folders, size{name, n})
	}
	t.Logf("longest files:\n%s", files.longest(10))
	t.Logf("longest functions:\n%s", functions.longest(15))
	t.Logf("largest packages:\n%s", folders.longest(10))
}

type size struct {
	name  string
	lines int
}

type sizes []size

func (s sizes) longest(n int) string {
	slices.SortFunc(s, func(a, b size) int { return cmp.Or(b.lines-a.lines, strings.Compare(a.name, b.name)) })
	var b strings.Builder
	for _, e := range s[:min(n, len(s))] {
		fmt.Fprintf(&b, "%6d  %s\n", e.lines, e.name)
	}
	return b.String()
}
