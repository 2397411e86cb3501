package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
)

// printJSON prints a value on lines of its own.
func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// show prints what a verb found: as JSON, or as the text that write puts on a page.
func (c *call) show(v any, write func(p *page)) error {
	if c.format == formatJSON {
		return printJSON(c.out, v)
	}
	p := newPage(c.out)
	write(p)
	return p.print()
}

// printf prints to whoever reads the verb's output.
func (c *call) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(c.out, format, args...)
	return err
}

// replaceable refuses a file to write that is there, unless it is a plain one and may be replaced. An empty path is none.
func replaceable(path string, force bool) error {
	info, err := os.Lstat(path)
	switch {
	case path == "" || errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return usagef("%s is there and is no plain file; name another one", path)
	case !force:
		return usagef("%s is there; name another file, or replace it with --force", path)
	}
	return nil
}

// page is a text that is printed once it is whole.
type page struct {
	out    io.Writer
	width  int  // columns of the terminal
	colors bool // it is one
	text   strings.Builder
}

func newPage(out io.Writer) *page {
	p := &page{out: out}
	p.width, p.colors = terminal(out)
	return p
}

func (p *page) printf(format string, args ...any) { fmt.Fprintf(&p.text, format, args...) }

func (p *page) print() error {
	_, err := io.WriteString(p.out, p.text.String())
	return err
}

// printLine prints a value on one line.
func printLine(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// terminal returns the width of a terminal, and whether w is one.
func terminal(w io.Writer) (width int, ok bool) {
	f, isFile := w.(*os.File)
	if !isFile || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	return width, err == nil
}

// table prints aligned columns. The last one is not padded.
type table struct {
	rows   [][]string
	states bool     // color cells that are a job's state
	narrow []string // names of columns, in the order in which they are left out of a terminal that is too narrow
}

// The last column is broken into lines of no less than leastColumn while another column can be left out, and then of no less than leastWord.
const (
	leastColumn = 20
	leastWord   = 8
)

// fit leaves columns out, and then breaks the last one into lines, until the table has at most so many columns of text.
func (t *table) fit(width int) {
	if len(t.rows) == 0 {
		return
	}
	head := t.rows[0]
	breaks := !slices.Contains(t.narrow, head[len(head)-1]) // else it is left out like others
	for _, name := range t.narrow {
		widths := t.widths()
		if last := len(widths) - 1; breaks {
			widths[last] = min(widths[last], leastColumn)
		}
		if sum(widths) <= width {
			break
		}
		if i := slices.Index(t.rows[0], name); i >= 0 {
			for j, row := range t.rows {
				t.rows[j] = slices.Delete(slices.Clone(row), i, i+1)
			}
		}
	}
	widths := t.widths()
	last := len(widths) - 1
	if sum(widths) <= width {
		return
	}
	var rows [][]string
	for _, row := range t.rows {
		for _, line := range wrap(row[last], max(leastWord, width-sum(widths[:last])-2)) {
			rows = append(rows, append(slices.Clone(row[:last]), line))
			row = make([]string, last+1) // the lines that follow stand alone
		}
	}
	t.rows = rows
}

// wrap breaks a text between words into lines of at most so many columns. A longer word stays whole.
func wrap(text string, width int) []string {
	var lines []string
	for word := range strings.FieldsSeq(text) {
		if last := len(lines) - 1; last >= 0 && utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return append(lines, make([]string, max(0, 1-len(lines)))...) // one at least
}

// widths are those of the columns.
func (t *table) widths() []int {
	var widths []int
	for _, row := range t.rows {
		for i, c := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	return widths
}

// sum is the width of columns with two blanks between them.
func sum(widths []int) int {
	total := max(0, 2*(len(widths)-1))
	for _, w := range widths {
		total += w
	}
	return total
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// list adds a row for each text that there is.
func (t *table) list(name string, texts ...string) {
	for _, text := range texts {
		if text != "" {
			t.add(name, text)
		}
	}
}

// table puts a table on the page.
func (p *page) table(t *table) {
	if p.colors {
		t.fit(p.width)
	}
	widths := t.widths()
	for _, row := range t.rows {
		for i, c := range row {
			pad := ""
			if i < len(row)-1 {
				pad = strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)+2)
			}
			if p.colors && t.states {
				c = paint(c)
			}
			p.printf("%s%s", c, pad)
		}
		p.printf("\n")
	}
}

// below puts a table below what is there, unless it has nothing but its head.
func (p *page) below(t *table) {
	if len(t.rows) > 1 {
		p.printf("\n")
		p.table(t)
	}
}

// paint colors a job's state.
func paint(cell string) string {
	colors := map[api.State]int{
		api.Queued: 33, api.Tuning: 33, api.Waiting: 33, api.Starting: 33, api.Running: 36, api.Done: 32, api.Failed: 31, api.Cancelled: 35,
	}
	if color, ok := colors[api.State(cell)]; ok {
		return fmt.Sprintf("\x1b[%dm%s\x1b[0m", color, cell)
	}
	return cell
}

// number prints a value that may be unknown.
func number(v *float64, format string) string {
	if v == nil {
		return "-"
	}
	return fmt.Sprintf(format, *v)
}

// seconds prints a time that may be unknown.
func seconds(v *float64) string {
	if v == nil {
		return "-"
	}
	return time.Duration(*v * float64(time.Second)).Round(time.Second).String()
}

// briefly prints a short time that may be unknown.
func briefly(v *float64) string {
	if v == nil {
		return "-"
	}
	return words.Seconds(*v)
}
