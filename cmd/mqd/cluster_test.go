package main

import (
	"errors"
	"io"
	"strings"
	"testing"
)

func TestClusterFlags(t *testing.T) {
	const token, peers = "canary-token", "http://127.0.0.1:1,http://127.0.0.1:2,http://127.0.0.1:3"
	withToken := func(name string) (string, bool) { return token, name == "MQ_RAFT_TOKEN" }
	for _, row := range []struct {
		args string
		env  func(string) (string, bool)
		want string // in the error; empty: none
	}{
		{"-role cluster -raft-self 0 -raft-peers " + peers, withToken, ""},
		{"-role cluster -raft-self 2 -raft-token " + token + " -raft-peers " + peers, noEnv, ""},
		{"-role cluster -raft-self 0 -raft-peers http://127.0.0.1:1/", withToken, ""},
		{"-role cluster -raft-self 0 -election-timeout 2s -raft-peers " + peers, withToken, ""},

		{"-role cluster -raft-self 0 -raft-peers " + peers, noEnv, "token of the cluster"},
		{"-role cluster -raft-self 0 -raft-token= -raft-peers " + peers, noEnv, "the token is empty"},
		{"-role cluster -raft-self 0", withToken, "-raft-peers"},
		{"-role cluster -raft-peers " + peers, withToken, "-raft-self"},
		{"-role cluster -raft-self 3 -raft-peers " + peers, withToken, "nodes 0 to 2"},
		{"-role cluster -raft-self -1 -raft-peers " + peers, withToken, "nodes 0 to 2"},
		{"-role cluster -raft-self 0 -raft-peers http://127.0.0.1:1,http://127.0.0.1:2", withToken, "1, 3, 5 or 7"},
		{"-role cluster -raft-self 0 -raft-peers http://127.0.0.1:1,http://127.0.0.1:2,http://127.0.0.1:1/", withToken, "twice"},
		{"-role cluster -raft-self 0 -raft-peers http://127.0.0.1:1,,http://127.0.0.1:2", withToken, "node 1"},
		{"-role cluster -raft-self 0 -raft-peers http://10.0.0.1:1,http://127.0.0.1:2,http://127.0.0.1:3", withToken, "node 0"},
		{"-role cluster -raft-self 0 -election-timeout 1ms -raft-peers " + peers, withToken, "-election-timeout"},
		{"-role cluster -raft-self 0 -epoch 3 -raft-peers " + peers, withToken, "-epoch"},
		{"-raft-self 0", noEnv, "-role cluster"},
		{"-raft-token x", noEnv, "-role cluster"},
	} {
		o, err := parseFlags(strings.Fields(row.args), row.env, io.Discard)
		switch {
		case row.want == "" && err != nil:
			t.Errorf("%q: %v", row.args, err)
		case row.want == "":
			if o.raftToken != token || strings.HasSuffix(o.raftPeers[0], "/") {
				t.Errorf("%q: token %q, peers %v", row.args, o.raftToken, o.raftPeers)
			}
		case !errors.Is(err, errUsage) || !strings.Contains(err.Error(), row.want):
			t.Errorf("%q: %v, want wrong usage with %q", row.args, err, row.want)
		case strings.Contains(err.Error(), "canary"):
			t.Errorf("%q: a secret is in the error: %v", row.args, err)
		}
	}
}
