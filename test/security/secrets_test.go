package security

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// secret is something that must not be found, and how it may be spelled.
type secret struct {
	name      string
	spellings map[string][]byte
}

// newSecret returns a secret in all spellings that programs give to text.
func newSecret(name, text string) secret {
	s := secret{name, map[string][]byte{}}
	quoted, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	var escaped, percent, unicode strings.Builder
	for _, b := range []byte(text) {
		fmt.Fprintf(&escaped, `\x%02x`, b)
		fmt.Fprintf(&percent, "%%%02X", b)
		fmt.Fprintf(&unicode, `\u%04x`, b)
	}
	var wide []byte
	for _, b := range []byte(text) {
		wide = append(wide, b, 0)
	}
	plainJSON := new(bytes.Buffer)
	e := json.NewEncoder(plainJSON)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		panic(err)
	}
	for name, spelling := range map[string]string{
		"plain": text, "upper case": strings.ToUpper(text), "lower case": strings.ToLower(text), "title": strings.Title(text), //lint:ignore SA1019 as headers are
		"hex": hex.EncodeToString([]byte(text)), "upper hex": strings.ToUpper(hex.EncodeToString([]byte(text))),
		"json": string(quoted[1 : len(quoted)-1]), "json without html": strings.TrimSpace(plainJSON.String())[1 : plainJSON.Len()-2],
		"query": url.QueryEscape(text), "path": url.PathEscape(text), "percent": percent.String(), "lower percent": strings.ToLower(percent.String()),
		"go": strings.Trim(fmt.Sprintf("%+q", text), `"`), "escaped": escaped.String(), "unicode": unicode.String(), "wide": string(wide),
		"bytes": strings.Trim(fmt.Sprint([]byte(text)), "[]"), "numbers": strings.ReplaceAll(strings.Trim(fmt.Sprint([]byte(text)), "[]"), " ", ","),
	} {
		s.spellings[name] = []byte(spelling)
	}
	// Base64 of a longer text in which it stands: at each of three places, without the ends that the rest of the text shares.
	for _, encoding := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for at := range 3 {
			coded := encoding.EncodeToString(append(make([]byte, at), text...))
			from, to := (at*8+5)/6, (at+len(text))*8/6
			s.spellings[fmt.Sprintf("base64 at %d (%v)", at, encoding == base64.RawURLEncoding)] = []byte(coded[from:to])
		}
	}
	return s
}

// find returns where a secret stands in data, with a little of what is around it; "" for nowhere.
func (s *secret) find(data []byte) string {
	for spelling, text := range s.spellings {
		if i := bytes.Index(data, text); i >= 0 {
			return fmt.Sprintf("%s (%s) at byte %d: ...%q...", s.name, spelling, i, data[max(0, i-60):min(len(data), i+len(text)+60)])
		}
	}
	return ""
}

// output is everything that programs said. It may be added to from many goroutines.
type output struct {
	mu    sync.Mutex // guards the fields below
	parts map[string][]byte
	bytes int
}

// add notes what was said, and by whom.
func (o *output) add(from string, data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.parts == nil {
		o.parts = map[string][]byte{}
	}
	o.parts[from] = append(append(o.parts[from], data...), '\n')
	o.bytes += len(data)
}

// addTree notes the names and contents of all files below a folder.
func (o *output) addTree(t *testing.T, from, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		o.add(from+": names", []byte(name))
		if !d.Type().IsRegular() {
			return nil
		}
		data, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		// What was made ahead is zeros.
		o.add(from+": "+filepath.Base(name), bytes.TrimRight(data, "\x00"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// mustNotHold fails the test for each part that holds a secret.
func (o *output) mustNotHold(t *testing.T, secrets []secret) {
	t.Helper()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, from := range slices.Sorted(keys(o.parts)) {
		for i := range secrets {
			if where := secrets[i].find(o.parts[from]); where != "" {
				t.Errorf("%s holds %s", from, where)
			}
		}
	}
}

// holds reports whether a part whose name begins with from holds the text.
func (o *output) holds(from, text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, data := range o.parts {
		if strings.HasPrefix(name, from) && bytes.Contains(data, []byte(text)) {
			return true
		}
	}
	return false
}

func keys(m map[string][]byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// TestSearchFindsSecrets: the search finds what it looks for, in each spelling, wherever it stands.
func TestSearchFindsSecrets(t *testing.T) {
	const text = `Canary"<Q>/+&%41\z`
	s := newSecret("canary", text)
	if len(s.spellings) < 20 {
		t.Errorf("only %d spellings", len(s.spellings))
	}
	for name, spelling := range s.spellings {
		if s.find(slices.Concat([]byte("xx "), spelling, []byte(" yy"))) == "" {
			t.Errorf("%s is not found", name)
		}
		if len(spelling) < len(text) {
			t.Errorf("%s is %q, which is shorter than the secret", name, spelling)
		}
	}
	for before := range 7 {
		for after := range 4 {
			long := strings.Repeat("b", before) + text + strings.Repeat("a", after)
			for _, coded := range []string{base64.StdEncoding.EncodeToString([]byte(long)), base64.URLEncoding.EncodeToString([]byte(long)), hex.EncodeToString([]byte(long))} {
				if s.find([]byte(coded)) == "" {
					t.Errorf("%q in %q is not found", text, coded)
				}
			}
		}
	}
	if where := s.find([]byte(strings.Repeat("Canary and other text ", 1000))); where != "" {
		t.Errorf("found where it is not: %s", where)
	}
	var o output
	o.add("a", []byte("clean"))
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "f"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o.addTree(t, "tree", dir)
	if !o.holds("tree", text) || o.holds("a", text) {
		t.Error("a file is not searched")
	}
}
