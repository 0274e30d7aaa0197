package security

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"example.com/mq/api"
	"example.com/mq/test/process"
)

// TestModes: nobody but the owner can read or change what mqd and mq make, whatever the umask says.
func TestModes(t *testing.T) {
	t.Parallel()
	for _, umask := range []string{"0", "0077"} {
		dir := process.Dir(t)
		wrap := []string{"sh", "-c", `umask ` + umask + `; exec "$0" "$@"`}
		mq := func(words ...string) string {
			t.Helper()
			c := exec.Command(wrap[0], append(append(wrap[1:], mqBinary(t)), words...)...)
			c.Env = append(os.Environ(), "MQ_ADMIN_TOKEN="+process.AdminToken)
			out, err := c.CombinedOutput()
			if err != nil {
				t.Fatalf("mq %v: %v: %s", words, err, out)
			}
			return string(out)
		}
		var followerAddress string
		names := []string{"alone"}
		if umask == "0" {
			names = []string{"alone", "follower", "leader"}
		}
		for _, name := range names {
			address, err := process.FreeAddress()
			if err != nil {
				t.Fatal(err)
			}
			args := []string{"-segment-bytes", "1048576"}
			switch name {
			case "follower":
				followerAddress = address
				args = append(args, "-role", name)
			case "leader":
				args = append(args, "-role", name, "-epoch", "1", "-replica", "http://"+followerAddress)
			}
			n := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: filepath.Join(dir, "above", name), Listen: address, Args: args, Wrap: wrap,
				Env: []string{"MQ_REPLICATION_TOKEN=" + process.ReplicationToken}})
			if name == "follower" { // it is ready once its leader is there
				n.Start()
				continue
			}
			p := n.StartReady()
			if name == "leader" {
				await(t, "the pair", func() string {
					s, err := p.PairStatus()
					if err == nil && s.InStep() {
						return ""
					}
					return fmt.Sprintf("%+v, %v", s, err)
				})
			}
			w := newWire(t, p.URL)
			for range 8 { // more than a segment
				body := `{"topic":"t","value":"` + strings.Repeat("YWFh", 60000) + `"}`
				if a := w.send(request{method: "POST", target: api.PathPublish, body: body}); a.status != 200 {
					t.Fatalf("%s: %d %s", name, a.status, a.body)
				}
			}
			if a := w.send(request{method: "POST", target: api.PathSnapshot, headers: []string{bearer(process.AdminToken)}}); a.status != 200 {
				t.Fatalf("%s: snapshot: %d %s", name, a.status, a.body)
			}
			if name == "alone" {
				mq("backup", "take", filepath.Join(dir, "above", "backup"), "--url", p.URL)
				mq("restore", filepath.Join(dir, "above", "backup"), filepath.Join(dir, "above", "restored"))
			}
		}
		files := 0
		err := filepath.WalkDir(filepath.Join(dir, "above"), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return ignoreGone(err)
			}
			info, err := d.Info()
			if err != nil {
				return ignoreGone(err)
			}
			want := fs.FileMode(0o600)
			if d.IsDir() {
				want = fs.ModeDir | 0o700
			} else {
				files++
			}
			if info.Mode() != want {
				t.Errorf("umask %s: %s has mode %v, want %v", umask, name, info.Mode(), want)
			}
			return nil
		})
		if err != nil || files < 10 {
			t.Errorf("umask %s: only %d files looked at, %v", umask, files, err)
		}
	}
}

// ignoreGone ignores that a file went away meanwhile: nodes that run rename and remove theirs.
func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// TestLinksLeadNowhere: what stands in a data folder, or in that of a backup, never makes a program read or write outside of it,
// not even where a link leads to just the file that belongs there.
func TestLinksLeadNowhere(t *testing.T) {
	t.Parallel()
	dir := process.Dir(t)
	n := process.NewNode(t, process.Config{Binary: process.Binary(t), Data: filepath.Join(dir, "data"), Args: []string{"-segment-bytes", "1048576"}})
	p := n.StartReady()
	w := newWire(t, p.URL)
	if a := w.send(request{method: "POST", target: api.PathPublish, body: `{"topic":"t","value":""}`}); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	mq := func(words ...string) error {
		c := exec.Command(mqBinary(t), words...)
		c.Env = append(os.Environ(), "MQ_ADMIN_TOKEN="+process.AdminToken)
		out, err := c.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	backup := filepath.Join(dir, "backup")
	if err := mq("backup", "take", backup, "--url", p.URL); err != nil {
		t.Fatal(err)
	}
	for _, name := range entries(t, backup) {
		t.Run("backup "+name, func(t *testing.T) {
			target, away := linked(t, backup, name)
			before := tree(t, away)
			for _, words := range [][]string{
				{"backup", "verify", target}, {"restore", target, filepath.Join(filepath.Dir(target), "restored")}, {"backup", "take", target, "--url", p.URL},
			} {
				if mq(words...) == nil {
					t.Errorf("mq %v takes it", words)
				}
			}
			if after := tree(t, away); after != before {
				t.Errorf("outside there was %s, now %s", before, after)
			}
		})
	}
	w.close()
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, name := range append(entries(t, n.Data), "log/00000000000000000001.seg", "log/next.seg") {
		t.Run("data "+name, func(t *testing.T) {
			data, away := linked(t, n.Data, name)
			before := tree(t, away)
			p, err := process.Start(process.Config{Binary: process.Binary(t), Data: data, Args: n.Args})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Kill()
			ready := false
			await(t, "ready, a reason why not, or an end", func() string {
				select {
				case <-p.Ended():
					return ""
				default:
				}
				status, body, err := p.Get(api.PathReady)
				if ready = err == nil && status == 200; !ready && !strings.Contains(body, "writes have stopped") {
					return fmt.Sprint(status, body, err)
				}
				return ""
			})
			p.Kill()
			// What is only of use, but not needed, may be made again.
			if needed := name != "log/next.seg" && name != "clean.json" && name != "ballast"; needed && ready {
				t.Errorf("mqd serves with %s from elsewhere", name)
			}
			mq("log", "verify", data)
			if after := tree(t, away); after != before {
				t.Errorf("outside there was %s, now %s", before, after)
			}
		})
	}
	// A restore goes into an empty folder only.
	into, away := filepath.Join(dir, "into"), filepath.Join(dir, "away")
	for _, name := range []string{into, away} {
		if err := os.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(away, filepath.Join(into, "log")); err != nil {
		t.Fatal(err)
	}
	if mq("restore", backup, into) == nil || len(entries(t, away)) > 0 {
		t.Error("a restore took a folder that is not empty")
	}
}

// entries returns the names in a folder.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// linked returns a copy of a folder in which one entry is a link, and the folder that the link leads to, which has the entry.
func linked(t *testing.T, of, name string) (dir, away string) {
	t.Helper()
	outer := process.Dir(t)
	dir, away = filepath.Join(outer, "folder"), filepath.Join(outer, "away")
	if err := os.CopyFS(dir, os.DirFS(of)); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(away, 0o700); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(away, filepath.Base(name))
	if err := os.Rename(filepath.Join(dir, name), to); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
	return dir, away
}

// tree tells what is in a folder: names, and sums of contents.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(name)
		fmt.Fprintf(&b, "%s %x\n", name, sha256.Sum256(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}
