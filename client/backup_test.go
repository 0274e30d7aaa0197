package client

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"example.com/mq/api"
)

// TestBackupCalls says what the calls for backups send, and what they make of the answers.
func TestBackupCalls(t *testing.T) {
	ctx := context.Background()
	piece := []byte{0, 1, '\n', 0xff}
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		switch r.URL.Path {
		case api.PathBackupBegin:
			say(w, 200, `{"backup":"b","log_id":"ab","index":7,"time_ms":5,"snapshot":{"index":3,"bytes":10},"segments":[{"first":1,"last":7,"bytes":600,"sealed":false}]}`)
		case api.PathBackupRead:
			w.Header().Set("Content-Type", "application/octet-stream")
			w.Write(piece)
		default:
			say(w, 200, `{}`)
		}
	})
	c := quick(t, Config{Token: "c", AdminToken: "a"}, f)
	begun, err := c.BackupBegin(ctx)
	if err != nil || begun.Backup != "b" || begun.Index != 7 || begun.Snapshot.Index != 3 || len(begun.Segments) != 1 || begun.Segments[0].Bytes != 600 {
		t.Errorf("begin: %+v, %v", begun, err)
	}
	got, err := c.BackupRead(ctx, api.BackupReadRequest{Backup: "b", Segment: 1, Offset: 5, Bytes: 4})
	if err != nil || string(got) != string(piece) {
		t.Errorf("read: %q, %v", got, err)
	}
	if err := c.BackupEnd(ctx, "b"); err != nil {
		t.Errorf("end: %v", err)
	}
	want := []received{
		{"POST", api.PathBackupBegin, "Bearer a", ""},
		{"POST", api.PathBackupRead, "Bearer a", `{"backup":"b","segment":1,"offset":5,"bytes":4}`},
		{"POST", api.PathBackupEnd, "Bearer a", `{"backup":"b"}`},
	}
	for i, r := range f.got() {
		if r != want[i] {
			t.Errorf("call %d is %+v, want %+v", i, r, want[i])
		}
	}
	// More than was asked for is not from a broker.
	if _, err := c.BackupRead(ctx, api.BackupReadRequest{Backup: "b", Offset: 0, Bytes: 3}); !errors.Is(err, ErrBadAnswer) {
		t.Errorf("an answer that is too long: %v", err)
	}
	for _, q := range []api.BackupReadRequest{{Bytes: 0}, {Bytes: api.BackupReadMax + 1}, {Offset: -1, Bytes: 1}} {
		if _, err := c.BackupRead(ctx, q); !errors.Is(err, ErrInvalidArgument) {
			t.Errorf("%+v: %v", q, err)
		}
	}
}

// TestBackupRetries: reading can be done again; a backup that is over is told at once.
func TestBackupRetries(t *testing.T) {
	ctx := context.Background()
	f := newFake(t, func(w http.ResponseWriter, r *http.Request, n int) {
		switch n {
		case 0:
			hangUp()
		case 1: // cut off in the middle
			w.Header().Set("Content-Length", "4")
			io.WriteString(w, "ab")
			hangUp()
		case 2:
			say(w, 503, `{"code":"unavailable","message":"later"}`)
		case 3:
			io.WriteString(w, "abcd")
		default:
			say(w, 404, `{"code":"not_found","message":"there is no such backup any more","field":"backup"}`)
		}
	})
	c := quick(t, Config{Retry: Retry{For: 5 * time.Second, Backoff: time.Millisecond}}, f)
	got, err := c.BackupRead(ctx, api.BackupReadRequest{Backup: "b", Bytes: 4})
	if err != nil || string(got) != "abcd" || len(f.got()) != 4 {
		t.Errorf("after %d attempts: %q, %v", len(f.got()), got, err)
	}
	if _, err := c.BackupRead(ctx, api.BackupReadRequest{Backup: "b", Bytes: 4}); !errors.Is(err, ErrNotFound) || len(f.got()) != 5 {
		t.Errorf("a backup that is over: %v, after %d attempts", err, len(f.got())-4)
	}
	if err := c.BackupEnd(ctx, "b"); !errors.Is(err, ErrNotFound) {
		t.Errorf("end: %v", err)
	}
}
