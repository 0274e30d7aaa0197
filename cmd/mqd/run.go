package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"example.com/mq/api"
	"example.com/mq/internal/httpapi"
	"example.com/mq/internal/metrics"
	"example.com/mq/internal/node"
	"example.com/mq/internal/vfs"
)

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// closeMax bounds what a stop waits for the disk.
const closeMax = 30 * time.Second

// run is mqd without the process around it. It returns the exit status; every failure has been said in one
// line on stderr.
func run(ctx context.Context, args []string, lookupEnv func(string) (string, bool), stderr io.Writer) int {
	o, err := parseFlags(args, lookupEnv, stderr)
	if err == nil {
		err = serve(ctx, o, lookupEnv, stderr)
	}
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return exitOK
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "mqd: %v (mqd -help lists the flags)\n", err)
		return exitUsage
	case errors.Is(err, vfs.ErrLocked):
		fmt.Fprintf(stderr, "mqd: %s is in use by another process: %v\n", o.data, err)
		return exitFailure
	default:
		fmt.Fprintf(stderr, "mqd: %v\n", err)
		return exitFailure
	}
}

// serve runs the node until ctx ends or something fails.
func serve(ctx context.Context, o *options, lookupEnv func(string) (string, bool), stderr io.Writer) error {
	if err := httpapi.CheckListen(o.listen, o.tlsCert != "", o.clientToken != ""); err != nil {
		return usageError("%v", err)
	}
	logger := newLogger(o.logFormat, stderr)
	httpConfig := httpapi.Config{Logger: logger, ClientToken: o.clientToken, AdminToken: o.adminToken, ConnectionsMax: connectionsMax()}
	if limit := boundMemory(lookupEnv, &httpConfig); limit < memoryUnbounded {
		logger.Info("memory is limited", "bytes", limit, "connections", httpConfig.ConnectionsMax)
	}
	if o.tlsCert != "" {
		var err error
		if httpConfig.TLS, err = httpapi.LoadTLS(o.tlsCert, o.tlsKey, logger); err != nil {
			return err
		}
	}

	wall, err := wallClock()
	if err != nil {
		return err
	}
	nodeConfig := node.Config{
		Clock: wall, Logger: logger, RequestIDWindow: o.requestIDWindow, SegmentBytes: o.segmentBytes, SnapshotBytes: o.snapshotBytes,
		ScrubWithin: o.scrubWithin, Retention: o.defaults(),
	}
	failed := make(chan error, 2) // what ends the service: of the server, of the node
	fatal := func(err error) {
		select {
		case failed <- err:
		default: // one is enough
		}
	}
	nodeConfig.Fatal = fatal
	if err := o.configurePair(&nodeConfig); err != nil {
		return err
	}

	// The folder first: a second process must find it taken, whatever its address.
	if err := makeFolder(o.data); err != nil {
		return fmt.Errorf("make the data folder: %w", err)
	}
	folder, err := lockFolder(o.data)
	if err != nil {
		return err
	}
	defer folder.Close()
	if inMemory(o.data) {
		logger.Warn("the data folder is in memory: nothing survives the machine", "data", o.data)
	}
	fsys, err := vfs.Open(o.data)
	if err != nil {
		return fmt.Errorf("open the data folder: %w", err)
	}
	defer fsys.Close()
	m := metrics.New([]string{api.PathPublish, api.PathPublishBatch, api.PathFetch, api.PathGroupsFetch, api.PathGroupsCommit,
		api.PathTopicsRetain, api.PathTopicsConfigure, api.PathTopicsList, api.PathTopicsDescribe, api.PathTopicsDelete,
		api.PathGroupsList, api.PathGroupsDescribe, api.PathGroupsDelete, api.PathGroupsSeek,
		api.PathSnapshot, api.PathBackupBegin, api.PathBackupRead, api.PathBackupEnd, api.PathHealth, api.PathReady, api.PathMetrics,
		api.PathReplicationStream, api.PathReplicationStatus, api.PathRaftStream, api.PathRaftRole, api.PathRaftStatus, api.PathRaftTransfer})
	nodeConfig.FS, nodeConfig.Observer, nodeConfig.Disk = fsys, m, m.Disk()
	n, err := o.open(nodeConfig, &httpConfig, m)
	if err != nil {
		return err
	}
	closing := false // below; a second Close would wait for the first, however long the disk hangs
	defer func() {
		if !closing {
			n.Close()
		}
	}()
	m.Watch(n)

	httpConfig.Broker, httpConfig.Observe, httpConfig.Metrics = n, m, m.Handler()
	httpConfig.EndWaits = n.EndWaits
	httpConfig.Fatal = func(bug any) { endAtOnce(stderr, bug) }
	httpConfig.Ready = func() (bool, any) {
		s := n.Status()
		return s.Ready, s
	}
	httpConfig.Verbose = func() any { return n.Verbose() }
	server, err := httpapi.New(httpConfig)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	// A name may have been resolved to something else just now.
	if err := httpapi.CheckListen(listener.Addr().String(), o.tlsCert != "", o.clientToken != ""); err != nil {
		listener.Close()
		return usageError("%v", err)
	}
	debugServer, err := serveDebug(o.debugListen, logger)
	if err != nil {
		listener.Close()
		return err
	}
	defer debugServer.Close()

	// Requests are answered from here on: with 503 until the log has been read.
	go func() { failed <- server.Serve(listener) }() // ended by Shutdown below
	logger.Info("listening", "address", listener.Addr().String(), "role", o.role, "tls", o.tlsCert != "", "data", o.data)
	recovered := make(chan error, 1)
	go func() { recovered <- n.Recover() }() // awaited below: a node cannot be closed while it recovers
	var cause error
	garbage := newGarbageRule(lookupEnv)
	defer garbage.end()
	look := wall.NewTimer(garbageLookAt)
	defer look.Stop()
	for running := true; running; {
		select {
		case <-look.C():
			garbage.look()
			look.Reset(garbageLookAt)
		case cause = <-recovered:
			recovered = nil
			running = cause == nil
			debug.FreeOSMemory() // what reading the log took for a moment
		case cause = <-failed:
			running = false
		case <-ctx.Done():
			running = false
		}
	}
	logger.Info("stopping")
	deadline, cancel := context.WithTimeout(context.Background(), o.shutdownGrace)
	defer cancel()
	n.HandOver(deadline)
	n.EndWaits()
	n.Interrupt()
	if err := server.Shutdown(deadline); err != nil {
		logger.Warn("requests were cut off", "err", err)
	}
	if recovered != nil {
		if err := <-recovered; err != nil && cause == nil && !errors.Is(err, node.ErrInterrupted) {
			cause = err
		}
	}
	closed := make(chan error, 1)
	closing = true
	go func() { closed <- n.Close() }() // if the disk hangs it ends with the process
	select {
	case err = <-closed:
	case <-time.After(closeMax):
		err = fmt.Errorf("the disk does not answer within %v; what was acknowledged is safe", closeMax)
	}
	if err != nil && cause == nil {
		cause = fmt.Errorf("close: %w", err)
	}
	if cause == nil {
		logger.Info("stopped")
	}
	return cause
}

// service is a node in any role.
type service interface {
	httpapi.Broker
	metrics.Gauges
	Recover() error
	// HandOver gives up what another node can take over, before requests are refused.
	HandOver(ctx context.Context)
	Interrupt()
	EndWaits()
	Close() error
	Status() node.Status
	Verbose() node.Verbose
}

// open opens the node, and sets what the server needs for its role.
func (o *options) open(c node.Config, h *httpapi.Config, m *metrics.Metrics) (service, error) {
	if o.role == roleCluster {
		return o.openCluster(c, h, m)
	}
	if o.role != roleStandalone {
		c.Pair = m.Pair()
	}
	n, err := node.Open(c)
	if err != nil {
		return nil, err
	}
	if o.role == roleLeader {
		h.MayAnswer = n.MayAnswer
	}
	h.Replication = o.replication(n)
	return n, nil
}

// connectionsMax is how many connections there may be: as many as the limit on open files allows, with some
// left for the data folder. Clients must never use up what a snapshot or a new segment needs.
func connectionsMax() int {
	const most, least = 16384, 16
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return least
	}
	files := int64(min(limit.Cur, 1<<20))
	return int(min(most, max(least, files-max(768, files/4))))
}

func newLogger(format string, w io.Writer) *slog.Logger {
	if format == "json" {
		return slog.New(slog.NewJSONHandler(w, nil))
	}
	return slog.New(slog.NewTextHandler(w, nil))
}

// serveDebug serves the profiler, on loopback only. With no address it does nothing.
func serveDebug(address string, logger *slog.Logger) (*http.Server, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	s := &http.Server{Handler: httpapi.LocalOnly(mux), ReadHeaderTimeout: 5 * time.Second}
	if address == "" {
		return s, nil
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for the profiler: %w", err)
	}
	logger.Info("profiler", "address", l.Addr().String())
	go s.Serve(l) // ended by the caller's Close
	return s, nil
}
