package metrics

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestHelp: each figure that a node tells has a sentence that says what it is, and there is none of a figure that nobody tells.
func TestHelp(t *testing.T) {
	files, err := filepath.Glob("../node/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	call := regexp.MustCompile(`\bset\("([a-z_]+)"`)
	told := map[string]bool{}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range call.FindAllStringSubmatch(string(text), -1) {
			told[m[1]] = true
		}
	}
	if len(told) < 40 {
		t.Errorf("only %d figures were found: this tests nothing", len(told))
	}
	for name := range told {
		help := helps[name]
		if !strings.HasSuffix(help, ".") || len(strings.Fields(help)) < 3 && name != "topics" {
			t.Errorf("the help of %s is %q", name, help)
		}
	}
	for name := range helps {
		if !told[name] {
			t.Errorf("a help of %s, which nobody tells", name)
		}
	}
}
