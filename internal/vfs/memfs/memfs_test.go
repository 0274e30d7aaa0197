package memfs_test

import (
	"testing"

	"example.com/mq/internal/vfs"
	"example.com/mq/internal/vfs/memfs"
	"example.com/mq/internal/vfs/vfstest"
)

func TestFS(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) vfs.FS { return memfs.New() })
}
