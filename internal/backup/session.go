package backup

import (
	"context"
	"errors"
	"fmt"
	"io"

	"example.com/mq/api"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/fact"
)

// ErrOver is what the methods of a Source return, wrapped, when the backup is over at the broker: another node leads, or the
// disk is full there. Take begins anew.
var ErrOver = errors.New("the backup is over at the broker")

// Source is a running broker.
type Source interface {
	BackupBegin(ctx context.Context) (*api.BackupBegun, error)
	// BackupRead returns fewer bytes than are asked for only at the end of a file.
	BackupRead(ctx context.Context, q api.BackupReadRequest) ([]byte, error)
	BackupEnd(ctx context.Context, backup string) error
}

const (
	// pieceBytes is how much is asked for at a time. The broker keeps a backup for a minute after each piece, so a slow
	// reader takes small ones.
	pieceBytes = 1 << 20
	// frameHead is how much of the last frame of a segment is compared with the broker's: its checksum is in it.
	frameHead = 40
)

// Progress is told how a backup goes on.
type Progress struct {
	// Begun, if not nil, is called with the bytes that the backup will have, each time it begins anew.
	Begun func(total int64)
	// Read, if not nil, is called with the bytes of files that were read, those that were there already included.
	Read func(bytes int)
	// Records, if not nil, is called with the records that were read.
	Records func(n int)
}

// counting calls p.Records, and then visit.
func (p *Progress) counting(visit func(*entry.Entry, entry.Position) error) func(*entry.Entry, entry.Position) error {
	return func(e *entry.Entry, at entry.Position) error {
		s, ok, err := fact.DecodeStretch(e.Kind, e.TimeMS, e.Payload)
		if err != nil {
			return fmt.Errorf("entry %d: %w", e.Index, err)
		}
		if ok && p.Records != nil {
			p.Records(s.Count)
		}
		return visit(e, at)
	}
}

func (p *Progress) begun(total int64) {
	if p.Begun != nil {
		p.Begun(total)
	}
}

// Taken is the outcome of Take and Stream.
type Taken struct {
	Manifest *Manifest
	Fetched  int64 // bytes that came from the broker
	Entries  uint64
}

// session is one backup at a broker.
type session struct {
	ctx   context.Context
	src   Source
	begun *api.BackupBegun
	m     *Manifest
	out   *Taken
	last  entry.Position // of the entry that was read last
}

// begin begins it. end lets go of it.
func (t *session) begin() (end func(), err error) {
	if t.begun, err = t.src.BackupBegin(t.ctx); err != nil {
		return nil, err
	}
	// Who waits for the outcome is told what went wrong; that the broker keeps the files for a minute longer is no matter.
	end = func() { t.src.BackupEnd(context.WithoutCancel(t.ctx), t.begun.Backup) }
	if t.m, err = manifestOf(t.begun); err != nil {
		end()
		return nil, err
	}
	return end, nil
}

// manifestOf makes the manifest of what a broker says. Whatever that is, the names of the files are ours.
func manifestOf(begun *api.BackupBegun) (*Manifest, error) {
	m := &Manifest{Format: manifestFormat, LogID: begun.LogID, Index: begun.Index, TimeMS: begun.TimeMS}
	if s := begun.Snapshot; s.Index > 0 {
		m.Snapshot = &File{Last: s.Index, Bytes: s.Bytes}
		m.Snapshot.Name = m.Snapshot.name()
	}
	for _, g := range begun.Segments {
		f := File{First: g.First, Last: g.Last, Bytes: g.Bytes, Sealed: g.Sealed}
		f.Name = f.name()
		m.Segments = append(m.Segments, f)
	}
	if err := m.validate(false); err != nil {
		return nil, fmt.Errorf("the answer of the broker makes no sense: %w", err)
	}
	return m, nil
}

// readAll reads all files of the backup, as from supplies them, and checks every byte.
func (t *session) readAll(from supply, p Progress) error {
	p.begun(t.m.Bytes())
	t.out.Entries = 0
	s := newShelf(t.ctx, t.m, from, p.Read)
	defer s.close()
	if err := s.checkSnapshot(); err != nil {
		return err
	}
	return s.log(p.counting(func(_ *entry.Entry, at entry.Position) error {
		t.out.Entries++
		t.last = at
		return nil
	}))
}

// ask returns n bytes of a file of the broker.
func (t *session) ask(f *File, off, n int64) ([]byte, error) {
	b, err := t.src.BackupRead(t.ctx, api.BackupReadRequest{Backup: t.begun.Backup, Segment: f.First, Offset: off, Bytes: n})
	if err != nil {
		return nil, err
	}
	t.out.Fetched += int64(len(b))
	if int64(len(b)) != n {
		return nil, fmt.Errorf("the broker answers %d bytes where it should have %d", len(b), n)
	}
	return b, nil
}

// remote reads a file from the broker.
type remote struct {
	t    *session
	file *File
	at   int64
	buf  []byte
}

func (r *remote) Read(p []byte) (int, error) {
	if len(r.buf) == 0 {
		n := min(pieceBytes, r.file.Bytes-r.at)
		if n == 0 {
			return 0, io.EOF
		}
		var err error
		if r.buf, err = r.t.ask(r.file, r.at, n); err != nil {
			return 0, err
		}
		r.at += n
	}
	n := copy(p, r.buf)
	r.buf = r.buf[n:]
	return n, nil
}

// explain says of damage where it is: all that was kept here has been fetched again by now.
func explain(err error) error {
	if errors.As(err, new(*DamageError)) || errors.Is(err, errSnapshot) {
		return fmt.Errorf("the files of the broker are damaged, and cannot be backed up before they are repaired (see docs/operations.md): %w", err)
	}
	return err
}
