package mixed

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
)

// damages are what may happen to the folder of a node that does not run. Each says what it did.
var damages = []struct {
	name string
	do   func(dir string, dice *rand.Rand) (what string, err error)
}{
	{"all of it is gone", func(dir string, _ *rand.Rand) (string, error) { return dir, os.RemoveAll(dir) }},
	{"a bit of a file", func(dir string, dice *rand.Rand) (string, error) { return flip(dir, "", dice) }},
	{"a bit of the log", func(dir string, dice *rand.Rand) (string, error) { return flip(dir, ".seg", dice) }},
	{"some bits", func(dir string, dice *rand.Rand) (what string, err error) {
		for range 2 + dice.IntN(4) {
			one, errOne := flip(dir, "", dice)
			what += one + "; "
			if errOne != nil {
				err = errOne
			}
		}
		return what, err
	}},
	{"a file is gone", func(dir string, dice *rand.Rand) (string, error) {
		name, err := pick(dir, "", dice)
		if err == nil {
			err = os.Remove(name)
		}
		return name, err
	}},
	{"a segment is gone", func(dir string, dice *rand.Rand) (string, error) {
		name, err := pick(dir, ".seg", dice)
		if err == nil {
			err = os.Remove(name)
		}
		return name, err
	}},
	{"a file is cut", func(dir string, dice *rand.Rand) (string, error) {
		name, err := pick(dir, "", dice)
		if err != nil {
			return "", err
		}
		info, err := os.Stat(name)
		if err != nil {
			return "", err
		}
		to := dice.Int64N(info.Size() + 1)
		return fmt.Sprintf("%s from %d to %d", name, info.Size(), to), os.Truncate(name, to)
	}},
	{"the log is gone", func(dir string, _ *rand.Rand) (string, error) {
		return "", os.RemoveAll(filepath.Join(dir, "log"))
	}},
	{"the snapshots are gone", func(dir string, _ *rand.Rand) (string, error) {
		return "", os.RemoveAll(filepath.Join(dir, "snapshots"))
	}},
	{"a sector is zeros", func(dir string, dice *rand.Rand) (string, error) {
		name, err := pick(dir, ".seg", dice)
		if err != nil {
			return "", err
		}
		text, used, err := read(name)
		if err != nil {
			return "", err
		}
		const sector = 512
		at := dice.IntN(used+1) / sector * sector
		clear(text[at:min(at+sector, len(text))])
		return fmt.Sprintf("%s at %d of %d", name, at, used), os.WriteFile(name, text, 0o600)
	}},
}

// pick returns a file below a folder whose name ends so.
func pick(dir, suffix string, dice *rand.Rand) (string, error) {
	var names []string
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.HasSuffix(name, suffix) {
			if info, err := d.Info(); err == nil && info.Size() > 0 {
				names = append(names, name)
			}
		}
		return err
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no file %q below %s", "*"+suffix, dir)
	}
	if err != nil {
		return "", err
	}
	return names[dice.IntN(len(names))], nil
}

// flip flips a bit of what was written to some file.
func flip(dir, suffix string, dice *rand.Rand) (string, error) {
	name, err := pick(dir, suffix, dice)
	if err != nil {
		return "", err
	}
	text, used, err := read(name)
	if err != nil || used == 0 {
		return name + " holds nothing", err
	}
	at := dice.IntN(used)
	text[at] ^= 1 << dice.IntN(8)
	return fmt.Sprintf("%s at %d of %d", name, at, used), os.WriteFile(name, text, 0o600)
}

// read returns a file, and how much of it is not zeros at the end.
func read(name string) (text []byte, used int, err error) {
	text, err = os.ReadFile(name)
	for used = len(text); used > 0 && text[used-1] == 0; {
		used--
	}
	return text, used, err
}
