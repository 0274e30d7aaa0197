package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"example.com/mq/client"
)

// cli is the command line.
type cli struct {
	Global

	Pub      pubCmd      `cmd:"" help:"Publish one record, lines of standard input, or a JSONL file."`
	Fetch    fetchCmd    `cmd:"" help:"Read records of a topic from an offset."`
	Tail     tailCmd     `cmd:"" help:"Read the last records of a topic, and with -f what comes after them."`
	Group    groupCmd    `cmd:"" help:"Read as a group; look at groups, move or delete them."`
	Topic    topicCmd    `cmd:"" help:"Look at topics; set how long records are kept; delete."`
	Snapshot snapshotCmd `cmd:"" help:"Make the broker write a recovery snapshot now (admin token)."`
	Backup   backupCmd   `cmd:"" help:"Take a backup of a running broker, or check one (admin token)."`
	Restore  restoreCmd  `cmd:"" help:"Make a data directory of a backup; no broker is needed."`
	Pair     pairCmd     `cmd:"" help:"Look at the two nodes of a pair (replication token)."`
	Cluster  clusterCmd  `cmd:"" help:"Look at the nodes of a cluster, and hand over the lead (raft token)."`
	Bench    benchCmd    `cmd:"" help:"Measure a broker."`
	Log      logCmd      `cmd:"" help:"Look into the log of a data directory; no broker is needed."`
}

// Global are the flags of all subcommands.
type Global struct {
	URL             []string         `name:"url" short:"u" env:"MQ_URL" default:"http://127.0.0.1:8080" placeholder:"URL" help:"Base URL of the broker; all nodes of a pair or cluster, separated by commas or by repeating the flag."`
	ClientToken     *string          `env:"MQ_CLIENT_TOKEN" placeholder:"TOKEN" help:"Token for all calls. Others can see it in the process list: better use the environment or a file."`
	ClientTokenFile string           `env:"MQ_CLIENT_TOKEN_FILE" placeholder:"FILE" help:"File that holds the client token."`
	AdminToken      *string          `env:"MQ_ADMIN_TOKEN" placeholder:"TOKEN" help:"Token for what needs it: 'topic configure', 'topic retain', 'topic delete', 'snapshot' and 'backup'."`
	AdminTokenFile  string           `env:"MQ_ADMIN_TOKEN_FILE" placeholder:"FILE" help:"File that holds the admin token."`
	CA              string           `name:"ca" env:"MQ_CA" placeholder:"FILE" help:"Trust the certificates of this PEM file instead of the system's."`
	Timeout         time.Duration    `default:"30s" help:"How long a call is tried again, and how long one attempt may take."`
	Output          string           `short:"o" enum:"table,json" default:"table" help:"table, or json: one object a line, keys and values as base64."`
	Version         kong.VersionFlag `help:"Print the version and exit."`

	waiting func(failed *client.Error, since, pause time.Duration) // for client.Config.Retrying
}

// usageError is a mistake in the command line: exit status 2.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// exitStatus ends the parsing of the command line where kong would end the process, for --help.
type exitStatus int

// run is the whole program. It returns the exit status.
func run(ctx context.Context, args []string, std streams) (status int) {
	var c cli
	std.out = output{std.out}
	c.waiting = (&waiting{w: std.err, timeout: &c.Timeout}).tell
	parser, err := kong.New(&c,
		kong.Name("mq"),
		kong.Description("Talks to an mq broker. See 'mq COMMAND --help' for each command.\n\nExit status: 0 all went well, 2 wrong usage, 1 any other failure."),
		kong.Vars{"version": version()},
		kong.Writers(std.out, std.err),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}),
		kong.KindMapper(reflect.String, kong.MapperFunc(takeString)),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(&c.Global, std),
		kong.Exit(func(status int) { panic(exitStatus(status)) }),
	)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	defer func() {
		switch e := recover().(type) {
		case nil:
		case exitStatus:
			status = int(e)
		default:
			panic(e)
		}
	}()
	command, err := parser.Parse(args)
	if err == nil && c.Timeout <= 0 {
		err = fmt.Errorf("--timeout %v: want more than 0", c.Timeout)
	}
	if err != nil {
		fmt.Fprintf(std.err, "mq: %s (see mq --help)\n", plain(err.Error()))
		return 2
	}
	err = command.Run()
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errOutputClosed):
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(std.err, "mq: %s (see mq --help)\n", plain(err.Error()))
		return 2
	}
	var refused *client.Error
	hint := ""
	if errors.As(err, &refused) && refused.Code == client.ErrUnauthenticated {
		hint = " (mq sends what --client-token-file, --admin-token-file, MQ_CLIENT_TOKEN or MQ_ADMIN_TOKEN gives)"
	}
	fmt.Fprintf(std.err, "mq: %s%s\n", plain(err.Error()), hint)
	return 1
}

// takeString takes a word of the command line as it is. By itself kong makes bytes that are no UTF-8 into others without a word:
// a value would be stored that nobody gave, and a topic deleted that nobody named.
func takeString(ctx *kong.DecodeContext, target reflect.Value) error {
	token, err := ctx.Scan.PopValue("string")
	if err != nil {
		return err
	}
	word, ok := token.Value.(string)
	if !ok {
		return fmt.Errorf("%v is no string", token.Value)
	}
	target.SetString(word)
	return nil
}

func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		return "mq " + info.Main.Version
	}
	return "mq"
}

// connect makes the client that the flags ask for.
func (g *Global) connect() (*client.Client, error) {
	token, admin, err := g.tokens()
	if err != nil {
		return nil, err
	}
	config, err := g.tls()
	if err != nil {
		return nil, err
	}
	c, err := client.New(client.Config{
		Nodes: g.URL, Token: token, AdminToken: admin, TLS: config,
		Timeout: g.Timeout, Retry: client.Retry{For: g.Timeout}, Retrying: g.waiting,
	})
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

func (g *Global) tokens() (token, admin string, err error) {
	if token, err = readToken("client-token", g.ClientToken, g.ClientTokenFile); err != nil {
		return "", "", err
	}
	admin, err = readToken("admin-token", g.AdminToken, g.AdminTokenFile)
	return token, admin, err
}

// readToken returns a token that was given directly or by a file. An empty one is a mistake: the caller
// believes to have a token.
func readToken(name string, value *string, file string) (string, error) {
	switch {
	case value != nil && file != "":
		return "", usagef("--%s and --%s-file (or their environment variables) exclude each other", name, name)
	case value != nil:
		if strings.TrimSpace(*value) == "" {
			return "", usagef("--%s is empty", name)
		}
		return *value, nil
	case file == "":
		return "", nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return "", usagef("--%s-file: %w", name, err)
	}
	token := string(bytes.TrimSpace(data))
	if token == "" {
		return "", usagef("--%s-file: %s is empty", name, file)
	}
	return token, nil
}

func (g *Global) tls() (*tls.Config, error) {
	if g.CA == "" {
		return nil, nil
	}
	pem, err := os.ReadFile(g.CA)
	if err != nil {
		return nil, usagef("--ca: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("--ca: %s holds no PEM certificate", g.CA)
	}
	return &tls.Config{RootCAs: pool}, nil
}
