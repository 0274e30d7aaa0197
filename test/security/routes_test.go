package security

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// declared is what the source says of a route.
type declared struct {
	scope string
	get   bool
}

// routesInSource reads the routes out of the source of the server: every composite literal with a path and a scope. So
// a route that somebody adds is found, whatever this package expects.
func routesInSource(t *testing.T) map[string]declared {
	t.Helper()
	paths := apiPaths(t)
	routes := map[string]declared{}
	eachFile(t, "internal/httpapi", func(name string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			fields := map[string]ast.Expr{}
			for _, e := range literal.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					if key, ok := pair.Key.(*ast.Ident); ok {
						fields[key.Name] = pair.Value
					}
				}
			}
			if fields["path"] == nil || fields["scope"] == nil {
				return true
			}
			d := declared{scope: text(fields["scope"])}
			if get := fields["get"]; get != nil {
				d.get = text(get) == "true"
			}
			switch p := fields["path"].(type) {
			case *ast.BasicLit:
				path, err := strconv.Unquote(p.Value)
				if err != nil {
					t.Fatal(err)
				}
				routes[path] = d
			case *ast.SelectorExpr:
				switch path := paths[p.Sel.Name]; {
				case text(p.X) == "api" && path != "":
					routes[path] = d
				case text(p) != "u.path": // the route of a streamPath, whose literal was seen already
					t.Errorf("%s: a route with the path %s, which this test cannot read", name, text(p))
				}
			default:
				t.Errorf("%s: a route whose path this test cannot read", name)
			}
			return true
		})
	})
	return routes
}

// apiPaths returns the constants of package api that are paths, by their names.
func apiPaths(t *testing.T) map[string]string {
	t.Helper()
	paths := map[string]string{}
	eachFile(t, "api", func(_ string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			for i, name := range spec.Names {
				if i < len(spec.Values) && strings.HasPrefix(name.Name, "Path") {
					if value, err := strconv.Unquote(text(spec.Values[i])); err == nil {
						paths[name.Name] = value
					}
				}
			}
			return true
		})
	})
	return paths
}

// eachFile parses the files of a package that are no tests.
func eachFile(t *testing.T, folder string, visit func(name string, file *ast.File)) {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(moduleRoot(t), folder, "*.go"))
	if err != nil || len(names) == 0 {
		t.Fatalf("no source in %s: %v", folder, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		visit(name, file)
	}
}

// text is an expression of names and literals as it is written; "?" for any other.
func text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.BasicLit:
		return e.Value
	case *ast.SelectorExpr:
		return text(e.X) + "." + e.Sel.Name
	}
	return "?"
}
