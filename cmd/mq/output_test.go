package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestAppendVisible(t *testing.T) {
	for in, want := range map[string]string{
		"":             "",
		"plain é 漢 😀":  "plain é 漢 😀",
		"a\tb\nc\\":    `a\tb\nc\\`,
		"\x1b[31m":     `\x1b[31m`,
		"\xff\xfe":     `\xff\xfe`,
		"\u202egnirts": `\u202egnirts`, // would turn the line around
		"\u0000\x7f":   `\x00\x7f`,
	} {
		if got := string(appendVisible(nil, []byte(in))); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for in, want := range map[string]string{
		"": "", `plain é 漢 😀 "a\n"`: `plain é 漢 😀 "a\n"`, "a\nmq: b\r\t": `a\nmq: b\r\t`, "\x1b]0;x\x07": `\x1b]0;x\a`,
		"\u009b31m\x7f": `\u009b31m\x7f`, "\xff": `\xff`, "\u202egnirts": `\u202egnirts`, "\ufffd": "\ufffd",
	} {
		if got := plain(in); got != want {
			t.Errorf("%q: %s, want %s", in, got, want)
		}
	}
}

func TestProgressLine(t *testing.T) {
	for _, test := range []struct {
		width      int
		done, size int64
		records    uint64
		elapsed    time.Duration
		want       string
	}{
		{79, 0, 0, 0, 0, "0 records in 0s"},
		{79, 500, 0, 1, time.Second, "1 record in 1s, 1/s"},
		{79, 500, 1000, 3000, 1500 * time.Millisecond, "[====================                    ]  50%  3000 records in 1.5s, 2000/s"},
		{79, 2000, 1000, 5, time.Second, ""}, // a file that has grown
		{30, 500, 1000, 3000, 1500 * time.Millisecond, " 50%  3000 records in 1.5s, 20"},
		{0, 1, 2, 3, time.Second, ""},
	} {
		got := progressLine(test.width, test.done, test.size, test.records, test.elapsed)
		if utf8.RuneCountInString(got) > test.width {
			t.Errorf("%q is wider than %d", got, test.width)
		}
		if test.want != "" && got != test.want {
			t.Errorf("got  %q\nwant %q", got, test.want)
		}
		if test.done > test.size && test.size > 0 && !strings.Contains(got, "100%") {
			t.Errorf("got %q", got)
		}
	}
}
