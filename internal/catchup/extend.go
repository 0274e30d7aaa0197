package catchup

import (
	"context"
	"errors"
	"fmt"

	"example.com/mq/internal/entry"
	"example.com/mq/internal/wal"
)

const (
	// syncBytes is how much is appended between syncs.
	syncBytes = 8 << 20
	// alignMax is how often the last common point is looked for in one Extend: a peer that does not lead may have its own
	// tail cut meanwhile.
	alignMax = 8
)

// ExtendOptions say what Extend may do, and how far it goes.
type ExtendOptions struct {
	Demand
	// Commit is what is known to be committed here. Nothing up to it is cut. Beyond the end of the log it counts as that.
	Commit entry.Index
	// Upto returns the entry that the log must reach, given how the peer stood when it answered. It is called for each
	// answer. Nil: Standing.Last.
	Upto func(Standing) entry.Index
	// Progress, if not nil, is called with the last durable entry here, and how the peer stands.
	Progress func(durable entry.Index, peer Standing)
	// Inline asks for the next answer only when the one before is written: operations come in the same order in every run.
	// For simulations.
	Inline bool
}

// Result says what Extend and Full came to.
type Result struct {
	Last  wal.Point   // the end of the log here, durable
	Peer  Standing    // as of the last answer
	Cut   entry.Index // how many entries were cut off here
	Bytes int64       // of frames that were appended
}

// Extend brings a log up to the end of the peer's, below raft: nobody else may append to it, cut or sync it. What it
// lacks is appended; where the peer has another entry than ours, ours is cut from there on. What lies behind the peer's
// last entry stays. When it returns, whatever it returns, everything in the log is durable unless the log has failed, and
// it can be called again, with another peer, too.
//
// ErrGone: the peer's log begins behind the end of ours, or behind what must be cut; see Full. ErrDiffers: nothing that
// is known to be committed is here, and nothing else is common. *DivergedError: an entry known to be committed here is
// another one there. *NotLeaderError: what Demand wants is not, or not any more, so. ErrBehind: the peer's log ends before
// Commit. ErrDamaged: the peer's log is, or what came. Errors of our log come as they are: wal.ErrFull passes, and a
// *wal.CorruptionError that is not ErrDamaged is about a place here.
func Extend(ctx context.Context, c Client, log *wal.Log, opt ExtendOptions) (Result, error) {
	e := &extension{c: c, log: log, opt: opt}
	err := e.run(ctx)
	if log.Durable() != log.Last() && log.Err() == nil {
		err = firstError(log.Sync(), err)
	}
	e.result.Last = log.Tip()
	return e.result, err
}

type extension struct {
	c        Client
	log      *wal.Log
	opt      ExtendOptions
	unsynced int
	result   Result
}

func (e *extension) run(ctx context.Context) error {
	for aligned := 0; ; aligned++ {
		err := e.pull(ctx)
		if differs := errors.Is(err, ErrDiffers) || errors.Is(err, ErrBehind); !differs || aligned == alignMax {
			return err
		}
		done, err := e.align(ctx)
		if err != nil || done {
			return err
		}
	}
}

// batch is the frames of one answer, checked as far as that goes without the log.
type batch struct {
	standing Standing
	frames   []*wal.Frames
	places   []wal.Place
}

// pull appends what follows the end of the log.
func (e *extension) pull(ctx context.Context) error {
	p := &puller{e: e, after: e.log.Tip()}
	return stream(ctx, e.opt.Inline, p.next, e.append)
}

// append writes a batch.
func (e *extension) append(b batch) error {
	for i, f := range b.frames {
		err := e.log.AppendReplica(f, b.places[i])
		if errors.Is(err, wal.ErrMismatch) {
			return fmt.Errorf("%w: what it sent does not follow: %w", ErrDiffers, err)
		}
		if err != nil {
			return err
		}
		e.unsynced += f.Bytes()
		e.result.Bytes += int64(f.Bytes())
		if e.unsynced >= syncBytes {
			if err := e.log.Sync(); err != nil {
				return err
			}
			e.unsynced = 0
		}
	}
	e.result.Peer = b.standing
	if e.opt.Progress != nil {
		e.opt.Progress(e.log.Durable(), b.standing)
	}
	return nil
}

// puller asks for frames.
type puller struct {
	e     *extension
	after wal.Point // what was asked for and checked ends here
	done  bool
}

// next returns the next batch; false when the log reaches the end that was agreed.
func (p *puller) next(ctx context.Context) (batch, bool, error) {
	if p.done {
		return batch{}, false, nil
	}
	var b batch
	a, err := p.ask(ctx, 0)
	if err != nil {
		return b, false, err
	}
	b.standing = a.standing
	if a.length > 0 {
		if err := p.rest(ctx, a); err != nil {
			return b, false, err
		}
	}
	for _, one := range a.pieces {
		f := new(wal.Frames)
		if err := p.e.log.Load(f, one.place, one.raw); err != nil {
			return b, false, fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		if f.First() != p.after.Index+1 {
			return b, false, malformed("entry %d after entry %d", f.First(), p.after.Index)
		}
		if f.Term() > b.standing.Term && b.standing.Leader {
			return b, false, malformed("an entry of term %d from a leader of term %d", f.Term(), b.standing.Term)
		}
		b.frames, b.places = append(b.frames, f), append(b.places, one.place)
		p.after = lastPoint(f)
	}
	upto := b.standing.Last.Index
	if p.e.opt.Upto != nil {
		upto = min(upto, p.e.opt.Upto(b.standing))
	}
	p.done = p.after.Index >= upto
	if !p.done && len(b.frames) == 0 {
		return b, false, malformed("no frames, and the log goes on to entry %d", b.standing.Last.Index)
	}
	return b, true, nil
}

// ask asks for what follows; have is how much of the first frame is there already.
func (p *puller) ask(ctx context.Context, have int) (*answer, error) {
	a, err := p.e.c.ask(ctx, &request{kind: kindFrames, after: p.after, limit: PieceMax, have: have})
	if a != nil && (err == nil || errors.Is(err, ErrDiffers) || errors.Is(err, ErrBehind) || errors.Is(err, ErrGone)) {
		err = firstError(p.e.opt.Demand.check(&a.standing), err)
	}
	return a, err
}

// rest fetches the rest of a frame that is too large for one answer.
func (p *puller) rest(ctx context.Context, a *answer) error {
	whole := &a.pieces[0]
	whole.raw = append(make([]byte, 0, a.length), whole.raw...)
	for len(whole.raw) < a.length {
		more, err := p.ask(ctx, len(whole.raw))
		if err != nil {
			return err
		}
		if len(more.pieces) != 1 || more.length != a.length || more.pieces[0].place != whole.place ||
			len(more.pieces[0].raw) > a.length-len(whole.raw) {
			return malformed("another frame than the one of which %d of %d bytes are there", len(whole.raw), a.length)
		}
		whole.raw = append(whole.raw, more.pieces[0].raw...)
		a.standing = more.standing
	}
	return nil
}

// align finds the last entry that both logs have, and cuts ours behind it if the peer has another one there. done says
// that the peer's log ends with it, so that there is nothing to pull.
func (e *extension) align(ctx context.Context) (done bool, err error) {
	tip := e.log.Tip()
	list := e.log.Segments()
	if len(list) == 0 {
		return false, wal.ErrClosed
	}
	commit := min(e.opt.Commit, tip.Index)
	floor := max(commit, list[0].First-1)
	// Invariant: what lies up to common is, if known, and what lies from differs on is not.
	common, differs := entry.Index(0), tip.Index+1
	known, beyond := false, false // common was compared; differs is beyond the peer's last entry
	gone := floor                 // the lowest index that the peer may have
	for !known || differs > common+1 {
		low := gone
		if known {
			low = common + 1
		}
		if low >= differs {
			return false, fmt.Errorf("%w: its log begins behind entry %d, the last one that may be common", ErrGone, differs-1)
		}
		ask := choose(low, differs, !known)
		theirs, standing, err := e.c.points(ctx, ask)
		if err != nil {
			return false, err
		}
		if err := e.opt.Demand.check(&standing); err != nil {
			return false, err
		}
		e.result.Peer = standing
		ours, err := lookup(e.log, ask, 0)
		if err != nil {
			return false, err
		}
		for i, t := range theirs {
			switch o := ours[i]; {
			case t.state == notLooked:
			case t.state == foundGone && known:
				return false, fmt.Errorf("%w: entry %d, and our logs may part there", ErrGone, t.point.Index)
			case t.state == foundGone:
				gone = max(gone, t.point.Index+1)
			case o.state != foundPoint:
				return false, fmt.Errorf("entry %d was not found in our log, which ends with entry %d", ask[i], tip.Index)
			case t.state == foundPoint && same(o.point, t.point):
				if !known || t.point.Index > common {
					common, known = t.point.Index, true
				}
			case t.point.Index < differs:
				differs, beyond = t.point.Index, t.state == foundBeyond
				if differs <= floor {
					return false, e.diverged(o.point, t, commit)
				}
			}
		}
		if known && common >= differs {
			return false, malformed("its points up to %d are ours, and from %d on they are not", common, differs)
		}
	}
	if beyond {
		return true, nil
	}
	if err := e.log.Truncate(common); err != nil {
		return false, err
	}
	e.unsynced = 0
	e.result.Cut += tip.Index - common
	return false, nil
}

// diverged says that not even the lowest entry that must be common is.
func (e *extension) diverged(ours wal.Point, theirs found, commit entry.Index) error {
	switch {
	case theirs.state == foundBeyond:
		return fmt.Errorf("%w: entry %d, which must be there", ErrBehind, ours.Index)
	case ours.Index > commit:
		return fmt.Errorf("%w: already where this log begins, behind entry %d", ErrDiffers, ours.Index)
	}
	return &DivergedError{Commit: commit, Ours: ours, Theirs: theirs.point}
}

// choose returns indexes from low up to below high, falling: first galloping away from the end, where logs usually part,
// then spread evenly. low is always among them.
func choose(low, high entry.Index, gallop bool) []entry.Index {
	var list []entry.Index
	if gallop {
		for i, step := high-1, entry.Index(1); i > low && len(list) < pointsMax-1; step *= 2 {
			list = append(list, i)
			i -= min(step, i-low)
		}
		return append(list, low)
	}
	n := min(pointsMax, high-low)
	for i := range n {
		list = append(list, high-1-(high-1-low)*i/max(n-1, 1))
	}
	return list
}
