package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/state"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/wal"
)

const (
	restoredFile = "restored.json"
	restoredTmp  = "restored.json.tmp"
	restoredMax  = 4096 // bytes
)

// restored is the note that the log of this folder has lost its end, because it was restored from a backup or cut: clients
// may know offsets that it does not have. The next start logs that as a fact before it serves, and removes the note.
type restored struct {
	// Above is an offset that the floor must be above, beyond what the log itself tells of.
	Above fact.Offset `json:"above"`
	// Floor is what the fact will say; 0 until it is decided. It is decided once, so that a start that is cut short and
	// begun again logs one fact.
	Floor fact.Offset `json:"floor"`
	Check string      `json:"check"` // CRC-32C of the fields above, 8 hex digits
}

func (r restored) check() string {
	sum := crc32.Checksum(fmt.Appendf(nil, "%d %d", r.Above, r.Floor), crc32.MakeTable(crc32.Castagnoli))
	return fmt.Sprintf("%08x", sum)
}

// MarkRestored notes durably, in a data folder that no node runs on, that the log was restored from a backup: what its
// topics had beyond may be known to clients. At its next start the node lets all topics go on at a new floor, before it
// serves: one that is above all that the log tells of, and above an offset, 0 for none. It can be called again.
func MarkRestored(fsys vfs.FS, above fact.Offset) error {
	r, noted, err := readRestored(fsys)
	if err != nil {
		return err
	}
	if noted && r.Floor == 0 && r.Above >= above {
		return nil
	}
	return writeRestored(fsys, restored{Above: max(r.Above, above)})
}

func writeRestored(fsys vfs.FS, r restored) error {
	r.Check = r.check()
	text, err := json.Marshal(r)
	if err == nil {
		err = replaceText(fsys, restoredTmp, restoredFile, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", restoredFile, err)
	}
	return nil
}

// readRestored reads the note; noted is false if there is none.
func readRestored(fsys vfs.FS) (r restored, noted bool, err error) {
	noted, err = readNote(fsys, restoredFile, &r)
	if err == nil && noted && r.Check != r.check() {
		err = fmt.Errorf("%s is damaged (its checksum is wrong): restore it from a backup; nothing was changed", restoredFile)
	}
	return r, noted, err
}

// readNote reads a small JSON file; noted is false if there is none.
func readNote(fsys vfs.FS, name string, to any) (noted bool, err error) {
	f, err := fsys.OpenRead(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("open %s: %w", name, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, 0, restoredMax))
	if err != nil {
		return false, fmt.Errorf("read %s: %w", name, err)
	}
	if err := json.Unmarshal(text, to); err != nil {
		return false, fmt.Errorf("%s is damaged (%w): restore it from a backup; nothing was changed", name, err)
	}
	return true, nil
}

// removeNote removes a file of the data folder, durably.
func removeNote(fsys vfs.FS, name string) error {
	err := fsys.Remove(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // but maybe not durably
	}
	if err == nil {
		err = fsys.SyncDir(".")
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// checkUnfinished refuses a folder whose log is being cut, and one that must say first, alone, that its log was restored.
func checkUnfinished(fsys vfs.FS, role Role) error {
	if restoring, err := isRestoring(fsys); err != nil {
		return fmt.Errorf("look for a restore: %w", err)
	} else if restoring {
		return ErrRestoring
	}
	if c, cutting, err := readCut(fsys); err != nil {
		return err
	} else if cutting {
		return fmt.Errorf("the log of this data folder is being cut: finish it with \"mq log cut FOLDER --after %d --yes\"; nothing was changed", c.After)
	}
	if role == Standalone {
		return nil
	}
	if _, noted, err := readRestored(fsys); err != nil {
		return err
	} else if noted {
		return fmt.Errorf("the log of this data folder was restored or cut: start it once with -role standalone, and stop it again, before it becomes part of a pair or a cluster; nothing was changed")
	}
	return nil
}

// settleRestored logs that the log was restored, if a note says so, and removes the note. fold is that of the whole log.
//
//  1. The floor is decided and noted, durably. Nothing is served yet, so no topic gets beyond it.
//  2. The fact is logged and applied, unless the fold has that floor: then a start before this one did it.
//  3. The note is removed. A crash before leads to 2 again, which finds nothing to do.
func (n *Node) settleRestored(fold *state.State) error {
	r, noted, err := readRestored(n.fs)
	if err != nil || !noted {
		return err
	}
	if r.Floor == 0 {
		if r.Floor, err = floorAbove(fold, r.Above); err != nil {
			return err
		}
		if err := writeRestored(n.fs, r); err != nil {
			return err
		}
	}
	if fold.Floor() < r.Floor {
		if err := n.logRestored(fold, r.Floor); err != nil {
			return fmt.Errorf("log that the log was restored: %w", err)
		}
		n.logger.Warn("the log was restored or cut: all topics go on at a new offset, so that none is given out twice", "offset", uint64(r.Floor), "index", uint64(fold.Applied()))
	}
	return removeNote(n.fs, restoredFile)
}

// floorAbove returns the floor for a log that was restored: the next one above all offsets that are known.
func floorAbove(fold *state.State, above fact.Offset) (fact.Offset, error) {
	above = max(above, fold.Floor())
	for id := range fold.Topics() {
		above = max(above, fold.TopicByID(state.TopicID(id)).End)
	}
	steps := above/fact.RestoreStep + 1
	if steps > fact.OffsetMax/fact.RestoreStep {
		return 0, fmt.Errorf("there are no offsets left above %d for a log that was restored", above)
	}
	return steps * fact.RestoreStep, nil
}

// logRestored appends and applies the fact. No role runs yet: everything in the log is committed.
func (n *Node) logRestored(fold *state.State, floor fact.Offset) error {
	f := &wal.Frames{Reserve: true, Frees: true}
	f.End(fact.AppendRestored(f.Begin(fact.KindRestored, max(fold.TimeMS(), n.cfg.Clock.Now().UnixMilli())), floor))
	term := max(entry.StandaloneTerm, n.promises.Promise().Epoch, n.log.Tip().Term)
	if _, err := n.log.Append(f, term, n.log.Last()); err != nil {
		return err
	}
	if err := n.log.Sync(); err != nil {
		return err
	}
	e, p := f.Entry(0), f.Position(0)
	n.index.Begin(p.Segment)
	n.keeper.due.logBytes += p.Length // no other goroutine yet
	_, err := fold.Apply(&e)
	return err
}
