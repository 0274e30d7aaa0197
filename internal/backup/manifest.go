// Package backup takes backups of a running broker, checks them, and makes data folders of them.
//
// A backup is the log as it was at one entry: a snapshot, and the segments from the log's head on, the last one up to that
// entry. All is as the broker has it on disk, so each byte is covered by the checksums of the log; a manifest says what
// belongs to it, with the hash of each file. In a folder a backup is renewed: what is there already is not fetched again, and
// the old one is good until the new one is complete. As a stream it is a tar file.
//
// It guarantees that a backup which Take called complete is one that Restore takes: all of it was read and checked. It never
// trusts a name, a size or a hash that a backup tells. It runs in the goroutine of its caller, starts none, and is not on the
// way of a publish.
//
// Format: docs/format/backup.md.
package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"example.com/mq/internal/entry"
)

const (
	// ManifestFile is the name of the manifest, contentsFile that of what comes first in a stream: the manifest without
	// hashes.
	ManifestFile = "manifest.json"
	contentsFile = "contents.json"

	manifestFormat = 1
	manifestMax    = 256 << 20 // bytes
	fileMax        = 1 << 50   // bytes of a file; bounds sums
)

// Manifest says what a backup is and what it consists of.
type Manifest struct {
	Format   int    `json:"format"`
	LogID    string `json:"log_id"`             // 32 hex digits: of the log that it is of
	Index    uint64 `json:"index"`              // the last entry
	TimeMS   int64  `json:"time_ms"`            // of that entry
	Snapshot *File  `json:"snapshot,omitempty"` // none if the log begins with entry 1 and there was none
	Segments []File `json:"segments"`           // in log order
	// Check is the SHA-256 of the manifest without it, 64 hex digits.
	Check string `json:"check,omitempty"`
}

// File is a snapshot or a segment.
type File struct {
	Name   string `json:"name"`
	First  uint64 `json:"first"` // entry of a segment; 0 for a snapshot
	Last   uint64 `json:"last"`
	Bytes  int64  `json:"bytes"`
	Sealed bool   `json:"sealed"`           // false for the last segment, of which only a part belongs to the backup
	SHA256 string `json:"sha256,omitempty"` // 64 hex digits; missing in contents.json
}

// name returns the only name that the file may have.
func (f *File) name() string {
	switch {
	case f.First == 0:
		return fmt.Sprintf("%020d.snap", f.Last)
	case f.Sealed:
		return fmt.Sprintf("%020d.seg", f.First)
	}
	return fmt.Sprintf("%020d-%020d.tail", f.First, f.Last)
}

// damage of a manifest.
var errManifest = errors.New("the manifest is damaged")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errManifest, fmt.Errorf(format, args...))
}

// encode returns the content of the file.
func (m Manifest) encode() ([]byte, error) {
	m.Check = ""
	text, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	sum := sha256.Sum256(text)
	m.Check = hex.EncodeToString(sum[:])
	if text, err = json.MarshalIndent(m, "", "  "); err != nil {
		return nil, fmt.Errorf("encode the manifest: %w", err)
	}
	return append(text, '\n'), nil
}

// decodeManifest reads a manifest; hashed says whether its files must have hashes, or must not. The error wraps errManifest
// if it is damaged.
func decodeManifest(text []byte, hashed bool) (*Manifest, error) {
	// The checksum comes first: what a damaged manifest says of its format is not to be believed.
	if !checked(text) {
		return nil, damaged("its checksum or form is wrong")
	}
	m := new(Manifest)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, damaged("%w", err)
	}
	if m.Format != manifestFormat {
		return nil, fmt.Errorf("the backup has format %d, this program knows %d: use the version of mq that took it", m.Format, manifestFormat)
	}
	// What says the same in other bytes was edited, or is damaged.
	if canonical, err := m.encode(); err != nil || !bytes.Equal(text, canonical) {
		return nil, damaged("its checksum or form is wrong")
	}
	return m, m.validate(hashed)
}

// checked reports whether the checksum of a manifest is right. All formats have it as the last field.
func checked(text []byte) bool {
	const key, digits = `,"check":"`, 2 * sha256.Size
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return false
	}
	body, ok := bytes.CutSuffix(b.Bytes(), []byte(`"}`))
	if !ok || len(body) < len(key)+digits {
		return false
	}
	body, check := body[:len(body)-digits], string(body[len(body)-digits:])
	if body, ok = bytes.CutSuffix(body, []byte(key)); !ok {
		return false
	}
	sum := sha256.Sum256(append(body[:len(body):len(body)], '}'))
	return check == hex.EncodeToString(sum[:])
}

// validate checks all that can be checked on a manifest alone.
func (m *Manifest) validate(hashed bool) error {
	switch head := uint64(1); {
	case !isHex(m.LogID, 16):
		return damaged("%q is not a log id", m.LogID)
	case len(m.Segments) == 0:
		return damaged("it has no segment")
	case m.Snapshot != nil:
		s := m.Snapshot
		if s.First != 0 || s.Sealed || s.Last == 0 || s.Last > m.Index {
			return damaged("its snapshot covers entries %d to %d, and the backup ends with entry %d", s.First, s.Last, m.Index)
		}
		head = s.Last + 1
		fallthrough
	default:
		if first := m.Segments[0].First; first > head {
			return damaged("it begins with entry %d, and no snapshot reaches it", first)
		}
	}
	for i := range m.Segments {
		f := &m.Segments[i]
		last := i+1 == len(m.Segments)
		switch {
		case f.First == 0 || f.Last < f.First || f.Last > m.Index, last && f.Last != m.Index, !last && !f.Sealed:
			return damaged("a segment of entries %d to %d", f.First, f.Last)
		case i > 0 && f.First != m.Segments[i-1].Last+1:
			return damaged("a segment that begins with entry %d follows entry %d", f.First, m.Segments[i-1].Last)
		}
	}
	for f := range m.files() {
		if f.Name != f.name() || f.Bytes <= 0 || f.Bytes > fileMax || hashed != isHex(f.SHA256, sha256.Size) || !hashed && f.SHA256 != "" {
			return damaged("a file with the name %q, %d bytes and the hash %q", f.Name, f.Bytes, f.SHA256)
		}
	}
	return nil
}

func isHex(text string, bytes int) bool {
	b, err := hex.DecodeString(text)
	return err == nil && len(b) == bytes && hex.EncodeToString(b) == text
}

// files yields the snapshot, if there is one, and the segments.
func (m *Manifest) files() func(yield func(*File) bool) {
	return func(yield func(*File) bool) {
		if m.Snapshot != nil && !yield(m.Snapshot) {
			return
		}
		for i := range m.Segments {
			if !yield(&m.Segments[i]) {
				return
			}
		}
	}
}

// find returns the file with a name; nil when there is none, or no manifest.
func (m *Manifest) find(name string) *File {
	if m == nil {
		return nil
	}
	for f := range m.files() {
		if f.Name == name {
			return f
		}
	}
	return nil
}

// logID returns the id of the log; the manifest is valid.
func (m *Manifest) logID() (id entry.LogID) {
	hex.Decode(id[:], []byte(m.LogID))
	return id
}

// Bytes is what all files have.
func (m *Manifest) Bytes() (n int64) {
	for f := range m.files() {
		n += f.Bytes
	}
	return n
}

// contents returns the manifest without hashes.
func (m *Manifest) contents() *Manifest {
	c := *m
	c.Segments = append([]File{}, m.Segments...)
	if m.Snapshot != nil {
		s := *m.Snapshot
		c.Snapshot = &s
	}
	for f := range c.files() {
		f.SHA256 = ""
	}
	return &c
}
