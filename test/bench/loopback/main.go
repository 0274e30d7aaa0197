// Command loopback prints what a TCP connection over loopback moves, in MB/s: a writer of 64 KiB pieces and a
// reader, in two processes' stead in two goroutines. It is the yardstick for reads of large records.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

const (
	piece   = 64 << 10
	measure = 2 * time.Second
)

func main() {
	rate, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
	fmt.Printf("%.0f\n", rate)
}

func run() (float64, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	go func() { // ends when the reader closes the connection
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b := make([]byte, piece)
		for err == nil {
			_, err = c.Write(b)
		}
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return 0, err
	}
	defer c.Close()
	b := make([]byte, 1<<20)
	start, total := time.Now(), int64(0)
	for time.Since(start) < measure {
		n, err := c.Read(b)
		if errors.Is(err, io.EOF) {
			return 0, errors.New("the writer ended")
		}
		if err != nil {
			return 0, err
		}
		total += int64(n)
	}
	return float64(total) / 1e6 / time.Since(start).Seconds(), nil
}
