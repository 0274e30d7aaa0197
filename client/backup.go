package client

import (
	"context"
	"encoding/json"

	"example.com/mq/api"
)

// backupListMax is more than the answer to the beginning of a backup has, of a log of a million segments.
const backupListMax = 128 << 20

// BackupBegin asks for what a backup of the broker has to hold, and makes the broker keep that until BackupEnd, or until it
// was not asked for BackupIdleMS (package api). It needs the admin token, as the other two do.
//
// An attempt that got no answer is repeated; what it may have begun ends by itself.
func (c *Client) BackupBegin(ctx context.Context) (*api.BackupBegun, error) {
	call := &call{operation: "backup", path: api.PathBackupBegin, answerMax: backupListMax, admin: true, again: true}
	answer, err := c.do(ctx, call)
	if err != nil {
		return nil, err
	}
	begun := new(api.BackupBegun)
	if err := json.Unmarshal(answer, begun); err != nil {
		return nil, call.badAnswer(err)
	}
	return begun, nil
}

// BackupRead reads bytes of a file of a backup: fewer than it asks for only at the end of the file. Nothing of them was
// checked. ErrNotFound says that the backup is over, for example because another node leads now: begin a new one.
func (c *Client) BackupRead(ctx context.Context, q api.BackupReadRequest) ([]byte, error) {
	call := &call{operation: "backup", path: api.PathBackupRead, answerMax: q.Bytes, admin: true, again: true}
	if q.Bytes < 1 || q.Bytes > api.BackupReadMax || q.Offset < 0 {
		return nil, call.refuse("a read of no bytes, or of too many")
	}
	body, err := json.Marshal(q)
	if err != nil {
		return nil, call.refuse(err.Error())
	}
	call.body = body
	return c.do(ctx, call)
}

// BackupEnd lets go of what the broker keeps for a backup. A backup that is over already is ErrNotFound.
func (c *Client) BackupEnd(ctx context.Context, backup string) error {
	call := &call{operation: "backup", path: api.PathBackupEnd, answerMax: smallAnswerMax, admin: true, again: true}
	body, err := json.Marshal(api.BackupEndRequest{Backup: backup})
	if err != nil {
		return call.refuse(err.Error())
	}
	call.body = body
	_, err = c.do(ctx, call)
	return err
}
