package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"example.com/mq/client"
)

// A backup waits while as many as there may be are taken, unless it was told to be quick. What it waits for it says.
func TestBackupWaits(t *testing.T) {
	const refused = `{"code":"unavailable","message":"4 backups are being taken"}`
	for _, test := range []struct {
		status  int
		body    string
		timeout time.Duration
		calls   int64
	}{
		{503, refused, timeoutDefault, 2},
		{503, refused, timeoutDefault - 1, 1},
		{507, `{"code":"storage_full","message":"full"}`, timeoutDefault, 1},
	} {
		var calls atomic.Int64
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			if calls.Add(1) == 1 {
				w.WriteHeader(test.status)
				io.WriteString(w, test.body)
				return
			}
			io.WriteString(w, `{"backup":"b"}`)
		}))
		defer s.Close()
		mq, err := client.New(client.Config{Nodes: []string{s.URL}, Retry: client.Retry{For: -1}})
		if err != nil {
			t.Fatal(err)
		}
		defer mq.Close()
		var notes strings.Builder
		begun, err := backupSource{mq, test.timeout, &notes}.BackupBegin(context.Background())
		waits := test.calls > 1
		failed := (*client.Error)(nil)
		if waits && (err != nil || begun.Backup != "b") || !waits && (!errors.As(err, &failed) || failed.Status != test.status) || calls.Load() != test.calls ||
			(notes.Len() > 0) != waits || waits && !strings.Contains(notes.String(), "4 backups are being taken") {
			t.Errorf("%d with %v: %+v, %v after %d calls; notes %q", test.status, test.timeout, begun, err, calls.Load(), notes.String())
		}
	}
}
