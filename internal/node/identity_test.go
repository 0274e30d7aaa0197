package node

import (
	"errors"
	"iter"
	"strings"
	"testing"

	"example.com/mq/internal/vfs/memfs"
)

// Each bit of the file that flips is damage: never a file of another version, which would be the operator's to deal with.
func TestEveryBitOfTheIdentity(t *testing.T) {
	id, err := makeIdentity(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := id.encode()
	if err != nil {
		t.Fatal(err)
	}
	for bit, fsys := range eachBitFlipped(t, identityFile, text) {
		if _, err := readIdentity(fsys); !errors.As(err, new(*identityDamage)) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
}

// The same for a pair's promise.
func TestEveryBitOfThePromise(t *testing.T) {
	text, err := promiseText{Format: promiseFormat, Epoch: 3, Leader: "000102030405060708090a0b0c0d0e0f", LeaseMS: 2500, WholeAt: 9}.encode()
	if err != nil {
		t.Fatal(err)
	}
	for bit, fsys := range eachBitFlipped(t, promiseFile, text) {
		if _, err := loadPromises(fsys); err == nil || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
}

// eachBitFlipped yields a folder for each bit of a text, which stands in a file with that bit flipped.
func eachBitFlipped(t *testing.T, name string, text []byte) iter.Seq2[int, *memfs.FS] {
	return func(yield func(int, *memfs.FS) bool) {
		for bit := range len(text) * 8 {
			rotten := append([]byte(nil), text...)
			rotten[bit/8] ^= 1 << (bit % 8)
			fsys := memfs.New()
			f, err := fsys.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.WriteAt(rotten, 0)
			if err := errors.Join(err, f.Close()); err != nil {
				t.Fatal(err)
			}
			if !yield(bit, fsys) {
				return
			}
		}
	}
}
