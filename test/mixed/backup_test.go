package mixed

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"example.com/mq/api"
	"example.com/mq/internal/backup"
	"example.com/mq/internal/vfs"
	"example.com/mq/test/process"
)

// source is the node at url for package backup.
type source struct {
	url  string
	http *http.Client
}

// backUp takes a backup of a node into a folder, or renews the one that is there, and reads it back.
func backUp(ctx context.Context, client *http.Client, url, dir string) error {
	fsys, err := vfs.Open(dir)
	if err != nil {
		return err
	}
	defer fsys.Close()
	if _, err := backup.Take(ctx, source{url, client}, fsys, backup.Progress{}); err != nil {
		return fmt.Errorf("%w: %w", errNotTaken, err)
	}
	_, err = backup.Verify(ctx, fsys, backup.Progress{})
	return err
}

// errNotTaken says that a backup did not come to its end. That is right while nodes die.
var errNotTaken = errors.New("the backup was not taken")

func (s source) BackupBegin(ctx context.Context) (*api.BackupBegun, error) {
	begun := new(api.BackupBegun)
	answer, err := s.call(ctx, api.PathBackupBegin, struct{}{})
	if err == nil {
		err = json.Unmarshal(answer, begun)
	}
	return begun, err
}

func (s source) BackupRead(ctx context.Context, q api.BackupReadRequest) ([]byte, error) {
	return s.call(ctx, api.PathBackupRead, q)
}

func (s source) BackupEnd(ctx context.Context, backup string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := s.call(ctx, api.PathBackupEnd, api.BackupEndRequest{Backup: backup})
	return err
}

func (s source) call(ctx context.Context, path string, in any) ([]byte, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+process.AdminToken)
	answer, err := s.http.Do(r)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	switch {
	case err != nil:
		return nil, err
	case answer.StatusCode == http.StatusNotFound:
		return nil, fmt.Errorf("%w: %s", backup.ErrOver, text)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", answer.Status, text)
	}
	return text, nil
}
