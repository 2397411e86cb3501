package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/nearest"
)

// The output formats.
const (
	formatText = "text"
	formatJSON = "json"
)

// output says how to print.
type output struct{ format string }

func (o *output) addFlags(cmd *cobra.Command) {
	o.format = formatText
	cmd.Flags().VarP(o, "output", "o", "`FORMAT`: text or json")
}

// String implements pflag.Value.
func (o *output) String() string { return o.format }

// Type implements pflag.Value.
func (o *output) Type() string { return "format" }

// Set implements pflag.Value.
func (o *output) Set(text string) error {
	if text != formatText && text != formatJSON {
		return notOneOf("--output", text, []string{formatText, formatJSON})
	}
	o.format = text
	return nil
}

// notOneOf refuses a value, with the nearest that is allowed.
func notOneOf(flag, value string, allowed []string) error {
	hint := ""
	if near := nearest.Word(value, allowed); near != "" {
		hint = "did you mean " + near + "? "
	}
	return fmt.Errorf("%s %q: %sallowed are %s", flag, value, hint, strings.Join(allowed, ", "))
}

func (o *output) json() bool { return o.format == formatJSON }

// printJSON prints a value on lines of its own.
func printJSON(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}

// show prints what a verb found: as JSON, or as the text that write puts on a page.
func (o *output) show(out io.Writer, v any, write func(p *page)) error {
	if o.json() {
		return printJSON(out, v)
	}
	p := newPage(out)
	write(p)
	return p.print()
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

// fit leaves columns out until the table has at most so many columns of text, and clips the last one to what is left.
func (t *table) fit(width int) {
	for _, name := range t.narrow {
		if sum(t.widths()) <= width {
			return
		}
		if i := slices.Index(t.rows[0], name); i >= 0 {
			for j, row := range t.rows {
				t.rows[j] = slices.Delete(slices.Clone(row), i, i+1)
			}
		}
	}
	widths := t.widths()
	last := len(widths) - 1
	if room := width - sum(widths[:last]) - 2; sum(widths) > width && room > 0 {
		for _, row := range t.rows {
			row[last] = clip(row[last], room)
		}
	}
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

func (t *table) print(w io.Writer) error {
	p := newPage(w)
	p.table(t)
	return p.print()
}

// table puts a table on the page.
func (p *page) table(t *table) {
	if p.colors && t.narrow != nil {
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

// thousands prints a rate briefly: 950, 12.3k, 4.56M, 242B.
func thousands(v float64) string {
	switch {
	case v >= 1e12:
		return fmt.Sprintf("%.3gT", v/1e12)
	case v >= 1e9:
		return fmt.Sprintf("%.3gB", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e3:
		return fmt.Sprintf("%.3gk", v/1e3)
	}
	return fmt.Sprintf("%.3g", v)
}

// clip shortens a text for a column.
func clip(text string, width int) string {
	text, _, _ = strings.Cut(text, "\n")
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:width-1]) + "…"
}
