// Command twosyncs measures what a disk makes of two syncs at the same time: the median time of a small write and
// fdatasync alone, and until two of them, to two files, have both ended. Where both nodes of a pair share one disk, as
// in test/bench/pair.sh, the ratio bounds how close a pair's latency can come to that of one node.
//
//	go run ./test/bench/twosyncs FOLDER
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

const (
	rounds = 2000
	bytes  = 160 // of each write: a record of 100 bytes as a frame
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: twosyncs FOLDER")
		os.Exit(2)
	}
	a, b := prepare("a"), prepare("b")
	alone := measure(func(i int) { write(a, i) })
	start, done := make(chan int), make(chan struct{})
	go func() { // ends with start
		for i := range start {
			write(b, i)
			done <- struct{}{}
		}
	}()
	both := measure(func(i int) {
		start <- i
		write(a, i)
		<-done
	})
	close(start)
	fmt.Printf("alone %d us, both at once %d us, ratio %.2f\n", alone.Microseconds(), both.Microseconds(), float64(both)/float64(alone))
}

// prepare returns a file of zeros, as the log's segments are.
func prepare(name string) *os.File {
	path := filepath.Join(os.Args[1], "twosyncs-"+name)
	f, err := os.Create(path)
	check(err)
	check(os.Remove(path)) // it goes with the process
	_, err = f.Write(make([]byte, rounds*bytes))
	check(err)
	check(f.Sync())
	return f
}

func write(f *os.File, i int) {
	var frame [bytes]byte
	frame[0] = byte(i)
	_, err := f.WriteAt(frame[:], int64(i)*bytes)
	check(err)
	check(unix.Fdatasync(int(f.Fd())))
}

// measure returns the median time of one call.
func measure(call func(i int)) time.Duration {
	times := make([]time.Duration, rounds)
	for i := range times {
		began := time.Now()
		call(i)
		times[i] = time.Since(began)
	}
	slices.Sort(times)
	return times[rounds/2]
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "twosyncs:", err)
		os.Exit(1)
	}
}
