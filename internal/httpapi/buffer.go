package httpapi

import (
	"math/bits"
	"sync"
)

// Large buffers are kept in pools by size, in powers of two from 64 KiB to 16 MiB. A sync.Pool gives what
// is not used back to the garbage collector after two of its rounds, so a burst of large requests does not
// hold memory for ever.
var bufferPools [9]sync.Pool

const bufferMin = 64 << 10

// bufferClass is the pool whose buffers hold n bytes, or len(bufferPools) when none does.
func bufferClass(n int) int {
	if n <= bufferMin {
		return 0
	}
	return bits.Len(uint(n-1) >> 16)
}

func bufferSize(class int) int { return bufferMin << class }

// getBuffer returns an empty buffer with room for at least n bytes.
func getBuffer(n int) []byte {
	class := bufferClass(n)
	if class >= len(bufferPools) {
		return make([]byte, 0, n)
	}
	if b, ok := bufferPools[class].Get().(*[]byte); ok {
		return (*b)[:0]
	}
	return make([]byte, 0, bufferSize(class))
}

// putBuffer takes a buffer back. Those that did not come from a pool are left to the garbage collector.
func putBuffer(b []byte) {
	class := bufferClass(cap(b))
	if class < len(bufferPools) && cap(b) == bufferSize(class) {
		b = b[:0]
		bufferPools[class].Put(&b)
	}
}
