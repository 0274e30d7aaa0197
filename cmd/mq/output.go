package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"example.com/mq/client"
)

// errOutputClosed: whoever read our output has seen enough. It is not a failure.
var errOutputClosed = errors.New("standard output is closed")

// output is standard output. It tells its own closed pipe from that of a network connection, which is the
// same error to the system.
type output struct{ io.Writer }

func (o output) Write(p []byte) (int, error) {
	n, err := o.Writer.Write(p)
	if errors.Is(err, syscall.EPIPE) {
		return n, errOutputClosed
	}
	if err != nil {
		return n, fmt.Errorf("write standard output: %w", err)
	}
	return n, nil
}

// writeRows writes rows of equal length as a table under a head, or, for json, each object on a line.
func writeRows(w io.Writer, output string, head []string, rows [][]string, objects []any) error {
	if output == "json" {
		return writeJSON(w, objects...)
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, strings.Join(head, "\t"))
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return t.Flush()
}

func writeJSON(w io.Writer, objects ...any) error {
	b := bufio.NewWriter(w)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	for _, object := range objects {
		if err := e.Encode(object); err != nil {
			return err
		}
	}
	return b.Flush()
}

// recordFormat are the flags of the commands that print records.
type recordFormat struct {
	Raw    bool `short:"r" help:"Print values only, as they are, each followed by a line end."`
	Print0 bool `short:"0" name:"print0" help:"Like --raw, but each followed by a zero byte: safe for values with line ends."`
}

// recordWriter prints records one by one: as lines of offset, time, key and value, the latter two escaped so
// that each record stays on its line; as JSON objects; or raw.
type recordWriter struct {
	w      *bufio.Writer
	format recordFormat
	json   bool
	topic  string
	head   bool // was printed
	line   []byte
}

func newRecordWriter(w io.Writer, g *Global, format recordFormat, topic string) (*recordWriter, error) {
	if g.Output == "json" && (format.Raw || format.Print0) {
		return nil, usagef("--raw and --print0 do not go with -o json")
	}
	return &recordWriter{w: bufio.NewWriterSize(w, 64<<10), format: format, json: g.Output == "json", topic: topic}, nil
}

// jsonRecord is a record with -o json. 'mq pub --jsonl FILE --base64' reads it back.
type jsonRecord struct {
	Topic       string `json:"topic"`
	Offset      uint64 `json:"offset"`
	Key         []byte `json:"key"`
	Value       []byte `json:"value"`
	TimestampMS int64  `json:"timestamp_ms"`
}

func (w *recordWriter) write(r *client.StoredRecord) error {
	w.line = w.line[:0]
	switch {
	case w.json:
		key, value := r.Key, r.Value
		if key == nil {
			key = []byte{}
		}
		if value == nil {
			value = []byte{}
		}
		line, err := json.Marshal(jsonRecord{w.topic, r.Offset, key, value, r.TimestampMS})
		if err != nil {
			return err
		}
		w.line = append(line, '\n')
	case w.format.Print0:
		w.line = append(append(w.line, r.Value...), 0)
	case w.format.Raw:
		w.line = append(append(w.line, r.Value...), '\n')
	default:
		if !w.head {
			w.line = fmt.Appendf(w.line, "%10s  %-24s  %s\t%s\n", "OFFSET", "TIME", "KEY", "VALUE")
			w.head = true
		}
		w.line = fmt.Appendf(w.line, "%10d  %-24s  ", r.Offset, r.Time().UTC().Format("2006-01-02T15:04:05.000Z"))
		w.line = appendVisible(w.line, r.Key)
		w.line = append(w.line, '\t')
		w.line = appendVisible(w.line, r.Value)
		w.line = append(w.line, '\n')
	}
	_, err := w.w.Write(w.line)
	return err
}

func (w *recordWriter) flush() error { return w.w.Flush() }

// appendVisible appends data such that it stays on its line and sends nothing to the terminal but text:
// control characters and bytes that are not UTF-8 are escaped as in Go, and so is the backslash.
func appendVisible(b, data []byte) []byte {
	for len(data) > 0 {
		r, n := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && n == 1:
			b = fmt.Appendf(b, `\x%02x`, data[0])
		case r == '\\':
			b = append(b, `\\`...)
		case r == ' ' || unicode.IsPrint(r):
			b = append(b, data[:n]...)
		default:
			quoted := strconv.AppendQuoteRune(nil, r)
			b = append(b, quoted[1:len(quoted)-1]...)
		}
		data = data[n:]
	}
	return b
}

// plain is the text of an error, which may hold what another program or a file says, fit for a terminal: one line, in which
// what does not print is escaped as in Go. Backslashes stay as they are: quoted text has them already.
func plain(text string) string {
	var b []byte
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		if printed := r == ' ' || unicode.IsPrint(r) && (r != utf8.RuneError || n > 1); printed {
			b = append(b, text[:n]...)
		} else {
			b = appendVisible(b, []byte(text[:n]))
		}
		text = text[n:]
	}
	return string(b)
}

// count writes a number with its noun: "1 record", "2 records".
func count(n uint64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// short writes a duration for people.
func short(d time.Duration) string {
	if d >= time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Millisecond).String()
}
