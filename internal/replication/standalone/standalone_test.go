package standalone

import (
	"example.com/mq/internal/entry"
	"testing"

	"example.com/mq/internal/replication"
	"example.com/mq/internal/replication/replicationtest"
	"example.com/mq/internal/wal"
)

func TestRole(t *testing.T) {
	replicationtest.Run(t, func(_ *testing.T, log *wal.Log, applier replication.Applier) replication.Role {
		return New(log, entry.StandaloneTerm, applier)
	})
}
