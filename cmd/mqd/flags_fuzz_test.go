package main

import (
	"errors"
	"flag"
	"strings"
	"testing"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/peer"
)

// FuzzFlags reads any command line. It is wrong usage, told without a token, or all settings are in the ranges that other parts rely on.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{
		"", "-listen 127.0.0.1:0 -data d", "-role cluster -raft-peers http://127.0.0.1:1,http://127.0.0.1:2,http://127.0.0.1:3 -raft-self 1 -raft-token t",
		"-role leader -replica http://localhost:1 -replication-token t -epoch 3", "-role follower -replication-token t", "-retention 168h -retention-bytes 1 -retention-records 2",
		"-request-id-window 1ms -segment-bytes 1048576 -snapshot-bytes 1048576", "-client-token canary -admin-token canary", "-log-format json -debug-listen 127.0.0.1:6060",
		"-role cluster -raft-peers a,b -raft-self 9", "-epoch -1", "-retention 1ns", "-retention 2562047h47m16.854775807s", "-unknown canary", "canary", "-raft-peers ,,,", "-election-timeout 1ns",
		"-scrub-within 1s", "-shutdown-grace -1s", "-listen :::", "-listen localhost:http", "-client-token=", "-h", "--", "-client-token canary -x",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if strings.Contains(line, "-file") { // which would be read
			return
		}
		args := strings.Fields(line)
		var out strings.Builder
		o, err := parseFlags(args, func(string) (string, bool) { return "", false }, &out)
		if err != nil {
			if !errors.Is(err, errUsage) && !errors.Is(err, flag.ErrHelp) {
				t.Errorf("%q: %v is no wrong usage", line, err)
			}
			for i, arg := range args {
				if i > 0 && strings.HasSuffix(args[i-1], "-token") && len(arg) > 8 && strings.Contains(err.Error(), arg) && !strings.Contains(strings.Join(append(args[:i:i], args[i+1:]...), " "), arg) {
					t.Errorf("%q: the error tells the token: %v", line, err)
				}
			}
			return
		}
		d := o.defaults()
		if d.MS < 0 || d.Bytes < 0 || d.Records < 0 || uint64(d.MS) > api.OffsetMax || uint64(d.Bytes) > api.OffsetMax || uint64(d.Records) > api.OffsetMax {
			t.Errorf("%q: the retention is %+v", line, d)
		}
		if o.requestIDWindow < time.Millisecond || o.scrubWithin < time.Minute || o.shutdownGrace < 0 || o.segmentBytes < segmentBytesMin || o.snapshotBytes < snapshotBytesMin {
			t.Errorf("%q: %+v", line, o)
		}
		switch o.role {
		case roleStandalone, roleFollower:
		case roleLeader:
			if peer.Check(o.replica) != nil || o.epoch < 1 || o.epoch > epochMax {
				t.Errorf("%q: a leader with epoch %d and replica %q", line, o.epoch, o.replica)
			}
		case roleCluster:
			if n := len(o.raftPeers); n%2 == 0 || o.raftSelf < 0 || o.raftSelf >= n || o.raftToken == "" || o.electionTimeout <= 0 {
				t.Errorf("%q: node %d of %q", line, o.raftSelf, o.raftPeers)
			}
			seen := map[string]bool{}
			for _, url := range o.raftPeers {
				if peer.Check(url) != nil || seen[url] {
					t.Errorf("%q: node %q", line, url)
				}
				seen[url] = true
			}
		default:
			t.Errorf("%q: role %q", line, o.role)
		}
	})
}
