package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

const (
	cleanFile = "clean.json"
	cleanTmp  = "clean.json.tmp"
)

// clean is what a clean stop notes: how far the log reached. It stays true for ever, so it is never removed,
// only replaced by the next clean stop. With it, a tail that is missing after a clean stop is damage, even
// if it looks as if a power cut had torn it.
type clean struct {
	LastIndex entry.Index `json:"last_index"`
	Check     string      `json:"check"` // CRC-32C of the index in decimal, 8 hex digits
}

func (c clean) check() string {
	return fmt.Sprintf("%08x", crc32.Checksum(fmt.Append(nil, uint64(c.LastIndex)), crc32.MakeTable(crc32.Castagnoli)))
}

// writeClean notes that everything in the log is durable. Nothing is appended any more.
func (n *Node) writeClean() error {
	err := writeCleanAt(n.fs, n.log.Durable())
	if noSpace(err) {
		return nil // only a note
	}
	return err
}

// writeCleanAt notes that everything up to an entry is durable.
func writeCleanAt(fsys vfs.FS, last entry.Index) error {
	c := clean{LastIndex: last}
	c.Check = c.check()
	text, err := json.Marshal(c)
	if err == nil {
		err = replaceText(fsys, cleanTmp, cleanFile, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("note the clean stop: %w", err)
	}
	return nil
}

// ReadClean returns the last index at the last clean stop of a data folder, or 0 if there was none.
func ReadClean(fsys vfs.FS) (entry.Index, error) {
	f, err := fsys.OpenRead(cleanFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open %s: %w", cleanFile, err)
	}
	defer f.Close()
	var c clean
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && c.Check != c.check() {
		err = errors.New("its checksum is wrong")
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", cleanFile, err)
	}
	return c.LastIndex, nil
}
