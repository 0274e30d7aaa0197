package tidy

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	fence     = regexp.MustCompile("^ {0,3}(```+|~~~+)")
	codeSpan  = regexp.MustCompile("`+[^`]*`+")
	inline    = regexp.MustCompile(`\]\(\s*(<[^>]*>|[^()\s]*(?:\([^()\s]*\)[^()\s]*)*)(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)`)
	reference = regexp.MustCompile(`^ {0,3}\[[^\]]+\]:\s*(<[^>]*>|\S+)`)
	heading   = regexp.MustCompile(`^ {0,3}#{1,6}\s+(.*?)\s*#*\s*$`)
	anchorTag = regexp.MustCompile(`<a\s+(?:id|name)="([^"]+)"`)
	linkText  = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	scheme    = regexp.MustCompile(`^[a-zA-Z][a-zA-Z0-9+.-]*:`)
	docInCode = regexp.MustCompile(`\b(?:docs|ARCHITECTURE|README)[\w./-]*\.md\b`)
)

// checkLinks returns the relative links of the documents that lead to no file, or to no heading of it, and the
// documents that comments in the code mention and that do not exist.
func checkLinks(m *module) (problems []string) {
	for name, text := range m.pages {
		lines, numbers := prose(text)
		for i, line := range lines {
			var targets []string
			for _, match := range inline.FindAllStringSubmatch(codeSpan.ReplaceAllString(line, "``"), -1) {
				targets = append(targets, match[1])
			}
			if match := reference.FindStringSubmatch(line); match != nil {
				targets = append(targets, match[1])
			}
			for _, target := range targets {
				if why := m.follow(name, target); why != "" {
					problems = append(problems, fmt.Sprintf("%s:%d: link to %s: %s", name, numbers[i], target, why))
				}
			}
		}
	}
	for _, s := range m.files {
		if s.folder == "internal/tidy" {
			continue // the documents it mentions are made up
		}
		for _, group := range s.ast.Comments {
			for _, target := range docInCode.FindAllString(group.Text(), -1) {
				if !m.names[target] {
					problems = append(problems, fmt.Sprintf("%s: the comment mentions %s, which does not exist", m.at(group), target))
				}
			}
		}
	}
	slices.Sort(problems)
	return problems
}

// follow tells what is wrong with a link of a page; nothing for links that leave the module.
func (m *module) follow(page, target string) (why string) {
	target = strings.Trim(target, "<>")
	if scheme.MatchString(target) || strings.HasPrefix(target, "//") {
		return ""
	}
	file, anchor, _ := strings.Cut(target, "#")
	file, err := url.PathUnescape(file)
	if err != nil {
		return err.Error()
	}
	to := page
	if file != "" {
		to = path.Join(path.Dir(page), file)
		if strings.HasPrefix(file, "/") || !m.names[to] {
			return "no such file"
		}
	}
	if text, ok := m.pages[to]; anchor != "" && ok && !slices.Contains(anchors(text), anchor) {
		return "no such heading"
	}
	return ""
}

// prose returns the lines of a page that are not in a fenced code block, and their numbers.
func prose(text string) (lines []string, numbers []int) {
	open := ""
	for i, line := range strings.Split(text, "\n") {
		match := fence.FindStringSubmatch(line)
		switch {
		case open == "" && match != nil:
			open = match[1]
		case open != "" && match != nil && strings.HasPrefix(match[1], open):
			open = ""
		case open == "":
			lines, numbers = append(lines, line), append(numbers, i+1)
		}
	}
	return lines, numbers
}

// anchors returns the anchors of a page's headings as code hosts make them, and those it sets itself.
func anchors(text string) []string {
	var list []string
	seen := make(map[string]int)
	lines, _ := prose(text)
	for _, line := range lines {
		for _, match := range anchorTag.FindAllStringSubmatch(line, -1) {
			list = append(list, match[1])
		}
		match := heading.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		a := strings.Map(func(r rune) rune {
			switch {
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			case r == ' ':
				return '-'
			}
			return -1
		}, linkText.ReplaceAllString(match[1], "$1"))
		n := seen[a]
		seen[a]++
		if n > 0 {
			a = fmt.Sprintf("%s-%d", a, n)
		}
		list = append(list, a)
	}
	return list
}

func TestLinks(t *testing.T) { report(t, checkLinks(real(t))) }
