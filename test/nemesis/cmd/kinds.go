package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"example.com/mq/test/nemesis"
	"example.com/mq/test/process"
)

// options are the flags of all kinds.
type options struct {
	howLong      time.Duration
	seed         uint64
	calls, how   string
	left         int64
	rates        nemesis.Rates
	clients      int
	pace         time.Duration
	topic, token string
	comeBack     bool
}

// parse takes flags from wherever they stand, and returns the other words.
func (o *options) parse(args []string) (words []string, err error) {
	f := flag.NewFlagSet("nemesis", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.DurationVar(&o.howLong, "for", 0, "")
	f.Uint64Var(&o.seed, "seed", 1, "")
	f.StringVar(&o.calls, "calls", "syncs", "")
	f.StringVar(&o.how, "how", "EIO", "")
	f.Int64Var(&o.left, "left", 0, "")
	f.Float64Var(&o.rates.Drop, "drop", 0, "")
	f.Float64Var(&o.rates.Duplicate, "duplicate", 0, "")
	f.Float64Var(&o.rates.Reorder, "reorder", 0, "")
	f.Float64Var(&o.rates.Corrupt, "corrupt", 0, "")
	f.DurationVar(&o.rates.Delay, "delay", 0, "")
	f.DurationVar(&o.rates.Jitter, "jitter", 0, "")
	f.IntVar(&o.clients, "n", 100, "")
	f.DurationVar(&o.pace, "pace", time.Second, "")
	f.StringVar(&o.topic, "topic", "", "")
	f.StringVar(&o.token, "token", "", "")
	f.BoolVar(&o.comeBack, "return", false, "")
	for len(args) > 0 {
		// A number below 0 is an argument: of a clock.
		if _, err := time.ParseDuration(args[0]); err == nil {
			words, args = append(words, args[0]), args[1:]
			continue
		}
		if err := f.Parse(args); err != nil {
			return nil, err
		}
		if args = f.Args(); len(args) > 0 {
			words, args = append(words, args[0]), args[1:]
		}
	}
	return words, nil
}

// kind is something that can be done.
type kind struct {
	arguments int // how many it takes; -n: at least n
	goesOn    bool
	do        func(ctx context.Context, o *options, a []string) (nemesis.Undo, error)
}

// do does one thing, waits for as long as it shall last, and undoes it.
func (o *options) do(ctx context.Context, name string, a []string, out io.Writer) error {
	if gather, ok := crowds[name]; ok && len(a) == 1 {
		return o.crowd(ctx, gather, a[0], out)
	}
	k, ok := kinds[name]
	if n := k.arguments; !ok || n >= 0 && len(a) != n || len(a) < -n {
		return fmt.Errorf("%s with %d arguments: see -help", name, len(a))
	}
	undo, err := k.do(ctx, o, a)
	if err != nil {
		return err
	}
	if undo == nil || !k.goesOn && o.howLong == 0 {
		return nil
	}
	o.wait(ctx)
	return undo()
}

// wait waits for as long as -for says, or for an interrupt.
func (o *options) wait(ctx context.Context) {
	if o.howLong > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.howLong)
		defer cancel()
	}
	<-ctx.Done()
}

// numbers reads arguments that are numbers.
func numbers(a ...string) (n []int64, err error) {
	for _, text := range a {
		i, e := strconv.ParseInt(text, 10, 64)
		if e != nil || i < 0 {
			err = errors.Join(err, fmt.Errorf("%q is no number", text))
		}
		n = append(n, i)
	}
	return n, err
}

// onProcess is a kind whose first argument is a process.
func onProcess(arguments int, goesOn bool, do func(o *options, pid int, rest []string) (nemesis.Undo, error)) kind {
	return kind{arguments, goesOn, func(_ context.Context, o *options, a []string) (nemesis.Undo, error) {
		n, err := numbers(a[0])
		if err != nil {
			return nil, err
		}
		return do(o, int(n[0]), a[1:])
	}}
}

// inNetwork is a kind that works where a process is.
func inNetwork(do func(n *process.Network, addresses ...string) (nemesis.Undo, error)) kind {
	return onProcess(-2, true, func(_ *options, pid int, rest []string) (nemesis.Undo, error) {
		n, err := process.NetworkOf(pid)
		if err != nil {
			return nil, err
		}
		return do(n, rest...)
	})
}

// onFile is a kind whose first argument is a file, and the others are numbers.
func onFile(arguments int, do func(name string, n []int64) (nemesis.Undo, error)) kind {
	return kind{arguments, false, func(_ context.Context, _ *options, a []string) (nemesis.Undo, error) {
		n, err := numbers(a[1:]...)
		if err != nil {
			return nil, err
		}
		return do(a[0], n)
	}}
}

// onNames is a kind whose arguments are names.
func onNames(arguments int, do func(a []string) (nemesis.Undo, error)) kind {
	return kind{arguments, false, func(_ context.Context, _ *options, a []string) (nemesis.Undo, error) { return do(a) }}
}

var kinds = map[string]kind{
	"kill":   onProcess(1, false, func(_ *options, pid int, _ []string) (nemesis.Undo, error) { return nil, nemesis.Kill(pid) }),
	"stop":   onProcess(1, true, func(_ *options, pid int, _ []string) (nemesis.Undo, error) { return nemesis.Stop(pid) }),
	"freeze": onProcess(1, true, func(_ *options, pid int, _ []string) (nemesis.Undo, error) { return nemesis.Freeze(pid) }),
	"calls":  onProcess(1, true, meddle),

	"power-cut": onNames(1, func(a []string) (nemesis.Undo, error) { return nil, nemesis.CutPower(a[0], nemesis.NothingFlushed) }),
	"fill": {1, false, func(_ context.Context, o *options, a []string) (nemesis.Undo, error) {
		return nil, nemesis.Fill(a[0], o.left)
	}},

	"flip":         onFile(2, func(name string, n []int64) (nemesis.Undo, error) { return nemesis.FlipBit(name, n[0]) }),
	"zero":         onFile(2, func(name string, n []int64) (nemesis.Undo, error) { return nemesis.ZeroSector(name, n[0]) }),
	"swap-sectors": onFile(3, func(name string, n []int64) (nemesis.Undo, error) { return nemesis.SwapSectors(name, n[0], n[1]) }),
	"truncate":     onFile(2, func(name string, n []int64) (nemesis.Undo, error) { return nemesis.Truncate(name, n[0]) }),
	"empty":        onNames(1, func(a []string) (nemesis.Undo, error) { return nemesis.Empty(a[0]) }),
	"remove":       onNames(2, func(a []string) (nemesis.Undo, error) { return nemesis.Remove(a[0], a[1]) }),
	"swap":         onNames(2, func(a []string) (nemesis.Undo, error) { return nemesis.SwapFiles(a[0], a[1]) }),
	"extra":        onNames(2, func(a []string) (nemesis.Undo, error) { return nemesis.Extra(a[0], []byte(a[1])) }),
	"copy":         onNames(2, func(a []string) (nemesis.Undo, error) { return nil, nemesis.Copy(a[0], a[1]) }),
	"replace":      onNames(3, func(a []string) (nemesis.Undo, error) { return nemesis.Replace(a[0], a[1], a[2]) }),

	"deafen": inNetwork(nemesis.Deafen),
	"refuse": inNetwork(nemesis.Refuse),
	"reset":  inNetwork(func(n *process.Network, a ...string) (nemesis.Undo, error) { return nil, nemesis.Reset(n, a[0]) }),
	"link":   {4, true, link},

	"clock": onNames(2, func(a []string) (nemesis.Undo, error) {
		off, err := time.ParseDuration(a[1])
		if err != nil {
			return nil, err
		}
		return nemesis.SetClock(a[0], off)
	}),
}

// meddle traces a process until it is undone.
func meddle(o *options, pid int, _ []string) (nemesis.Undo, error) {
	m := nemesis.Meddling{Calls: o.calls}
	switch o.calls {
	case "syncs":
		m.Calls = nemesis.Syncs
	case "writes":
		m.Calls = nemesis.Writes
	case "renames":
		m.Calls = nemesis.Renames
	}
	delay, err := time.ParseDuration(o.how)
	switch {
	case err == nil:
		m.How = nemesis.Delay(delay)
	case o.how == "hang":
		m.How = nemesis.Hang()
	case o.how == "lie":
		m.How = nemesis.Lie()
	default:
		m.How = nemesis.Fail(o.how)
	}
	tracer, err := m.Trace(pid)
	if err != nil {
		return nil, err
	}
	return tracer.Detach, nil
}

// link joins the networks of two processes.
func link(_ context.Context, o *options, a []string) (nemesis.Undo, error) {
	pids, err := numbers(a[0], a[2])
	if err != nil {
		return nil, err
	}
	var places [2]nemesis.Place
	for i, pid := range pids {
		n, err := process.NetworkOf(int(pid))
		if err != nil {
			return nil, err
		}
		places[i] = nemesis.Place{Network: n, Address: a[2*i+1]}
	}
	l, err := nemesis.NewLink(places[0], places[1], o.seed, o.rates, o.rates)
	if err != nil {
		return nil, err
	}
	return l.Close, nil
}

// gathering makes a crowd.
type gathering = func(ctx context.Context, t nemesis.Target, n int) (*nemesis.Crowd, error)

var crowds = map[string]func(o *options) gathering{
	"slow-readers":    plain(nemesis.SlowReaders),
	"poll-readers":    plain(nemesis.PollReaders),
	"pipeliners":      plain(nemesis.Pipeliners),
	"slow-headers":    plain(nemesis.SlowHeaders),
	"slow-bodies":     plain(nemesis.SlowBodies),
	"slow-writers":    plain(nemesis.SlowWriters),
	"oversize-bodies": plain(nemesis.OversizeBodies),
	"oversize-chunks": plain(nemesis.OversizeChunks),
	"tiny-chunks":     plain(nemesis.TinyChunks),
	"expect":          plain(nemesis.ExpectWithoutBody),
	"flood":           plain(nemesis.Flood),
	"half-open":       plain(nemesis.HalfOpen),
	"half-closed":     plain(nemesis.HalfClosed),
	"malformed":       plain(nemesis.Malformed),
	"storm":           drawn(nemesis.ReconnectStorm),
	"garbage":         drawn(nemesis.Garbage),
}

func plain(g gathering) func(*options) gathering { return func(*options) gathering { return g } }

// drawn is a crowd that needs dice.
func drawn(g func(ctx context.Context, t nemesis.Target, n int, dice *rand.Rand) (*nemesis.Crowd, error)) func(*options) gathering {
	return func(o *options) gathering {
		return func(ctx context.Context, t nemesis.Target, n int) (*nemesis.Crowd, error) {
			return g(ctx, t, n, rand.New(rand.NewPCG(o.seed, 0)))
		}
	}
}

// crowd lets clients do their worst, and tells every second what has become of them.
func (o *options) crowd(ctx context.Context, gather func(*options) gathering, address string, out io.Writer) error {
	t := nemesis.Target{Address: address, Token: o.token, Topic: o.topic, Pace: o.pace, Return: o.comeBack}
	crowd, err := gather(o)(ctx, t, o.clients)
	if err != nil {
		return err
	}
	defer crowd.Stop()
	end := make(chan struct{})
	go func() { // ends with ctx, or after -for
		defer close(end)
		o.wait(ctx)
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			fmt.Fprintln(out, crowd.Counts())
		case <-end:
			fmt.Fprintln(out, crowd.Counts())
			return nil
		}
	}
}
