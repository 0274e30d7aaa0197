package backup

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"example.com/mq/internal/vfs/memfs"
)

// A manifest says nothing that is believed: names are ours, sizes and entries must make sense.
func TestHostileManifests(t *testing.T) {
	w := newWorld(t, 31)
	w.act(200)
	if _, err := w.node.Snapshot(); err != nil {
		t.Fatal(err)
	}
	dir := memfs.New()
	w.take(dir)
	good, err := readManifest(dir)
	if err != nil || good.Snapshot == nil || len(good.Segments) < 3 {
		t.Fatalf("the manifest is no good for this test: %v", err)
	}
	for name, change := range map[string]func(m *Manifest){
		"a name with a folder":      func(m *Manifest) { m.Segments[0].Name = "../" + m.Segments[0].Name },
		"an absolute name":          func(m *Manifest) { m.Segments[0].Name = "/etc/passwd" },
		"a name of another file":    func(m *Manifest) { m.Segments[0].Name = m.Segments[1].Name },
		"the snapshot's name":       func(m *Manifest) { m.Snapshot.Name = m.Segments[0].Name },
		"the manifest's name":       func(m *Manifest) { m.Segments[0].Name = ManifestFile },
		"no bytes":                  func(m *Manifest) { m.Segments[0].Bytes = 0 },
		"bytes below nothing":       func(m *Manifest) { m.Segments[0].Bytes = -1 },
		"very many bytes":           func(m *Manifest) { m.Segments[0].Bytes = 1 << 62 },
		"no hash":                   func(m *Manifest) { m.Segments[0].SHA256 = "" },
		"a hash in capitals":        func(m *Manifest) { m.Segments[0].SHA256 = strings.ToUpper(m.Segments[0].SHA256) },
		"half a hash":               func(m *Manifest) { m.Segments[0].SHA256 = m.Segments[0].SHA256[:32] },
		"another hash":              func(m *Manifest) { m.Segments[1].SHA256 = strings.Repeat("ab", 32) },
		"no segments":               func(m *Manifest) { m.Segments = nil },
		"a gap":                     func(m *Manifest) { m.Segments = append(m.Segments[:1:1], m.Segments[2:]...) },
		"no snapshot before a head": func(m *Manifest) { m.Snapshot = nil; m.Segments = m.Segments[1:] },
		"a snapshot beyond the end": func(m *Manifest) { m.Snapshot.Last = m.Index + 1; m.Snapshot.Name = m.Snapshot.name() },
		"a snapshot of entry 0":     func(m *Manifest) { m.Snapshot.Last = 0; m.Snapshot.Name = m.Snapshot.name() },
		"an end before the last":    func(m *Manifest) { m.Index-- },
		"an end behind the last":    func(m *Manifest) { m.Index++ },
		"a segment that is no last one and not sealed": func(m *Manifest) {
			m.Segments[0].Sealed = false
			m.Segments[0].Name = m.Segments[0].name()
		},
		"a log id that is none": func(m *Manifest) { m.LogID = "../../" },
		"a newer format":        func(m *Manifest) { m.Format++ },
		"another log":           func(m *Manifest) { m.LogID = strings.Repeat("ab", 16) },
		"another time":          func(m *Manifest) { m.TimeMS++ },
	} {
		t.Run(name, func(t *testing.T) {
			m := *good
			m.Segments = append([]File{}, good.Segments...)
			snapshot := *good.Snapshot
			m.Snapshot = &snapshot
			change(&m)
			text, err := m.encode()
			if err != nil {
				t.Fatal(err)
			}
			bad := dir.Clone()
			if err := replace(bad, manifestTmp, ManifestFile, text); err != nil {
				t.Fatal(err)
			}
			_, err = Verify(context.Background(), bad, Progress{})
			if err == nil {
				t.Error("it passes")
			}
			// What can be seen on the manifest alone is refused before any file is looked at.
			if alone := !strings.HasPrefix(name, "another ") && name != "a newer format"; alone && !errors.Is(err, errManifest) {
				t.Errorf("it is refused late: %v", err)
			}
			data := memfs.New()
			if _, err := Restore(context.Background(), bad, RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); err == nil {
				t.Error("it is restored")
			}
			refuses(t, data, w)
		})
	}
}

// A stream is read in its order, and nothing but plain files with the names that are expected.
func TestHostileStreams(t *testing.T) {
	w := newWorld(t, 32)
	w.act(100)
	var b bytes.Buffer
	if _, err := Stream(context.Background(), w.source(), &b, Progress{}); err != nil {
		t.Fatal(err)
	}
	type member struct {
		tar.Header
		body []byte
	}
	var good []member
	for r := tar.NewReader(&b); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		var body bytes.Buffer
		body.ReadFrom(r)
		good = append(good, member{*h, body.Bytes()})
	}
	n := len(good)
	if n < 4 || good[0].Name != contentsFile || good[n-1].Name != ManifestFile {
		t.Fatalf("a stream of %d files", n)
	}
	write := func(list []member) []byte {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, m := range list {
			m.Format = tar.FormatUnknown
			if err := w.WriteHeader(&m.Header); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(m.body); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		return b.Bytes()
	}
	if _, err := VerifyStream(context.Background(), bytes.NewReader(write(good)), Progress{}); err != nil {
		t.Fatalf("the stream itself: %v", err)
	}
	for name, change := range map[string]func(list []member) []member{
		"no manifest":           func(l []member) []member { return l[:n-1] },
		"no contents":           func(l []member) []member { return l[1:] },
		"a file left out":       func(l []member) []member { return append(l[:1:1], l[2:]...) },
		"a file twice":          func(l []member) []member { return append(append(l[:2:2], l[1]), l[2:]...) },
		"two files swapped":     func(l []member) []member { l[1], l[2] = l[2], l[1]; return l },
		"something behind":      func(l []member) []member { return append(l, l[0]) },
		"the manifest first":    func(l []member) []member { return append([]member{l[n-1]}, l[:n-1]...) },
		"a name with a folder":  func(l []member) []member { l[1].Name = "x/" + l[1].Name; return l },
		"a name that leads out": func(l []member) []member { l[1].Name = "../" + l[1].Name; return l },
		"a link": func(l []member) []member {
			l[1].Typeflag, l[1].Linkname, l[1].Size, l[1].body = tar.TypeSymlink, "/etc/passwd", 0, nil
			return l
		},
		"a hard link": func(l []member) []member {
			l[1].Typeflag, l[1].Linkname, l[1].Size, l[1].body = tar.TypeLink, "/etc/passwd", 0, nil
			return l
		},
		"a longer file": func(l []member) []member { l[1].Size++; l[1].body = append(l[1].body, 0); return l },
		"contents that are the manifest": func(l []member) []member {
			l[0].Size, l[0].body = l[n-1].Size, l[n-1].body
			return l
		},
		"a manifest that is the contents": func(l []member) []member {
			l[n-1].Size, l[n-1].body = l[0].Size, l[0].body
			return l
		},
	} {
		t.Run(name, func(t *testing.T) {
			bad := write(change(append([]member{}, good...)))
			if _, err := VerifyStream(context.Background(), bytes.NewReader(bad), Progress{}); err == nil {
				t.Error("it passes")
			} else {
				t.Log(err)
			}
			data := memfs.New()
			if _, err := RestoreStream(context.Background(), bytes.NewReader(bad), RestoreConfig{FS: data, SegmentBytes: testSegment, Inline: true}); err == nil {
				t.Error("it is restored")
			}
			refuses(t, data, w)
		})
	}
}

// A sparse file says that it is longer than what the stream has of it, and would take as much memory as it says.
func TestHostileSparseStream(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(name string, body []byte) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(body)), Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		w.Write(body)
	}
	records := ""
	for key, value := range map[string]string{"major": "1", "minor": "0", "name": contentsFile, "realsize": "1000000"} {
		line := fmt.Sprintf(" GNU.sparse.%s=%s\n", key, value)
		records += fmt.Sprintf("%d%s", len(line)+2, line)
	}
	add("pax", []byte(records))
	add(contentsFile, append([]byte("1\n1000000\n0\n"), make([]byte, 500)...))
	w.Close()
	text := b.Bytes()
	text[156] = tar.TypeXHeader // the first file is what belongs to the second one
	copy(text[148:156], "        ")
	sum := 0
	for _, c := range text[:512] {
		sum += int(c)
	}
	copy(text[148:156], fmt.Sprintf("%06o\x00 ", sum))
	if h, err := tar.NewReader(bytes.NewReader(text)).Next(); err != nil || h.Name != contentsFile || h.Size != 1000000 {
		t.Fatalf("no sparse file: %+v %v", h, err)
	}
	if _, err := VerifyStream(context.Background(), bytes.NewReader(text), Progress{}); err == nil || !strings.Contains(err.Error(), "the stream is no backup") {
		t.Errorf("got %v", err)
	}
}

// FuzzManifest: whatever a manifest holds, it is refused or means what it says.
func FuzzManifest(f *testing.F) {
	w := newWorld(f, 33)
	w.act(30)
	dir := memfs.New()
	text, err := w.take(dir).Manifest.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"format":1,"segments":[{}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := decodeManifest(text, true)
		if err != nil {
			return
		}
		for file := range m.files() {
			if g, ok := parse(file.Name); !ok || g.First != file.First || strings.ContainsAny(file.Name, "/\\") {
				t.Fatalf("the name %q was taken", file.Name)
			}
		}
		if again, err := m.encode(); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("it means something else: %v", err)
		}
	})
}
