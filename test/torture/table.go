package main

// What looks at the outcome.
const (
	byHistory = "history: acknowledged, order, duplicates, bytes, groups"
	byLogs    = "logs equal byte for byte"
	byLinear  = "linearizability"
	byAudit   = "audit of the log"
	byTests   = "assertions of the tests"
)

// table is all scenarios, in the order in which they run.
func table() []scenario {
	var all []scenario
	for _, part := range [][]scenario{inMemory(), standalone(), pairs(), clusters(), disks(), everything(), code()} {
		all = append(all, part...)
	}
	return all
}

// inMemory are whole nodes on disks and networks in memory.
func inMemory() []scenario {
	return []scenario{
		{
			name: "crash-states", group: "states", what: "every state that a power cut may leave of a node's folder, at any operation",
			nemeses: "power cut, torn, lost and reordered writes, names and sizes", checkers: "acknowledged is there, refused is not, the node goes on",
			guarantees: "G1 G4 G9 G23 G35", pkg: "./internal/node", run: "PowerCut",
			sizes:    []size{{name: "MQ_CRASH_STATES", short: 1000, long: 10_000}},
			seedless: true,
			lane:     fills,
		},
		{
			name: "disk-errors", group: "states", what: "the k-th sync, write, rename, folder sync, create or remove fails",
			nemeses: "EIO, ENOSPC", checkers: "no acknowledgement afterwards, nothing lost", guarantees: "G8",
			pkg: "./internal/node", run: "DiskError",
			seedless: true,
			lane:     fills,
		},
		{
			name: "log-states", group: "states", what: "every state that a power cut may leave of a log, each operation that fails, each bit that flips",
			nemeses: "power cut, torn writes, EIO, ENOSPC, bit rot", checkers: byTests, guarantees: "G1 G4 G8", pkg: "./internal/wal",
			run:      "^(TestCrashStates|TestErrors|TestNoSpaceAnywhere|TestCatchUpCrash|TestRepairErrors|TestRepairFull|TestRepairResume|TestEveryBitFlipped|TestEveryBitOfLastFrame)$",
			flags:    []string{"-crash-states=100"},
			seedless: true,
			lane:     fills,
		},
		{
			name: "flipped-bits", group: "states", what: "one bit flips, anywhere in a log or a folder", nemeses: "bit rot",
			checkers: "detected, never served", guarantees: "G7 G36", pkg: "./internal/node", run: "TestFlippedBitAnywhere|TestEveryByteOfAFrame",
			seedless: true,
			lane:     fills,
		},
		{
			name: "sim-pair", group: "sim", what: "pairs of nodes under virtual time, with all faults from a seed",
			nemeses:  "kill, power cut, pause, network cut, packets lost, repeated, changed, mixed up, full and failing disks, promotions, mistakes of operators",
			checkers: "invariants of all machines, " + byAudit + ", " + byLogs, guarantees: "G1 G2 G3 G6 G14 G15 G16 G17 G19 G33 G34 G35",
			pkg: "./test/sim", run: "^TestPair$", sizes: []size{{name: "MQ_SIM_SEEDS", short: 2000, long: 6000}}, simulated: true,
			lane: fills,
		},
		{
			name: "sim-cluster", group: "sim", what: "clusters of 1, 3 and 5 nodes under virtual time, with all faults from a seed",
			nemeses: "kill, power cut, pause, network cut all ways, packets lost, repeated, late, slow, hung, full and failing disks, clock steps, " +
				"folders that are lost, old, damaged",
			checkers: byLinear + ", invariants of all machines, " + byAudit + ", " + byLogs, guarantees: "G1 G2 G3 G6 G21 G22 G23 G25 G26 G27 G28 G33 G34 G35",
			pkg: "./test/sim/raft", run: "^TestCluster$", sizes: []size{{name: "MQ_SIM_SEEDS", short: 2000, long: 6000}}, simulated: true,
			lane: fills,
		},
	}
}

// standalone are processes alone.
func standalone() []scenario {
	const e2e = "./test/e2e"
	return []scenario{
		{
			name: "kill", group: "processes", what: "mqd under load is killed, stopped, started twice", nemeses: "kill -9, stop, second process",
			checkers: byHistory, guarantees: "G1 G2 G3 G4 G5 G6 G10", pkg: e2e, run: "^(TestKill|TestStopUnderLoad|TestSecondProcess)$",
			sizes: []size{{name: "MQ_KILL_CYCLES", short: 100, long: 1000}},
		},
		{
			name: "kill-churn", group: "processes", what: "mqd is killed while starts move, topics are deleted and the log is cleaned", nemeses: "kill -9",
			checkers: byHistory, guarantees: "G1 G33 G34 G35", pkg: e2e, run: "^TestChurnKill$",
			sizes: []size{{name: "MQ_CHURN_CYCLES", short: 20, long: 200}},
		},
		{
			name: "damage", group: "processes", what: "bits of a stopped node's log flip", nemeses: "bit rot",
			checkers: "exactly the damaged records are missing, and named", guarantees: "G7 G36", pkg: e2e, run: "^TestDamage$",
		},
	}
}

// pairs are two processes.
func pairs() []scenario {
	const e2e = "./test/e2e"
	return []scenario{
		{
			name: "pair-kill", group: "pair", what: "either node, or both, are killed; promotions, returns, full syncs", nemeses: "kill -9, promotion, empty folder",
			checkers: byHistory + ", " + byLogs, guarantees: "G14 G16 G17 G18 G19", pkg: e2e, run: "^(TestPairKill|TestChurnPair)$",
			sizes: []size{{name: "MQ_PAIR_ROUNDS", short: 50, long: 80}, {name: "MQ_CHURN_PAIR_ROUNDS", short: 3, long: 12}},
		},
		{
			name: "pair-pause", group: "pair", what: "a leader or a follower is stopped, replaced, and goes on", nemeses: "SIGSTOP, SIGCONT, promotion",
			checkers: byHistory + ", " + byLogs, guarantees: "G16 G17 G18", pkg: e2e, run: "^(TestPairPause|TestPairFollowerPause)$",
			sizes: []size{{name: "MQ_PAIR_PAUSES", short: 4, long: 16}},
		},
		{
			name: "pair-network", group: "network", what: "the network of a pair is cut, in six ways", nemeses: "cuts both ways and one way, promotion",
			checkers: byHistory + ", " + byLogs, guarantees: "G16 G17 G18", pkg: e2e, run: "^TestPairCut$",
			sizes: []size{{name: "MQ_PAIR_CUTS", short: 6, long: 18}},
		},
		{
			name: "pair-sync", group: "pair", what: "full syncs, a standalone node that becomes a pair", nemeses: "kill -9, empty folder",
			checkers: byHistory + ", " + byLogs, guarantees: "G18 G20", pkg: e2e,
			run:   "^(TestPairFullSync|TestPairFullSyncLongEnd|TestPairFromStandalone|TestPairEmptySegment)$",
			sizes: []size{{name: "MQ_PAIR_SYNC_MB", short: 80, long: 600}},
		},
		{
			name: "pair-refusals", group: "operations", what: "all that a pair must refuse", nemeses: "wrong epochs, folders, roles, tokens; strangers",
			checkers: "refused, and nothing is changed", guarantees: "G18 G20", pkg: e2e, run: "^(TestPairRefusals|TestPairStrangers)$",
		},
	}
}

// clusters are three processes.
func clusters() []scenario {
	const e2e = "./test/e2e"
	return []scenario{
		{
			name: "cluster-kill", group: "cluster", what: "one, two or all nodes are killed; leaders are killed to see how long no write is taken",
			nemeses: "kill -9", checkers: byHistory + ", " + byLogs, guarantees: "G21 G24 G28", pkg: e2e,
			run: "^(TestClusterKill|TestChurnCluster|TestClusterFailover)$",
			sizes: []size{
				{name: "MQ_CLUSTER_ROUNDS", short: 8, long: 40}, {name: "MQ_CHURN_CLUSTER_ROUNDS", short: 3, long: 12},
				{name: "MQ_CLUSTER_KILLS", short: 3, long: 10},
			},
		},
		{
			name: "cluster-pause", group: "cluster", what: "leaders and followers are stopped for some election timeouts, and go on",
			nemeses: "SIGSTOP, SIGCONT", checkers: byHistory + ", " + byLogs, guarantees: "G22 G25 G31", pkg: e2e,
			run: "^(TestClusterPause|TestClusterFollowerPause)$", sizes: []size{{name: "MQ_CLUSTER_PAUSES", short: 2, long: 12}},
		},
		{
			name: "cluster-network", group: "network", what: "the network of a cluster is cut, in eight ways",
			nemeses: "cuts both ways, one way, partial", checkers: byHistory + ", " + byLogs, guarantees: "G22 G25 G31", pkg: e2e, run: "^TestClusterCut$",
			sizes: []size{{name: "MQ_CLUSTER_CUTS", short: 8, long: 16}},
		},
		{
			name: "bad-links", group: "network", what: "a cluster and a pair over links that change all the time",
			nemeses: "packets lost, late, repeated, mixed up and changed", checkers: byHistory + ", " + byLogs, guarantees: "G18 G28 G32", pkg: "./test/nemesis",
			run: "^(TestClusterLinks|TestPairLinks)$", sizes: []size{{name: "MQ_LINK_CHANGES", short: 6, long: 40}},
		},
		{
			name: "clock-jumps", group: "clock", what: "wall clocks jump by an hour and more: of a node alone, and of each node of a cluster",
			nemeses: "clock jumps, kill -9, transfers", checkers: byHistory + "; request ids and times go by the log", guarantees: "G5 G22", pkg: "./test/nemesis",
			run: "^(TestClockJumps|TestClockRequestIDs|TestClusterClockJumps)$", sizes: []size{{name: "MQ_CLOCK_JUMPS", short: 6, long: 40}},
		},
		{
			name: "cluster-linear", group: "cluster", what: "clients are recorded while nodes are killed, stopped and cut off",
			nemeses: "kill -9, SIGSTOP, cuts, transfers", checkers: byLinear, guarantees: "G22", pkg: e2e, run: "^TestClusterLinear$",
			sizes: []size{{name: "MQ_CLUSTER_HISTORIES", short: 5, long: 15}},
		},
		{
			name: "cluster-damage", group: "cluster", what: "folders are lost, old, or damaged, in sixteen ways; a node that was away for long",
			nemeses: "wiped, old and foreign folders, flipped bits, missing and truncated files", checkers: byHistory + ", " + byLogs,
			guarantees: "G26 G27 G31", pkg: e2e, run: "^(TestClusterDamage|TestClusterFarBehind)$",
			sizes: []size{{name: "MQ_CLUSTER_DAMAGES", short: 16, long: 48}},
		},
		{
			name: "cluster-disk", group: "disk", what: "a leader's disk hangs, a follower's disk is slow", nemeses: "hung and slow syncs",
			checkers: byHistory, guarantees: "G30", pkg: e2e, run: "^(TestClusterHungDisk|TestClusterSlowFollower)$",
		},
		{
			name: "cluster-operations", group: "operations", what: "founding, refusals, strangers, rolling restarts, transfers of the lead",
			nemeses: "wrong folders and clusters, restarts, kill -9 while founding", checkers: byHistory + ", " + byLogs, guarantees: "G24 G25 G28 G32", pkg: e2e,
			run: "^(TestClusterForms|TestClusterRefusals|TestClusterStrangers|TestClusterOfOne|TestClusterFromStandalone|TestClusterRoll|TestClusterTransfer)$",
			sizes: []size{
				{name: "MQ_CLUSTER_FOUNDINGS", short: 2, long: 8}, {name: "MQ_CLUSTER_ROLLS", short: 1, long: 3}, {name: "MQ_CLUSTER_TRANSFERS", short: 3, long: 20},
			},
		},
	}
}

// disks are real file systems that break.
func disks() []scenario {
	const fault = "./test/fault"
	return []scenario{
		{
			name: "power-cut", group: "disk", what: "the file system below mqd is shut down without a flush, then recovered", nemeses: "power cut on ext4",
			checkers: byHistory, guarantees: "G1 G2 G3 G4", pkg: fault, run: "^TestPowerCut$", sizes: []size{{name: "MQ_POWER_CYCLES", short: 50, long: 300}},
		},
		{
			name: "disk-full", group: "disk", what: "a disk is filled, freed, and mqd is killed meanwhile; policies keep room; a full leader hands over",
			nemeses: "ENOSPC, kill -9", checkers: byHistory, guarantees: "G9 G30", pkg: fault,
			run:   "^(TestDiskFull|TestPolicyKeepsRoom|TestPolicyGivesRoom|TestClusterDiskFull)$",
			sizes: []size{{name: "MQ_FULL_CYCLES", short: 20, long: 40}, {name: "MQ_FULL_MB", short: 60, long: 300}},
		},
		{
			name: "syscalls", group: "disk", what: "system calls of mqd fail, writes are short, connections are more than files",
			nemeses: "EIO, short writes, EMFILE", checkers: byHistory + "; no acknowledgement afterwards", guarantees: "G8 G11", pkg: fault,
			run: "^(TestSyscallFails|TestShortWrites|TestManyConnections)$", sizes: []size{{name: "MQ_EIO_CYCLES", short: 3, long: 15}},
		},
		{
			name: "lying-disk", group: "disk", what: "syncs that report success and do nothing, a file system that becomes read-only",
			nemeses: "lying syncs, EROFS, power cut", checkers: byHistory, guarantees: "G8 G26", pkg: fault,
			run: "^(TestReadOnly|TestClusterLyingDisk)$", sizes: []size{{name: "MQ_LIES", short: 2, long: 10}},
		},
	}
}

// everything is all at once, and for long.
func everything() []scenario {
	return []scenario{
		{
			name: "mixed", group: "mixed", what: "everything at once: processes of each role under a schedule of faults from a seed",
			nemeses:  "kill -9, SIGSTOP, cuts, restarts, promotions, transfers, damaged folders, snapshots and backups meanwhile",
			checkers: byHistory + ", " + byLinear + ", " + byLogs + ", memory, goroutines and files flat", guarantees: "G1 G2 G3 G6 G14 G18 G21 G22 G27 G28",
			pkg: "./test/mixed", run: "^TestMixed$",
			sizes: []size{{name: "MQ_MIXED_ROUNDS", short: 1, long: 3}, {name: "MQ_MIXED_SECONDS", short: 8, long: 30, fixed: true}}, env: []string{"MQ_MIXED_ROLE=all"},
		},
		{
			name: "crowd", group: "memory", what: "mqd in 256 MiB of memory, with thousands of slow readers and writers, floods, oversize bodies",
			nemeses: "slow and hostile clients, stalled follower, lost quorum", checkers: "no process is killed, others' p99, all is given back",
			guarantees: "G11 G17 G25", pkg: "./test/crowd",
			run: "^(TestCrowd|TestStalledFollower|TestLostQuorum)$", sizes: []size{{name: "MQ_CROWD", short: 5000, long: 5000, fixed: true}},
			lane: alone,
		},
		{
			name: "soak", group: "soak", what: "a broker that works under churn, with snapshots, backups and the scrubber", nemeses: "none",
			checkers: byHistory + ", disk, memory, goroutines and files flat", guarantees: "G33 G34 G35 G36 G37", pkg: "./test/soak", run: "^TestSoak$",
			sizes: []size{{name: "MQ_SOAK", short: 120, long: 180, unit: "s"}},
		},
	}
}

// code are hostile input, and deliberate faults.
func code() []scenario {
	return []scenario{
		{
			name: "fuzz", group: "fuzz", what: "every decoder, and whole sessions, get input that changes at random", nemeses: "malformed input",
			checkers: "no panic, bounded memory, encode and decode agree", guarantees: "G11 G13 G32", special: runFuzz, seedless: true,
			sizes: []size{{name: secondsVariable, short: 2, long: 10}},
			lane:  fills,
		},
		{
			name: "hostile-input", group: "input", what: "hostile bodies to every endpoint, and odd ones that are allowed", nemeses: "malformed input",
			checkers: "the expected status, nothing stored", guarantees: "G11 G12", pkg: "./internal/httpapi", run: "^(TestHostileBodies|TestHostileUpgrades|TestEveryFieldOfEveryCall|TestEveryLegalForm|TestLegalOddities|TestLegalFraming)$",
			seedless: true,
			lane:     fills,
		},
		{
			name: "tokens", group: "security", what: "every route with every kind of token; secrets searched in all output", nemeses: "wrong tokens, odd headers",
			checkers: "the expected status, no secret anywhere", guarantees: "G12", pkg: "./test/security", run: "^Test", seedless: true,
			env: []string{"MQ_SECURITY_EACH=1"},
		},
		{
			name: "mutations", group: "mutations", what: "deliberate faults in the code, of which each must be noticed by a test", nemeses: "mistakes of programmers",
			checkers: "all tests", special: runMutations, seedless: true, once: true,
			lane: fills,
		},
	}
}
