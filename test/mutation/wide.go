package mutation

import "strings"

// wide has, for parts of the code, the tests beyond a mutation's own that could notice that something is wrong there. The
// whole package that is changed is always one of them.
var wide = []struct {
	under  []string // folders
	checks []string // as in a file
}{
	{
		under: []string{"internal/wal", "internal/vfs", "internal/snapshot", "internal/index", "internal/state", "internal/fact"},
		checks: []string{
			"./internal/wal . timeout=10m",
			"./internal/node . timeout=10m",
			"./internal/backup . timeout=10m",
			"./test/sim TestPair MQ_SIM_SEEDS=200 timeout=10m",
			"./test/sim/raft TestCluster MQ_SIM_SEEDS=100 timeout=10m",
		},
	},
	{
		under: []string{"internal/broker", "internal/node"},
		checks: []string{
			"./internal/node . timeout=10m",
			"./test/sim TestPair MQ_SIM_SEEDS=200 timeout=10m",
			"./test/sim/raft TestCluster MQ_SIM_SEEDS=100 timeout=10m",
			"./test/e2e TestKill|TestChurnKill timeout=10m mqd",
		},
	},
	{
		under: []string{"internal/replication/pair"},
		checks: []string{
			"./internal/node TestPair.* timeout=10m",
			"./test/sim TestPair MQ_SIM_SEEDS=500 timeout=10m",
			"./test/e2e TestPair.* timeout=10m mqd",
		},
	},
	{
		under: []string{"internal/replication/cluster", "internal/catchup", "internal/mesh"},
		checks: []string{
			"./internal/node TestOddOneOutIsQuarantined|TestEmptyAndOldFolders|TestMembersFolderElsewhere timeout=10m",
			"./test/sim/raft TestCluster MQ_SIM_SEEDS=300 timeout=10m",
			"./test/e2e TestClusterKill|TestClusterLinear|TestClusterDamage timeout=10m mqd",
		},
	},
	{
		under: []string{"internal/httpapi"},
		checks: []string{
			"./client . timeout=10m",
			"./cmd/mqd . timeout=10m",
		},
	},
}

// wideFor returns the further checks for what a mutation changes.
func wideFor(m *Mutation) (list []Check) {
	for _, e := range m.Edits {
		folder := e.File[:max(0, strings.LastIndexByte(e.File, '/'))]
		list = append(list, Check{Package: "./" + folder, Run: ".", Timeout: 10 * timeoutDefault})
		for _, w := range wide {
			for _, under := range w.under {
				if folder != under && !strings.HasPrefix(folder, under+"/") {
					continue
				}
				for _, text := range w.checks {
					if err := addCheck(&list, text); err != nil {
						panic("BUG: " + err.Error())
					}
				}
			}
		}
	}
	return list
}
