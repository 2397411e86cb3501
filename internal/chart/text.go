package chart

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/words"
)

// TextStyle is how a chart is drawn as text.
type TextStyle struct {
	Width, Height int  // of all, in characters; at least 24 and 8 are taken
	Colors        bool // ANSI; without them, several curves are drawn with letters
}

// lineColors are the ANSI colors of the curves.
var lineColors = []int{36, 33, 35, 32, 34, 31}

// cell is a character of the drawing.
type cell struct {
	bits rune // of a braille pattern
	mark rune // over it
	line int  // whose it is
}

// grid is the drawing area.
type grid struct {
	box
	columns, rows int
	cells         []cell
	letters       bool
}

// Text draws the chart with braille characters: two by four points in each.
func (c *Chart) Text(w io.Writer, s TextStyle) error {
	s.Width, s.Height = max(s.Width, 24), max(s.Height, 8)
	b := c.bounds()
	values := ticks(b.bottom, b.top, max(2, s.Height/3))
	left := 0
	for _, v := range values {
		left = max(left, len(label(v)))
	}
	head := c.legend(s)
	g := &grid{box: b, columns: s.Width - left - 2, rows: max(3, s.Height-len(head)-3), letters: !s.Colors && len(c.Lines) > 1}
	g.cells = make([]cell, g.columns*g.rows)
	for i, l := range c.Lines {
		g.draw(i, &l)
	}
	var out strings.Builder
	for _, line := range head {
		out.WriteString(line + "\n")
	}
	g.print(&out, values, left, s.Colors)
	c.axis(&out, g, left, s.Colors)
	_, err := io.WriteString(w, out.String())
	return err
}

// legend is the names, in as many lines as they take.
func (c *Chart) legend(s TextStyle) []string {
	type entry struct {
		text  string
		color int
	}
	var entries []entry
	for i, l := range c.Lines {
		sample := "━━ "
		if !s.Colors && len(c.Lines) > 1 {
			sample = letter(i) + " "
		}
		entries = append(entries, entry{sample + l.Name, lineColors[i%len(lineColors)]})
	}
	for _, m := range c.marks() {
		entries = append(entries, entry{string(m.as) + " " + m.name, 0})
	}
	lines, width := []string{""}, 0
	for _, e := range entries {
		text := words.Clip(e.text, s.Width)
		n := utf8.RuneCountInString(text)
		last := len(lines) - 1
		if width > 0 && width+3+n > s.Width {
			lines, width, last = append(lines, ""), 0, last+1
		}
		if width > 0 {
			lines[last], width = lines[last]+"   ", width+3
		}
		lines[last], width = lines[last]+colored(text, e.color, s.Colors), width+n
	}
	return lines
}

// draw draws one curve and its marks.
func (g *grid) draw(line int, l *Line) {
	for _, x := range l.Rules {
		column := g.column(x)
		for row := range g.rows {
			g.put(column, row, ruleRune, line)
		}
	}
	for i, p := range l.Points {
		if i == 0 {
			g.dot(line, g.x(p.X), g.y(p.Y))
			continue
		}
		g.segment(line, l.Points[i-1], p)
	}
	for _, p := range l.Dots {
		g.put(g.column(p.X), clamp(g.y(p.Y)/4, g.rows), dotRune, line)
	}
}

// segment draws from one point to the next.
func (g *grid) segment(line int, from, to Point) {
	x0, y0, x1, y1 := g.x(from.X), g.y(from.Y), g.x(to.X), g.y(to.Y)
	n := max(abs(x1-x0), abs(y1-y0), 1)
	for i := range n + 1 {
		g.dot(line, x0+(x1-x0)*i/n, y0+(y1-y0)*i/n)
	}
}

// x and y are the point of the grid at which a value lies, y from the top.
func (g *grid) x(v float64) int {
	return clamp(int(math.Round((v-g.left)/(g.right-g.left)*float64(2*g.columns-1))), 2*g.columns)
}

func (g *grid) y(v float64) int {
	return clamp(int(math.Round((g.top-v)/(g.top-g.bottom)*float64(4*g.rows-1))), 4*g.rows)
}

func (g *grid) column(x float64) int { return g.x(x) / 2 }

// brailleBits is the bit of each point of a braille pattern, by row and column.
var brailleBits = [4][2]rune{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

func (g *grid) dot(line, x, y int) {
	c := &g.cells[y/4*g.columns+x/2]
	if c.mark == ruleRune {
		c.mark = 0 // a curve is more than a rule
	}
	c.bits |= brailleBits[y%4][x%2]
	c.line = line
}

func (g *grid) put(column, row int, mark rune, line int) {
	c := &g.cells[row*g.columns+column]
	if mark == ruleRune && (c.mark != 0 || c.bits != 0) {
		return
	}
	c.mark, c.line = mark, line
}

// print writes the rows with the values of the y axis.
func (g *grid) print(out *strings.Builder, values []float64, left int, colors bool) {
	at := map[int]string{}
	for _, v := range values {
		at[g.y(v)/4] = label(v)
	}
	for row := range g.rows {
		edge := " │"
		if at[row] != "" {
			edge = " ┤"
		}
		fmt.Fprintf(out, "%*s%s", left, at[row], edge)
		end := g.columns
		for end > 0 && g.cells[row*g.columns+end-1] == (cell{}) {
			end--
		}
		color := 0
		for _, c := range g.cells[row*g.columns : row*g.columns+end] {
			want := 0
			if c != (cell{}) && c.mark != ruleRune {
				want = lineColors[c.line%len(lineColors)]
			}
			if colors && want != color {
				fmt.Fprintf(out, "\x1b[%dm", want)
				color = want
			}
			out.WriteString(g.character(c))
		}
		if color != 0 {
			out.WriteString("\x1b[0m")
		}
		out.WriteString("\n")
	}
}

func (g *grid) character(c cell) string {
	switch {
	case c.mark != 0:
		return string(c.mark)
	case c.bits == 0:
		return " "
	case g.letters:
		return letter(c.line)
	}
	return string(0x2800 + c.bits)
}

// axis writes what is below the rows: the marks on the axis, its values and what they count.
func (c *Chart) axis(out *strings.Builder, g *grid, left int, colors bool) {
	edge := []rune(strings.Repeat("─", g.columns))
	numbers := []rune(strings.Repeat(" ", g.columns))
	last := -2
	for _, v := range ticks(g.left, g.right, max(2, g.columns/12)) {
		text := label(v)
		at := g.column(v)
		edge[at] = '┬'
		from := min(max(at-len(text)/2, 0), g.columns-len(text))
		if from > last+1 {
			copy(numbers[from:], []rune(text))
			last = from + len(text)
		}
	}
	for _, l := range c.Lines {
		for _, x := range l.Ticks {
			edge[g.column(x)] = tickRune
		}
	}
	pad := strings.Repeat(" ", left)
	fmt.Fprintf(out, "%s └%s\n%s  %s\n", pad, string(edge), pad, strings.TrimRight(string(numbers), " "))
	note := c.X
	if c.Y != "" {
		note = c.Y + " by " + c.X
	}
	fmt.Fprintf(out, "%s  %s\n", pad, colored(words.Clip(note, g.columns), 2, colors))
}

// label prints a value of an axis: 1e4, not 1e+04.
func label(v float64) string {
	a, digits := math.Abs(v), 5
	if a < 1e-12 {
		return "0"
	}
	if a >= 1e4 || a < 1e-3 {
		digits = 3
	}
	return strings.NewReplacer("e+0", "e", "e-0", "e-", "e+", "e").Replace(strconv.FormatFloat(v, 'g', digits, 64))
}

func letter(i int) string { return string(rune('A' + i%26)) }

func colored(text string, color int, colors bool) string {
	if !colors || color == 0 {
		return text
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", color, text)
}

func clamp(v, n int) int { return min(max(v, 0), n-1) }

func abs(v int) int { return max(v, -v) }
