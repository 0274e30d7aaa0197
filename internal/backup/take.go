package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"example.com/mq/internal/vfs"
)

// triesMax is how often Take begins anew, because the backup was over, or something that was there is damaged.
const triesMax = 8

// Take takes a backup of a broker into a folder, or renews the one that is there. It returns once all of it is durable; until
// then the old one stays as it is. What an interrupted Take has brought is used by the next. One Take at a time works on a
// folder.
//
//  1. All files are read, those that are there and those that come, and checked, as one log. What comes is written beside.
//  2. Each new file is durable before it gets its name.
//  3. The names are durable before the manifest is replaced, which makes the new backup the one that the folder holds.
//  4. What only the old one needed is removed.
func Take(ctx context.Context, src Source, fsys vfs.FS, p Progress) (*Taken, error) {
	old, err := readManifest(fsys)
	if err != nil && !errors.Is(err, ErrNoBackup) {
		return nil, err
	}
	if err := checkFolder(fsys, old); err != nil {
		return nil, err
	}
	lock, err := fsys.Lock(lockName)
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("another backup is being taken into the folder: %w", err)
	}
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if old, err = readManifest(fsys); err != nil && !errors.Is(err, ErrNoBackup) { // again: it may have been renewed
		return nil, err
	}
	fresh := map[string]bool{}
	out := new(Taken)
	for try := 1; ; try++ {
		t := &taker{session: session{ctx: ctx, src: src, out: out}, fs: fsys, old: old, fresh: fresh, local: map[string]bool{}}
		err := t.take(p)
		t.close()
		switch {
		case err == nil:
			return out, nil
		case try == triesMax || ctx.Err() != nil:
		case errors.Is(err, ErrOver), t.distrust(err):
			continue
		}
		return nil, explain(err)
	}
}

// checkFolder refuses a folder that is used for something else.
func checkFolder(fsys vfs.FS, old *Manifest) error {
	names, err := fsys.List(".")
	if err != nil {
		return fmt.Errorf("look into the folder: %w", err)
	}
	for _, name := range names {
		if old == nil && !isOurs(name) {
			return fmt.Errorf("the folder holds %s and no backup: name an empty folder, or one that does not exist; nothing was changed", name)
		}
	}
	return nil
}

// isOurs reports whether a name is one that backups give.
func isOurs(name string) bool {
	base, _ := strings.CutSuffix(name, partSuffix)
	if name == ManifestFile || name == manifestTmp || name == contentsFile || name == lockName {
		return true
	}
	_, ok := parse(base)
	return ok
}

// parse is the inverse of File.name.
func parse(name string) (f File, ok bool) {
	base, suffix, _ := strings.Cut(name, ".")
	number := func(text string) uint64 {
		n, err := strconv.ParseUint(text, 10, 64)
		ok = ok && err == nil
		return n
	}
	ok = true
	switch suffix {
	case "snap":
		f.Last = number(base)
	case "seg":
		f.First, f.Sealed = number(base), true
	case "tail":
		first, last, _ := strings.Cut(base, "-")
		f.First, f.Last = number(first), number(last)
	default:
		return File{}, false
	}
	return f, ok && f.name() == name
}

const (
	lockName    = "LOCK"
	partSuffix  = ".part" // of a file that is not complete
	manifestTmp = ManifestFile + ".tmp"
)

// taker is one attempt at a backup into a folder.
type taker struct {
	session
	fs    vfs.FS
	old   *Manifest       // nil for none
	fresh map[string]bool // names of files of which nothing that is there is to be used
	local map[string]bool // names of files of which something was there
	part  *part           // the file that is being written; nil for none
	parts []string        // names of those that are complete
}

func (t *taker) take(p Progress) error {
	end, err := t.begin()
	if err != nil {
		return err
	}
	defer end()
	if old := t.old; old != nil {
		switch {
		case old.LogID != t.m.LogID:
			return fmt.Errorf("the folder holds a backup of log %s, and the broker has log %s: take another folder; nothing was changed", old.LogID, t.m.LogID)
		case old.Index > t.m.Index:
			return fmt.Errorf("the folder holds a backup up to entry %d, and the log of the broker ends with entry %d: it has lost its end; take another folder; nothing was changed", old.Index, t.m.Index)
		}
	}
	if err := t.readAll(t, p); err != nil {
		return err
	}
	return t.complete()
}

// open implements supply: what is there is read from the folder, and the rest from the broker.
func (t *taker) open(f *File) (io.ReadCloser, error) {
	if !t.fresh[f.Name] {
		if file, size, err := t.there(f.Name); err != nil {
			return nil, err
		} else if file != nil && size == f.Bytes {
			t.local[f.Name] = true
			return file, nil
		} else if file != nil {
			file.Close()
		}
	}
	return t.fetch(f)
}

// localFile is a file of the folder, read from its beginning.
type localFile struct {
	io.Reader
	vfs.File
}

// there opens a file of the folder; nil if there is none.
func (t *taker) there(name string) (*localFile, int64, error) {
	file, err := t.fs.OpenRead(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	size, err := file.Size()
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return &localFile{io.NewSectionReader(file, 0, size), file}, size, nil
}

// fetch begins to write a file: behind the part of it that is there, or behind the part of the same segment that an earlier
// backup has.
func (t *taker) fetch(f *File) (io.ReadCloser, error) {
	name := f.Name + partSuffix
	p := &part{name: f.Name}
	size, err := t.fs.Size(name)
	if errors.Is(err, fs.ErrNotExist) {
		size, err = 0, nil
		p.File, err = t.fs.Create(name)
	} else if err == nil {
		p.File, err = t.fs.Open(name)
	}
	if err != nil {
		return nil, err
	}
	t.part = p
	if size > 0 && (t.fresh[f.Name] || size > f.Bytes) {
		if err := p.File.Truncate(0); err != nil {
			return nil, err
		}
		size = 0
	}
	head := &localFile{Reader: io.NewSectionReader(p.File, 0, size)}
	p.at = size
	if size == 0 && !t.fresh[f.Name] && f.First > 0 {
		if head, size, err = t.beginning(f); err != nil {
			return nil, err
		}
		head.Reader = io.TeeReader(head.Reader, p)
	}
	t.local[f.Name] = size > 0
	rest := &remote{t: &t.session, file: f, at: size}
	return &localFile{io.MultiReader(head, io.TeeReader(rest, p)), head.File}, nil
}

// beginning returns the longest beginning of a segment that an earlier backup has; an empty one if there is none.
func (t *taker) beginning(f *File) (best *localFile, size int64, err error) {
	best = &localFile{Reader: strings.NewReader("")}
	names, err := t.fs.List(".")
	if err != nil {
		return nil, 0, err
	}
	for _, name := range names {
		base, _ := strings.CutSuffix(name, partSuffix)
		g, ok := parse(base)
		if !ok || g.First != f.First || name == f.Name+partSuffix {
			continue
		}
		file, n, err := t.there(name)
		if err != nil {
			best.Close()
			return nil, 0, err
		}
		if file == nil || n > f.Bytes || n <= size {
			file.Close()
			continue
		}
		best.Close()
		best, size = file, n
	}
	return best, size, nil
}

// Close closes the file, if there is one.
func (f *localFile) Close() error {
	if f == nil || f.File == nil {
		return nil
	}
	return f.File.Close()
}

// part is a file that is written from front to back.
type part struct {
	vfs.File
	name string // without the suffix
	at   int64
}

func (p *part) Write(b []byte) (int, error) {
	n, err := p.WriteAt(b, p.at)
	p.at += int64(n)
	return n, err
}

// done implements supply.
func (t *taker) done(f *File, sum string) error {
	f.SHA256 = sum
	if was := t.old.find(f.Name); t.local[f.Name] && t.part == nil && was != nil && was.SHA256 != sum {
		return &staleError{f.Name, errHash}
	}
	if t.part != nil {
		p := t.part
		t.part = nil
		if err := errors.Join(p.Sync(), p.File.Close()); err != nil {
			return err
		}
		t.parts = append(t.parts, p.name)
	}
	if !t.local[f.Name] || f.First == 0 {
		return nil
	}
	return t.compare(f)
}

// compare makes sure that a segment of which something was there is the broker's: the checksum of its last frame stands for
// all before. That is not so where the log of the broker was cut, and went on in another way.
func (t *taker) compare(f *File) error {
	if uint64(t.last.Segment) != f.First {
		return nil // the damage is going to be told
	}
	n := min(frameHead, t.last.Length)
	theirs, err := t.ask(f, t.last.Offset, n)
	if err != nil {
		return err
	}
	name := f.Name
	if slices.Contains(t.parts, name) {
		name += partSuffix
	}
	file, _, err := t.there(name)
	if err != nil {
		return err
	}
	if file == nil {
		return fmt.Errorf("%s has vanished", name)
	}
	defer file.Close()
	ours := make([]byte, n)
	if _, err := file.File.ReadAt(ours, t.last.Offset); err != nil {
		return err
	}
	if string(ours) != string(theirs) {
		return &staleError{f.Name, errors.New("the log of the broker has other entries there than the folder")}
	}
	return nil
}

// staleError says that what was there of a file cannot be used.
type staleError struct {
	name string
	err  error
}

func (e *staleError) Error() string { return e.err.Error() }

// distrust notes, after an attempt that failed, that files are to be fetched anew. It reports whether there are such.
func (t *taker) distrust(err error) bool {
	var names []string
	var stale *staleError
	var damage *DamageError
	switch {
	case errors.As(err, &stale):
		names = []string{stale.name}
	case errors.As(err, &damage):
		for _, d := range damage.Damage {
			for i := range t.m.Segments {
				// Where two segments do not fit, either may be the wrong one.
				if f := &t.m.Segments[i]; f.First == uint64(d.Segment) || f.Last+1 == uint64(d.Segment) {
					names = append(names, f.Name)
				}
			}
		}
	case errors.Is(err, errSnapshot):
		names = []string{t.m.Snapshot.Name}
	}
	more := false
	for _, name := range names {
		more = more || !t.fresh[name]
		t.fresh[name] = true
	}
	return more
}

// complete makes the new backup the one that the folder holds.
func (t *taker) complete() error {
	for _, name := range t.parts {
		if err := t.fs.Rename(name+partSuffix, name); err != nil {
			return err
		}
	}
	if err := t.fs.SyncDir("."); err != nil {
		return err
	}
	text, err := t.m.encode()
	if err == nil {
		err = replace(t.fs, manifestTmp, ManifestFile, text)
	}
	if err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	t.out.Manifest = t.m
	return t.tidy()
}

// tidy removes what does not belong to the backup any more.
func (t *taker) tidy() error {
	names, err := t.fs.List(".")
	if err != nil {
		return err
	}
	for _, name := range names {
		if !isOurs(name) || name == ManifestFile || name == lockName || t.m.find(name) != nil {
			continue
		}
		if err := t.fs.Remove(name); err != nil {
			return fmt.Errorf("remove what the backup does not need any more: %w", err)
		}
	}
	return t.fs.SyncDir(".")
}

// replace puts a text under a name, atomically and durably.
func replace(fsys vfs.FS, tmp, name string, text []byte) error {
	if err := fsys.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := fsys.Create(tmp)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(tmp, name); err != nil {
		return err
	}
	return fsys.SyncDir(".")
}

// close lets go of what an attempt has open.
func (t *taker) close() {
	if t.part != nil {
		t.part.File.Close()
		t.part = nil
	}
}
