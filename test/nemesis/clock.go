package nemesis

import (
	"errors"
	"io/fs"
	"os"
	"time"
)

// ClockVariable names the file that an mqd built with the tag torture reads how far its wall clock is off from. It looks
// at it every 10 ms at most.
const ClockVariable = "MQ_TORTURE_CLOCK"

// SetClock sets how far the wall clock of the processes is off whose variable names this file. Undo puts back what was
// set before.
func SetClock(file string, off time.Duration) (Undo, error) {
	before, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		before = []byte(time.Duration(0).String())
	case err != nil:
		return nil, err
	}
	// By a rename: a reader sees the one or the other.
	set := func(text []byte) error {
		if err := os.WriteFile(file+".next", text, 0o600); err != nil {
			return err
		}
		return os.Rename(file+".next", file)
	}
	return func() error { return set(before) }, set([]byte(off.String()))
}
