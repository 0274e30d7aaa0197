package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/fact"
	"example.com/mq/internal/node"
)

// options is what the command line and the environment say.
type options struct {
	listen, data, role      string
	clientToken, adminToken string
	tlsCert, tlsKey, tlsCA  string
	logFormat, debugListen  string
	requestIDWindow         time.Duration
	segmentBytes            int64
	snapshotBytes           int64
	shutdownGrace           time.Duration
	scrubWithin             time.Duration

	// Of topics without settings of their own; 0 for no limit.
	retention                        time.Duration
	retentionBytes, retentionRecords int64

	// Of a pair.
	replica, replicationToken string
	epoch                     uint64
	replicaTimeout            time.Duration

	// Of a cluster.
	raftPeers       []string
	raftSelf        int
	raftToken       string
	electionTimeout time.Duration
}

const (
	segmentBytesMin  = 1 << 20
	segmentBytesMax  = 1 << 30
	snapshotBytesMin = 1 << 20
	tokenMax         = 4096 // bytes
)

// errUsage marks wrong usage: exit status 2.
var errUsage = errors.New("usage")

func usageError(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errUsage}, args...)...)
}

// parseFlags reads the command line. It writes only to stderr, and only for -help.
func parseFlags(args []string, lookupEnv func(string) (string, bool), stderr io.Writer) (*options, error) {
	o := &options{}
	f := flag.NewFlagSet("mqd", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.StringVar(&o.listen, "listen", "127.0.0.1:8080", "`address` to serve on; one that is not loopback needs TLS and a client token")
	f.StringVar(&o.data, "data", "./mq-data", "data `folder`")
	f.StringVar(&o.role, "role", roleStandalone, "how this node runs: standalone; as leader or follower of a pair; or in a cluster")
	f.StringVar(&o.replica, "replica", "", "`URL` of the follower, http(s)://host:port; a leader needs it")
	f.Uint64Var(&o.epoch, "epoch", 0, "`number` from 1 that a leader needs; give one that is higher than ever before to promote a follower")
	f.DurationVar(&o.replicaTimeout, "replica-timeout", replicaTimeoutDefault,
		"how long a leader waits for its follower before writes are answered with 503")
	raftPeers := f.String("raft-peers", "", "`URLs` of all nodes of the cluster, http(s)://host:port, with commas between them, in the same order for all nodes; where clients are redirected to, too")
	f.IntVar(&o.raftSelf, "raft-self", -1, "`number` of this node in -raft-peers, from 0 on")
	f.DurationVar(&o.electionTimeout, "election-timeout", node.DefaultElectionTimeout, "how long the leader of a cluster may be silent before another one is elected; the same for all nodes")
	raftToken := newTokenFlag(f, "raft-token", "MQ_RAFT_TOKEN", "the nodes of a cluster; the same on all")
	replicationToken := newTokenFlag(f, "replication-token", "MQ_REPLICATION_TOKEN", "the nodes of a pair; the same on both")
	clientToken := newTokenFlag(f, "client-token", "MQ_CLIENT_TOKEN", "clients")
	adminToken := newTokenFlag(f, "admin-token", "MQ_ADMIN_TOKEN", "admin calls; also serves client calls")
	f.StringVar(&o.tlsCert, "tls-cert", "", "PEM `file` with the certificate; read again when it changes")
	f.StringVar(&o.tlsKey, "tls-key", "", "PEM `file` with its key; read again when it changes")
	f.StringVar(&o.tlsCA, "tls-ca", "", "PEM `file` with the certificates that other nodes are trusted by, instead of the system's")
	f.DurationVar(&o.requestIDWindow, "request-id-window", node.DefaultRequestIDWindow, "how long request ids are remembered at least")
	f.Int64Var(&o.segmentBytes, "segment-bytes", node.DefaultSegmentBytes, "size of the log's segment files")
	f.Int64Var(&o.snapshotBytes, "snapshot-bytes", node.DefaultSnapshotBytes, "take a snapshot after so many bytes of log")
	f.Func("retention", "how `long` records are kept, such as 12h or 7d, of topics that have no such setting of their own; 0, the default, for ever", func(text string) (err error) {
		o.retention, err = parseDays(text)
		return err
	})
	f.Int64Var(&o.retentionBytes, "retention-bytes", 0, "how many bytes of keys and values are kept in each such topic; 0 for all")
	f.Int64Var(&o.retentionRecords, "retention-records", 0, "how many records are kept in each such topic; 0 for all")
	f.DurationVar(&o.scrubWithin, "scrub-within", node.DefaultScrubWithin, "how long it may take to read the whole log again to find damage, at least 1m; a node that is in no cluster begins so often")
	f.DurationVar(&o.shutdownGrace, "shutdown-grace", 10*time.Second, "how long requests in flight may take to finish after SIGTERM")
	f.StringVar(&o.logFormat, "log-format", "text", "format of the log on stderr: text or json")
	f.StringVar(&o.debugListen, "debug-listen", "", "loopback `address` to serve Go's profiler on, without tokens; none by default")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(stderr, "mqd is a durable message broker. Flags:")
			f.SetOutput(stderr)
			f.PrintDefaults()
			return nil, err
		}
		return nil, usageError("%v", err)
	}
	if f.NArg() > 0 {
		return nil, usageError("unexpected argument %q: mqd takes flags only", f.Arg(0))
	}
	var err error
	if o.clientToken, err = clientToken.value(f, lookupEnv); err != nil {
		return nil, err
	}
	if o.adminToken, err = adminToken.value(f, lookupEnv); err != nil {
		return nil, err
	}
	if o.replicationToken, err = replicationToken.value(f, lookupEnv); err != nil {
		return nil, err
	}
	if o.raftToken, err = raftToken.value(f, lookupEnv); err != nil {
		return nil, err
	}
	if *raftPeers != "" {
		o.raftPeers = strings.Split(*raftPeers, ",")
	}
	if err := o.check(); err != nil {
		return nil, err
	}
	return o, o.checkRole(given(f))
}

// given returns the names of the flags that the command line has.
func given(f *flag.FlagSet) map[string]bool {
	names := map[string]bool{}
	f.Visit(func(x *flag.Flag) { names[x.Name] = true })
	return names
}

func (o *options) check() error {
	switch {
	case badPort(o.listen):
		return usageError("-listen %q: want host:port with a port from 0 to 65535", o.listen)
	case o.data == "":
		return usageError("-data is empty: name a folder")
	case (o.tlsCert == "") != (o.tlsKey == ""):
		return usageError("-tls-cert and -tls-key go together")
	case o.logFormat != "text" && o.logFormat != "json":
		return usageError("-log-format %q: say text or json", o.logFormat)
	case o.requestIDWindow < time.Millisecond || o.requestIDWindow.Milliseconds() > fact.WindowMaxMS:
		return usageError("-request-id-window %v: must be from 1ms to %dh", o.requestIDWindow, fact.WindowMaxMS/time.Hour.Milliseconds())
	case o.segmentBytes < segmentBytesMin || o.segmentBytes > segmentBytesMax:
		return usageError("-segment-bytes %d: must be from %d to %d", o.segmentBytes, segmentBytesMin, segmentBytesMax)
	case o.snapshotBytes < snapshotBytesMin:
		return usageError("-snapshot-bytes %d: must be at least %d", o.snapshotBytes, snapshotBytesMin)
	case o.retention != 0 && o.retention < time.Millisecond:
		return usageError("-retention %v: must be 0 or at least 1ms", o.retention)
	case o.retentionBytes < 0 || o.retentionBytes > api.OffsetMax:
		return usageError("-retention-bytes %d: must be from 0 to %d", o.retentionBytes, uint64(api.OffsetMax))
	case o.retentionRecords < 0 || o.retentionRecords > api.OffsetMax:
		return usageError("-retention-records %d: must be from 0 to %d", o.retentionRecords, uint64(api.OffsetMax))
	case o.scrubWithin < time.Minute:
		return usageError("-scrub-within %v: must be at least 1m", o.scrubWithin)
	case o.debugListen != "" && !isLoopbackIP(o.debugListen):
		return usageError("-debug-listen %s: must be a loopback IP address and a port", o.debugListen)
	case o.shutdownGrace < 0:
		return usageError("-shutdown-grace %v: must not be negative", o.shutdownGrace)
	}
	return nil
}

// defaults are the settings of topics that have none of their own.
func (o *options) defaults() fact.Retention {
	return fact.Retention{MS: fact.Limit(o.retention.Milliseconds()), Bytes: fact.Limit(o.retentionBytes), Records: fact.Limit(o.retentionRecords)}
}

func isLoopbackIP(address string) bool {
	host, _, err := net.SplitHostPort(address)
	return err == nil && net.ParseIP(host).IsLoopback()
}

func badPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = net.LookupPort("tcp", port)
	}
	return err != nil
}

// tokenFlag is a token that can come from a flag, a file or the environment, in this order.
type tokenFlag struct {
	name, env  string
	text, file *string
}

func newTokenFlag(f *flag.FlagSet, name, env, what string) tokenFlag {
	return tokenFlag{name, env,
		f.String(name, "", "`token` for "+what+"; better given by -"+name+"-file or "+env+", which no process list shows"),
		f.String(name+"-file", "", "`file` with the token for "+what)}
}

// value returns the token, or "" when none is configured. An empty token is wrong usage, never an open door.
func (t tokenFlag) value(f *flag.FlagSet, lookupEnv func(string) (string, bool)) (string, error) {
	given := given(f)
	token, from := "", ""
	switch {
	case given[t.name] && given[t.name+"-file"]:
		return "", usageError("-%s and -%s-file exclude each other", t.name, t.name)
	case given[t.name]:
		token, from = *t.text, "-"+t.name
	case given[t.name+"-file"]:
		from = "-" + t.name + "-file"
		text, err := readToken(*t.file)
		if err != nil {
			return "", usageError("%s: %v", from, err)
		}
		token = text
	default:
		text, ok := lookupEnv(t.env)
		if !ok {
			return "", nil
		}
		token, from = text, t.env
	}
	return token, checkToken(from, token)
}

func readToken(name string) (string, error) {
	file, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, tokenMax+2))
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

func checkToken(from, token string) error {
	switch {
	case token == "":
		return usageError("%s: the token is empty", from)
	case len(token) > tokenMax:
		return usageError("%s: the token is longer than %d bytes", from, tokenMax)
	}
	for _, c := range []byte(token) {
		if c <= ' ' || c >= 0x7f {
			return usageError("%s: a token is printable ASCII without spaces", from)
		}
	}
	return nil
}

// parseDays reads a duration as Go writes it, or a number of days or weeks: 90m, 7d, 2w.
func parseDays(text string) (time.Duration, error) {
	const day = 24 * time.Hour
	for unit, length := range map[string]time.Duration{"d": day, "w": 7 * day} {
		if number, ok := strings.CutSuffix(text, unit); ok {
			if n, err := strconv.ParseUint(number, 10, 31); err == nil && n <= uint64(math.MaxInt64/length) {
				return time.Duration(n) * length, nil
			}
		}
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errors.New("want a number with a unit, such as 90m, 12h, 7d or 2w")
	}
	return d, nil
}
