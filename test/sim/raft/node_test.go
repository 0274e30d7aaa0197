package raft

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/node"
	"example.com/mq/internal/replication/cluster"
	"example.com/mq/internal/snapshot"
	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/wal"
)

// The parts of a packet (docs/format/raft.md) and of raft.state (docs/format/raft-state.md) that the simulation reads.
const (
	packetType, packetTerm, packetIndex, packetFlags, packetEntries = 5, 24, 32, 64, 68
	packetHeader                                                    = 72

	typeAppend, typeAppended, typeVoted, typeHeartbeat = 1, 2, 4, 7

	stateFile            = "raft.state"
	stateSlot, stateText = 4096, 24
)

// address is where clients find a machine.
func address(i int) string { return fmt.Sprintf("http://node%d:1", i) }

// openNode opens the folder of a process.
func openNode(p *process) (*node.Cluster, error) {
	w, m := p.w, p.m
	var identity [32]byte
	copy(identity[:], fmt.Sprintf("%d %d %d", w.seed, m.i, m.lives))
	urls := make([]string, len(w.machines))
	for i := range urls {
		urls[i] = address(i)
	}
	cfg := node.Config{
		Fatal: p.onFatal, Inline: true, FS: p.fault, Clock: newSpread(p), Random: rand.NewChaCha8(identity), Logger: slog.New(logHandler{p}),
		SegmentBytes: w.plan.segment, SnapshotBytes: w.plan.snapshot, RequestIDWindow: 24 * time.Hour,
		Retention: w.plan.retention,
	}
	return node.OpenCluster(cfg, node.ClusterConfig{
		Self: m.i, URLs: urls, Send: p.send, Call: p.call, ElectionTimeout: w.plan.election, CheckEvery: 2 * second,
		Random: rand.New(rand.NewPCG(w.seed<<8|uint64(m.i), uint64(m.lives))),
		Observer: cluster.Observer{Elected: func(term entry.Term) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if !p.dead {
				w.stats.elections++
				w.leads(p, uint64(term))
			}
		}},
	})
}

// standing is how a node stands.
type standing struct {
	leads, whole          bool
	phase, reason         string
	term, commit, applied uint64
}

// standing asks the node. Not to be called with world.mu held.
func (p *process) standing() (s standing) {
	if p == nil || p.n == nil || p.dead || !p.recovered || p.recErr != nil {
		return s
	}
	r, phase, status := p.n.RaftRole(), readState(p.m.fs).Phase, p.n.Status()
	s = standing{
		leads: r.Role == api.RaftLeader && status.Ready, whole: phase == "whole", phase: phase, reason: status.Reason,
		term: r.Term, commit: r.CommitIndex, applied: r.AppliedIndex,
	}
	p.m.formed = p.m.formed || s.whole
	return s
}

// leads notes who leads in a term. Called with mu held.
func (w *world) leads(p *process, term uint64) {
	if other, ok := w.leaders[term]; !ok {
		w.leaders[term] = p.m.i
		w.note("machine %d leads in term %d", p.m.i, term)
	} else if other != p.m.i {
		w.violated("one node leads in a term", "machines %d and %d in term %d", other, p.m.i, term)
	}
}

// vote is a vote that was spoken of.
type vote struct {
	machine int
	term    uint64
}

// sent checks what a packet says. Called with mu held.
func (w *world) sent(p *process, to int, packet []byte) {
	if len(packet) < packetHeader {
		w.violated("packets are whole", "machine %d sends %d bytes", p.m.i, len(packet))
		return
	}
	term, index := binary.LittleEndian.Uint64(packet[packetTerm:]), binary.LittleEndian.Uint64(packet[packetIndex:])
	refused := packet[packetFlags]&1 != 0
	switch packet[packetType] {
	case typeAppend:
		w.appended = max(w.appended, term)
		w.leads(p, term)
		// Whoever has led in a term, and sent entries, must not begin that term again with others.
		if _, ok := w.voted[vote{p.m.i, term}]; !ok && binary.LittleEndian.Uint32(packet[packetEntries:]) > 0 {
			w.votes(p, term, p.m.i)
		}
	case typeHeartbeat:
		w.leads(p, term)
	case typeVoted:
		if !refused {
			w.votes(p, term, to)
		}
	case typeAppended:
		if !refused && w.plan.sample > 0 && w.dice.IntN(8*w.plan.sample) == 0 {
			w.acknowledges(p, term, index)
		}
	}
}

// votes checks a vote that is about to be spoken of: it is the only one in its term, and durable, and the machine whole.
func (w *world) votes(p *process, term uint64, for_ int) {
	key := vote{p.m.i, term}
	if before, ok := w.voted[key]; ok && before != for_ {
		w.violated("a node votes once in a term", "machine %d for machines %d and %d in term %d", p.m.i, before, for_, term)
	}
	w.voted[key] = for_
	switch s := readState(p.mem.Crash(1, 0).FS); {
	case s.Phase != "whole":
		w.violated("only a whole node votes", "machine %d votes for machine %d in term %d, and is %s on disk", p.m.i, for_, term, s.Phase)
	case s.Term < term || s.Term == term && s.Vote != for_:
		w.violated("a vote is durable before it is spoken of", "machine %d votes for machine %d in term %d; on disk are term %d and vote %d",
			p.m.i, for_, term, s.Term, s.Vote)
	}
}

// acknowledges checks that what is acknowledged to the leader is durable. Called with mu held.
func (w *world) acknowledges(p *process, term, index uint64) {
	disk := p.mem.Crash(1, 0).FS
	if s := readState(disk); s.Phase != "whole" || s.Term < term {
		w.violated("only a whole node acknowledges", "machine %d in term %d; on disk are phase %s and term %d", p.m.i, term, s.Phase, s.Term)
	} else if s.Term > term && w.appended > term {
		return // it had them when it voted in the later term, whose leader may have had them cut: the answer was on its way
	}
	if found, err := wal.Inspect(disk, "log", ignore); err != nil || uint64(found.Last) < index {
		w.violated("a node acknowledges what is durable", "machine %d: entry %d; on disk the log ends with entry %d, %v", p.m.i, index, found.Last, err)
	}
}

func ignore(*entry.Entry, entry.Position) error { return nil }

// raftState is what the simulation reads of raft.state.
type raftState struct {
	Seq   uint64 `json:"seq"`
	Phase string `json:"phase"`
	Term  uint64 `json:"term"`
	Vote  int    `json:"vote"`
	Boot  uint64 `json:"boot"`
	Nonce uint64 `json:"nonce"`

	Members []struct {
		Boot  uint64 `json:"boot"`
		Nonce uint64 `json:"nonce"`
	} `json:"members"`
}

// readState returns the newest state in a folder, the zero one without any.
func readState(fsys vfs.FS) (newest raftState) {
	b := content(fsys, stateFile)
	for ; len(b) >= stateSlot; b = b[stateSlot:] {
		n := int(binary.LittleEndian.Uint32(b[12:]))
		var s raftState
		if n <= stateSlot-stateText && json.Unmarshal(b[stateText:stateText+n], &s) == nil && s.Seq > newest.Seq {
			newest = s
		}
	}
	return newest
}

// durable checks that what was promised stays so. Called with mu held after each operation.
func (p *process) durable(op memfs.Op) {
	if !op.Done || op.Kind != "sync" || op.Name != stateFile {
		return
	}
	s, before := readState(p.mem), p.m.promised
	if s.Phase != "whole" { // it promises anew
		p.m.promised = raftState{}
		return
	}
	if s.Term < before.Term || s.Term == before.Term && before.Term > 0 && before.Vote >= 0 && s.Vote != before.Vote {
		p.w.violated("a promise is kept", "machine %d has promised term %d and voted for %d, and before term %d and %d", p.m.i, s.Term, s.Vote,
			before.Term, before.Vote)
	}
	p.m.promised = s
}

// intact reports whether a folder lacks nothing that can be seen, and has no damage.
func (m *machine) intact() bool {
	s := m.p.standing()
	if !s.whole || s.commit < m.hadUpTo {
		return false
	}
	id, err := node.ReadIdentity(m.fs)
	if err != nil {
		return false
	}
	found, err := wal.Inspect(m.fs, "log", ignore)
	if err != nil || len(found.Damage) > 0 {
		return false
	}
	_, _, bad, err := snapshot.Load(m.fs, "snapshots", id)
	return err == nil && len(bad) == 0
}

// operate is the operator, who looks at all machines from time to time.
func (w *world) operate() {
	for _, m := range w.machines {
		p := m.p
		if p == nil || p.dead || p.paused || !p.recovered {
			continue
		}
		w.mu.Lock()
		s := p.status
		w.mu.Unlock()
		p.serving.Go(func() {
			s := p.n.RaftStatus()
			w.mu.Lock()
			defer w.mu.Unlock()
			p.status = s
		})
		_ = p.standing() // notes when it is whole
		if s.Phase == "failed" || s.Phase == "quarantined" {
			if !p.broken && !m.hurt {
				w.fail("a node runs unaided", "machine %d is %s: %s", m.i, s.Phase, s.Reason)
			}
			w.noteLocking("the operator reads of machine %d: %s, %s", m.i, s.Phase, s.Reason)
			p.kill(false)
			w.settle()
		} else if m.hurt && m.intact() {
			w.noteLocking("machine %d has healed", m.i)
			w.stats.healed++
			m.hurt, m.lost = false, false
		}
	}
	w.fault(2*second, w.operate)
}
