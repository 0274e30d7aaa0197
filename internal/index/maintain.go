package index

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/invariant"
	"example.com/mq/internal/vfs"
)

const (
	suffix = ".idx"
	// meetMax is how many topics of another segment are passed over to find one.
	meetMax = 8
	tmpName = "index.tmp" // an index file while it is written; only Flush makes one, and one at a time
)

// FileName returns the name of the index file of a segment, without the folder.
func FileName(segment entry.Index) string { return fmt.Sprintf("%020d%s", uint64(segment), suffix) }

// Load reads the directory of a sealed segment's index file. On error, which is a *SegmentError, nothing has
// changed, and the caller lets Rebuild make the index from the segment. A segment that is known already, by
// Add for instance, is left as it is. Records that are in a later segment, too, stay that one's.
//
// Load and Rebuild are meant for the start, oldest segment first: they hold publishers up.
func (x *Index) Load(number entry.Index) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	if x.known(number) {
		return nil
	}
	topics, err := x.readDirectory(number)
	if err != nil {
		return &SegmentError{Segment: number, Err: err}
	}
	x.install(&segment{number: number, saved: true}, topics)
	return nil
}

// Rebuild makes the index of a sealed segment from the frames that scan finds in it and passes to add in
// order of the log; whatever was known of the segment is replaced, as after Load. The next Flush writes its file.
//
// A record that the segment has lost since is not looked for in earlier ones: they have it again after a start,
// if they are still there.
func (x *Index) Rebuild(number entry.Index, scan func(add func(topic string, first fact.Offset, count int, p entry.Position)) error) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	if x.isActive(number) {
		return fmt.Errorf("rebuild index of segment %d: it is the active segment", number)
	}
	s := &segment{number: number}
	found := make(map[string]*topic)
	err := scan(func(name string, first fact.Offset, count int, p entry.Position) {
		t := found[name]
		if t == nil {
			t = &topic{name: name}
			found[name] = t
		}
		if p.Segment != number {
			invariant.Check(false, "index: a frame of segment %d in the scan of segment %d", p.Segment, number)
		}
		t.add(s, first, count, p)
	})
	if err != nil {
		return fmt.Errorf("rebuild index of segment %d: %w", number, err)
	}
	topics := make([]listed, len(s.topics))
	for i, t := range s.topics {
		topics[i] = listed{name: []byte(t.name), places: t.places}
	}
	x.install(s, topics)
	x.cache.dropSegments(func(n entry.Index) bool { return n == number })
	return nil
}

// Flush writes the index files of all sealed segments that have none yet and then frees their runs. After an
// error, a full disk for instance, the runs stay in memory and the next Flush tries again: an index file is
// derived, so unlike the log's own files a failed sync says nothing about what was acknowledged.
func (x *Index) Flush() error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	for _, s := range x.unsaved() {
		blocks, err := x.writeFile(s)
		if err != nil {
			return fmt.Errorf("write index of segment %d: %w", s.number, err)
		}
		x.moveToFile(s, blocks)
	}
	return nil
}

// Drop forgets all segments before the given one and removes their index files, left-over ones included. The
// active segment is never forgotten. After an error the files that are left are removed by the next Drop.
func (x *Index) Drop(before entry.Index) error {
	x.maintenance.Lock()
	defer x.maintenance.Unlock()
	x.forget(before)
	if err := x.removeFiles(before); err != nil {
		return fmt.Errorf("remove index files before segment %d: %w", before, err)
	}
	return nil
}

func (x *Index) known(number entry.Index) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	_, ok := searchSegment(x.segments, number)
	return ok || number < x.oldest
}

func (x *Index) isActive(number entry.Index) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.active != nil && x.active.number == number
}

func (x *Index) unsaved() []*segment {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var list []*segment
	for _, s := range x.segments {
		if !s.saved && s != x.active {
			list = append(list, s)
		}
	}
	return list
}

// install makes a segment known with the places of its topics, in their order, instead of what was known of it.
// It changes nothing when the segment was dropped meanwhile.
func (x *Index) install(s *segment, topics []listed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s.number < x.oldest {
		return
	}
	if x.active != nil && s.number > x.active.number {
		invariant.Check(false, "index: sealed segment %d is after the active segment %d", s.number, x.active.number)
	}
	i, found := searchSegment(x.segments, s.number)
	var old []*topic
	if found {
		old = x.segments[i].topics
		x.segments[i] = s
	} else {
		x.segments = slices.Insert(x.segments, i, s)
	}
	for _, t := range old {
		t.remove(s.number)
	}
	// The segment before is likely to have the same topics, in the same order: that spares most searches by name.
	var near []*topic
	if i > 0 {
		near = x.segments[i-1].topics
	}
	s.topics = make([]*topic, len(topics))
	for i, l := range topics {
		var t *topic
		if near, t = meet(near, l.name); t == nil {
			t = x.topics[string(l.name)]
		}
		if t == nil {
			t = &topic{name: string(l.name)}
			x.topics[t.name] = t
		}
		for _, p := range l.places {
			t.put(p)
		}
		s.topics[i] = t
	}
	for _, t := range old {
		x.trim(t)
	}
}

// meet passes over the topics before a name. If the next one has the name it returns that, unless it may be one that is
// known no more: those have no places. It looks at few, since topics that came by Add are in no order.
func meet(near []*topic, name []byte) (rest []*topic, t *topic) {
	for range meetMax {
		if len(near) == 0 || near[0].name > string(name) {
			return near, nil
		}
		t, near = near[0], near[1:]
		if t.name == string(name) {
			if len(t.places) == 0 {
				t = nil
			}
			return near, t
		}
	}
	return near, nil
}

// trim lets go of a topic's places in segments that were dropped, and of the topic when it has no others.
func (x *Index) trim(t *topic) {
	// Another topic may have the name: one whose records were lost lives on in the segments that list it.
	if !t.trim(x.oldest) && x.topics[t.name] == t {
		delete(x.topics, t.name)
	}
}

// moveToFile makes the topics of a segment point to the blocks of its index file and frees its runs.
func (x *Index) moveToFile(s *segment, blocks [][]place) {
	for topics := range slices.Chunk(s.topics, lockStep) {
		x.mu.Lock()
		for _, t := range topics {
			t.moveToFile(s.number, blocks)
		}
		x.mu.Unlock()
	}
	x.mu.Lock()
	s.lists, s.saved = nil, true
	x.mu.Unlock()
}

func (x *Index) forget(before entry.Index) {
	x.mu.Lock()
	if x.active != nil {
		before = min(before, x.active.number)
	}
	x.oldest = max(x.oldest, before) // from here on Find does not see what is before
	n, _ := searchSegment(x.segments, x.oldest)
	gone := x.segments[:n]
	x.segments = slices.Clone(x.segments[n:])
	x.mu.Unlock()

	for _, s := range gone {
		for topics := range slices.Chunk(s.topics, lockStep) {
			x.mu.Lock()
			for _, t := range topics {
				x.trim(t)
			}
			x.mu.Unlock()
		}
	}
	if len(gone) > 0 {
		x.cache.dropSegments(func(n entry.Index) bool { return n < before })
	}
}

// writeFile writes the index file of a sealed segment, replacing any of its name, and returns the blocks in it of
// each of the segment's lists.
func (x *Index) writeFile(s *segment) ([][]place, error) {
	data, blocks, err := encode(identity{x.cfg.LogID, s.number}, s)
	if err != nil {
		return nil, err
	}
	tmp := path.Join(x.cfg.Dir, tmpName)
	if err := x.cfg.FS.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err = x.writeTmp(tmp, data); err == nil {
		err = x.cfg.FS.Rename(tmp, x.path(s.number))
	}
	if err != nil {
		// Free the room. When that fails too, the next Flush does it.
		_ = x.cfg.FS.Remove(tmp)
		return nil, err
	}
	return blocks, x.cfg.FS.SyncDir(x.cfg.Dir)
}

func (x *Index) writeTmp(name string, data []byte) error {
	f, err := x.cfg.FS.Create(name)
	if err != nil {
		return err
	}
	if _, err = f.WriteAt(data, 0); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// encode returns the index file of a segment, and the blocks of each of its lists in that file.
func encode(id identity, s *segment) ([]byte, [][]place, error) {
	order := make([]int, len(s.lists)) // lists by topic name, those of a topic in their order
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if s.lists[a].slot == s.lists[b].slot {
			return a - b
		}
		return strings.Compare(s.topics[s.lists[a].slot].name, s.topics[s.lists[b].slot].name)
	})

	data := make([]byte, headerSize, headerSize+64*len(order))
	blocks := make([][]place, len(order))
	directory := make([]listed, 0, len(s.topics))
	for len(order) > 0 {
		slot, n := s.lists[order[0]].slot, 1
		for n < len(order) && s.lists[order[n]].slot == slot {
			n++
		}
		l := listed{name: []byte(s.topics[slot].name)}
		for _, p := range s.parts(order[:n]) {
			all := placeOf(s.lists[p.at].runs)
			whole := all.count == p.count
			for runs := range slices.Chunk(clip(s.lists[p.at].runs, p.first, p.last()), blockRuns) {
				if int64(len(data)) > fileSizeMax-blockSizeMax {
					return nil, nil, fmt.Errorf("the segment is too large for an index file")
				}
				block := placeOf(runs)
				if !whole { // a run counts with what is left of it
					block.bytes = all.part(block.first, block.last()).bytes
				}
				block.segment, block.at = s.number, uint32(len(data))
				data = appendBlock(data, id, string(l.name), block.at, runs)
				block.size = uint32(len(data)) - block.at
				blocks[p.at] = append(blocks[p.at], block)
				l.places = append(l.places, block)
			}
		}
		directory = append(directory, l)
		order = order[n:]
	}
	h := header{topics: len(directory), dirAt: int64(len(data))}
	for _, l := range directory {
		h.blocks += len(l.places)
	}
	data = appendDirectory(data, directory)
	h.dirSize = int64(len(data)) - h.dirAt
	h.dirCRC = id.dirCRC(data[h.dirAt:])
	h.append(data[:0], id)
	return data, blocks, nil
}

// readDirectory reads the header and the directory of an index file.
func (x *Index) readDirectory(number entry.Index) ([]listed, error) {
	f, err := x.cfg.FS.OpenRead(x.path(number))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	id := identity{x.cfg.LogID, number}
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, min(size, headerSize))
	if err := readFull(f, b, 0); err != nil {
		return nil, err
	}
	h, err := decodeHeader(b, id, size)
	if err != nil {
		return nil, err
	}
	b = make([]byte, h.dirSize)
	if err := readFull(f, b, h.dirAt); err != nil {
		return nil, err
	}
	return decodeDirectory(b, id, h)
}

// block returns the runs of a block, from the cache or from the index file.
func (x *Index) block(w wanted) ([]run, error) {
	key := blockKey{w.segment, w.place.at}
	if runs := x.cache.get(key); runs != nil && hold(runs, w.place) {
		return runs, nil
	}
	f, err := x.cfg.FS.OpenRead(x.path(w.segment.number))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, w.place.size)
	if err := readFull(f, b, int64(w.place.at)); err != nil {
		return nil, err
	}
	runs, err := decodeBlock(b, identity{x.cfg.LogID, w.segment.number}, w.topic.name, w.place)
	if err != nil {
		return nil, err
	}
	x.cache.put(key, runs)
	return runs, nil
}

// readFull reads len(b) bytes; a file that is too short for that is damaged.
func readFull(f vfs.File, b []byte, at int64) error {
	n, err := f.ReadAt(b, at)
	switch {
	case n == len(b):
		return nil
	case err == nil || errors.Is(err, io.EOF):
		return corruptf("it ends at %d", at+int64(n))
	}
	return err
}

// removeFiles removes all index files of segments before the given one.
func (x *Index) removeFiles(before entry.Index) error {
	names, err := x.cfg.FS.List(x.cfg.Dir)
	if err != nil {
		return err
	}
	removed := false
	for _, name := range names {
		number, err := strconv.ParseUint(strings.TrimSuffix(name, suffix), 10, 64)
		if err != nil || name != FileName(entry.Index(number)) || entry.Index(number) >= before {
			continue
		}
		if err := x.cfg.FS.Remove(path.Join(x.cfg.Dir, name)); err != nil {
			return err
		}
		removed = true
	}
	if !removed {
		return nil
	}
	return x.cfg.FS.SyncDir(x.cfg.Dir)
}

func (x *Index) path(segment entry.Index) string { return path.Join(x.cfg.Dir, FileName(segment)) }
