package security

import (
	"bufio"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"example.com/mq/test/process"
)

// bom is what is looked at of a CycloneDX document.
type bom struct {
	Format     string `json:"bomFormat"`
	Components []struct {
		Name     string
		Version  string
		Hashes   []struct{ Alg, Content string }
		Licenses []struct{ License struct{ ID string } }
	}
}

// licences that mq may be given away with.
var licences = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0"}

// TestSBOM: the lists in sbom/ are what the binaries are made of, by name, version and hash, and go.sum has the same hashes.
func TestSBOM(t *testing.T) {
	sums := goSum(t)
	for name, binary := range map[string]string{"mqd": process.Binary(t), "mq": mqBinary(t)} {
		text, err := os.ReadFile(filepath.Join(moduleRoot(t), "sbom", name+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		var b bom
		if err := json.Unmarshal(text, &b); err != nil || b.Format != "CycloneDX" {
			t.Fatalf("%s: %q, %v", name, b.Format, err)
		}
		listed := map[string]string{} // hash by name@version
		for _, c := range b.Components {
			for _, h := range c.Hashes {
				if h.Alg == "SHA-256" {
					listed[c.Name+"@"+c.Version] = h.Content
				}
			}
			if len(c.Licenses) == 0 {
				t.Errorf("%s: %s has no licence", name, c.Name)
			}
			for _, l := range c.Licenses {
				if !slices.Contains(licences, l.License.ID) {
					t.Errorf("%s: %s has the licence %q", name, c.Name, l.License.ID)
				}
			}
		}
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			t.Fatal(err)
		}
		built := map[string]string{}
		for _, d := range info.Deps {
			if d.Replace != nil {
				t.Errorf("%s: %s is replaced by %s", name, d.Path, d.Replace.Path)
			}
			sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(d.Sum, "h1:"))
			if err != nil {
				t.Fatal(err)
			}
			built[d.Path+"@"+d.Version] = hex.EncodeToString(sum)
			if sums[d.Path+" "+d.Version] != d.Sum {
				t.Errorf("%s: go.sum has %q for %s %s, the binary %q", name, sums[d.Path+" "+d.Version], d.Path, d.Version, d.Sum)
			}
		}
		if !maps.Equal(listed, built) {
			t.Errorf("sbom/%s.cdx.json is not what %s is made of: make it again (sbom/README.md)\nlisted %v\nbuilt  %v", name, name, listed, built)
		}
		if len(built) < 3 {
			t.Errorf("%s is made of %d modules only", name, len(built))
		}
	}
}

// goSum returns the hashes in go.sum, by module and version.
func goSum(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open(filepath.Join(moduleRoot(t), "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sums := map[string]string{}
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if f := strings.Fields(lines.Text()); len(f) == 3 && !strings.HasSuffix(f[1], "/go.mod") {
			sums[f[0]+" "+f[1]] = f[2]
		}
	}
	return sums
}

// TestDependenciesAreExplained: each direct module is in the table of docs/dependencies.md, and nothing else is; none is replaced.
func TestDependenciesAreExplained(t *testing.T) {
	root := moduleRoot(t)
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	if err != nil {
		t.Fatal(err)
	}
	direct := map[string]bool{}
	inside := false
	for line := range strings.Lines(string(mod)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0:
		case f[0] == "replace" || f[0] == "exclude":
			t.Errorf("go.mod: %s", line)
		case f[0] == "require":
			inside = true
		case f[0] == ")":
			inside = false
		case inside && !strings.Contains(line, "// indirect"):
			direct[f[0]] = true
		}
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "| `"), "` |"); ok && strings.HasPrefix(line, "| `") {
			listed[name] = true
		}
	}
	if !maps.Equal(direct, listed) || len(direct) < 5 {
		t.Errorf("direct modules are %v, docs/dependencies.md has %v", slices.Sorted(maps.Keys(direct)), slices.Sorted(maps.Keys(listed)))
	}
}
