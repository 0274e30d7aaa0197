package mutation

import (
	"encoding/json"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// apply returns the files that the edits change, by name, with their changed text.
func (m *Mutation) apply(root string) (map[string]string, error) {
	changed := make(map[string]string)
	for _, e := range m.Edits {
		text, ok := changed[e.File]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(e.File)))
			if err != nil {
				return nil, fmt.Errorf("mutation %s: %w", m.Name, err)
			}
			text = "\n" + string(b) // so that lines are whole lines
		}
		if n := times(text, e.Old); n != 1 {
			return nil, fmt.Errorf("mutation %s: the text to be replaced is %d times in %s, and must be there once:\n%s", m.Name, n, e.File, e.Old)
		}
		changed[e.File] = strings.Replace(text, "\n"+e.Old, "\n"+e.New, 1)
	}
	for name, text := range changed {
		text = text[1:]
		changed[name] = text
		if _, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution); err != nil {
			return nil, fmt.Errorf("mutation %s: the changed text is no Go: %w", m.Name, err)
		}
	}
	return changed, nil
}

// times returns how often whole lines are in a text that begins with the end of a line.
func times(text, lines string) (n int) {
	for {
		i := strings.Index(text, "\n"+lines)
		if i < 0 {
			return n
		}
		n, text = n+1, text[i+1:] // two of them may share the end of a line
	}
}

// overlay writes the changed files, and the file that tells the go command of them, into a folder. It returns that file.
func (m *Mutation) overlay(root, dir string) (string, error) {
	changed, err := m.apply(root)
	if err != nil {
		return "", err
	}
	replace := make(map[string]string)
	for name, text := range changed {
		// Two files of a mutation may have the same base.
		copied := filepath.Join(dir, strconv.Itoa(len(replace))+"_"+filepath.Base(name))
		if err := os.WriteFile(copied, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, filepath.FromSlash(name))] = copied
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}

// findRoot returns the root folder of the module that a folder is in.
func findRoot(dir string) (string, error) {
	root, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(root, "go.mod")); err == nil {
			return root, nil
		}
		if root == filepath.Dir(root) {
			return "", fmt.Errorf("no go.mod in %s or above", dir)
		}
		root = filepath.Dir(root)
	}
}
