package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs"
)

type logCutCmd struct {
	Dir     string  `arg:"" help:"Data directory of a standalone broker that does not run."`
	After   *uint64 `xor:"where" required:"" placeholder:"INDEX" help:"The last entry that stays; 0 for none."`
	Damaged bool    `xor:"where" required:"" help:"Cut right before the first damage that keeps the broker from starting."`
	Yes     bool    `help:"Do it. Without this only what would go is printed, and the command fails."`
}

func (logCutCmd) Help() string {
	return `Cuts the end off a log, with all that was acknowledged there. It is the last resort for a log that is damaged so that
the broker does not start, when no backup has what is lost. First it prints what goes: topics with their records, groups,
request ids, files.

Nothing is destroyed. Each file that goes stays under another name, which ends in .cut-1, .cut-2 and so on, and what can be
read of it is in a file in the folder cut, a line for each record, as for 'mq pub --jsonl FILE --base64'.

Offsets that were cut off are not given out again: at the next start all topics go on at the next multiple of
1000000000000, and a client that asks for an offset that was cut off gets 410 offset_gone.`
}

// cutOutcome is what is cut, with -o json.
type cutOutcome struct {
	Dir       string     `json:"dir"`
	After     uint64     `json:"after"`
	Done      bool       `json:"done"`
	Entries   uint64     `json:"entries"` // that can be read
	Last      uint64     `json:"last"`
	Damage    []problem  `json:"damage"`
	Files     []cutFile  `json:"files"`
	SideFile  string     `json:"side_file,omitempty"`
	Topics    []cutTopic `json:"topics"`
	Groups    []cutGroup `json:"groups"`
	Settings  bool       `json:"settings"`
	Unchanged bool       `json:"nothing_to_cut"`
}

type cutFile struct {
	File  string `json:"file"`
	Aside string `json:"aside,omitempty"`
	From  int64  `json:"from"`
	Bytes int64  `json:"bytes"`
}

type cutTopic struct {
	Topic      string    `json:"topic"`
	Records    []offsets `json:"records"`
	Older      []offsets `json:"older_records"`
	RequestIDs []string  `json:"request_ids"`
	StartWas   *uint64   `json:"start_was,omitempty"`
	Start      *uint64   `json:"start,omitempty"`
	Deleted    bool      `json:"comes_back"`
	Configured bool      `json:"settings_go_back"`
}

// offsets are those from First to Last.
type offsets struct {
	First uint64 `json:"first_offset"`
	Last  uint64 `json:"last_offset"`
}

type cutGroup struct {
	Topic string  `json:"topic"`
	Group string  `json:"group"`
	Was   *uint64 `json:"next_offset_was"` // null if it was deleted
	Next  *uint64 `json:"next_offset"`     // null if there is none any more
}

func (c *logCutCmd) Run(ctx context.Context, g *Global, std streams) error {
	if c.Dir == "" {
		return usagef("log cut: DIR is empty: name the data directory")
	}
	fsys, err := vfs.Open(c.Dir)
	if err != nil {
		return err
	}
	defer fsys.Close()
	cutter, err := node.NewCutter(fsys)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Dir, err)
	}
	defer cutter.Close()
	if after, begun := cutter.Unfinished(); begun {
		return c.finish(cutter, after, std)
	}
	after, found, err := c.where(cutter)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Dir, err)
	}
	if !found {
		fmt.Fprintf(std.err, "mq: nothing keeps the broker from starting: nothing to cut\n")
		return nil
	}
	plan, err := cutter.Plan(after)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Dir, err)
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	out := outcomeOf(c.Dir, plan)
	if c.Yes && !out.Unchanged {
		if err := cutter.Do(plan); err != nil {
			return fmt.Errorf("%s: %w; run the command again to finish the cut", c.Dir, err)
		}
		out.Done = true
	}
	if err := out.write(std.out, g.Output); err != nil {
		return err
	}
	switch {
	case out.Unchanged:
		fmt.Fprintf(std.err, "mq: the log ends with entry %d: nothing to cut\n", after)
	case out.Done:
		fmt.Fprintf(std.err, "mq: the log of %s ends with entry %d now; all topics go on at a new offset after the next start\n", c.Dir, after)
	default:
		return fmt.Errorf("nothing was changed: say --yes to cut all of this off")
	}
	return nil
}

// where finds the last entry that stays.
func (c *logCutCmd) where(cutter *node.Cutter) (after entry.Index, found bool, err error) {
	if c.Damaged {
		return cutter.DamagedStart()
	}
	return entry.Index(*c.After), true, nil
}

// finish goes on with a cut that was interrupted.
func (c *logCutCmd) finish(cutter *node.Cutter, after entry.Index, std streams) error {
	if c.After != nil && *c.After != uint64(after) {
		return fmt.Errorf("%s: a cut after entry %d was begun and not finished: say --after %d --yes to finish it", c.Dir, after, after)
	}
	if !c.Yes {
		return fmt.Errorf("%s: a cut after entry %d was begun and not finished, and the broker does not start before it is: say --yes", c.Dir, after)
	}
	if err := cutter.Finish(); err != nil {
		return fmt.Errorf("%s: %w; run the command again to finish the cut", c.Dir, err)
	}
	fmt.Fprintf(std.err, "mq: the cut that was begun is finished: the log of %s ends with entry %d now\n", c.Dir, after)
	return nil
}

func outcomeOf(dir string, p *node.CutPlan) *cutOutcome {
	out := &cutOutcome{
		Dir: dir, After: uint64(p.After), Entries: p.Entries, Last: uint64(p.Last), Settings: p.Settings, Unchanged: p.Nothing(),
		Damage: []problem{}, Files: []cutFile{}, Topics: []cutTopic{}, Groups: []cutGroup{},
	}
	if p.Entries > 0 {
		out.SideFile = p.SideFile()
	}
	for _, d := range p.Damage {
		out.Damage = append(out.Damage, problem{Place: placeOf(d), Reason: d.Reason})
	}
	for _, f := range p.Files {
		out.Files = append(out.Files, cutFile{f.Name, f.Aside, f.From, f.Bytes})
	}
	for _, t := range p.Topics {
		one := cutTopic{
			Topic: t.Topic, Records: offsetsOf(t.Records), Older: offsetsOf(t.Older), RequestIDs: append([]string{}, t.RequestIDs...),
			Deleted: t.Deleted, Configured: t.Configured,
		}
		if t.StartWas > t.Back {
			one.StartWas, one.Start = (*uint64)(&t.StartWas), (*uint64)(&t.Back)
		}
		out.Topics = append(out.Topics, one)
	}
	for _, p := range p.Groups {
		one := cutGroup{Topic: p.Topic, Group: p.Group}
		if !p.Deleted {
			one.Was = (*uint64)(&p.Was)
		}
		if p.Known {
			one.Next = (*uint64)(&p.Next)
		}
		out.Groups = append(out.Groups, one)
	}
	return out
}

func offsetsOf(spans node.Spans) []offsets {
	out := []offsets{}
	for _, s := range spans {
		out = append(out, offsets{uint64(s.From), uint64(s.To - 1)})
	}
	return out
}

// spansText says which offsets there are: "5 to 7, 9".
func spansText(list []offsets) string {
	var parts []string
	for _, o := range list {
		if o.First == o.Last {
			parts = append(parts, number(o.First))
		} else {
			parts = append(parts, fmt.Sprintf("%d to %d", o.First, o.Last))
		}
	}
	return strings.Join(parts, ", ")
}

// recordsText is spansText with the noun.
func recordsText(list []offsets) string {
	if len(list) == 1 && list[0].First == list[0].Last {
		return "record " + spansText(list)
	}
	return "records " + spansText(list)
}

// write prints what goes.
func (out *cutOutcome) write(w io.Writer, format string) error {
	if format == "json" {
		return writeJSON(w, out)
	}
	var rows [][]string
	row := func(what, name, text string, args ...any) {
		rows = append(rows, []string{what, name, fmt.Sprintf(text, args...)})
	}
	for _, t := range out.Topics {
		if len(t.Records) > 0 {
			row("topic", visible(t.Topic), "loses %s, and %s", recordsText(t.Records), count(uint64(len(t.RequestIDs)), "request id"))
		}
		if len(t.Older) > 0 {
			row("topic", visible(t.Topic), "loses the older %s: nothing before the cut holds them any more", recordsText(t.Older))
		}
		if t.StartWas != nil {
			row("topic", visible(t.Topic), "its start goes back from %d to %d", *t.StartWas, *t.Start)
		}
		if t.Deleted {
			row("topic", visible(t.Topic), "was deleted, and comes back")
		}
		if t.Configured {
			row("topic", visible(t.Topic), "its settings go back to what they were")
		}
	}
	for _, g := range out.Groups {
		was, next := "deleted", "gone"
		if g.Was != nil {
			was = number(*g.Was)
		}
		if g.Next != nil {
			next = number(*g.Next)
		}
		row("group", visible(g.Group), "of topic %s goes back from %s to %s", visible(g.Topic), was, next)
	}
	if out.Settings {
		row("settings", "", "the window of request ids goes back to what it was")
	}
	for _, d := range out.Damage {
		row("damage", d.Place, "%s", d.Reason)
	}
	for _, f := range out.Files {
		switch {
		case f.Aside == "":
			row("file", f.File, "is removed, and made again")
		case f.From > 0:
			row("file", f.File, "ends at byte %d; all of it stays as %s", f.From, f.Aside)
		default:
			row("file", f.File, "becomes %s", f.Aside)
		}
	}
	if out.SideFile != "" {
		row("file", out.SideFile, "gets the %s that can be read, of %d to %d", countOf(out.Entries, "entry", "entries"), out.After+1, out.Last)
	}
	return writeRows(w, format, []string{"WHAT", "NAME", "CHANGE"}, rows, nil)
}

func countOf(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
