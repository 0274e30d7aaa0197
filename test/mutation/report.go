package mutation

import (
	"fmt"
	"strings"
)

// Result is what became of one mutation.
type Result struct {
	Name      string   `json:"name"`
	What      string   `json:"what"`
	Guarantee string   `json:"guarantee"`
	CaughtBy  []string `json:"caught_by"`     // packages and tests
	Survived  bool     `json:"survived"`      // no test has noticed it
	Err       string   `json:"err,omitempty"` // why it could not be judged
	Seconds   float64  `json:"seconds"`
	// CPUSeconds is what it has taken of processors, also where the machine did other things meanwhile.
	CPUSeconds float64 `json:"cpu_seconds"`
}

// String returns a line for the log of a run.
func (r *Result) String() string {
	switch {
	case r.Err != "":
		return fmt.Sprintf("ERROR    %s (%.1f s, CPU %.1f s): %s", r.Name, r.Seconds, r.CPUSeconds, r.Err)
	case r.Survived:
		return fmt.Sprintf("SURVIVED %s (%.1f s, CPU %.1f s): %s", r.Name, r.Seconds, r.CPUSeconds, r.What)
	}
	return fmt.Sprintf("caught   %s (%.1f s, CPU %.1f s) by %s", r.Name, r.Seconds, r.CPUSeconds, strings.Join(r.CaughtBy, ", "))
}

// Report is what became of all.
type Report struct {
	Results  []Result `json:"results"`
	Caught   int      `json:"caught"`
	Survived int      `json:"survived"`
	Errors   int      `json:"errors"` // that could not be judged
	Wide     bool     `json:"wide"`
	Seconds  float64  `json:"seconds"`
	// CPUSeconds is the sum of those of the results.
	CPUSeconds float64 `json:"cpu_seconds"`
}

func (r *Report) add(one Result) {
	r.Results = append(r.Results, one)
	r.CPUSeconds += one.CPUSeconds
	switch {
	case one.Err != "":
		r.Errors++
	case one.Survived:
		r.Survived++
	default:
		r.Caught++
	}
}

// OK reports whether each mutation was judged and caught.
func (r *Report) OK() bool { return r.Survived == 0 && r.Errors == 0 }

// Markdown returns the report as a line and a table.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d deliberate faults: %d caught, %d survived, %d could not be judged, in %.0f s (%.0f s of processors).\n\n",
		len(r.Results), r.Caught, r.Survived, r.Errors, r.Seconds, r.CPUSeconds)
	b.WriteString("| fault | what breaks | guarantee | caught by |\n|---|---|---|---|\n")
	for i := range r.Results {
		one := &r.Results[i]
		by := strings.Join(one.CaughtBy, ", ")
		switch {
		case one.Err != "":
			first, _, _ := strings.Cut(one.Err, "\n")
			by = "**not judged**: " + first
		case one.Survived:
			by = "**nothing**"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", cell(one.Name), cell(one.What), cell(one.Guarantee), cell(by))
	}
	return b.String()
}

// cell makes text fit into a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
