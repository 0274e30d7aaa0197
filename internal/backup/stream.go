package backup

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Stream takes a backup of a broker and writes it as a tar file: what it is going to hold, its files, and the manifest last.
// A stream that was cut off, or that ended because of an error, has no manifest, and is no backup.
func Stream(ctx context.Context, src Source, w io.Writer, p Progress) (*Taken, error) {
	t := &streamer{session: session{ctx: ctx, src: src, out: new(Taken)}, tar: tar.NewWriter(w)}
	end, err := t.begin()
	if err != nil {
		return nil, err
	}
	defer end()
	if err := t.text(contentsFile, t.m.contents()); err != nil {
		return nil, err
	}
	if err := t.readAll(t, p); err != nil {
		return nil, explain(err)
	}
	if err := t.text(ManifestFile, t.m); err != nil {
		return nil, err
	}
	if err := t.tar.Close(); err != nil {
		return nil, err
	}
	t.out.Manifest = t.m
	return t.out, nil
}

// streamer is a backup that is written as a stream.
type streamer struct {
	session
	tar *tar.Writer
}

func (t *streamer) header(name string, bytes int64) error {
	return t.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: bytes, Mode: 0o600, ModTime: time.UnixMilli(t.m.TimeMS).Truncate(time.Second)})
}

// text writes a manifest.
func (t *streamer) text(name string, m *Manifest) error {
	b, err := m.encode()
	if err != nil {
		return err
	}
	if err := t.header(name, int64(len(b))); err != nil {
		return err
	}
	_, err = t.tar.Write(b)
	return err
}

// open implements supply.
func (t *streamer) open(f *File) (io.ReadCloser, error) {
	if err := t.header(f.Name, f.Bytes); err != nil {
		return nil, err
	}
	return io.NopCloser(io.TeeReader(&remote{t: &t.session, file: f}, t.tar)), nil
}

// done implements supply.
func (t *streamer) done(f *File, sum string) error {
	f.SHA256 = sum
	return nil
}

// VerifyStream is Verify for a stream.
func VerifyStream(ctx context.Context, r io.Reader, p Progress) (*Report, error) {
	t, err := openStream(r)
	if err != nil {
		return nil, err
	}
	report, err := verify(ctx, t.m, t, p)
	if err != nil {
		return nil, err
	}
	return report, t.end()
}

// RestoreStream is Restore for a stream.
func RestoreStream(ctx context.Context, r io.Reader, cfg RestoreConfig) (*Report, error) {
	o, err := OpenStream(r)
	if err != nil {
		return nil, err
	}
	return o.Restore(ctx, cfg)
}

// tarball supplies the files of a stream, in the order in which they stand there.
type tarball struct {
	tar *tar.Reader
	m   *Manifest // without hashes, until the files were read
}

// openStream reads the beginning of a stream.
func openStream(r io.Reader) (*tarball, error) {
	t := &tarball{tar: tar.NewReader(r)}
	text, err := t.text(contentsFile)
	if err != nil {
		return nil, err
	}
	t.m, err = decodeManifest(text, false)
	return t, err
}

// next goes on to the next file, which must have that name.
func (t *tarball) next(name string) (int64, error) {
	h, err := t.tar.Next()
	switch {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return 0, errCut
	case err != nil:
		return 0, fmt.Errorf("read the stream: %w", err)
	case isSparse(h):
		return 0, fmt.Errorf("the stream is no backup: %q is a sparse file", h.Name)
	case h.Typeflag != tar.TypeReg || h.Name != name:
		return 0, fmt.Errorf("the stream is no backup: it has %q (type %q) where %s should be", h.Name, h.Typeflag, name)
	}
	return h.Size, nil
}

// isSparse tells files whose size is not what the stream holds of them: few bytes of stream would take any memory.
func isSparse(h *tar.Header) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, "GNU.sparse.") {
			return true
		}
	}
	return false
}

var errCut = errors.New("the stream was cut off, or its backup was not finished: it is no complete backup")

// text reads a small file.
func (t *tarball) text(name string) ([]byte, error) {
	size, err := t.next(name)
	if err != nil {
		return nil, err
	}
	if size > manifestMax {
		return nil, damaged("%s has %d bytes", name, size)
	}
	text, err := io.ReadAll(t.tar)
	if err == io.ErrUnexpectedEOF {
		err = errCut
	}
	return text, err
}

// open implements supply.
func (t *tarball) open(f *File) (io.ReadCloser, error) {
	size, err := t.next(f.Name)
	if err != nil {
		return nil, err
	}
	if size != f.Bytes {
		return nil, fmt.Errorf("it has %d bytes, and should have %d", size, f.Bytes)
	}
	return io.NopCloser(t), nil
}

func (t *tarball) Read(p []byte) (int, error) {
	n, err := t.tar.Read(p)
	if err == io.ErrUnexpectedEOF {
		err = errCut
	}
	return n, err
}

// done implements supply.
func (t *tarball) done(f *File, sum string) error {
	f.SHA256 = sum
	return nil
}

// end reads the manifest, and compares it with what was read.
func (t *tarball) end() error {
	text, err := t.text(ManifestFile)
	if err != nil {
		return err
	}
	m, err := decodeManifest(text, true)
	if err != nil {
		return err
	}
	for f := range m.files() {
		if read := t.m.find(f.Name); read != nil && read.SHA256 != f.SHA256 {
			return fmt.Errorf("%s: %w", f.Name, errHash)
		}
	}
	if read, err := t.m.encode(); err != nil || string(read) != string(text) {
		return damaged("it is not that of the files before it")
	}
	// The zeros behind the manifest hold nothing. Where they are cut off, all of the backup is there nevertheless.
	switch _, err := t.tar.Next(); {
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return nil
	case err != nil && !errors.Is(err, tar.ErrHeader):
		return fmt.Errorf("read the stream: %w", err)
	}
	return errors.New("the stream goes on behind its manifest")
}
