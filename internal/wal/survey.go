package wal

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

// Survey is what is good, and what is not, in a log that is not open.
type Survey struct {
	// Segments are the segment files, oldest first, and in their midst what no file has.
	Segments []SegmentSurvey
	// Whole is the last entry up to which all entries beyond after, from after+1 on, are good. Without damage beyond
	// after the log ends there.
	Whole entry.Index
	// Last is the last good entry found, 0 for none. It is beyond Whole when something in between is not good.
	Last entry.Index
	// Torn says that the log ends with a torn write, which Open cuts off. It is no damage.
	Torn *Torn
	// Mark is why the file unproven.mark cannot be used, nil if it is good, or not there. Open refuses, too. Without the
	// file, which DropMark removes, recovery is stricter: a torn write may be taken for damage.
	Mark error
}

// SegmentSurvey is what is good in one segment file.
type SegmentSurvey struct {
	// First and Last are the entries that it must hold, by its name and that of the next one. How far the last file
	// reached nobody knows: its Last is the last good entry in it, at least First-1.
	First, Last entry.Index
	// Bytes is the size of the file.
	Bytes int64
	// Sealed says that another file follows.
	Sealed bool
	// Missing says that there is no such file: the one before ends cleanly, with entry First-1, and the next one begins
	// with Last+1. There may be more than one file missing. Or the one before lost its end, and has zeros there: where
	// segments begin, a peer knows.
	Missing bool
	// Good is the last entry before the first damage, First-1 if not even the first one is good. Damage to the header is
	// damage to the first one.
	Good entry.Index
	// Resume is the entry from which on all is good again, 0 if nothing good comes behind the last damage.
	Resume entry.Index
	// Damage says what is not as it was written: bytes of the header, of frames, or behind them; a file that is empty,
	// too short or too long; another log's, or another place's.
	Damage []Damage
	// Err is why the file could not be read on, for example EIO, or that its version is not known (ErrVersion).
	Err error

	bad entry.Index // the first entry beyond after that is not good; 0 when there is none
}

// Intact reports whether the file is as it was written.
func (s *SegmentSurvey) Intact() bool { return !s.Missing && len(s.Damage) == 0 && s.Err == nil }

// Intact reports whether Open would find nothing to complain of, neither beyond after nor before.
func (s *Survey) Intact() bool {
	for i := range s.Segments {
		if !s.Segments[i].Intact() {
			return false
		}
	}
	return s.Mark == nil
}

// TakeSurvey reads the log with an id in dir from end to end, also over files that cannot be read, and reports all that
// is damaged, where Open stops at the first. after is as for Open: a log that begins beyond after+1 lacks what comes
// before. It changes nothing. An error means that the folder could not be listed; one without segments, or no folder,
// is a survey without segments.
func TakeSurvey(fsys vfs.FS, dir string, id entry.LogID, after entry.Index) (Survey, error) {
	out := Survey{Whole: after}
	list, err := listSegments(fsys, dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	if err != nil {
		return Survey{}, fmt.Errorf("survey the log in %s: %w", dir, err)
	}
	mark, err := readMark(fsys, dir, id)
	out.Mark = err
	if len(list) == 0 {
		return out, nil
	}
	if list[0].first > after+1 {
		head := SegmentSurvey{First: after + 1, Last: list[0].first - 1, Sealed: true, Missing: true, Good: after}
		head.hit(head.First, head.Last, after)
		out.Segments = append(out.Segments, head)
	}
	r := &recovery{walker: walker{seed: seedOf(id)}, fs: fsys, id: id, segments: list, mark: mark, report: true}
	r.visit = func(e *entry.Entry, _ entry.Position) error {
		out.Last = e.Index
		return nil
	}
	for i := range list {
		out.Segments = append(out.Segments, r.survey(i, after)...)
	}
	out.Torn = r.found.Torn
	for i := range out.Segments {
		one := &out.Segments[i]
		if one.bad != 0 {
			out.Whole = one.bad - 1
			break
		}
		out.Whole = max(out.Whole, one.Last)
	}
	return out, nil
}

// survey reads segment i, and returns what it is like, and the gap behind it, if there is one.
func (r *recovery) survey(i int, after entry.Index) []SegmentSurvey {
	file := &r.segments[i]
	s := SegmentSurvey{First: file.first, Bytes: file.size, Sealed: i+1 < len(r.segments)}
	known := len(r.found.Damage)
	r.want, r.pos, r.short = file.first, headerSize, false
	s.Err = r.segment(i)
	read := r.want - 1 // the last entry that was read, good or not
	s.Last, s.Good = read, read
	if s.Sealed {
		s.Last = r.segments[i+1].first - 1
	}
	if s.Err != nil {
		r.chained = false
		s.hit(read+1, max(read+1, s.Last), after)
	}
	s.Damage = r.found.Damage[known:len(r.found.Damage):len(r.found.Damage)]
	for k, d := range s.Damage {
		if d.First == 0 {
			continue // no entry
		}
		if k+1 == len(s.Damage) && r.gap(i, d, s) {
			gap := SegmentSurvey{First: d.First, Last: d.Last, Sealed: true, Missing: true, Good: d.First - 1}
			gap.hit(d.First, d.Last, after)
			s.Good, s.Last, s.Damage = min(s.Good, d.First-1), d.First-1, s.Damage[:k]
			return []SegmentSurvey{s, gap}
		}
		s.hit(d.First, max(d.First, d.Last), after)
		if s.Resume = d.Last + 1; d.Last >= read || s.Err != nil {
			s.Resume = 0
		}
	}
	return []SegmentSurvey{s}
}

// hit notes that the entries from first to last are not good.
func (s *SegmentSurvey) hit(first, last, after entry.Index) {
	s.Good = min(s.Good, first-1)
	if last > after && (s.bad == 0 || first < s.bad) {
		s.bad = max(first, after+1)
	}
}

// gap reports whether damage d, the last one in segment i, may be that a file is missing behind it.
func (r *recovery) gap(i int, d Damage, s SegmentSurvey) bool {
	if !s.Sealed || s.Err != nil || r.short || d.Last != s.Last || d.First <= s.First {
		return false
	}
	f, err := r.fs.OpenRead(r.segments[i].path)
	if err != nil {
		return false
	}
	defer closeFile(f)
	rest := source{file: f, size: s.Bytes}
	clean, err := rest.zero(d.Offset, s.Bytes)
	return err == nil && clean
}

// DropMark removes the file unproven.mark, which may be damaged, from the folder of a log that is not open.
func DropMark(fsys vfs.FS, dir string) error {
	err := fsys.Remove(path.Join(dir, markName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = fsys.SyncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", markName, err)
	}
	return nil
}
