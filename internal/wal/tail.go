package wal

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"example.com/mq/internal/entry"
)

// What recovery makes of the place where the expected frame does not stand. The rules, and why they are
// right: docs/format/log.md.

// sealedEnd checks what follows the last frame of a sealed segment. No entry is at stake.
func (r *recovery) sealedEnd(s *segmentFile) error {
	last, err := r.lastNonZero(r.pos)
	if err != nil {
		return err
	}
	if last >= 0 {
		return r.damage(Damage{Segment: s.first, Offset: r.pos, Reason: "the bytes after the last frame are not zero"}, 0)
	}
	if r.short {
		return r.damage(Damage{Segment: s.first, Offset: s.size, Reason: "the unused end of the file is cut off"}, 0)
	}
	return nil
}

// resync goes on at the next valid frame below limit, or at limit. Everything before it is lost.
func (r *recovery) resync(s *segmentFile, limit entry.Index, reason string) (bool, error) {
	var next frame
	want := r.want
	at, err := r.find(s, r.size, func(index, _ entry.Index) bool { return index > want && (index < limit || limit == 0) }, &next)
	if err != nil {
		return false, err
	}
	if at < 0 {
		if err := r.lost(s, limit-1, reason); err != nil {
			return false, err
		}
		r.want, r.chained = limit, false
		return false, nil
	}
	if err := r.lost(s, next.Index-1, reason); err != nil {
		return false, err
	}
	r.pos, r.want, r.chained = at, next.Index, false
	return true, nil
}

// find is search from r.pos on, with errors that name the place.
func (r *recovery) find(s *segmentFile, to int64, accept func(index, commit entry.Index) bool, f *frame) (int64, error) {
	at, err := r.search(r.seed, r.pos, to, accept, f)
	if c := (*CorruptionError)(nil); errors.As(err, &c) {
		c.Segment, c.Index = s.first, max(r.want, r.after+1)
	}
	return at, err
}

// coveredEnd decides what it means that in the last segment an entry is missing which the snapshot proves
// to have existed. That is damage, which is tolerated if nothing beyond the snapshot can be lost with it.
func (r *recovery) coveredEnd(s *segmentFile) (bool, error) {
	last, err := r.lastNonZero(r.pos)
	if err != nil {
		return false, err
	}
	var next frame
	want := r.want
	at, err := r.find(s, last+1, func(index, _ entry.Index) bool { return index > want }, &next)
	if err != nil {
		return false, err
	}
	if at >= 0 {
		if err := r.lost(s, next.Index-1, r.why); err != nil {
			return false, err
		}
		r.pos, r.want, r.chained = at, next.Index, false
		return true, nil
	}
	// No good frame follows. If this is the frame of the very entry at which the snapshot was taken, and
	// nothing but zeros comes after it, then it was the last. Otherwise there is no telling what is lost.
	length, index, err := r.headerAt(r.pos)
	if err != nil {
		return false, err
	}
	if r.short || r.proven > r.after || index != r.after || r.want != r.after || last < 0 || last >= r.pos+int64(frameSize(length)) {
		return false, &CorruptionError{Segment: s.first, Offset: r.pos, Index: r.after + 1,
			Reason: fmt.Sprintf("entry %d is missing: %s; the snapshot covers entry %d, but the log may have held more",
				r.want, r.why, r.after)}
	}
	if err := r.lost(s, r.want, r.why); err != nil {
		return false, err
	}
	r.want, r.chained = r.after+1, false
	r.tail = tail{pos: s.size, broken: true}
	return false, nil
}

// headerAt returns what the frame header at off claims, without any check of it. It returns zeros when
// there is no room for a header.
func (r *recovery) headerAt(off int64) (length int, index entry.Index, err error) {
	if r.size-off < frameHeader {
		return 0, 0, nil
	}
	b, err := r.at(off, frameHeader)
	if err != nil {
		return 0, 0, err
	}
	return int(binary.LittleEndian.Uint32(b[4:])), entry.Index(binary.LittleEndian.Uint64(b[8:])), nil
}

// lastEnd decides whether the last segment ends cleanly, with a torn tail, or with damage.
// docs/format/log.md tells the rules, and why they are right.
func (r *recovery) lastEnd(s *segmentFile) (bool, error) {
	r.tail = tail{pos: r.pos}
	last, err := r.lastNonZero(r.pos)
	if err != nil {
		return false, err
	}
	if r.short {
		return false, r.lost(s, r.want, "the file is shorter than it was made")
	}
	if r.want <= r.proven {
		return r.brokenAt(s, last, fmt.Sprintf("%s, and entry %d was durable before", r.why, r.proven))
	}
	if last < 0 {
		return false, nil
	}
	var later frame
	want := r.want
	at, err := r.find(s, last+1, func(index, commit entry.Index) bool { return index > want && r.mark.proves(commit) >= want }, &later)
	if err != nil {
		return false, err
	}
	if at >= 0 {
		return r.brokenAt(s, last, fmt.Sprintf("%s, and entry %d, written later, proves that it was acknowledged", r.why, later.Index))
	}
	torn, err := r.torn(last)
	if err != nil {
		return false, err
	}
	if !torn {
		return r.brokenAt(s, last, r.why+", and no lost write explains it")
	}
	r.found.Torn = &Torn{Segment: s.first, Offset: r.pos, Bytes: last + 1 - r.pos, Index: r.want}
	return false, nil
}

// brokenAt handles damage at r.pos in the last segment, beyond what a snapshot covers: it is an error,
// unless everything is to be reported.
func (r *recovery) brokenAt(s *segmentFile, last int64, reason string) (bool, error) {
	if !r.report {
		return false, r.lost(s, r.want, reason)
	}
	var next frame
	want := r.want
	at, err := r.find(s, last+1, func(index, _ entry.Index) bool { return index > want }, &next)
	if err != nil {
		return false, err
	}
	if at < 0 {
		return false, r.lost(s, r.want, reason)
	}
	if err := r.lost(s, next.Index-1, reason); err != nil {
		return false, err
	}
	r.pos, r.want, r.chained = at, next.Index, false
	return true, nil
}

// torn reports whether the bytes at r.pos are what lost sectors leave of a frame. last is the last byte of
// the file that is not zero.
//
// A sector that was lost reads as it was before the write: zero from the beginning of the frame, or of the
// sector, to the end of the sector.
func (r *recovery) torn(last int64) (bool, error) {
	var f frame
	what, err := r.frameAt(r.seed, r.pos, &f)
	if err != nil || what == frameOK { // it is whole, but does not belong here
		return false, err
	}
	sector := r.pos&^(sectorSize-1) + sectorSize
	if zero, err := r.zero(r.pos, sector); err != nil || zero {
		return zero, err
	}
	// The sector with the length was written.
	length, _, err := r.headerAt(r.pos)
	if err != nil || length > PayloadMax || r.pos+int64(frameSize(length)) > r.size {
		return false, err
	}
	if flipped, err := r.lengthFlipped(length); err != nil || flipped {
		return false, err
	}
	end := r.pos + frameHeader + int64(length)
	for ; sector < end; sector += sectorSize {
		if zero, err := r.zero(sector, sector+sectorSize); err != nil || zero {
			return zero, err
		}
	}
	// A write may also have stopped at any byte.
	return last+1 < end, nil
}

// lengthFlipped reports whether the frame at r.pos is whole but for one flipped bit of its length. Such a
// frame claims to reach into sectors that were never written, and would look torn, though it is damaged.
func (r *recovery) lengthFlipped(length int) (bool, error) {
	for bit := 1; bit <= PayloadMax; bit <<= 1 {
		was := length ^ bit
		if was > PayloadMax || r.pos+int64(frameSize(was)) > r.size {
			continue
		}
		b, err := r.at(r.pos, frameHeader+was)
		if err != nil {
			return false, err
		}
		crc := crc32.Update(r.seed, castagnoli, binary.LittleEndian.AppendUint32(nil, uint32(was)))
		if crc32.Update(crc, castagnoli, b[8:frameHeader+was]) == binary.LittleEndian.Uint32(b) {
			return true, nil
		}
	}
	return false, nil
}
