package readme

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What a table of docs/operations.md says that mqd says stands in the code of mqd. A number, a single capital letter and
// "..." stand for anything, and one error may be wrapped in another.
func TestMessagesExist(t *testing.T) {
	var product strings.Builder
	for _, name := range productAndTests(t) {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "../../test/") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		product.Write(text)
	}
	messages := 0
	for _, r := range tableRows(readDocument(t, "docs/operations.md")) {
		cell, ok := r.under("mqd says", "line", "reason")
		if !ok {
			continue
		}
		for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
			messages++
			if part := unsaid(quoted[1], product.String()); part != "" {
				t.Errorf("docs/operations.md: mqd does not say %q of %q", part, quoted[1])
			}
		}
	}
	if messages < 40 {
		t.Errorf("only %d messages found", messages)
	}
}

var anything = regexp.MustCompile(`\[\.\.\.\]|\.\.\.|\b[A-Z]\b|\b\d+\b|:`)

// unsaid returns a part of a message that is not in the code, or nothing.
func unsaid(message, code string) string {
	for _, part := range anything.Split(message, -1) {
		if part = strings.TrimSpace(part); part != "" && !strings.Contains(code, part) && !wrapped(part, code) {
			return part
		}
	}
	return ""
}

// wrapped reports whether a message is an error of the code with what the code says behind it.
func wrapped(message, code string) bool {
	for i, c := range message {
		if c == ' ' && strings.Contains(code, message[:i]+`"`) && strings.Contains(code, "%w"+message[i:]) {
			return true
		}
	}
	return false
}

func TestUnsaid(t *testing.T) {
	const code = `"node %d wants node %d, and this is node %d", "the disk failed", "%w at entry %d"`
	if got := unsaid("the disk failed at entry N", code); got != "" {
		t.Errorf("got %q", got)
	}
	if got := unsaid("the disk failed behind entry N", code); got != "the disk failed behind entry" {
		t.Errorf("got %q", got)
	}
	if got := unsaid("node N wants node 2, and this is node K", code); got != "" {
		t.Errorf("got %q", got)
	}
	if got := unsaid("node N wants node M, and that is node K", code); got != ", and that is node" {
		t.Errorf("got %q", got)
	}
}
