package tidy

import (
	"fmt"
	"go/ast"
	"go/token"
	"path"
	"strconv"
	"strings"
	"testing"
)

// allowed is an exception: in a folder or file, a call, for a reason.
type allowed struct{ in, call, why string }

// exceptions of checkCalls.
var exceptions = []allowed{
	{"internal/clock", "the clock", "it is the clock that the others are given"},
	{"cmd", "the clock", "programs measure and wait in real time"},
	{"client", "the clock", "its retries and deadlines are those of the network, in real time"},
	{"internal/httpapi", "the clock", "deadlines of connections and times of requests are those of the network, in real time"},
	{"internal/httpapi/listener.go", "time.Sleep", "out of file descriptors, accept has nothing else to wait for; at most a second, as net/http does"},
	{"cmd/mqd/main.go", "os.Exit", "main returns an exit status"},
	{"cmd/mq/main.go", "os.Exit", "main returns an exit status"},
	{"cmd/mq/cli.go", "panic", "the only way out of the command line parser for --help; caught in the same function"},
}

// banned are calls that production code leaves alone, and why. "the clock" is the name for all that read the
// machine's clock or wait for it.
var banned = map[string]string{
	"time.Sleep":  "wait for what is to happen, with a clock.Clock for the deadline",
	"the clock":   "time enters through clock.Clock",
	"os.Exit":     "only main ends the process",
	"log.Fatal":   "only main ends the process",
	"log.Fatalf":  "only main ends the process",
	"log.Fatalln": "only main ends the process",
	"panic":       `a panic is for a bug of ours: use package invariant, or begin the message with "BUG: "`,
	"init":        "no init functions: what runs is called",
}

var clockCalls = map[string]bool{
	"time.Now": true, "time.Since": true, "time.Until": true, "time.After": true, "time.AfterFunc": true,
	"time.NewTimer": true, "time.NewTicker": true, "time.Tick": true,
}

// checkCalls returns the banned calls of production code, and the exceptions that nothing needs any more.
func checkCalls(m *module) (problems []string) {
	used := make(map[allowed]bool)
	for _, s := range m.production() {
		found := func(n ast.Node, call string) {
			name := call
			if clockCalls[call] {
				call = "the clock"
			}
			why, ok := banned[call]
			if !ok {
				return
			}
			for _, e := range exceptions {
				if e.call == call && (s.name == e.in || within(s.folder, e.in)) {
					used[e] = true
					return
				}
			}
			problems = append(problems, fmt.Sprintf("%s: %s: %s", m.at(n), name, why))
		}
		packages := s.importNames()
		ast.Inspect(s.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr: // not only calls: a function that is passed on is called
				if x, ok := n.X.(*ast.Ident); ok && packages[x.Name] != "" {
					found(n, packages[x.Name]+"."+n.Sel.Name)
				}
			case *ast.CallExpr:
				if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "panic" && len(n.Args) == 1 && !saysBug(n.Args[0]) {
					found(n, "panic")
				}
			case *ast.FuncDecl:
				if n.Recv == nil && n.Name.Name == "init" {
					found(n, "init")
				}
			}
			return true
		})
	}
	for _, e := range exceptions {
		if !used[e] {
			problems = append(problems, fmt.Sprintf("internal/tidy: the exception for %s in %s is not needed", e.call, e.in))
		}
	}
	return problems
}

// importNames maps the names by which a file knows what it imports to the paths.
func (s *source) importNames() map[string]string {
	names := make(map[string]string)
	for i, p := range s.imports() {
		name := path.Base(p)
		if spec := s.ast.Imports[i]; spec.Name != nil {
			name = spec.Name.Name
		}
		names[name] = p
	}
	return names
}

// saysBug tells whether the argument of a panic is a message that begins with "BUG: ".
func saysBug(arg ast.Expr) bool {
	switch arg := arg.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(arg.Value)
		return err == nil && strings.HasPrefix(text, "BUG: ")
	case *ast.BinaryExpr:
		return arg.Op == token.ADD && saysBug(arg.X)
	case *ast.CallExpr: // fmt.Sprintf, fmt.Errorf
		return len(arg.Args) > 0 && saysBug(arg.Args[0])
	}
	return false
}

// checkMutexes returns the structs that embed a mutex: everyone who has the struct could lock it.
func checkMutexes(m *module) (problems []string) {
	for _, s := range m.production() {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			t, ok := n.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range t.Fields.List {
				if sel, ok := f.Type.(*ast.SelectorExpr); ok && len(f.Names) == 0 && strings.HasSuffix(sel.Sel.Name, "Mutex") {
					problems = append(problems, fmt.Sprintf("%s: an embedded mutex: name it mu", m.at(f)))
				}
			}
			return true
		})
	}
	return problems
}

func TestCalls(t *testing.T)   { report(t, checkCalls(real(t))) }
func TestMutexes(t *testing.T) { report(t, checkMutexes(real(t))) }
