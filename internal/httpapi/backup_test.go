package httpapi

import (
	"bytes"
	"fmt"
	"sync"
	"testing"

	"example.com/mq/api"
	"example.com/mq/internal/broker"
	"example.com/mq/internal/entry"
)

// largeBackup is a broker with a backup of one large segment, whose reads wait until the test lets them go on.
type largeBackup struct {
	*fakeBroker
	wait chan struct{}
}

const largeBytes = 10 << 20

// pattern is byte i of the segment.
func pattern(i int64) byte { return byte(i*7 + i>>9) }

func (b *largeBackup) BackupRead(_ string, _ entry.Index, offset int64, p []byte) (int, error) {
	if b.wait != nil {
		<-b.wait
	}
	n := min(int64(len(p)), largeBytes-offset)
	for i := range n {
		p[i] = pattern(offset + i)
	}
	return int(n), nil
}

func backupServer(t *testing.T, b *largeBackup) *running {
	return start(t, func(c *Config) {
		c.AdminToken = "a"
		b.fakeBroker = c.Broker.(*fakeBroker)
		c.Broker = b
	})
}

func readBackup(s *running, offset, n int64) *answer {
	return s.post(api.PathBackupRead, fmt.Sprintf(`{"backup":"b","segment":1,"offset":%d,"bytes":%d}`, offset, n), "Authorization", "Bearer a")
}

// The bytes come as they are, in pieces of any size, and the memory for them is given back.
func TestBackupBytes(t *testing.T) {
	s := backupServer(t, &largeBackup{})
	spare := s.answers.left.Load()
	for _, at := range []struct{ offset, bytes, want int64 }{
		{0, 1, 1}, {5, 100, 100}, {1 << 20, keepMax, keepMax}, {3, keepMax + 1, keepMax + 1}, {77, api.BackupReadMax, api.BackupReadMax},
		{largeBytes - 10, api.BackupReadMax, 10}, {largeBytes, 1, 0},
	} {
		a := readBackup(s, at.offset, at.bytes)
		want := make([]byte, at.want)
		for i := range want {
			want[i] = pattern(at.offset + int64(i))
		}
		if a.status != 200 || a.header.Get("Content-Type") != "application/octet-stream" || !bytes.Equal([]byte(a.body), want) {
			t.Errorf("%d bytes at %d: status %d, %q, %d bytes", at.bytes, at.offset, a.status, a.header.Get("Content-Type"), len(a.body))
		}
	}
	waitUntil(t, "the memory is given back", func() bool { return s.answers.left.Load() == spare })
	for _, body := range []string{
		`{"backup":"b","segment":1,"offset":0,"bytes":0}`, fmt.Sprintf(`{"backup":"b","segment":1,"offset":0,"bytes":%d}`, api.BackupReadMax+1),
		`{"backup":"b","segment":1,"offset":-1,"bytes":1}`, `{"backup":"b","segment":1,"bytes":1}`, `{"segment":1,"offset":0,"bytes":1}`,
	} {
		if a := s.post(api.PathBackupRead, body, "Authorization", "Bearer a"); a.status != 400 {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
}

// Reads of backups take their memory from that of large answers.
func TestBackupReadsAreBounded(t *testing.T) {
	b := &largeBackup{wait: make(chan struct{})}
	s := start(t, func(c *Config) {
		c.AdminToken, c.AnswerBudgetBytes = "a", 2*api.BackupReadMax
		b.fakeBroker = c.Broker.(*fakeBroker)
		c.Broker = b
	})
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			if a := readBackup(s, 0, api.BackupReadMax); a.status != 200 {
				t.Errorf("%d %s", a.status, a.body)
			}
		})
	}
	waitUntil(t, "two reads have all the memory", func() bool { return s.answers.left.Load() == 0 })
	if a := readBackup(s, 0, api.BackupReadMax); a.status != 503 || a.code() != "unavailable" {
		t.Errorf("a third: %d %.100s", a.status, a.body)
	}
	close(b.wait)
	readers.Wait()
	waitUntil(t, "the memory is given back", func() bool { return s.answers.left.Load() == 2*api.BackupReadMax })
}

// What is wrong with a backup has a code that says what to do.
func TestBackupErrors(t *testing.T) {
	s := start(t, func(c *Config) { c.AdminToken, c.ClientToken = "a", "c" })
	for _, test := range []struct {
		path, body, token string
		fail              error
		status            int
		code, field       string
	}{
		{api.PathBackupBegin, ``, "a", nil, 200, "", ""},
		{api.PathBackupBegin, `{"backup":"b"}`, "a", nil, 400, "invalid_argument", "backup"},
		{api.PathBackupBegin, ``, "c", nil, 403, "permission_denied", ""},
		{api.PathBackupBegin, ``, "a", &broker.UnavailableError{Reason: "4 backups are being taken"}, 503, "unavailable", ""},
		{api.PathBackupBegin, ``, "a", &broker.NotLeaderError{}, 503, "not_leader", ""},
		{api.PathBackupBegin, ``, "a", broker.ErrStorageFull, 507, "storage_full", ""},
		{api.PathBackupRead, `{"backup":"b","segment":1,"offset":0,"bytes":9}`, "a", nil, 200, "", ""},
		{api.PathBackupRead, `{"backup":"b","segment":1,"offset":0,"bytes":9}`, "c", nil, 403, "permission_denied", ""},
		{api.PathBackupRead, `{"backup":"other","segment":1,"offset":0,"bytes":9}`, "a", nil, 404, "not_found", "backup"},
		{api.PathBackupRead, `{"backup":"b","segment":2,"offset":0,"bytes":9}`, "a", nil, 400, "invalid_argument", "offset"},
		{api.PathBackupRead, `{"backup":"b","segment":1,"offset":999,"bytes":9}`, "a", nil, 400, "invalid_argument", "offset"},
		{api.PathBackupEnd, `{"backup":"b"}`, "a", nil, 200, "", ""},
		{api.PathBackupEnd, `{"backup":"other"}`, "a", nil, 404, "not_found", "backup"},
		{api.PathBackupEnd, `{"backup":"b"}`, "c", nil, 403, "permission_denied", ""},
	} {
		s.fake.setFail(test.fail)
		if a := s.post(test.path, test.body, "Authorization", "Bearer "+test.token); a.status != test.status || a.code() != test.code || a.field() != test.field {
			t.Errorf("%s %s with %v: %d %s", test.path, test.body, test.fail, a.status, a.body)
		}
	}
}

// A broker that cannot be backed up says so.
func TestNoBackups(t *testing.T) {
	s := start(t, func(c *Config) {
		c.AdminToken = "a"
		c.Broker = struct{ Broker }{c.Broker}
	})
	for _, path := range []string{api.PathBackupBegin, api.PathBackupRead, api.PathBackupEnd} {
		if a := s.post(path, goodBodies[path], "Authorization", "Bearer a"); a.status != 404 || a.code() != "not_found" {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
}
