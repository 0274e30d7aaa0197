package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
	"example.com/mq/internal/backup"
	"example.com/mq/internal/vfs"
	"example.com/mq/test/process"
)

// Backup takes a backup of a broker into a folder that exists, or renews the one that is there.
func Backup(ctx context.Context, dir string, urls ...string) (*backup.Taken, error) {
	c, err := client.New(client.Config{Nodes: urls, AdminToken: process.AdminToken})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	fsys, err := vfs.Open(dir)
	if err != nil {
		return nil, err
	}
	defer fsys.Close()
	return backup.Take(ctx, source{c}, fsys, backup.Progress{})
}

// VerifyBackup reads a whole backup.
func VerifyBackup(ctx context.Context, dir string) (*backup.Report, error) {
	fsys, err := vfs.Open(dir)
	if err != nil {
		return nil, err
	}
	defer fsys.Close()
	return backup.Verify(ctx, fsys, backup.Progress{})
}

// source is a broker for package backup.
type source struct{ *client.Client }

func (s source) BackupRead(ctx context.Context, q api.BackupReadRequest) ([]byte, error) {
	b, err := s.Client.BackupRead(ctx, q)
	if errors.Is(err, client.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", backup.ErrOver, err)
	}
	return b, err
}

// BackupEnd waits for a dead broker only briefly.
func (s source) BackupEnd(ctx context.Context, backup string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second/2)
	defer cancel()
	return s.Client.BackupEnd(ctx, backup)
}
