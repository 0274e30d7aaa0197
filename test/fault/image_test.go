package fault

import (
	"testing"

	"example.com/mq/test/nemesis"
	"example.com/mq/test/process"
)

// image is a nemesis.Image of a test. What cannot be done to it fails the test.
type image struct {
	*nemesis.Image
	t *testing.T
}

// newImage makes and mounts a file system of so many MiB. It is unmounted when the test ends.
func newImage(t *testing.T, mib int64) *image {
	t.Helper()
	if err := nemesis.NeedImage(); err != nil {
		process.Skip(t, err.Error())
	}
	im, err := nemesis.NewImage(process.Dir(t), mib)
	if err != nil {
		process.Skip(t, err.Error())
	}
	t.Cleanup(func() {
		if err := im.Unmount(); err != nil {
			t.Error(err)
		}
	})
	return &image{im, t}
}

// cutPower may be called by any goroutine.
func (im *image) cutPower(how nemesis.PowerCut) {
	im.t.Helper()
	if err := im.CutPower(how); err != nil {
		im.t.Error(err)
	}
}

// remount is what happens between a power cut and the next start.
func (im *image) remount(node *process.Node) {
	im.t.Helper()
	node.Kill()
	if err := im.Remount(); err != nil {
		im.t.Fatal(err)
	}
}

func (im *image) fill(name string, left int64) (path string) {
	im.t.Helper()
	path, err := im.Fill(name, left)
	if err != nil {
		im.t.Fatal(err)
	}
	return path
}

func (im *image) free() int64 {
	im.t.Helper()
	n, err := im.Free()
	if err != nil {
		im.t.Fatal(err)
	}
	return n
}

func (im *image) sync() {
	im.t.Helper()
	if err := im.Sync(); err != nil {
		im.t.Fatal(err)
	}
}
