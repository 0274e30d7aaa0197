package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"example.com/mq/api"
)

// instant is a moment in a flag: a time, or how long ago that was.
type instant struct {
	at  time.Time
	ago time.Duration // if not 0, instead of at
}

// whenHelp says what an instant can be.
const whenHelp = "a time (2026-11-30T12:00:00Z), milliseconds since 1970, or how long ago (90m, 7d)"

// Decode implements kong.MapperValue, which unlike other ways lets a value begin with a hyphen: -1h is an hour ago, too.
func (i *instant) Decode(ctx *kong.DecodeContext) error {
	token := ctx.Scan.Pop()
	if token.IsEOL() {
		return fmt.Errorf("give %s", whenHelp)
	}
	return i.parse(token.String())
}

func (i *instant) parse(text string) error {
	if at, err := time.Parse(time.RFC3339, text); err == nil {
		*i = instant{at: at}
		return nil
	}
	if ms, err := strconv.ParseUint(text, 10, 63); err == nil && ms <= api.TimeMSMax {
		*i = instant{at: time.UnixMilli(int64(ms))}
		return nil
	}
	ago, err := parseSpan(strings.TrimPrefix(text, "-"))
	if err != nil {
		return fmt.Errorf("%q is not %s", text, whenHelp)
	}
	*i = instant{ago: ago}
	return nil
}

// time returns the moment that is meant.
func (i *instant) time(now time.Time) time.Time {
	if i.ago != 0 {
		return now.Add(-i.ago)
	}
	return i.at
}

// parseSpan reads a duration above 0, as Go writes it, or as a number of days or weeks: 90m, 1h30m, 7d, 2w.
func parseSpan(text string) (time.Duration, error) {
	day := 24 * time.Hour
	for unit, length := range map[string]time.Duration{"d": day, "w": 7 * day} {
		number, ok := strings.CutSuffix(text, unit)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(number, 10, 31)
		if err != nil || n == 0 || n > uint64(maxSpan/length) {
			return 0, fmt.Errorf("%q is no duration", text)
		}
		return time.Duration(n) * length, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("%q is no duration", text)
	}
	return d, nil
}

const maxSpan = time.Duration(1<<63 - 1)

// limitFlag is a limit of retention in a flag: a number, or none.
type limitFlag api.Limit

// UnmarshalText implements encoding.TextUnmarshaler.
func (l *limitFlag) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*l = limitFlag(api.NoLimit)
		return nil
	}
	n, err := strconv.ParseUint(string(text), 10, 63)
	if err != nil || n == 0 || n > api.OffsetMax {
		return fmt.Errorf("%q is neither a number from 1 to %d nor none", text, uint64(api.OffsetMax))
	}
	*l = limitFlag(n)
	return nil
}

// ageFlag is how old records may become: a duration of whole milliseconds, or none.
type ageFlag api.Limit

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *ageFlag) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*a = ageFlag(api.NoLimit)
		return nil
	}
	d, err := parseSpan(string(text))
	if err != nil || d%time.Millisecond != 0 {
		return fmt.Errorf("%q is neither a duration (90m, 7d, 2w) of whole milliseconds nor none", text)
	}
	*a = ageFlag(d.Milliseconds())
	return nil
}

// showTime writes a time for people.
func showTime(ms int64) string { return time.UnixMilli(ms).UTC().Format("2006-01-02T15:04:05.000Z") }
