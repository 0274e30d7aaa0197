package soak

import (
	"fmt"
	"strings"
)

// line is a figure over time.
type line struct {
	name, colour string
	of           func(sample) float64
}

// panel is a chart of lines with one scale.
type panel struct {
	title string
	lines []line
}

var panels = []panel{
	{"Disk use, MB", []line{
		{"log", "#1f6feb", func(s sample) float64 { return logBytes(s) / 1e6 }},
		{"live", "#2da44e", func(s sample) float64 { return s.live / 1e6 }},
		{"snapshots and indexes", "#bf8700", func(s sample) float64 { return float64(s.disk.snapshots+s.disk.indexes) / 1e6 }},
	}},
	{"Resident memory, MB", []line{{"memory", "#8250df", func(s sample) float64 { return s.memory / 1e6 }}}},
	{"Latency of publishes, ms", []line{
		{"p99", "#cf222e", p99},
		{"p50", "#57606a", func(s sample) float64 { return s.p50.Seconds() * 1e3 }},
	}},
}

// plot draws the samples as an SVG picture.
func plot(all []sample) string {
	const width, height, left, top, gap = 840, 150, 60, 30, 60
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n",
		width+left+30, len(panels)*(height+gap)+10)
	b.WriteString(`<rect width="100%" height="100%" fill="white"/>` + "\n")
	end := all[len(all)-1].at.Seconds()
	for i, p := range panels {
		y0 := float64(top + i*(height+gap) + height)
		highest := 0.0
		for _, l := range p.lines {
			highest = max(highest, most(all, l.of))
		}
		highest = max(highest*1.05, 1e-9)
		fmt.Fprintf(&b, `<text x="%d" y="%.0f" font-weight="bold">%s</text>`+"\n", left, y0-height-8, p.title)
		for tick := range 5 {
			y := y0 - height*float64(tick)/4
			fmt.Fprintf(&b, `<path d="M%d %.1f h%d" stroke="#d0d7de"/><text x="%d" y="%.1f" text-anchor="end">%.3g</text>`+"\n",
				left, y, width, left-6, y+4, highest*float64(tick)/4)
		}
		for tick := range 7 {
			x := left + width*float64(tick)/6
			fmt.Fprintf(&b, `<text x="%.1f" y="%.1f" text-anchor="middle">%.3g min</text>`+"\n", x, y0+16, end*float64(tick)/6/60)
		}
		for n, l := range p.lines {
			fmt.Fprintf(&b, `<path fill="none" stroke="%s" stroke-width="1.2" d="`, l.colour)
			for j, s := range all {
				command := 'L'
				if j == 0 {
					command = 'M'
				}
				fmt.Fprintf(&b, "%c%.1f %.1f", command, left+width*s.at.Seconds()/end, y0-height*l.of(s)/highest)
			}
			fmt.Fprintf(&b, `"/><text x="%d" y="%.0f" fill="%s">%s</text>`+"\n", left+220+160*n, y0-height-8, l.colour, l.name)
		}
	}
	b.WriteString("</svg>\n")
	return b.String()
}
