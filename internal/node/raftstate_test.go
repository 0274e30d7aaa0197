package node

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/faultfs"
	"example.com/mq/internal/vfs/memfs"
)

const someID = "00112233445566778899aabbccddeeff"

// newStateStore makes the file as a first start does.
func newStateStore(t *testing.T, fsys vfs.FS) *stateStore {
	t.Helper()
	s, err := openState(fsys)
	if !errors.Is(err, errNoState) {
		t.Fatalf("a folder without the file: %v", err)
	}
	err = s.change(func(st *raftState) bool {
		*st = raftState{NodeID: someID, LogID: someID, Self: 1, Phase: phaseWhole, Vote: noVote, Members: make([]memberState, 3)}
		for i := range st.Members {
			st.Members[i] = memberState{NodeID: someID, Boot: 3, Nonce: 1 << 62}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *stateStore) vote(term uint64) error {
	return s.change(func(st *raftState) bool {
		st.Term, st.Vote = term, int(term%3)
		return true
	})
}

// A vote that was spoken of is never taken back, whatever a power cut leaves (trap 15 of etcd's raft, and the reason why there
// are two slots).
func TestStateSurvivesPowerCut(t *testing.T) {
	mem := memfs.New()
	s := newStateStore(t, mem)
	var mu sync.Mutex
	spoken, asked := uint64(0), uint64(0) // terms: durable for sure; perhaps
	states := 0
	mem.OnOp(func(op memfs.Op) {
		mu.Lock()
		defer mu.Unlock()
		for number := range 12 {
			states++
			crashed := mem.Crash(asked, number).FS
			got, err := openState(crashed)
			if err != nil {
				t.Fatalf("at %s of term %d, state %d: %v", op.Kind, asked, number, err)
			}
			st := got.state()
			if st.Term < spoken || st.Term > asked || st.Term > 0 && st.Vote != int(st.Term%3) {
				t.Fatalf("at %s of term %d, state %d: term %d with a vote for %d; %d was spoken of", op.Kind, asked, number, st.Term, st.Vote, spoken)
			}
			if err := got.vote(asked + 100); err != nil {
				t.Fatalf("it does not go on: %v", err)
			}
			if again, err := openState(crashed); err != nil || again.state().Term != asked+100 {
				t.Fatalf("it does not go on: %v", err)
			}
		}
	})
	for term := uint64(1); term <= 20; term++ {
		mu.Lock()
		asked = term
		mu.Unlock()
		if err := s.vote(term); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		spoken = term
		mu.Unlock()
	}
	if states < 500 {
		t.Errorf("only %d states", states)
	}
}

// What a start reads that follows a kill in the middle of a change is not taken back by a power cut later.
func TestStateReadIsDurable(t *testing.T) {
	mem := memfs.New()
	s := newStateStore(t, mem)
	starts := 0
	mem.OnOp(func(memfs.Op) {
		killed := mem.Clone()
		got, err := openState(killed)
		if err != nil {
			t.Fatal(err)
		}
		read := got.state().Term
		for number := range 12 {
			starts++
			again, err := openState(killed.Crash(uint64(starts), number).FS)
			if err != nil || again.state().Term != read {
				t.Fatalf("a start has read term %d, and one after a power cut %+v, %v", read, again.state(), err)
			}
		}
	})
	for term := uint64(1); term <= 10; term++ {
		if err := s.vote(term); err != nil {
			t.Fatal(err)
		}
	}
	if starts < 200 {
		t.Errorf("only %d starts", starts)
	}
}

// One rotten bit anywhere takes nothing back, and both slots rotten is noticed.
func TestStateSurvivesRot(t *testing.T) {
	mem := memfs.New()
	s := newStateStore(t, mem)
	if err := s.vote(7); err != nil {
		t.Fatal(err)
	}
	f, err := mem.Open(stateFile)
	if err != nil {
		t.Fatal(err)
	}
	flip := func(at int64, bit byte) {
		var b [1]byte
		if _, err := f.ReadAt(b[:], at); err != nil {
			t.Fatal(err)
		}
		b[0] ^= bit
		if _, err := f.WriteAt(b[:], at); err != nil {
			t.Fatal(err)
		}
	}
	for at := range int64(stateBytes) {
		bit := byte(1) << (at % 8)
		flip(at, bit)
		got, err := openState(mem)
		if err != nil || got.state().Term != 7 || got.state().Vote != 1 {
			t.Fatalf("byte %d: %v", at, err)
		}
		other := (at + stateSlot) % stateBytes
		flip(other, bit)
		if _, err := openState(mem); !errors.As(err, new(*stateDamage)) && !errors.Is(err, errStateVersion) {
			t.Fatalf("bytes %d and %d: %v", at, other, err)
		}
		flip(other, bit)
		flip(at, bit)
	}
	for _, size := range []int64{0, 1, stateSlot - 1, stateSlot, stateBytes - 1} {
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		_, err := openState(mem)
		if whole := size >= stateSlot; (err == nil) != whole {
			t.Errorf("cut to %d bytes: %v", size, err)
		}
		if err := f.Truncate(stateBytes); err != nil {
			t.Fatal(err)
		}
		slot, _ := s.state().encode()
		if _, err := f.WriteAt(append(slot, slot...), 0); err != nil {
			t.Fatal(err)
		}
	}
}

// After an error nothing is promised any more: what is durable is not known.
func TestStateErrorIsFinal(t *testing.T) {
	for _, kind := range []faultfs.Kind{faultfs.Write, faultfs.Sync} {
		for at := 1; at <= stateSlots; at++ {
			t.Run(fmt.Sprint(kind, at), func(t *testing.T) {
				fsys := faultfs.New(memfs.New())
				s := newStateStore(t, fsys)
				fault := fsys.Inject(faultfs.Fault{Kinds: []faultfs.Kind{kind}, Name: stateFile, At: at, Err: syscall.EIO})
				if err := s.vote(1); !errors.Is(err, syscall.EIO) {
					t.Fatalf("got %v", err)
				}
				fault.Remove()
				syncs := fsys.Count(faultfs.Sync)
				if err := s.vote(2); err == nil {
					t.Error("it promised again")
				}
				if n := fsys.Count(faultfs.Sync) - syncs; n != 0 {
					t.Errorf("%d syncs after the failure", n)
				}
				if s.state().Term != 0 {
					t.Errorf("it speaks of term %d", s.state().Term)
				}
			})
		}
	}
}
