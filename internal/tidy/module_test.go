package tidy

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const modulePath = "example.com/mq"

// module is the source that the checks look at.
type module struct {
	fset *token.FileSet
	// files of Go, tests included, sorted by name.
	files []*source
	// pages are the documents, by name.
	pages map[string]string
	// names of all files.
	names map[string]bool
}

// source is one Go file.
type source struct {
	name   string // relative to the root of the module, with slashes
	folder string
	test   bool // its name ends in _test.go
	text   string
	ast    *ast.File
}

// load reads a module from its root folder.
func load(root fs.FS) (*module, error) {
	m := &module{fset: token.NewFileSet(), pages: make(map[string]string), names: make(map[string]bool)}
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := path.Base(name)
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(base, ".git") || base == "testdata" || base == "vendor") {
				m.names[name] = true
				return fs.SkipDir
			}
			m.names[name] = true
			return nil
		}
		m.names[name] = true
		switch path.Ext(name) {
		case ".go":
			return m.addGo(root, name)
		case ".md":
			text, err := fs.ReadFile(root, name)
			m.pages[name] = string(text)
			return err
		}
		return nil
	})
	slices.SortFunc(m.files, func(a, b *source) int { return strings.Compare(a.name, b.name) })
	return m, err
}

func (m *module) addGo(root fs.FS, name string) error {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return err
	}
	parsed, err := parser.ParseFile(m.fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	m.files = append(m.files, &source{name: name, folder: path.Dir(name),
		test: strings.HasSuffix(name, "_test.go"), text: string(text), ast: parsed})
	return nil
}

// production is the files that end up in a binary that users run: no tests, and nothing under test/.
func (m *module) production() []*source {
	return slices.DeleteFunc(slices.Clone(m.files), func(s *source) bool { return s.test || within(s.folder, "test") })
}

// at says where a node is: file:line.
func (m *module) at(n ast.Node) string {
	p := m.fset.Position(n.Pos())
	return fmt.Sprintf("%s:%d", p.Filename, p.Line)
}

// imports returns what a file imports, packages of this module without the module's path.
func (s *source) imports() []string {
	var list []string
	for _, spec := range s.ast.Imports {
		p := strings.Trim(spec.Path.Value, "\"`")
		list = append(list, strings.TrimPrefix(p, modulePath+"/"))
	}
	return list
}

// within tells whether a package or folder is another, or lies below it.
func within(p, parent string) bool { return p == parent || strings.HasPrefix(p, parent+"/") }

// real is this module.
func real(t *testing.T) *module {
	t.Helper()
	root, err := filepath.Abs(".")
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			break
		}
		if root == filepath.Dir(root) {
			t.Fatal("no go.mod in any parent folder")
		}
		root = filepath.Dir(root)
	}
	m, err := load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// report fails the test with each problem.
func report(t *testing.T, problems []string) {
	t.Helper()
	for _, p := range problems {
		t.Error(p)
	}
}
