// Package mutation puts deliberate faults into the code of mq, one at a time, and tells which test notices.
//
// A test that was never red proves little. Each file in the folder list is one fault: a sync that is skipped, a checksum
// that is ignored, an answer that comes too early. It says what breaks and which guarantee (docs/guarantees.md), what to
// replace in the code, and which tests are to notice. The checkout is never touched: the go command gets an overlay in
// which a changed copy stands in for the file.
//
// A fault is caught when the changed code compiles and a test fails, crashes or does not come to its end, and the same test
// passes without the fault: where it did not end in time, in half of that time. A fault that no test notices has survived:
// a test is missing, or the fault is none. What does not compile, a text that is not exactly once in its file, a check that
// runs no test, and one that is red without the fault are errors, so that the list cannot rot.
//
//	go run ./test/mutation/cmd              all faults, each by its quickest checks
//	go run ./test/mutation/cmd -wide        each by all tests that could notice
//	go run ./test/mutation/cmd -only NAME   some of them
//	MQ_MUTATIONS=all go test -v -timeout 30m -run TestMutations ./test/mutation
//
// It runs the go command, and starts as many goroutines as Config.Parallel says, which end with Run.
package mutation

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"
)

//go:embed list/*.txt
var files embed.FS

// Mutation is one deliberate fault.
type Mutation struct {
	Name      string // of its file, without .txt
	What      string // that breaks, in a sentence
	Guarantee string // the one that is broken: its number
	Edits     []Edit
	Checks    []Check // the quickest that notice it, in the order in which they are tried
	Wide      []Check // further ones that could
}

// Edit replaces whole lines of a file.
type Edit struct {
	File string // relative to the root of the module, with slashes
	Old  string // must be in the file exactly once
	New  string
}

// Check is a run of the tests of one package.
type Check struct {
	Package string // as the go command takes it: ./internal/wal
	Run     string // names of tests, separated by |, or what -run takes
	Env     []string
	Tags    string
	Flags   []string // of the test binary
	Timeout time.Duration
	// MQD has cmd/mqd built with the fault, and MQ_MQD name it, for tests that run it as a process.
	MQD bool
}

// timeoutDefault is how long a check may take before it counts as one that does not come to its end.
// It is generous: what it costs are faults that let a test hang, and a test that is slow because the machine has much else to
// do must not count as one of those.
const timeoutDefault = 3 * time.Minute

// String returns the check as it stands in a file.
func (c Check) String() string {
	words := append([]string{c.Package, c.Run}, c.Env...)
	if c.Tags != "" {
		words = append(words, "tags="+c.Tags)
	}
	words = append(words, c.Flags...)
	if c.Timeout != timeoutDefault {
		words = append(words, "timeout="+c.Timeout.String())
	}
	if c.MQD {
		words = append(words, "mqd")
	}
	return strings.Join(words, " ")
}

// List returns all mutations, sorted by name.
func List() ([]Mutation, error) { return load(files, "list") }

// load reads the mutations in a folder.
func load(fsys fs.FS, dir string) ([]Mutation, error) {
	names, err := fs.Glob(fsys, path.Join(dir, "*.txt"))
	if err != nil {
		return nil, err
	}
	var list []Mutation
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(path.Base(name), ".txt"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		list = append(list, m)
	}
	return list, nil
}

// some returns the mutations with the given names, or all if there are none.
func some(list []Mutation, names []string) ([]Mutation, error) {
	if len(names) == 0 {
		return list, nil
	}
	var chosen []Mutation
	for _, name := range names {
		i := slices.IndexFunc(list, func(m Mutation) bool { return m.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no mutation %q", name)
		}
		chosen = append(chosen, list[i])
	}
	return chosen, nil
}

// A file is a head of "key: value" lines, and edits. An edit begins with "@@ FILE", and its lines with the mark that they
// have in a diff: " " stays, "-" goes, "+" comes. An empty line stands for an empty one that stays, and at the end of an
// edit for none.
//
//	what: The log says that it has synced, and has not.
//	guarantee: G1
//	check: ./internal/wal TestCrashStates
//
//	@@ internal/wal/log.go
//	-	if err := l.file.Sync(); err != nil {
//	+	if err := error(nil); err != nil {

var guaranteeForm = regexp.MustCompile(`^G[0-9]+$`)

// parse reads a file.
func parse(name, text string) (Mutation, error) {
	m := Mutation{Name: name}
	head, body, _ := strings.Cut("\n"+text, "\n@@ ")
	for line := range strings.Lines(head) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		key, value, ok := strings.Cut(line, ": ")
		if !ok {
			return m, fmt.Errorf("%q is no line of a head", line)
		}
		var err error
		switch key {
		case "what":
			m.What = value
		case "guarantee":
			m.Guarantee = value
		case "check":
			err = addCheck(&m.Checks, value)
		case "wide":
			err = addCheck(&m.Wide, value)
		default:
			err = fmt.Errorf("there is no key %q", key)
		}
		if err != nil {
			return m, err
		}
	}
	if body != "" {
		for part := range strings.SplitSeq(body, "\n@@ ") {
			e, err := parseEdit(part)
			if err != nil {
				return m, err
			}
			m.Edits = append(m.Edits, e)
		}
	}
	switch {
	case m.What == "", len(m.Edits) == 0, len(m.Checks) == 0:
		return m, fmt.Errorf("it needs the lines what, guarantee and check, and an edit")
	case !guaranteeForm.MatchString(m.Guarantee):
		return m, fmt.Errorf("the guarantee is %q, and not the number of one", m.Guarantee)
	}
	return m, nil
}

// parseEdit reads an edit from behind its "@@ ".
func parseEdit(text string) (Edit, error) {
	file, text, _ := strings.Cut(text, "\n")
	e := Edit{File: file}
	if !fs.ValidPath(file) || path.Ext(file) != ".go" {
		return e, fmt.Errorf("%q is not the name of a Go file", file)
	}
	for line := range strings.Lines(strings.TrimRight(text, "\n") + "\n") {
		switch line[0] {
		case '\n':
			e.Old, e.New = e.Old+line, e.New+line
		case ' ':
			e.Old, e.New = e.Old+line[1:], e.New+line[1:]
		case '-':
			e.Old += line[1:]
		case '+':
			e.New += line[1:]
		default:
			return e, fmt.Errorf("a line of the edit of %s begins with %q", file, line[:1])
		}
	}
	if e.Old == "" || e.Old == e.New {
		return e, fmt.Errorf("the edit of %s changes nothing", file)
	}
	return e, nil
}

// addCheck adds the check that a line tells.
func addCheck(to *[]Check, text string) error {
	words := strings.Fields(text)
	if len(words) < 2 || !strings.HasPrefix(words[0], "./") {
		return fmt.Errorf("the check %q does not begin with a package and the names of tests", text)
	}
	c := Check{Package: words[0], Run: words[1], Timeout: timeoutDefault}
	for _, word := range words[2:] {
		key, value, assigned := strings.Cut(word, "=")
		switch {
		case word == "mqd":
			c.MQD = true
		case strings.HasPrefix(word, "-"):
			c.Flags = append(c.Flags, word)
		case assigned && key == "tags":
			c.Tags = value
		case assigned && key == "timeout":
			d, err := time.ParseDuration(value)
			if err != nil {
				return fmt.Errorf("the check %q: %w", text, err)
			}
			c.Timeout = d
		case assigned && key == strings.ToUpper(key):
			c.Env = append(c.Env, word)
		default:
			return fmt.Errorf("the check %q: what is %q?", text, word)
		}
	}
	*to = append(*to, c)
	return nil
}
