package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.com/mq/test/mutation"
)

// summary is the report.
type summary struct {
	Machine     machine          `json:"machine"`
	Started     time.Time        `json:"started"`
	Seconds     float64          `json:"seconds"`
	Seed        uint64           `json:"seed"`
	Mode        string           `json:"mode"`
	Only        string           `json:"only,omitempty"`
	Passed      bool             `json:"passed"`
	Interrupted bool             `json:"interrupted"`
	Rows        []row            `json:"scenarios"`
	Results     []result         `json:"results"` // one for each scenario and round
	Mutations   *mutation.Report `json:"mutations,omitempty"`
}

// row is one scenario in all rounds.
type row struct {
	Name       string           `json:"name"`
	Group      string           `json:"group"`
	What       string           `json:"what"`
	Nemeses    string           `json:"nemeses"`
	Checkers   string           `json:"checkers"`
	Guarantees string           `json:"guarantees,omitempty"`
	Rounds     int              `json:"rounds"`
	Tests      int              `json:"tests"` // that passed
	Seconds    float64          `json:"seconds"`
	Seeds      []uint64         `json:"seeds,omitempty"`
	Counts     map[string]int64 `json:"counts,omitempty"`
	Found      []string         `json:"found,omitempty"`
	Skipped    []string         `json:"skipped,omitempty"`
}

func (s *summary) add(of scenario, r result) {
	s.Results = append(s.Results, r)
	if r.mutations != nil {
		s.Mutations = r.mutations
	}
	i := slices.IndexFunc(s.Rows, func(o row) bool { return o.Name == of.name })
	if i < 0 {
		i = len(s.Rows)
		s.Rows = append(s.Rows, row{
			Name: of.name, Group: of.group, What: of.what, Nemeses: of.nemeses, Checkers: of.checkers, Guarantees: of.guarantees, Counts: map[string]int64{},
		})
	}
	o := &s.Rows[i]
	o.Rounds++
	o.Tests += r.Passed
	o.Seconds += r.Seconds
	if r.Seed != 0 {
		o.Seeds = append(o.Seeds, r.Seed)
	}
	for what, n := range r.Counts {
		o.Counts[what] += n
	}
	o.Skipped = append(o.Skipped, r.Skipped...)
	for _, name := range r.Failed {
		o.Found = append(o.Found, "failed: "+name)
	}
	o.Found = append(o.Found, r.Violations...)
	if r.Error != "" {
		first, _, _ := strings.Cut(r.Error, "\n")
		o.Found = append(o.Found, first)
	}
}

// judge says whether all is well.
func (s *summary) judge(allowSkip bool) {
	s.Passed = !s.Interrupted && len(s.Results) > 0
	for _, r := range s.Results {
		if r.bad() || len(r.Skipped) > 0 && !allowSkip {
			s.Passed = false
		}
	}
}

// write writes the report.
func (t *torture) write() error {
	t.summary.Seconds = t.now().Sub(t.summary.Started).Seconds()
	b, err := json.MarshalIndent(&t.summary, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(t.opts.folder, "report.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(t.opts.folder, "report.md"), []byte(t.summary.markdown()), 0o644)
}

// markdown is the report to read.
func (s *summary) markdown() string {
	var b strings.Builder
	verdict := "passed"
	switch {
	case s.Interrupted:
		verdict = "interrupted"
	case !s.Passed:
		verdict = "failed, or not at its end"
	}
	fmt.Fprintf(&b, "# Torture: %s\n\n", verdict)
	s.header(&b)
	s.tried(&b)
	s.found(&b)
	if s.Mutations != nil {
		fmt.Fprintf(&b, "\n## Deliberate faults in the code\n\n%s", s.Mutations.Markdown())
	}
	s.figures(&b)
	s.again(&b)
	return b.String()
}

func (s *summary) header(b *strings.Builder) {
	commit := s.Machine.Commit
	if s.Machine.Changed {
		commit += ", with changes"
	}
	fmt.Fprintf(b, "| | |\n|---|---|\n")
	for _, line := range [][2]string{
		{"commit", commit},
		{"go", s.Machine.Go},
		{"kernel", s.Machine.Kernel},
		{"cores", fmt.Sprint(s.Machine.Cores)},
		{"file system", s.Machine.FileSystem},
		{"as root", map[bool]string{true: "yes", false: "no"}[s.Machine.Root]},
		{"start", s.Started.Format(time.RFC3339)},
		{"length", (time.Duration(s.Seconds) * time.Second).String()},
		{"run", strings.TrimSpace(s.Mode + " " + s.Only)},
		{"seed", fmt.Sprint(s.Seed)},
		{"the same again", "`" + s.command() + "`"},
	} {
		fmt.Fprintf(b, "| %s | %s |\n", line[0], cell(line[1]))
	}
}

// command is what repeats the run.
func (s *summary) command() string {
	words := []string{"go run ./test/torture"}
	if s.Mode == "short" {
		words = append(words, "-short")
	} else if hours, ok := strings.CutSuffix(s.Mode, " hours"); ok {
		words = append(words, "-hours "+hours)
	}
	words = append(words, fmt.Sprintf("-seed %d", s.Seed))
	if s.Only != "" {
		words = append(words, "-only "+s.Only)
	}
	return strings.Join(words, " ")
}

// tried says what was tried, and how often.
func (s *summary) tried(b *strings.Builder) {
	fmt.Fprintf(b, "\n## What was tried\n\n| scenario | what | broken by | judged by | proves | how often | found | seeds | s |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, o := range s.Rows {
		found := "nothing"
		switch {
		case len(o.Found) > 0:
			found = fmt.Sprintf("**%d**", len(o.Found))
		case len(o.Skipped) > 0:
			found = "**not run in full**"
		}
		often := countsText(o.Counts)
		if often == "" {
			often = fmt.Sprintf("tests %s", thousands(int64(o.Tests)))
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %s | %s | %.0f |\n", o.Name, cell(o.What), cell(o.Nemeses), cell(o.Checkers), o.Guarantees, cell(often), found,
			seedsText(o.Seeds), o.Seconds)
	}
}

// foundMax is how much is listed of each scenario.
const foundMax = 20

// found lists what was found, and what was not run.
func (s *summary) found(b *strings.Builder) {
	fmt.Fprintf(b, "\n## What was found\n\n")
	nothing := true
	for _, o := range s.Rows {
		for _, list := range []struct {
			word  string
			lines []string
		}{{"", o.Found}, {"skipped: ", o.Skipped}} {
			for i, what := range list.lines {
				nothing = false
				if i == foundMax {
					fmt.Fprintf(b, "- %s: %d more\n", o.Name, len(list.lines)-i)
					break
				}
				fmt.Fprintf(b, "- %s: %s%s\n", o.Name, list.word, cell(what))
			}
		}
	}
	if nothing {
		fmt.Fprintf(b, "Nothing.\n")
	}
	for _, r := range s.Results {
		if r.bad() && r.Output != "" {
			fmt.Fprintf(b, "- %s: all of its output is in %s beside this file", r.Scenario, r.Output)
			if r.Kept != "" {
				fmt.Fprintf(b, ", and what it left in %s", r.Kept)
			}
			fmt.Fprintln(b)
		}
	}
}

// figures lists what was measured.
func (s *summary) figures(b *strings.Builder) {
	head := "\n## Figures\n\n| scenario | what | figure |\n|---|---|---|\n"
	for _, r := range s.Results {
		for _, f := range r.Figures {
			fmt.Fprintf(b, "%s| %s | %s | %.4g %s |\n", head, r.Scenario, cell(f.Name), f.Value, cell(f.Unit))
			head = ""
		}
	}
	head = "\n## What the tests say\n\n"
	for _, r := range s.Results {
		for _, line := range r.Summary {
			fmt.Fprintf(b, "%s- %s: %s\n", head, r.Scenario, cell(line))
			head = ""
		}
	}
}

// again lists the commands that repeat what failed.
func (s *summary) again(b *strings.Builder) {
	head := "\n## Again\n"
	for _, r := range s.Results {
		for i, command := range r.Again {
			if i == foundMax {
				break
			}
			fmt.Fprintf(b, "%s\n    %s\n", head, command)
			head = ""
		}
	}
}

// cell makes a text fit into a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}

// countsText is counts in one line: those of faults that a simulation draws come last.
func countsText(counts map[string]int64) string {
	var names, faults, parts []string
	for name := range counts {
		if kind, ok := strings.CutPrefix(name, "fault "); ok {
			faults = append(faults, kind)
		} else {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	slices.Sort(faults)
	for _, name := range names {
		parts = append(parts, name+" "+thousands(counts[name]))
	}
	for i, kind := range faults {
		faults[i] = kind + " " + thousands(counts["fault "+kind])
	}
	if len(faults) > 0 {
		parts = append(parts, "faults: "+strings.Join(faults, ", "))
	}
	return strings.Join(parts, "; ")
}

// thousands writes a number with commas.
func thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// seedsText names the first seeds.
func seedsText(seeds []uint64) string {
	var list []string
	for i, seed := range seeds {
		if i == 3 {
			list = append(list, "...")
			break
		}
		list = append(list, fmt.Sprint(seed))
	}
	return strings.Join(list, " ")
}
