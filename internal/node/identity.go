package node

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

const (
	identityFile   = "identity.json"
	identityTmp    = "identity.json.tmp"
	identityFormat = 1
	identityMax    = 4096 // bytes
)

// identity says whose data a folder holds. It is replaced atomically, never changed in place.
type identity struct {
	Format int    `json:"format"`
	LogID  string `json:"log_id"`  // 32 hex digits: the same on every replica of the log; empty while a follower has none
	NodeID string `json:"node_id"` // 32 hex digits: of this folder alone
	// Ready is false from the first start until the log exists. A ready folder without a log has lost it.
	Ready bool `json:"ready"`
	// Check is the CRC-32C of the fields above, 8 hex digits, so that a flipped bit does not make a node
	// another one.
	Check string `json:"check"`
}

func (id *identity) check() string {
	sum := crc32.Checksum(fmt.Appendf(nil, "%d %s %s %t", id.Format, id.LogID, id.NodeID, id.Ready), crc32.MakeTable(crc32.Castagnoli))
	return fmt.Sprintf("%08x", sum)
}

func (id *identity) logID() entry.LogID {
	var b entry.LogID
	hex.Decode(b[:], []byte(id.LogID)) // checked by readIdentity
	return b
}

func makeIdentity(random io.Reader) (*identity, error) {
	if random == nil {
		random = rand.Reader
	}
	var b [32]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return nil, fmt.Errorf("make an identity: %w", err)
	}
	return &identity{Format: identityFormat, LogID: hex.EncodeToString(b[:16]), NodeID: hex.EncodeToString(b[16:])}, nil
}

// loadIdentity reads the identity of a folder, or gives an empty folder a new one. Data without an identity
// is refused. A follower's folder has no log id before it gets that of its leader.
func loadIdentity(fsys vfs.FS, random io.Reader, follower bool) (*identity, error) {
	id, err := readIdentity(fsys)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	for _, dir := range []string{logDir, snapshotDir} {
		names, err := fsys.List(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("look for data: %w", err)
		}
		if len(names) > 0 {
			return nil, fmt.Errorf("the data folder has no %s but %s/%s: restore the file from a backup, or name another folder; nothing was changed",
				identityFile, dir, names[0])
		}
	}
	if id, err = makeIdentity(random); err != nil {
		return nil, err
	}
	if follower {
		id.LogID = ""
	}
	return id, writeIdentity(fsys, id)
}

func readIdentity(fsys vfs.FS) (*identity, error) {
	f, err := fsys.OpenRead(identityFile)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", identityFile, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, 0, identityMax))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", identityFile, err)
	}
	var id identity
	damaged := func(why any) error { return &identityDamage{why} }
	if err := json.Unmarshal(text, &id); err != nil {
		return nil, damaged(err)
	}
	if format := id.Format; format != identityFormat {
		// A file whose checksum is that of this format has lost the number, or its name, to rot: no other version wrote it.
		if id.Format = identityFormat; id.Check == id.check() {
			return nil, damaged(fmt.Sprintf("its checksum is that of format %d, and its format %d", identityFormat, format))
		}
		id.Format = format
		return nil, fmt.Errorf("%s has format %d, this program knows %d: use the version of mqd that wrote it", identityFile, id.Format, identityFormat)
	}
	for i, text := range []string{id.LogID, id.NodeID} {
		if i == 0 && text == "" && !id.Ready {
			continue
		}
		if b, err := hex.DecodeString(text); err != nil || len(b) != len(entry.LogID{}) {
			return nil, damaged(fmt.Sprintf("%q is not 32 hex digits", text))
		}
	}
	// A file that says the same in other bytes is one that somebody has edited, or that is damaged.
	if canonical, err := id.encode(); err != nil || !bytes.Equal(text, canonical) {
		return nil, damaged("its checksum or form is wrong")
	}
	return &id, nil
}

// identityDamage says that the file does not tell any more whose data this is.
type identityDamage struct{ why any }

func (e *identityDamage) Error() string {
	return fmt.Sprintf("%s is damaged (%v): restore it from a backup; nothing was changed", identityFile, e.why)
}

// encode returns the file's content.
func (id identity) encode() ([]byte, error) {
	id.Check = id.check()
	text, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", identityFile, err)
	}
	return append(text, '\n'), nil
}

// writeIdentity replaces the identity atomically and durably.
func writeIdentity(fsys vfs.FS, id *identity) error {
	text, err := id.encode()
	if err != nil {
		return err
	}
	if err := replaceText(fsys, identityTmp, identityFile, text); err != nil {
		return fmt.Errorf("write %s: %w", identityFile, err)
	}
	return nil
}

// replaceFile makes a file by write and puts it under a name, atomically and durably.
func replaceFile(fsys vfs.FS, tmp, name string, write func(vfs.File) error) error {
	if err := fsys.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(name))
}

// replaceText is replaceFile with the content at hand.
func replaceText(fsys vfs.FS, tmp, name string, text []byte) error {
	return replaceFile(fsys, tmp, name, func(f vfs.File) error {
		_, err := f.WriteAt(text, 0)
		return err
	})
}

// settleNames makes the names in the data folder durable, before anything is read: a process that was killed may have left a
// file under its name that a power cut takes away, and what it says must not be acted upon before that cannot be.
func settleNames(fsys vfs.FS) error {
	if err := fsys.SyncDir("."); err != nil {
		return fmt.Errorf("sync the data folder: %w", err)
	}
	return nil
}
