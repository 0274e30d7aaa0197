package soak

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"example.com/mq/test/process"
)

// sample is how a node stood at one moment.
type sample struct {
	at         time.Duration // since the beginning
	memory     float64       // bytes, resident
	goroutines float64
	files      float64 // open
	live       float64 // bytes of keys and values that are kept
	disk       sizes
	published  float64       // records, since the start of the process
	moved      float64       // bytes of keys and values that the cleaner moved
	requestIDs float64       // remembered
	heard      [2]float64    // publishes that were done, or may have been: before the node was asked, and after it
	quiet      time.Duration // since the newest publish was sent that is acknowledged
	scrubs     float64       // when the last pass of the scrubber ended, as a Unix time; 0 for none
	damage     float64       // found by it
	p50, p99   time.Duration // of publishes since the sample before; of all nodes
}

// sizes are bytes of files.
type sizes struct{ log, indexes, snapshots, other int64 }

// take asks a node, and looks at its folder.
func take(p *process.Process, data string) (s sample, err error) {
	m, err := p.Metrics()
	if err != nil {
		return s, err
	}
	s.memory, s.goroutines, s.files = m["process_resident_memory_bytes"], m["go_goroutines"], m["process_open_fds"]
	s.live, s.published = m["mq_live_bytes"], m["mq_published_records_total"]
	s.moved, s.requestIDs = m["mq_cleaner_moved_bytes_total"], m["mq_request_ids"]
	s.scrubs, s.damage = m["mq_scrub_last_pass_timestamp_seconds"], m["mq_scrub_damage_total"]
	s.disk, err = measure(data)
	return s, err
}

// measure sums up the files of a data folder.
func measure(data string) (s sizes, err error) {
	err = filepath.WalkDir(data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		switch name := filepath.ToSlash(path); {
		case strings.HasSuffix(name, ".seg"):
			s.log += info.Size()
		case strings.HasSuffix(name, ".idx"):
			s.indexes += info.Size()
		case strings.Contains(name, "/snapshots/"):
			s.snapshots += info.Size()
		default:
			s.other += info.Size()
		}
		return nil
	})
	return s, err
}

// ignoreGone ignores that a file went away meanwhile.
func ignoreGone(err error) error {
	if err != nil && strings.Contains(err.Error(), "no such file") {
		return nil
	}
	return err
}

// part returns the samples from a share of them to another, both from 0 to 1.
func part(all []sample, from, to float64) []sample {
	n := float64(len(all))
	return all[int(n*from):int(n*to)]
}

// median returns the median of a figure.
func median(all []sample, of func(sample) float64) float64 {
	var figures []float64
	for _, s := range all {
		figures = append(figures, of(s))
	}
	if len(figures) == 0 {
		return 0
	}
	slices.Sort(figures)
	return figures[len(figures)/2]
}

// most returns the highest of a figure.
func most(all []sample, of func(sample) float64) (highest float64) {
	for _, s := range all {
		highest = max(highest, of(s))
	}
	return highest
}

// table returns the samples as a table in Markdown with so many rows: each the median of its part of the run.
func table(all []sample, rows int) string {
	var b strings.Builder
	b.WriteString("| time | published | live, MB | log, MB | indexes, KB | snapshots, MB | memory, MB | goroutines | files | request ids | p50 | p99 |\n")
	b.WriteString("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for i := range rows {
		p := part(all, float64(i)/float64(rows), float64(i+1)/float64(rows))
		if len(p) == 0 {
			continue
		}
		mb := func(of func(sample) float64) float64 { return median(p, of) / 1e6 }
		fmt.Fprintf(&b, "| %v | %.0f | %.2f | %.2f | %.1f | %.2f | %.1f | %.0f | %.0f | %.0f | %.2f ms | %.2f ms |\n",
			p[len(p)-1].at.Round(time.Second), p[len(p)-1].published, mb(live), mb(logBytes),
			median(p, func(s sample) float64 { return float64(s.disk.indexes) })/1e3,
			mb(func(s sample) float64 { return float64(s.disk.snapshots) }), mb(memory),
			median(p, func(s sample) float64 { return s.goroutines }), median(p, func(s sample) float64 { return s.files }),
			median(p, func(s sample) float64 { return s.requestIDs }),
			median(p, func(s sample) float64 { return s.p50.Seconds() * 1e3 }), median(p, p99))
	}
	return b.String()
}

func live(s sample) float64     { return s.live }
func memory(s sample) float64   { return s.memory }
func logBytes(s sample) float64 { return float64(s.disk.log) }
func p99(s sample) float64      { return s.p99.Seconds() * 1e3 }
