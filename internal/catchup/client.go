package catchup

import (
	"context"
	"fmt"
	"io"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

// Client asks one peer. All methods may be called from several goroutines. Errors are those of Peer.Call, a
// *RefusedError that wraps one of the sentinels, or wrap ErrMalformed or ErrVersion.
type Client struct {
	Peer Peer
	// LogID is that of the log that is asked for: an answer of another one is ErrForeign. Zero is allowed for Introduce,
	// Form and Manifest only.
	LogID entry.LogID
}

// ask sends a request and returns the answer, whose standing is valid also when it says no.
func (c Client) ask(ctx context.Context, r *request) (*answer, error) {
	r.logID = c.LogID
	b, err := c.Peer.Call(ctx, r.encode())
	if err != nil {
		return nil, err
	}
	a := new(answer)
	if err := a.decode(b, r.kind); err != nil {
		return a, err
	}
	named := r.kind != kindIntroduce && r.kind != kindForm && c.LogID != (entry.LogID{})
	if named && a.standing.LogID != c.LogID {
		return a, fmt.Errorf("%w: %x instead of %x", ErrForeign, a.standing.LogID, c.LogID)
	}
	return a, nil
}

// Introduce tells the peer who we are, and returns who it is and what it thinks of us.
func (c Client) Introduce(ctx context.Context, in Introduction) (Introduced, Standing, error) {
	a, err := c.ask(ctx, &request{kind: kindIntroduce, introduction: in})
	if err != nil {
		return Introduced{}, Standing{}, err
	}
	if m := &a.introduced; m.Nodes != in.Nodes || m.Self == in.Self {
		return Introduced{}, Standing{}, malformed("the answer comes from node %d of %d", m.Self, m.Nodes)
	}
	return a.introduced, a.standing, nil
}

// Form tells the peer that the cluster is formed. It returns nil once the peer has made that durable.
func (c Client) Form(ctx context.Context, f Formation) error {
	_, err := c.ask(ctx, &request{kind: kindForm, formation: f})
	return err
}

// Manifest returns what the peer has. What it lists is possible: dense segments of which all before Start are committed.
func (c Client) Manifest(ctx context.Context) (Manifest, error) {
	a, err := c.ask(ctx, &request{kind: kindManifest})
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{Standing: a.standing, Start: a.start, Snapshots: a.snapshots, Segments: a.segments}
	return m, m.check()
}

func (m *Manifest) check() error {
	if len(m.Segments) == 0 || m.LogID == (entry.LogID{}) {
		return malformed("a manifest of log %x with %d segments", m.LogID, len(m.Segments))
	}
	started := false
	for i, g := range m.Segments {
		last := i == len(m.Segments)-1
		switch {
		case g.First == 0 || g.Bytes < segmentHeader || g.Last+1 < g.First || g.Last < g.First && !last:
			return malformed("a segment of %d bytes with entries %d to %d", g.Bytes, g.First, g.Last)
		case !last && m.Segments[i+1].First != g.Last+1:
			return malformed("the segment of entry %d follows entry %d", m.Segments[i+1].First, g.Last)
		}
		if g.First == m.Start.Segment {
			started = true
		}
		if !started && g.Last > m.Commit {
			return malformed("the segment of entry %d comes before the start, and is committed up to %d", g.First, m.Commit)
		}
	}
	if !started || m.Start.Offset != segmentHeader {
		return malformed("a start at %+v", m.Start)
	}
	for i, s := range m.Snapshots {
		if s.Index == 0 || s.Index > m.Commit || s.Bytes <= 0 || i > 0 && s.Index >= m.Snapshots[i-1].Index {
			return malformed("a snapshot of %d bytes at %d, committed up to %d", s.Bytes, s.Index, m.Commit)
		}
	}
	return nil
}

// Point is what a log has at an index.
type Point struct {
	wal.Point
	// Known says that the point is there. Else, Beyond says that the log ends before, and Gone that it begins behind; none
	// of the three that the peer has not looked: ask again.
	Known, Beyond, Gone bool
}

// Points returns what the peer's log has at up to 64 indexes, which must fall: 9, 7, 6.
func (c Client) Points(ctx context.Context, indexes []entry.Index) ([]Point, Standing, error) {
	found, standing, err := c.points(ctx, indexes)
	if err != nil {
		return nil, Standing{}, err
	}
	out := make([]Point, len(found))
	for i, f := range found {
		out[i] = Point{Point: f.point, Known: f.state == foundPoint, Beyond: f.state == foundBeyond, Gone: f.state == foundGone}
	}
	return out, standing, nil
}

func (c Client) points(ctx context.Context, indexes []entry.Index) ([]found, Standing, error) {
	a, err := c.ask(ctx, &request{kind: kindPoints, indexes: indexes})
	if err != nil {
		return nil, Standing{}, err
	}
	if len(a.points) != len(indexes) {
		return nil, Standing{}, malformed("%d points of %d", len(a.points), len(indexes))
	}
	looked := false
	for i, p := range a.points {
		if p.point.Index != indexes[i] {
			return nil, Standing{}, malformed("point %d instead of %d", p.point.Index, indexes[i])
		}
		looked = looked || p.state != notLooked
	}
	if !looked {
		return nil, Standing{}, malformed("no point of %d", len(indexes))
	}
	return a.points, a.standing, nil
}

// Hash returns the hash of the peer's fold at an index, and whether it knows it.
func (c Client) Hash(ctx context.Context, at entry.Index) (hash [32]byte, known bool, err error) {
	a, err := c.ask(ctx, &request{kind: kindHash, file: at})
	if err == nil && a.at != at {
		err = malformed("the hash at %d instead of %d", a.at, at)
	}
	if err != nil {
		return hash, false, err
	}
	return a.hash, a.known, nil
}

// SegmentBytes returns up to limit bytes at an offset of a segment file, and the size of that file. There are fewer only
// at its end; an active segment ends where it is not durable any more, and has that as its size when its end was
// reached. They are not checked. limit is at most PieceMax.
func (c Client) SegmentBytes(ctx context.Context, first entry.Index, offset int64, limit int) ([]byte, int64, Standing, error) {
	return c.bytes(ctx, kindSegment, first, offset, limit)
}

// SnapshotBytes is the same of a snapshot file.
func (c Client) SnapshotBytes(ctx context.Context, at entry.Index, offset int64, limit int) ([]byte, int64, Standing, error) {
	return c.bytes(ctx, kindSnapshot, at, offset, limit)
}

func (c Client) bytes(ctx context.Context, k kind, file entry.Index, offset int64, limit int) ([]byte, int64, Standing, error) {
	a, err := c.ask(ctx, &request{kind: k, file: file, offset: offset, limit: limit})
	if err != nil {
		return nil, 0, Standing{}, err
	}
	if want := min(int64(limit), a.size-offset); a.offset != offset || int64(len(a.data)) != want {
		return nil, 0, Standing{}, malformed("%d bytes at %d instead of %d at %d", len(a.data), a.offset, want, offset)
	}
	return a.data, a.size, a.standing, nil
}

// Segment fetches bytes of a segment file from an offset on, up to byte to, and hands them to write in order; the next
// piece is on its way meanwhile. It returns how many were written. io.ErrUnexpectedEOF: the file ends before. They are not
// checked.
func Segment(ctx context.Context, c Client, first entry.Index, from, to int64, write func(p []byte) error) (int64, error) {
	f := fetch{c: c, kind: kindSegment, file: first, size: to, from: from, partial: true}
	return f.run(ctx, write)
}

// fetch fetches a file.
type fetch struct {
	c       Client
	demand  Demand
	kind    kind
	file    entry.Index
	size    int64
	from    int64
	partial bool // size is how much is wanted, and the file may be longer
	inline  bool
}

// run hands what comes to write. It returns the number of bytes written.
func (f *fetch) run(ctx context.Context, write func(p []byte) error) (n int64, err error) {
	at := f.from
	next := func(ctx context.Context) ([]byte, bool, error) {
		if at >= f.size {
			return nil, false, nil
		}
		b, size, standing, err := f.c.bytes(ctx, f.kind, f.file, at, int(min(PieceMax, f.size-at)))
		switch {
		case err != nil:
			return nil, false, err
		case f.demand.check(&standing) != nil:
			return nil, false, f.demand.check(&standing)
		case !f.partial && size != f.size:
			return nil, false, fmt.Errorf("%w: a file of %d bytes instead of %d", ErrDamaged, size, f.size)
		case len(b) == 0:
			return nil, false, io.ErrUnexpectedEOF
		}
		at += int64(len(b))
		return b, true, nil
	}
	err = stream(ctx, f.inline, next, func(b []byte) error {
		err := write(b)
		if err == nil {
			n += int64(len(b))
		}
		return err
	})
	return n, err
}
