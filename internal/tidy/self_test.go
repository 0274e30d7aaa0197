package tidy

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// TestChecks runs each check on small trees that break its rules: it must find all of it and nothing else.
func TestChecks(t *testing.T) {
	for _, c := range []struct {
		name  string
		check func(*module) []string
		files map[string]string
		want  []string // what the problems begin with, sorted
	}{
		{
			name: "imports", check: checkImports,
			files: map[string]string{
				"internal/state/a.go":                  `package state; import ("fmt"; "time"; "math/rand/v2"; "example.com/mq/internal/fact")`,
				"internal/state/a_test.go":             `package state; import ("os"; "example.com/mq/internal/node")`,
				"internal/fact/a.go":                   `package fact; import "net/netip"`,
				"internal/wal/a.go":                    `package wal; import ("os"; "example.com/mq/internal/fact"; "example.com/mq/internal/broker")`,
				"internal/httpapi/a.go":                `package httpapi; import ("net/http"; w "example.com/mq/internal/wal"; "example.com/mq/internal/vfs/memfs"; "example.com/mq/internal/fact")`,
				"internal/broker/a.go":                 `package broker; import "example.com/mq/internal/replication/standalone"`,
				"internal/node/a.go":                   `package node; import "example.com/mq/internal/replication/standalone"`,
				"internal/replication/standalone/a.go": `package standalone; import "example.com/mq/internal/replication"`,
				"internal/replication/cluster/a.go":    `package cluster; import "example.com/mq/internal/replication/standalone"`,
				"internal/clock/a.go":                  `package clock; import "example.com/mq/internal/entry"`,
				"internal/misc/a.go":                   `package misc`,
				"client/a.go":                          `package client; import ("example.com/mq/api"; "example.com/mq/internal/fact")`,
				"api/a.go":                             `package api; import "net/http"`,
				"cmd/mq/a.go":                          `package main; import ("example.com/mq/client"; "example.com/mq/cmd/mq/internal/bench"; "example.com/mq/internal/wal")`,
				"test/e2e/a.go":                        `package e2e; import "example.com/mq/internal/replication/standalone"`,
			},
			want: []string{
				"api/a.go: imports net/http: it is the contract",
				"client/a.go: imports internal/fact: the client knows",
				"internal/broker/a.go: imports the role standalone",
				"internal/clock/a.go: imports internal/entry, which is not in a lower layer",
				"internal/fact/a.go: imports net/netip: it is pure",
				"internal/httpapi/a.go: imports internal/vfs/memfs: HTTP knows",
				"internal/httpapi/a.go: imports internal/wal: HTTP knows",
				"internal/misc/a.go: package internal/misc is in no layer",
				"internal/replication/cluster/a.go: imports the role standalone",
				"internal/state/a.go: imports math/rand/v2: it is pure",
				"internal/state/a.go: imports time: it is pure",
				"internal/wal/a.go: imports internal/broker, which is not in a lower layer",
				"internal/wal/a.go: imports internal/fact: the log knows",
			},
		},
		{
			name: "package comments", check: checkPackageComments,
			files: map[string]string{
				"a/good.go":      "// Package a is good.\npackage a",
				"a/more.go":      "// This is about the file.\n\npackage a",
				"a/a_test.go":    "package a_test",
				"b/none.go":      "package b",
				"b/none_test.go": "package b",
				"c/cut.go":       "// Package c is cut off.\n\npackage c",
				"d/twice1.go":    "// Package d is here.\npackage d",
				"d/twice2.go":    "// Package d is there.\npackage d",
				"e/name.go":      "// Package f is wrong.\npackage e",
				"cmd/mq/main.go": "// Command mq is good.\npackage main",
				"cmd/mw/main.go": "// Mw is good.\npackage main",
				"cmd/mx/main.go": "// Package main is wrong.\npackage main",
				"f/only_test.go": "// Package f is tests only.\npackage f",
			},
			want: []string{
				"b: package b has no package comment",
				"c/cut.go: the package comment is cut off",
				"c: package c has no package comment",
				"cmd/mx/main.go: the package comment does not begin",
				"d: package d has more than one",
				"e/name.go: the package comment does not begin",
			},
		},
		{
			name: "later", check: checkLater,
			files: map[string]string{
				"a.go": "package a\n// " + later + "(ann): when there are two.\n// " + later + ": some day\n/* " + later + "(bob) */\nvar s = \"" + later + "\" // " + broken + "\n",
			},
			want: []string{"a.go:3: write " + later, "a.go:4: write " + later, "a.go:5: " + broken},
		},
		{
			name: "calls", check: func(m *module) []string {
				return slices.DeleteFunc(checkCalls(m), func(p string) bool { return strings.HasPrefix(p, "internal/tidy: ") })
			},
			files: map[string]string{
				"internal/wal/a.go": `package wal
import ("time"; clock "time"; "os"; "fmt"; "log")
var now = clock.Now
func init() {}
func (t) init() {}
func f(x t) {
	time.Sleep(1)
	x.Sleep(1)
	<-time.After(1)
	os.Exit(1)
	log.Fatal(1)
	panic("BUG: a")
	panic(fmt.Sprintf("BUG: %d", 1))
	panic("BUG: " + fmt.Sprint(1))
	panic("wrong")
	panic(fmt.Errorf("x"))
	panic(x)
}`,
				"internal/wal/a_test.go": `package wal; import "time"; func f() { time.Sleep(1); panic(1) }`,
				"internal/clock/a.go":    `package clock; import "time"; func f() { time.Now(); time.Sleep(1) }`,
				"cmd/mqd/main.go":        `package main; import "os"; func main() { os.Exit(1) }`,
				"cmd/mqd/run.go":         `package main; import "os"; func f() { os.Exit(1) }`,
				"test/e2e/a.go":          `package e2e; import "time"; func f() { time.Sleep(1) }`,
			},
			want: []string{
				"cmd/mqd/run.go:1: os.Exit",
				"internal/clock/a.go:1: time.Sleep",
				"internal/wal/a.go:10: os.Exit",
				"internal/wal/a.go:11: log.Fatal",
				"internal/wal/a.go:15: panic",
				"internal/wal/a.go:16: panic",
				"internal/wal/a.go:17: panic",
				"internal/wal/a.go:3: time.Now",
				"internal/wal/a.go:4: init",
				"internal/wal/a.go:7: time.Sleep",
				"internal/wal/a.go:9: time.After",
			},
		},
		{
			name: "exceptions nobody needs", check: func(m *module) []string { return checkCalls(m)[:1] },
			files: map[string]string{"a.go": "package a"},
			want:  []string{"internal/tidy: the exception for the clock in internal/clock is not needed"},
		},
		{
			name: "mutexes", check: checkMutexes,
			files: map[string]string{
				"a.go": "package a\nimport \"sync\"\ntype a struct { mu sync.Mutex }\ntype b struct { sync.Mutex }\ntype c struct { sync.RWMutex }",
			},
			want: []string{"a.go:4: an embedded mutex", "a.go:5: an embedded mutex"},
		},
		{
			name: "links", check: checkLinks,
			files: map[string]string{
				"README.md": "# Hello, `World` of [links](x.md)!\n[ok](docs/a.md) [ok](#hello-world-of-links) [ok](docs) [no](gone.md)\n" +
					"[ok](docs/a.md#two-1 \"title\") [no](docs/a.md#three) [ok](https://x.y/z.md) `[code](gone.md)`\n" +
					"```\n[code](gone.md)\n# code\n```\n[no](/docs/a.md) [no](#code)\n[1]: gone2.md\n![no](docs/gone.png)\n" +
					"[no](x.md) [ok](<docs/a b.md>) [ok](docs/a%20b.md) [ok](docs/a.md#mark)",
				"docs/a.md":   "## Two\n## Two\n[ok](../README.md) [no](README.md)<a id=\"mark\"></a>",
				"docs/a b.md": "",
				"a.go":        "package a\n\n// See docs/a.md and docs/gone.md.\nvar x = \"docs/gone.md\"\n",
			},
			want: []string{
				"README.md:10: link to docs/gone.png: no such file",
				"README.md:11: link to x.md: no such file",
				"README.md:1: link to x.md: no such file",
				"README.md:2: link to gone.md: no such file",
				"README.md:3: link to docs/a.md#three: no such heading",
				"README.md:8: link to #code: no such heading",
				"README.md:8: link to /docs/a.md: no such file",
				"README.md:9: link to gone2.md: no such file",
				"a.go:3: the comment mentions docs/gone.md",
				"docs/a.md:3: link to README.md: no such file",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree := make(fstest.MapFS)
			for name, text := range c.files {
				tree[name] = &fstest.MapFile{Data: []byte(text)}
			}
			m, err := load(tree)
			if err != nil {
				t.Fatal(err)
			}
			got := c.check(m)
			slices.Sort(got)
			for i := range max(len(got), len(c.want)) {
				switch {
				case i >= len(got):
					t.Errorf("not found: %s", c.want[i])
				case i >= len(c.want):
					t.Errorf("found in addition: %s", got[i])
				case !strings.HasPrefix(got[i], c.want[i]):
					t.Errorf("got  %s\nwant %s", got[i], c.want[i])
				}
			}
		})
	}
}
