// Package snapshot keeps the state at an index in a file, so that a start need not read all of the log.
//
// A file is written whole and appears under its name atomically; each of its bytes is covered by a checksum.
// A snapshot that is damaged is reported and the one before it is used; none is ever deleted because it is
// bad. It starts no goroutine.
//
// Format: docs/format/snapshot.md. It is not on the way of a publish: a goroutine of package node writes
// snapshots, from a state.Frozen, while publishes go on.
package snapshot

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
)

const (
	suffix    = ".snap"
	tmpSuffix = ".tmp"
	digits    = 20 // as many as the highest index has, so that names sort like indexes
)

func fileName(index entry.Index) string { return fmt.Sprintf("%0*d%s", digits, index, suffix) }

// parseName returns the index that a name says, and false for names that this package does not give.
func parseName(name string) (entry.Index, bool) {
	number, ok := strings.CutSuffix(name, suffix)
	if !ok || len(number) != digits {
		return 0, false
	}
	index, err := strconv.ParseUint(number, 10, 64)
	return entry.Index(index), err == nil && fileName(entry.Index(index)) == name
}

// Bad is a snapshot that cannot be used.
type Bad struct {
	Name string // of the file, with its folder
	Err  error
}

// Load returns the state in the newest good snapshot of a folder, and the newer ones, which are bad. Without
// a good one, it returns the state before the first entry and Index 0: whether the log reaches back so far
// is for the caller to see. It changes nothing. An error means that the folder could not be listed.
func Load(fsys vfs.FS, dir string, id entry.LogID) (*state.State, Info, []Bad, error) {
	names, err := list(fsys, dir)
	if err != nil {
		return nil, Info{}, nil, fmt.Errorf("load snapshot: %w", err)
	}
	var bad []Bad
	for _, name := range names {
		s, info, err := load(fsys, dir, name, id)
		if err == nil {
			return s, info, bad, nil
		}
		bad = append(bad, Bad{Name: path.Join(dir, name), Err: err})
	}
	return state.New(), Info{}, bad, nil
}

// List returns the good snapshots of a folder, newest first, and the bad ones. It reads all of each file,
// and changes nothing.
func List(fsys vfs.FS, dir string, id entry.LogID) ([]Info, []Bad, error) {
	names, err := list(fsys, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list snapshots: %w", err)
	}
	var good []Info
	var bad []Bad
	for _, name := range names {
		if info, err := check(fsys, dir, name, id); err != nil {
			bad = append(bad, Bad{Name: path.Join(dir, name), Err: err})
		} else {
			good = append(good, info)
		}
	}
	return good, bad, nil
}

// File is a snapshot as its folder lists it.
type File struct {
	Index entry.Index // of the last entry that it covers, as its name says
	Bytes int64       // its size
}

// Files returns the snapshots of a folder, newest first, good and bad ones alike: it reads none of them, see Verify.
func Files(fsys vfs.FS, dir string) ([]File, error) {
	names, err := list(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	files := make([]File, len(names))
	for i, name := range names {
		files[i].Index, _ = parseName(name)
		if files[i].Bytes, err = fsys.Size(path.Join(dir, name)); err != nil {
			return nil, fmt.Errorf("list snapshots: %w", err)
		}
	}
	return files, nil
}

// Verify reads all of the snapshot at an index and checks every byte of it. An error wraps ErrCorrupt, ErrVersion,
// fs.ErrNotExist, or is one of reading. It changes nothing.
func Verify(fsys vfs.FS, dir string, id entry.LogID, index entry.Index) (Info, error) {
	info, err := check(fsys, dir, fileName(index), id)
	if err != nil {
		return Info{}, fmt.Errorf("verify snapshot %s: %w", fileName(index), err)
	}
	return info, nil
}

// Prune removes temporary files that crashes left behind, and snapshots older than the newest good ones, of
// which it keeps so many (at least one) and returns them, newest first. The log must keep the entries behind
// the last of them. Bad snapshots do not count, and those newer than the last that is kept stay, for the
// operator to look at. One Write or Prune runs at a time.
func Prune(fsys vfs.FS, dir string, id entry.LogID, keep int) ([]Info, error) {
	fail := func(err error) ([]Info, error) { return nil, fmt.Errorf("prune snapshots: %w", err) }
	all, err := fsys.List(dir)
	if err != nil {
		return fail(err)
	}
	removed := false
	remove := func(name string) error {
		removed = true
		return fsys.Remove(path.Join(dir, name))
	}
	for _, name := range all {
		if final, ok := strings.CutSuffix(name, tmpSuffix); ok {
			if _, ours := parseName(final); ours {
				if err := remove(name); err != nil {
					return fail(err)
				}
			}
		}
	}
	names, err := list(fsys, dir)
	if err != nil {
		return fail(err)
	}
	var kept []Info
	for _, name := range names {
		if len(kept) >= max(keep, 1) {
			if err := remove(name); err != nil {
				return fail(err)
			}
		} else if info, err := check(fsys, dir, name, id); err == nil {
			kept = append(kept, info)
		}
	}
	if removed {
		if err := fsys.SyncDir(dir); err != nil {
			return fail(err)
		}
	}
	return kept, nil
}

// list returns the names of the snapshots in a folder, newest first.
func list(fsys vfs.FS, dir string) ([]string, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, ok := parseName(name)
		return !ok
	})
	slices.Sort(names)
	slices.Reverse(names)
	return names, nil
}

// load reads and restores a snapshot.
func load(fsys vfs.FS, dir, name string, id entry.LogID) (s *state.State, info Info, err error) {
	info, err = read(fsys, dir, name, id, func(body io.Reader) error {
		s, err = state.Restore(body)
		return err
	})
	if err == nil && (s.Applied() != info.Index || s.Term() != info.Term || s.TimeMS() != info.TimeMS) {
		err = fmt.Errorf("%w: header and state are of different entries", ErrCorrupt)
	}
	if err != nil {
		return nil, Info{}, err
	}
	return s, info, nil
}

// check reads a snapshot and verifies its checksums.
func check(fsys vfs.FS, dir, name string, id entry.LogID) (Info, error) {
	return checkAs(fsys, dir, name, name, id)
}

// checkAs is check for a file that has, or will have, another name.
func checkAs(fsys vfs.FS, dir, file, name string, id entry.LogID) (Info, error) {
	return readAs(fsys, dir, file, name, id, func(body io.Reader) error {
		_, err := io.Copy(io.Discard, body)
		return err
	})
}

// read opens a snapshot, checks its header and hands its body to use, which must read it to io.EOF.
func read(fsys vfs.FS, dir, name string, id entry.LogID, use func(body io.Reader) error) (Info, error) {
	return readAs(fsys, dir, name, name, id, use)
}

// readAs is read for a file that has, or will have, another name.
func readAs(fsys vfs.FS, dir, from, name string, id entry.LogID, use func(body io.Reader) error) (Info, error) {
	file, err := fsys.OpenRead(path.Join(dir, from))
	if err != nil {
		return Info{}, err
	}
	defer file.Close()
	size, err := file.Size()
	if err != nil {
		return Info{}, err
	}
	body := &bodyReader{
		r:    bufio.NewReaderSize(io.NewSectionReader(file, 0, size), int(min(size, gatherBytes))),
		size: size,
	}
	var header [headerSize]byte
	if err := body.full(header[:]); err != nil {
		return Info{}, err
	}
	info, err := parseHeader(header[:], id)
	if err != nil {
		return Info{}, err
	}
	info.Name, info.Bytes = name, size
	if index, _ := parseName(name); index != info.Index {
		return Info{}, fmt.Errorf("%w: it covers entries up to %d, its name says otherwise", ErrCorrupt, info.Index)
	}
	body.before = headerSum(header[:])
	if err := use(body); err != nil {
		return Info{}, err
	}
	if body.err != io.EOF {
		return Info{}, errors.New("BUG: the body of a snapshot was not read to its end")
	}
	return info, nil
}
