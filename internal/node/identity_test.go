package node

import (
	"errors"
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
	for bit := range len(text) * 8 {
		rotten := append([]byte(nil), text...)
		rotten[bit/8] ^= 1 << (bit % 8)
		fsys := memfs.New()
		f, err := fsys.Create(identityFile)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(rotten, 0); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := readIdentity(fsys); !errors.As(err, new(*identityDamage)) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
}
