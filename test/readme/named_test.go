package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The documents that say what tests a promise name tests that are there. In a row of a table a folder stands before its
// tests; "..." behind a name stands for any end.
func TestNamedTestsExist(t *testing.T) {
	for document, folder := range map[string]string{"docs/guarantees.md": "", "docs/traps.md": "internal/replication/cluster"} {
		text, err := os.ReadFile("../../" + document)
		if err != nil {
			t.Fatal(err)
		}
		named := 0
		for line := range strings.Lines(string(text)) {
			if !numbered.MatchString(line) {
				continue
			}
			cells := strings.Split(line, "|")
			for _, name := range missingTests(t, cells[len(cells)-2], folder, &named) {
				t.Errorf("%s names %s, which is not there", document, name)
			}
		}
		if named < 20 {
			t.Errorf("only %d tests found in %s", named, document)
		}
	}
}

// numbered is the begin of a row that tells about one promise or trap.
var numbered = regexp.MustCompile(`^\| (\*\*G\d+\*\*|\d+) \|.*\|`)

var folderOrTest = regexp.MustCompile("`([a-z]+(?:/[a-z0-9]+)*)`|\\b((?:Test|Fuzz)[A-Z]\\w*)(\\.\\.\\.)?")

// missingTests returns which of the tests in a cell are not there, each with its folder. It adds the number of all to named.
func missingTests(t *testing.T, cell, folder string, named *int) (missing []string) {
	for _, m := range folderOrTest.FindAllStringSubmatch(cell, -1) {
		if m[1] != "" {
			folder = m[1]
			continue
		}
		*named++
		files, err := filepath.Glob("../../" + folder + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		end := `\(`
		if m[3] != "" {
			end = ""
		}
		declared, found := regexp.MustCompile(`(?m)^func `+m[2]+end), false
		for _, name := range files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			found = found || declared.Match(text)
		}
		if !found {
			missing = append(missing, folder+" "+m[2])
		}
	}
	return missing
}

func TestMissingTestsAreFound(t *testing.T) {
	named := 0
	cell := "`test/readme` TestCluster, TestMissing..., TestClus, TestGone; `internal/tidy` TestLinks, TestCluster"
	got := strings.Join(missingTests(t, cell, "", &named), ", ")
	if want := "test/readme TestClus, test/readme TestGone, internal/tidy TestCluster"; got != want || named != 6 {
		t.Errorf("got %s of %d, want %s of 6", got, named, want)
	}
}
