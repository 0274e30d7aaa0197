package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

// logComparison is the outcome with -o json, after those of verifying both.
type logComparison struct {
	Dir         string          `json:"dir"`
	Other       string          `json:"other"`
	Equal       bool            `json:"equal"`
	First       uint64          `json:"first"` // of the entries that both have
	Last        uint64          `json:"last"`
	Entries     uint64          `json:"entries"`
	Bytes       int64           `json:"bytes"` // compared in each
	DirLast     uint64          `json:"dir_last"`
	OtherLast   uint64          `json:"other_last"`
	Differences []logDifference `json:"differences"` // at most 100
}

type logDifference struct {
	Segment uint64 `json:"segment"`
	Byte    int64  `json:"byte"`
	Entry   uint64 `json:"entry"` // 0 when there is none
	What    string `json:"what"`  // of DIR as the first, OTHER as the second log
}

func (logVerifyCmd) Help() string {
	return `With --compare, what both logs have is compared: a log's beginning may have been dropped further than the other's.
The files of a segment are the same on both nodes of a pair, to the byte. Nodes may be running on the directories:
then one of them may be some entries ahead, so stop the writers first. After a crash or a failover, a tail that was never
acknowledged may differ until the nodes have met.`
}

// compare verifies two data directories and compares their logs. What damage there is does not keep it from
// comparing: the comparison tells which of the two is good there.
func (c *logVerifyCmd) compare(ctx context.Context, g *Global, std streams) error {
	dirs := [2]string{c.Dir, c.Compare}
	var (
		files    [2]vfs.FS
		outcomes [2]verification
		damage   []error
	)
	for i, dir := range dirs {
		fsys, err := vfs.Open(dir)
		if err != nil {
			return err
		}
		defer fsys.Close()
		l, err := lookTwice(ctx, fsys)
		if err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
		files[i], outcomes[i] = fsys, l.outcome(dir)
		if err := l.report(std.err, dir+": ", &outcomes[i]); err != nil {
			damage = append(damage, err)
		}
	}
	found, err := compareTwice(ctx, files[0], files[1])
	if err != nil {
		return joinLine(append(damage, fmt.Errorf("compare: %w", err)))
	}
	out := c.outcome(&found)
	if err := writeComparison(std.out, g.Output, &outcomes, &out); err != nil {
		return err
	}
	if err := out.judge(); err != nil {
		damage = append(damage, err)
	}
	if len(damage) > 0 {
		return joinLine(damage)
	}
	fmt.Fprintf(std.err, "mq: the logs are the same: %s\n", out.common())
	return nil
}

// joinLine makes one error of one line of several.
func joinLine(errs []error) error {
	all := errs[0]
	for _, err := range errs[1:] {
		all = fmt.Errorf("%w; %w", all, err)
	}
	return all
}

// compareTwice compares once, and where something differs once more. Running nodes write and drop segments while we
// read: what differs only once was such a change.
func compareTwice(ctx context.Context, a, b vfs.FS) (wal.Comparison, error) {
	var before *wal.Comparison
	for looks := 1; ; looks++ {
		if ctx.Err() != nil {
			return wal.Comparison{}, errInterrupted
		}
		c, err := wal.Compare(a, logFolder, b, logFolder)
		switch {
		case errors.Is(err, fs.ErrNotExist) && looks < looksMax: // a segment was dropped before it was read
			continue
		case err != nil || c.Equal():
			return c, err
		case before == nil:
			before = &c
			continue
		}
		c.Differences = slices.DeleteFunc(c.Differences, func(d wal.Difference) bool {
			return !slices.ContainsFunc(before.Differences, func(e wal.Difference) bool { return e.Segment == d.Segment && e.Offset == d.Offset })
		})
		return c, nil
	}
}

func (c *logVerifyCmd) outcome(found *wal.Comparison) logComparison {
	out := logComparison{
		Dir: c.Dir, Other: c.Compare, Equal: found.Equal(), First: uint64(found.First), Last: uint64(found.Last), Bytes: found.Bytes,
		DirLast: uint64(found.LastA), OtherLast: uint64(found.LastB), Differences: []logDifference{},
	}
	if found.Last >= found.First {
		out.Entries = uint64(found.Last-found.First) + 1
	}
	for _, d := range found.Differences {
		out.Differences = append(out.Differences, logDifference{uint64(d.Segment), d.Offset, uint64(d.Index), d.What})
	}
	return out
}

// common says what both logs have.
func (c *logComparison) common() string {
	if c.Entries == 0 {
		return "no entry is in both"
	}
	return fmt.Sprintf("entries %d to %d, %d bytes", c.First, c.Last, c.Bytes)
}

// judge returns in one line in what the logs are not the same.
func (c *logComparison) judge() error {
	longer, entries := c.Dir, c.DirLast-c.OtherLast
	if c.OtherLast > c.DirLast {
		longer, entries = c.Other, c.OtherLast-c.DirLast
	}
	ends := ""
	if entries > 0 {
		ends = fmt.Sprintf("%s is longer by %s (%s ends with %d, %s with %d)",
			longer, plural(entries, "entry", "entries"), c.Dir, c.DirLast, c.Other, c.OtherLast)
	}
	switch {
	case c.Equal:
		return nil
	case len(c.Differences) == 0 && c.Entries == 0:
		return fmt.Errorf("the logs have no entry in common: %s", ends)
	case len(c.Differences) == 0:
		return fmt.Errorf("the logs are the same in %s, but %s: a running node may be ahead, and after a crash a tail that was never "+
			"acknowledged may differ until the nodes have met", c.common(), ends)
	}
	first := c.Differences[0]
	text := fmt.Sprintf("the logs differ in %s, first in segment %020d at byte %d", count(uint64(len(c.Differences)), "place"), first.Segment, first.Byte)
	if first.Entry > 0 {
		text += fmt.Sprintf(" (entry %d)", first.Entry)
	}
	if ends != "" {
		text += ", and " + ends
	}
	return errors.New(text)
}

// plural writes a number with a noun that does not just take an s.
func plural(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatUint(n, 10) + " " + many
}

func writeComparison(w io.Writer, output string, of *[2]verification, c *logComparison) error {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	rows := [][]string{}
	for i, name := range []string{"first", "second"} {
		bytes := int64(0)
		for _, s := range of[i].Segments {
			bytes += s.Bytes
		}
		rows = append(rows, []string{name, number(of[i].First), number(of[i].Last), strconv.FormatInt(bytes, 10), of[i].Dir})
	}
	rows = append(rows, []string{"compared", number(c.First), number(c.Last), strconv.FormatInt(c.Bytes, 10), ""})
	if err := writeRows(w, output, []string{"LOG", "FIRST", "LAST", "BYTES", "DIR"}, rows, []any{of[0], of[1], c}); err != nil {
		return err
	}
	if output == "json" || len(c.Differences) == 0 {
		return nil
	}
	rows = nil
	for _, d := range c.Differences {
		entry := "-"
		if d.Entry > 0 {
			entry = number(d.Entry)
		}
		rows = append(rows, []string{fmt.Sprintf("%020d", d.Segment), strconv.FormatInt(d.Byte, 10), entry, d.What})
	}
	return writeRows(w, output, []string{"SEGMENT", "BYTE", "ENTRY", "DIFFERENCE"}, rows, nil)
}
