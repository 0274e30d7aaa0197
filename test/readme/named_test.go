package readme

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// proofs are the documents with tables whose rows name the tests that stand there. Before them stands the folder of tests
// for which the row names none.
var proofs = map[string]string{
	"docs/guarantees.md": "",
	"docs/faults.md":     "",
	"docs/traps.md":      "internal/replication/cluster",
}

// The documents that say what tests a promise or a fault name tests that are there, at least one in each row. In a row of a
// table a folder stands before its tests; "..." behind a name stands for any end. A cell that begins with "none" says why.
func TestNamedTestsExist(t *testing.T) {
	for document, folder := range proofs {
		named, rows := 0, 0
		for _, row := range tableRows(readDocument(t, document)) {
			cell, ok := row.under("tests", "tested by")
			if !ok {
				continue
			}
			rows++
			before := named
			for _, name := range missingTests(t, cell, folder, &named) {
				t.Errorf("%s, %s: names %s, which is not there", document, row.cells[0], name)
			}
			if named == before && !strings.HasPrefix(cell, "none") {
				t.Errorf("%s, %s: names no test: %q", document, row.cells[0], cell)
			}
		}
		if rows < 16 || named < 20 {
			t.Errorf("only %d tests in %d rows found in %s", named, rows, document)
		}
	}
}

// row is one row of a table below its heads.
type row struct {
	heads, cells []string
}

// under returns the cell below one of the heads.
func (r row) under(heads ...string) (cell string, ok bool) {
	for i, head := range r.heads {
		for _, h := range heads {
			if head == h && i < len(r.cells) {
				return r.cells[i], true
			}
		}
	}
	return "", false
}

// tableRows returns the rows of all tables of a document.
func tableRows(text string) (rows []row) {
	var heads []string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			heads = nil
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case heads == nil:
			heads = cells
		case strings.Trim(line, "|-: ") != "":
			rows = append(rows, row{heads, cells})
		}
	}
	return rows
}

func readDocument(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var folderOrTest = regexp.MustCompile("`([a-z]+(?:/[a-z0-9]+)*)`|\\b((?:Test|Fuzz)[A-Z]\\w*)(\\.\\.\\.)?")

// missingTests returns which of the tests in a cell are not there, each with its folder. It adds the number of all to named.
func missingTests(t *testing.T, cell, folder string, named *int) (missing []string) {
	for _, m := range folderOrTest.FindAllStringSubmatch(cell, -1) {
		if m[1] != "" {
			folder = m[1]
			continue
		}
		*named++
		end := `\(`
		if m[3] != "" {
			end = ""
		}
		if !declares(t, folder, regexp.MustCompile(`(?m)^func `+m[2]+end)) {
			missing = append(missing, folder+" "+m[2])
		}
	}
	return missing
}

// declares reports whether a test file of a folder has what is wanted.
func declares(t *testing.T, folder string, want *regexp.Regexp) bool {
	t.Helper()
	text, known := testFiles[folder]
	if !known {
		files, err := filepath.Glob("../../" + folder + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			more, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for line := range bytes.Lines(more) {
				if bytes.HasPrefix(line, []byte("func ")) {
					text = append(text, line...)
				}
			}
		}
		testFiles[folder] = text
	}
	return want.Match(text)
}

// testFiles holds the lines of the test files of each folder that begin a function. The tests here run one after another.
var testFiles = map[string][]byte{}

func TestMissingTestsAreFound(t *testing.T) {
	named := 0
	cell := "`test/readme` TestCluster, TestMissing..., TestClus, TestGone; `internal/tidy` TestLinks, TestCluster"
	got := strings.Join(missingTests(t, cell, "", &named), ", ")
	if want := "test/readme TestClus, test/readme TestGone, internal/tidy TestCluster"; got != want || named != 6 {
		t.Errorf("got %s of %d, want %s of 6", got, named, want)
	}
}

func TestTableRows(t *testing.T) {
	got := tableRows("| a | tests |\n|---|---|\n| 1 | x |\n| 2 | |\n\ntext\n| tests | b |\n| --- | ---: |\n| y | 3 |\n")
	var cells []string
	for _, r := range got {
		cell, ok := r.under("tests")
		cells = append(cells, fmt.Sprint(r.cells[0], " ", cell, " ", ok))
	}
	if s := strings.Join(cells, "; "); s != "1 x true; 2  true; y y true" {
		t.Errorf("got %s", s)
	}
}

// Promises and faults are numbered without a hole, and what documents and code cite is there.
func TestNumbers(t *testing.T) {
	last := map[string]int{}
	for document, letter := range map[string]string{"docs/guarantees.md": "G", "docs/faults.md": "F"} {
		for _, m := range regexp.MustCompile(`(?m)^\| \*\*`+letter+`(\d+)\*\* \|`).FindAllStringSubmatch(readDocument(t, document), -1) {
			last[letter]++
			if m[1] != fmt.Sprint(last[letter]) {
				t.Errorf("%s: %s%s stands where %s%d should", document, letter, m[1], letter, last[letter])
			}
		}
	}
	if last["G"] < 38 || last["F"] < 90 {
		t.Fatalf("only %v found", last)
	}
	cited := regexp.MustCompile(`\b([GF])(\d+)\b`)
	documents, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range append(documents, productAndTests(t)...) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasSuffix(file, ".go") { // in comments only: code has names of its own
				_, comment, ok := strings.Cut(line, "//")
				if !ok || strings.Contains(comment, "//") {
					continue
				}
				line = comment
			}
			for _, m := range cited.FindAllStringSubmatch(line, -1) {
				var n int
				if fmt.Sscan(m[2], &n); n == 0 || n > last[m[1]] {
					t.Errorf("%s cites %s, which is not there: %s", file, m[0], strings.TrimSpace(line))
				}
			}
		}
	}
}

// productAndTests returns all files of Go.
func productAndTests(t *testing.T) (files []string) {
	t.Helper()
	for _, top := range []string{"api", "client", "cmd", "internal", "test"} {
		err := filepath.WalkDir("../../"+top, func(path string, d os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") {
				files = append(files, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return files
}
