package readme

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are those whose commands and variables are looked at.
func documents(t *testing.T) []string {
	t.Helper()
	list := []string{"../../README.md", "../../ARCHITECTURE.md", "../../test/README.md"}
	for _, pattern := range []string{"../../docs/*.md", "../../docs/*/*.md"} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, names...)
	}
	if len(list) < 15 {
		t.Fatalf("only %d documents", len(list))
	}
	return list
}

// A command that a document gives names tests, programs and scripts that are there, and variables that something reads.
func TestCommandsNameWhatIsThere(t *testing.T) {
	var sources strings.Builder
	for _, name := range productAndTests(t) {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(text)
	}
	found := 0
	for _, document := range documents(t) {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, complaint := range wrongCommands(t, string(text), sources.String(), &found) {
			t.Errorf("%s: %s", document, complaint)
		}
	}
	if found < 60 {
		t.Errorf("only %d found", found)
	}
}

var (
	goTest   = regexp.MustCompile("go test((?:'[^'\n]*'|[^`|#\n])*)")
	goRun    = regexp.MustCompile(`go (?:run|install|build)((?: \./[\w/.]+)+)`)
	bashFile = regexp.MustCompile(`(?:^|[\s` + "`" + `])((?:test|\.ci)/[\w/]+\.sh)\b`)
	variable = regexp.MustCompile(`\bMQ_[A-Z_]*[A-Z]`)
)

// wrongCommands says what a text names that is not there. It adds the number of what it looked at to found.
func wrongCommands(t *testing.T, text, sources string, found *int) (wrong []string) {
	for _, m := range goTest.FindAllStringSubmatch(text, -1) {
		*found++
		wrong = append(wrong, wrongTest(t, m[1])...)
	}
	for _, m := range goRun.FindAllStringSubmatch(text, -1) {
		for _, folder := range strings.Fields(m[1]) {
			*found++
			if files, _ := filepath.Glob("../../" + folder + "/*.go"); len(files) == 0 {
				wrong = append(wrong, "there is no program "+folder)
			}
		}
	}
	for _, m := range bashFile.FindAllStringSubmatch(text, -1) {
		*found++
		if _, err := os.Stat("../../" + m[1]); err != nil {
			wrong = append(wrong, "there is no "+m[1])
		}
	}
	for _, name := range variable.FindAllString(text, -1) {
		*found++
		if !strings.Contains(sources, name) {
			wrong = append(wrong, "nothing reads "+name)
		}
	}
	return wrong
}

// wrongTest says what is wrong with the arguments of go test: each pattern must find something in a package that is named.
func wrongTest(t *testing.T, arguments string) (wrong []string) {
	words := strings.Fields(arguments)
	var folders, patterns []string
	for i, word := range words {
		switch word = strings.Trim(word, `'"`); {
		case strings.HasPrefix(word, "./"):
			folders = append(folders, strings.TrimSuffix(word, "/..."))
		case i > 0 && (words[i-1] == "-run" || words[i-1] == "-bench" || words[i-1] == "-fuzz"):
			patterns = append(patterns, word)
		}
	}
	for _, folder := range folders {
		if s, err := os.Stat("../../" + folder); err != nil || !s.IsDir() {
			wrong = append(wrong, "there is no folder "+folder)
		}
	}
	for _, pattern := range patterns {
		if pattern == "." || pattern == "^$" {
			continue
		}
		one := regexp.MustCompile(`(?m)^func (?:Test|Fuzz|Benchmark)?\w*(?:` + strings.Trim(pattern, "^$") + `)\w*\(`)
		if strings.HasPrefix(pattern, "Test") {
			one = regexp.MustCompile(`(?m)^func (?:` + pattern[:len(pattern)-len(suffix(pattern))] + `)\w*\(`)
		}
		if !slices.ContainsFunc(folders, func(folder string) bool { return declares(t, folder, one) }) {
			wrong = append(wrong, "no test of "+strings.Join(folders, ", ")+" is found by "+pattern)
		}
	}
	return wrong
}

// suffix returns the "$" at the end of a pattern.
func suffix(pattern string) string {
	if strings.HasSuffix(pattern, "$") {
		return "$"
	}
	return ""
}

func TestWrongCommandsAreFound(t *testing.T) {
	found := 0
	text := "`go test -v -run TestCluster ./test/readme`, `MQ_URL=1 go test -run TestGone ./test/readme`, `go test -run 'Wrong|Gone' ./test/readme`\n" +
		"    go test -run TestPair ./test/gone ./test/sim\n    go run ./cmd/mqd -x\n    go run ./cmd/gone\n    test/bench/pair.sh 5 2\n    test/bench/gone.sh\n    MQ_GONE=1\n"
	got := strings.Join(wrongCommands(t, text, "MQ_URL", &found), "; ")
	want := "no test of ./test/readme is found by TestGone; there is no folder ./test/gone; there is no program ./cmd/gone; " +
		"there is no test/bench/gone.sh; nothing reads MQ_GONE"
	if got != want || found != 10 {
		t.Errorf("found %d\n got %s\nwant %s", found, got, want)
	}
}
