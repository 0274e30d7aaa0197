package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// secondsVariable says how long each target is fuzzed.
const secondsVariable = "SECONDS"

// target is a fuzz test in a compiled package.
type target struct {
	name, pkg, dir, binary string
}

var (
	execs   = regexp.MustCompile(`execs: (\d+)`)
	failing = regexp.MustCompile(`Failing input written to testdata/fuzz/(\S+)`)
)

// runFuzz fuzzes every target for some seconds, several at a time.
func runFuzz(r *round, s scenario) (out result) {
	seconds, err := strconv.Atoi(strings.TrimPrefix(s.sizes[0].text(r.opts.short, r.grow), secondsVariable+"="))
	if err != nil {
		return result{Error: err.Error()}
	}
	out.Output = r.prefix(s) + ".log"
	log, err := os.Create(filepath.Join(r.opts.folder, out.Output))
	if err != nil {
		return result{Error: err.Error()}
	}
	defer log.Close()
	targets, err := r.targets()
	if err != nil {
		return result{Error: err.Error()}
	}
	var mu sync.Mutex // guards out and log
	out.Counts = map[string]int64{"targets": int64(len(targets)), "seconds each": int64(seconds)}
	work := make(chan target)
	var workers sync.WaitGroup
	for range max(1, runtime.GOMAXPROCS(0)) {
		workers.Go(func() {
			for t := range work {
				text, inputs, cpu, ok := r.fuzz(s, t, seconds)
				mu.Lock()
				fmt.Fprintf(log, "=== %s %s\n%s", t.pkg, t.name, text)
				out.Counts["inputs"] += inputs
				out.CPUSeconds += cpu.Seconds()
				switch {
				case ok:
					out.Passed++
				case r.ctx.Err() == nil:
					out.Failed = append(out.Failed, t.pkg+"."+t.name)
					name := t.name
					if match := failing.FindStringSubmatch(text); match != nil {
						name = match[1]
					}
					out.Again = append(out.Again, fmt.Sprintf("go test -v -run '%s' %s", name, t.pkg))
				}
				mu.Unlock()
			}
		})
	}
	for _, t := range targets {
		if r.ctx.Err() != nil {
			break
		}
		work <- t
	}
	close(work)
	workers.Wait()
	return out
}

// fuzz fuzzes one target. Go calls it a failure, "context deadline exceeded" and nothing else, when the time ends while it
// makes an interesting input smaller: that is tried again. An input that fails is always named. On a machine with much else
// to do the time may end before there was any input: that is tried again, too, for longer.
func (r *round) fuzz(s scenario, t target, seconds int) (text string, inputs int64, cpu time.Duration, ok bool) {
	for try := range 4 {
		var b bytes.Buffer
		before := inputs
		cmd := r.command(s.lane, t.dir, &b, t.binary, "-test.run", "^$", "-test.fuzz", "^"+t.name+"$", "-test.fuzztime", fmt.Sprintf("%ds", seconds<<try),
			"-test.fuzzminimizetime", "20x", "-test.parallel", "1", "-test.timeout", "10m",
			"-test.fuzzcachedir", filepath.Join(r.work, "fuzz", strings.ReplaceAll(strings.TrimPrefix(t.pkg, "./"), "/", "-")))
		cmd.Env = append(os.Environ(), "TMPDIR="+r.work) // its workers are killed, and remove nothing
		err := cmd.Run()
		if cmd.ProcessState != nil {
			cpu += cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
		text += b.String()
		if all := execs.FindAllStringSubmatch(b.String(), -1); len(all) > 0 {
			n, _ := strconv.ParseInt(all[len(all)-1][1], 10, 64) // of digits alone
			inputs += n
		}
		if err == nil && inputs > before {
			return text, inputs, cpu, true
		}
		if err == nil {
			text += "no input was tried\n"
			continue
		}
		if failing.MatchString(b.String()) || !strings.Contains(b.String(), "context deadline exceeded") {
			break
		}
	}
	return text, inputs, cpu, false
}

var fuzzName = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// targets finds all fuzz tests, and compiles their packages.
func (r *round) targets() (list []target, err error) {
	byFolder := make(map[string][]string)
	for _, top := range []string{"internal", "client", "cmd"} {
		err := filepath.WalkDir(filepath.Join(r.root, top), func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") || strings.Contains(path, string(filepath.Separator)+"testdata"+string(filepath.Separator)) {
				return err
			}
			text, err := os.ReadFile(path)
			for _, match := range fuzzName.FindAllSubmatch(text, -1) {
				byFolder[filepath.Dir(path)] = append(byFolder[filepath.Dir(path)], string(match[1]))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	var folders []string
	for folder := range byFolder {
		folders = append(folders, folder)
	}
	slices.Sort(folders)
	for _, folder := range folders {
		relative, err := filepath.Rel(r.root, folder)
		if err != nil {
			return nil, err
		}
		pkg := "./" + filepath.ToSlash(relative)
		binary := filepath.Join(r.work, strings.ReplaceAll(relative, string(filepath.Separator), "-")+".fuzz")
		if err := r.built.get(binary, func() error { return r.compile(binary, "test", "-c", "-vet=off", "-fuzz=.", "-o", binary, pkg) }); err != nil {
			return nil, err
		}
		slices.Sort(byFolder[folder])
		for _, name := range byFolder[folder] {
			list = append(list, target{name, pkg, folder, binary})
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("there is nothing to fuzz")
	}
	return list, nil
}
