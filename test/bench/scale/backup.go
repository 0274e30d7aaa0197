package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

const (
	backupBytes = 4 << 30 // of values
	backupSize  = 1024    // of a record
	backupMore  = 256 << 20
)

// backup measures backups of a large log, alone and beside publishers, and how long it takes to make a broker of one. The disk
// is the same for the log and for the backup, so each byte is read and written there.
func backup(b *bench) error {
	mq := filepath.Join(b.dir, "mq")
	build := exec.Command("go", "build", "-o", mq, "./cmd/mq")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build mq, from the root of the repository: %w", err)
	}
	s, err := b.newServer("backed-up")
	if err != nil {
		return err
	}
	if _, err := s.start(); err != nil {
		return err
	}
	if err := s.fillTopic("history", b.of(backupBytes/backupSize), backupSize); err != nil {
		return err
	}
	s.quiet()
	disk, err := b.writeSpeed()
	if err != nil {
		return err
	}
	b.row("the disk: 1 GiB written in a row, and a sync", "", "%.0f MB/s", disk)
	run := func(args ...string) (time.Duration, error) {
		cmd := exec.Command(mq, args...)
		cmd.Env = append(os.Environ(), "MQ_URL=http://"+s.address, "MQ_ADMIN_TOKEN="+adminToken)
		began := time.Now()
		if text, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("mq %s: %w: %s", args[0], err, text)
		}
		return time.Since(began), nil
	}
	speed := func(took time.Duration) string {
		mb := float64(s.space()) / 1e6 / took.Seconds()
		return fmt.Sprintf("%.1f s, %.0f MB/s, %.2f of the disk", took.Seconds(), mb, mb/disk)
	}

	into := filepath.Join(b.dir, "backup")
	took, err := run("backup", into)
	if err != nil {
		return err
	}
	b.row(fmt.Sprintf("backup of %s, alone", mib(s.space())), "", "%s", speed(took))
	if err := s.fillTopic("more", b.of(backupMore/backupSize), backupSize); err != nil {
		return err
	}
	s.quiet()
	if took, err = run("backup", into); err != nil {
		return err
	}
	b.row(fmt.Sprintf("the same again, %s later", mib(int64(b.of(backupMore)))), "", "%.1f s", took.Seconds())
	if took, err = run("backup", "verify", into); err != nil {
		return err
	}
	b.row("backup verify", "", "%s", speed(took))
	if err := b.restored(s, run, into, speed); err != nil {
		return err
	}
	return b.besideBackups(s, run)
}

// restored makes a broker of a backup, which must acknowledge a publish.
func (b *bench) restored(s *server, run func(...string) (time.Duration, error), from string, speed func(time.Duration) string) error {
	r, err := b.newServer("restored")
	if err != nil {
		return err
	}
	took, err := run("restore", from, r.data)
	if err != nil {
		return err
	}
	b.row("restore", "", "%s", speed(took))
	if took, err = r.start(); err != nil {
		return err
	}
	b.row("first start after it, until a publish is acknowledged", "", "%s", ms(took))
	return errors.Join(r.kill(), os.RemoveAll(r.data), os.RemoveAll(from))
}

// besideBackups compares publishers alone with publishers while a backup is taken into an empty folder.
func (b *bench) besideBackups(s *server, run func(...string) (time.Duration, error)) error {
	into := filepath.Join(b.dir, "beside")
	var c compared
	var backups []time.Duration
	for range b.rounds {
		s.quiet() // what the backup before has left is written, and given back
		if _, err := s.publishing(0, during(b.measure/2)); err != nil {
			return err
		}
		alone, err := s.publishing(0, during(b.measure))
		if err != nil {
			return err
		}
		ended := make(chan struct{})
		var took time.Duration
		var failed error
		go func() { // awaited below
			defer close(ended)
			took, failed = run("backup", into)
		}()
		beside, err := s.publishing(0, func() bool {
			select {
			case <-ended:
				return true
			default:
				return false
			}
		})
		<-ended
		if err := errors.Join(err, failed, os.RemoveAll(into)); err != nil {
			return err
		}
		c.a, c.b = append(c.a, alone), append(c.b, beside)
		backups = append(backups, took)
	}
	b.compare("publish", "alone", "while a backup is taken", "", "", &c)
	b.row("backups beside the publishers took", "", "%s", list(backups, ms))
	return nil
}

// writeSpeed returns how many megabytes a second go to the disk when a file is written in a row, and synced.
func (b *bench) writeSpeed() (float64, error) {
	const piece = 1 << 20
	size := b.of(1<<30/piece) * piece
	var all []float64
	bytes := make([]byte, piece)
	for i := range bytes {
		bytes[i] = byte(i*i>>8 + i)
	}
	for range 3 {
		name := filepath.Join(b.dir, "write")
		f, err := os.Create(name)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		for range size / piece {
			if _, err := f.Write(bytes); err != nil {
				return 0, errors.Join(err, f.Close())
			}
		}
		err = f.Sync()
		all = append(all, float64(size)/1e6/time.Since(began).Seconds())
		if err := errors.Join(err, f.Close(), os.Remove(name)); err != nil {
			return 0, err
		}
	}
	return median(all), nil
}
