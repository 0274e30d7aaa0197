package node

import (
	"errors"
	"testing"

	"example.com/mq/internal/replication/cluster"
	"example.com/mq/internal/wal"
)

// TestWhyFailed lets a life end by what the role tells the broker first. What this node has lost it must heal, and not take
// for a failed disk, after which it would take no part before somebody starts it again.
func TestWhyFailed(t *testing.T) {
	for _, f := range []struct{ err, want error }{
		{&cluster.LostError{Acknowledged: 640, Last: 396, Leader: 1}, errLost},
		{&cluster.DivergedError{Index: 7, What: "the term"}, errDiverged},
		{wal.ErrFailed, errDisk},
	} {
		var got error
		c := &Cluster{cc: ClusterConfig{URLs: make([]string, 3)}, end: func(cause error) { got = cause }}
		c.diskFailed(f.err)
		if !errors.Is(got, f.want) || !errors.Is(got, f.err) {
			t.Errorf("%v: the life ends with %v, want %v", f.err, got, f.want)
		}
	}
}
