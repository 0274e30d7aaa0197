package tidy

import (
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// checkPackageComments returns the packages that do not say what they are for, in one comment that go doc
// finds: one that touches the package clause.
func checkPackageComments(m *module) (problems []string) {
	type packageKey struct{ folder, name string }
	has := make(map[packageKey][]string)
	for _, s := range m.files {
		name := s.ast.Name.Name
		key := packageKey{s.folder, strings.TrimSuffix(name, "_test")}
		if _, ok := has[key]; !ok {
			has[key] = nil
		}
		want := regexp.MustCompile(`^Package ` + regexp.QuoteMeta(name) + ` `)
		if name == "main" {
			want = regexp.MustCompile(`^(Command )?(?i:` + regexp.QuoteMeta(path.Base(s.folder)) + `) `)
		}
		if s.ast.Doc != nil {
			has[key] = append(has[key], s.name)
			if !want.MatchString(s.ast.Doc.Text()) {
				problems = append(problems, fmt.Sprintf("%s: the package comment does not begin with the package's name", s.name))
			}
			continue
		}
		for _, c := range s.ast.Comments {
			if c.End() < s.ast.Package && want.MatchString(c.Text()) {
				problems = append(problems, fmt.Sprintf("%s: the package comment is cut off from the package clause", s.name))
			}
		}
	}
	for key, files := range has {
		switch {
		case len(files) == 0:
			problems = append(problems, fmt.Sprintf("%s: package %s has no package comment", key.folder, key.name))
		case len(files) > 1:
			problems = append(problems, fmt.Sprintf("%s: package %s has more than one package comment: %s", key.folder, key.name, strings.Join(files, " ")))
		}
	}
	slices.Sort(problems)
	return problems
}

// The words are put together so that this file may speak of them.
var (
	later      = "TO" + "DO"
	broken     = "FIX" + "ME"
	laterWord  = regexp.MustCompile(`\b` + later + `\b`)
	laterNamed = regexp.MustCompile(`\b` + later + `\([\w.-]+\): \S`)
	brokenWord = regexp.MustCompile(`\b(` + broken + `|X{3}|HACK)\b`)
)

// checkLater returns notes about work left that do not say whose it is and why.
func checkLater(m *module) (problems []string) {
	for _, s := range m.files {
		for _, group := range s.ast.Comments {
			for _, c := range group.List {
				if brokenWord.MatchString(c.Text) {
					problems = append(problems, fmt.Sprintf("%s: %s in a comment: repair it, or write %s(name): reason", m.at(c), broken, later))
				}
				if len(laterWord.FindAllString(c.Text, -1)) != len(laterNamed.FindAllString(c.Text, -1)) {
					problems = append(problems, fmt.Sprintf("%s: write %s(name): reason", m.at(c), later))
				}
			}
		}
	}
	return problems
}

func TestPackageComments(t *testing.T) { report(t, checkPackageComments(real(t))) }
func TestLater(t *testing.T)           { report(t, checkLater(real(t))) }
