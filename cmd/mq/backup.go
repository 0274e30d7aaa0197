package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"example.com/mq/api"
	"example.com/mq/client"
	"example.com/mq/internal/backup"
	"example.com/mq/internal/entry"
	"example.com/mq/internal/vfs"
)

type backupCmd struct {
	Take   backupTakeCmd   `cmd:"" default:"withargs" help:"Take a backup of a running broker (admin token). 'take' may be left out."`
	Verify backupVerifyCmd `cmd:"" help:"Read a whole backup and check everything that can be checked. Fails on damage."`
}

func (backupCmd) Help() string {
	return `A backup holds the log of the broker as it is when the command begins: records, groups, request ids, settings. Publishers
do not wait for it. In a folder it is renewed: only what is new is fetched, and the backup before stays good until the new one
is complete. With '-' it is written to standard output, as a tar file.`
}

// stream is the name that stands for standard input or output.
const stream = "-"

type backupTakeCmd struct {
	Dir string `arg:"" help:"Folder of the backup; it is made if need be. '-' for standard output."`
}

// takenBackup is the outcome with -o json.
type takenBackup struct {
	LogID        string `json:"log_id"`
	Index        uint64 `json:"index"`
	TimeMS       int64  `json:"time_ms"`
	Bytes        int64  `json:"bytes"`
	FetchedBytes int64  `json:"fetched_bytes"`
	Files        int    `json:"files"`
}

func (c *backupTakeCmd) Run(ctx context.Context, g *Global, std streams) error {
	if c.Dir == "" {
		return usagef("backup: DIR is empty: name the folder of the backup, or '-' for standard output")
	}
	mq, err := g.connect()
	if err != nil {
		return err
	}
	defer mq.Close()
	p := &backupProgress{w: std.err}
	defer p.stop()
	src := backupSource{mq, g.Timeout, std.err}
	var taken *backup.Taken
	if c.Dir == stream {
		taken, err = backup.Stream(ctx, src, std.out, p.progress())
	} else {
		taken, err = takeInto(ctx, c.Dir, src, p.progress())
	}
	p.stop()
	if errors.Is(err, errOutputClosed) { // for a backup that is a failure: nobody has all of it
		return errors.New("backup: standard output was closed before the backup was complete")
	}
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	m := taken.Manifest
	out := takenBackup{LogID: m.LogID, Index: m.Index, TimeMS: m.TimeMS, Bytes: m.Bytes(), FetchedBytes: taken.Fetched, Files: len(m.Segments)}
	if m.Snapshot != nil {
		out.Files++
	}
	if c.Dir == stream { // standard output holds the backup
		std.out = std.err
	}
	row := []string{
		strconv.FormatUint(out.Index, 10), time.UnixMilli(out.TimeMS).UTC().Format("2006-01-02T15:04:05.000Z"),
		strconv.Itoa(out.Files), strconv.FormatInt(out.Bytes, 10), strconv.FormatInt(out.FetchedBytes, 10),
	}
	return writeRows(std.out, g.Output, []string{"INDEX", "TIME", "FILES", "BYTES", "FETCHED"}, [][]string{row}, []any{out})
}

func takeInto(ctx context.Context, dir string, src backup.Source, p backup.Progress) (*backup.Taken, error) {
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	fsys, err := openBackup(dir)
	if err != nil {
		return nil, err
	}
	defer fsys.Close()
	return backup.Take(ctx, src, fsys, p)
}

// makeFolder makes a folder, durably, in one that exists and is not that of a backup, which would be of no use afterwards.
func makeFolder(name string) error {
	outer := filepath.Dir(filepath.Clean(name))
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		if fsys, err := vfs.Open(outer); err == nil {
			taken := backup.IsBackup(fsys)
			fsys.Close()
			if taken {
				return fmt.Errorf("%s holds a backup, and must hold nothing else: name a folder outside of it; nothing was changed", outer)
			}
		}
	}
	err := os.Mkdir(name, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	parent, err := os.Open(outer)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}

// lostFound is the folder that a new file system may have at its root. It is nobody's.
const lostFound = "lost+found"

// openBackup opens the folder of a backup, in which nothing but files may have our attention.
func openBackup(dir string) (*vfs.OS, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() && !(e.IsDir() && e.Name() == lostFound) {
			return nil, fmt.Errorf("%s is no file: the folder of a backup holds files only", filepath.Join(dir, e.Name()))
		}
	}
	return vfs.Open(dir)
}

// backupSource is a broker for package backup.
type backupSource struct {
	*client.Client
	timeout time.Duration // of a call, attempts included
	notes   io.Writer
}

// beginMax is how long a beginning is tried while the broker does not take one: longer than it keeps a backup that was
// killed. beginPause is between two calls.
const (
	beginMax   = api.BackupIdleMS*time.Millisecond + 5*time.Second
	beginPause = time.Second
)

// BackupBegin waits for the end of other backups, or until the broker knows the end of its log, unless calls are to be tried for
// less than the default.
func (s backupSource) BackupBegin(ctx context.Context) (*api.BackupBegun, error) {
	for start := time.Now(); ; {
		begun, err := s.Client.BackupBegin(ctx)
		refused := (*client.Error)(nil)
		if !errors.As(err, &refused) || refused.Code != client.ErrUnavailable || s.timeout < timeoutDefault || time.Since(start) >= beginMax {
			return begun, err
		}
		fmt.Fprintf(s.notes, "mq: %s; still trying\n", plain(err.Error()))
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(beginPause):
		}
	}
}

func (s backupSource) BackupRead(ctx context.Context, q api.BackupReadRequest) ([]byte, error) {
	b, err := s.Client.BackupRead(ctx, q)
	if errors.Is(err, client.ErrNotFound) {
		return nil, fmt.Errorf("%w: %w", backup.ErrOver, err)
	}
	return b, err
}

// backupEndMax is how long an end waits for a broker that may be dead: it lets go by itself a little later.
const backupEndMax = 2 * time.Second

// BackupEnd is called when the outcome is known already, also after an interrupt, so it must not go on trying for long.
func (s backupSource) BackupEnd(ctx context.Context, backup string) error {
	ctx, cancel := context.WithTimeout(ctx, backupEndMax)
	defer cancel()
	return s.Client.BackupEnd(ctx, backup)
}

// backupProgress draws how far a backup is.
type backupProgress struct {
	w     io.Writer
	read  atomic.Int64
	count atomic.Uint64
	line  *progress // nil while nothing has begun
}

func (p *backupProgress) progress() backup.Progress {
	return backup.Progress{
		Begun: func(total int64) {
			p.stop()
			p.read.Store(0)
			p.count.Store(0)
			p.line = newProgress(p.w, false, total, p.read.Load, p.count.Load)
		},
		Read:    func(bytes int) { p.read.Add(int64(bytes)) },
		Records: func(n int) { p.count.Add(uint64(n)) },
	}
}

func (p *backupProgress) stop() {
	if p.line != nil {
		p.line.stop()
		p.line = nil
	}
}

// timeoutDefault is that of Global.Timeout.
const timeoutDefault = 30 * time.Second

type backupVerifyCmd struct {
	Src string `arg:"" name:"dir" help:"Folder of the backup, or '-' for a tar file on standard input."`
}

func (c *backupVerifyCmd) Run(ctx context.Context, g *Global, std streams) error {
	if c.Src == "" {
		return usagef("backup verify: DIR is empty: name the folder of a backup, or '-' for standard input")
	}
	p := &backupProgress{w: std.err}
	defer p.stop()
	report, err := verifyBackup(ctx, c.Src, std.in, p.progress())
	p.stop()
	if err != nil {
		return fmt.Errorf("the backup is not good: %w", err)
	}
	return writeReport(std.out, g, report)
}

func verifyBackup(ctx context.Context, src string, in io.Reader, p backup.Progress) (*backup.Report, error) {
	if src == stream {
		return backup.VerifyStream(ctx, in, p)
	}
	fsys, err := openBackup(src)
	if err != nil {
		return nil, err
	}
	defer fsys.Close()
	return backup.Verify(ctx, fsys, p)
}

// backupReport is what a backup holds, or what was restored, with -o json.
type backupReport struct {
	LogID      string `json:"log_id"`               // of what was restored: that of the new log
	OldLogID   string `json:"old_log_id,omitempty"` // of what was restored: that of the log in the backup
	Index      uint64 `json:"index"`
	TimeMS     int64  `json:"time_ms"`
	Topics     int    `json:"topics"`
	Groups     int    `json:"groups"`
	Records    uint64 `json:"records"`
	RequestIDs int    `json:"request_ids"`
	Bytes      int64  `json:"bytes"`
}

func writeReport(w io.Writer, g *Global, r *backup.Report) error {
	m, fold := r.Manifest, r.Fold
	out := backupReport{
		LogID: m.LogID, Index: m.Index, TimeMS: m.TimeMS, Topics: fold.LiveTopics(), Groups: fold.Groups(),
		Records: fold.LiveRecords(), RequestIDs: fold.RequestIDs(), Bytes: m.Bytes(),
	}
	row := []string{
		strconv.FormatUint(out.Index, 10), time.UnixMilli(out.TimeMS).UTC().Format("2006-01-02T15:04:05.000Z"),
		strconv.Itoa(out.Topics), strconv.Itoa(out.Groups), strconv.FormatUint(out.Records, 10), strconv.FormatInt(out.Bytes, 10), out.LogID,
	}
	head := []string{"INDEX", "TIME", "TOPICS", "GROUPS", "RECORDS", "BYTES", "LOG"}
	if r.Restored != (entry.LogID{}) {
		out.LogID, out.OldLogID = hex.EncodeToString(r.Restored[:]), out.LogID
		head, row = append(head[:len(head)-1], "NEW LOG", "OLD LOG"), append(row[:len(row)-1], out.LogID, out.OldLogID)
	}
	return writeRows(w, g.Output, head, [][]string{row}, []any{out})
}
