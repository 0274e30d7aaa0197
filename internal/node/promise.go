package node

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"sync"
	"time"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/replication/pair"
	"example.com/mq/internal/vfs"
)

const (
	promiseFile   = "pair.json"
	promiseTmp    = "pair.json.tmp"
	promiseFormat = 1
)

// promiseText is a pair.Promise in its file, which is replaced atomically, never changed in place.
type promiseText struct {
	Format  int    `json:"format"`
	Epoch   uint64 `json:"epoch"`
	Leader  string `json:"leader"` // node id, 32 hex digits; empty for none
	LeaseMS int64  `json:"lease_ms"`
	First   uint64 `json:"first"`
	WholeAt uint64 `json:"whole_at"`
	Alone   bool   `json:"alone"`
	Check   string `json:"check"` // CRC-32C of the fields above, 8 hex digits
}

func (t *promiseText) check() string {
	text := fmt.Appendf(nil, "%d %d %s %d %d %d %t", t.Format, t.Epoch, t.Leader, t.LeaseMS, t.First, t.WholeAt, t.Alone)
	return fmt.Sprintf("%08x", crc32.Checksum(text, crc32.MakeTable(crc32.Castagnoli)))
}

func (t promiseText) encode() ([]byte, error) {
	t.Check = t.check()
	text, err := json.MarshalIndent(t, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", promiseFile, err)
	}
	return append(text, '\n'), nil
}

// promises implements pair.Promises on a data folder.
type promises struct {
	fs vfs.FS

	mu   sync.Mutex // guards the field below; not held across I/O
	kept pair.Promise
}

// loadPromises reads the promise of a folder. A folder without one has promised nothing.
func loadPromises(fsys vfs.FS) (*promises, error) {
	p := &promises{fs: fsys}
	f, err := fsys.OpenRead(promiseFile)
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", promiseFile, err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, 0, 4096))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", promiseFile, err)
	}
	damaged := func(why any) error {
		return fmt.Errorf("%s is damaged (%v): restore it from a backup; nothing was changed", promiseFile, why)
	}
	var t promiseText
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, damaged(err)
	}
	if format := t.Format; format != promiseFormat {
		// As with the identity: a checksum of this format was written by no other version.
		if t.Format = promiseFormat; t.Check == t.check() {
			return nil, damaged(fmt.Sprintf("its checksum is that of format %d, and its format %d", promiseFormat, format))
		}
		t.Format = format
		return nil, fmt.Errorf("%s has format %d, this program knows %d: use the version of mqd that wrote it", promiseFile, t.Format, promiseFormat)
	}
	if canonical, err := t.encode(); err != nil || !bytes.Equal(text, canonical) {
		return nil, damaged("its checksum or form is wrong")
	}
	if t.LeaseMS < 0 || t.LeaseMS > pair.LeaseMax.Milliseconds() {
		return nil, damaged(fmt.Sprintf("a lease of %d ms cannot be", t.LeaseMS))
	}
	// What was read may be on its way to the disk only, if a process before this one died just then.
	if err := fsys.SyncDir("."); err != nil {
		return nil, fmt.Errorf("sync the data folder: %w", err)
	}
	p.kept = pair.Promise{
		Epoch: entry.Term(t.Epoch), Lease: time.Duration(t.LeaseMS) * time.Millisecond,
		First: entry.Index(t.First), WholeAt: entry.Index(t.WholeAt), Alone: t.Alone,
	}
	if t.Leader != "" {
		if err := p.kept.Leader.UnmarshalText([]byte(t.Leader)); err != nil {
			return nil, damaged(err)
		}
	}
	return p, nil
}

// Promise implements pair.Promises.
func (p *promises) Promise() pair.Promise {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

// SetPromise implements pair.Promises.
func (p *promises) SetPromise(next pair.Promise) error {
	if kept := p.Promise(); next.Epoch < kept.Epoch {
		return fmt.Errorf("BUG: epoch %d was promised, and now %d", kept.Epoch, next.Epoch)
	}
	t := promiseText{
		Format: promiseFormat, Epoch: uint64(next.Epoch), LeaseMS: next.Lease.Milliseconds(),
		First: uint64(next.First), WholeAt: uint64(next.WholeAt), Alone: next.Alone,
	}
	if !next.Leader.IsZero() {
		t.Leader = next.Leader.String()
	}
	text, err := t.encode()
	if err == nil {
		err = replaceText(p.fs, promiseTmp, promiseFile, text)
	}
	if err != nil {
		return full(fmt.Errorf("write %s: %w", promiseFile, err))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = next
	return nil
}

// nodeID is the identity of this folder alone.
func (id *identity) nodeID() pair.NodeID {
	var n pair.NodeID
	hex.Decode(n[:], []byte(id.NodeID)) // checked by readIdentity
	return n
}

// checkRole says why a folder must not be used in the role that was asked for. It changes nothing.
func checkRole(cfg *Config, id *identity, p pair.Promise) error {
	self := id.nodeID()
	follows := !p.Leader.IsZero() && p.Leader != self
	if cfg.Role != Follower && p.Epoch != 0 && id.LogID == "" {
		return errors.New("this folder is a follower's that has not got its log yet: start it with -role follower; nothing was changed")
	}
	switch cfg.Role {
	case Standalone:
		if follows && p.First != 0 {
			return fmt.Errorf("this data folder is a follower's of node %v, which has not got all of the log yet: start it with -role follower; nothing was changed", p.Leader)
		}
		if follows {
			return fmt.Errorf("this data folder is not the leader's: node %v leads it with epoch %d; start it with -role follower, or promote it with -role leader and an -epoch above %d; nothing was changed",
				p.Leader, p.Epoch, p.Epoch)
		}
	case Leader:
		switch {
		case cfg.Epoch < p.Epoch:
			return fmt.Errorf("epoch %d is over: this data folder has seen epoch %d, of leader %v; nothing was changed", cfg.Epoch, p.Epoch, p.Leader)
		case follows && cfg.Epoch == p.Epoch:
			return fmt.Errorf("node %v leads with epoch %d: to promote this node give it a higher -epoch; nothing was changed", p.Leader, p.Epoch)
		case p.First != 0:
			return errors.New("this node has not got all of the log yet (a full sync was under way) and must not lead: start it with -role follower, or lead with the node that has all of it; nothing was changed")
		case p.WholeAt != 0:
			return fmt.Errorf("this node has not got all entries up to %d yet, which were acknowledged, and must not lead: start it with -role follower, or lead with the node that has them; nothing was changed", p.WholeAt)
		}
	}
	return nil
}
