package chart

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/guptarohit/asciigraph"

	"github.com/avgpipe/avgpipe/internal/words"
)

// TextStyle is how a chart is drawn as text.
type TextStyle struct {
	Width, Height int  // of all, in characters; at least 24 and 8 are taken
	Colors        bool // ANSI; without them, several curves are drawn with letters
}

// ansi are the colors of the curves.
var ansi = []asciigraph.AnsiColor{asciigraph.Cyan, asciigraph.Yellow, asciigraph.Magenta, asciigraph.Green, asciigraph.Blue, asciigraph.Red}

// What the axes take beside the curves, in characters.
const (
	leftOfCurves = 13 // values of up to 9 characters, the axis
	belowCurves  = 3  // the axis, its values, what they count
	tickEvery    = 14 // of the x axis
)

// Text draws the chart with box-drawing characters. Committed rounds are not marked: there may be one in every column.
func (c *Chart) Text(w io.Writer, s TextStyle) error {
	s.Width, s.Height = max(s.Width, 24), max(s.Height, 8)
	b, columns := c.bounds(), s.Width-leftOfCurves
	var legend []string
	var curves, dots [][]float64
	var colors []asciigraph.AnsiColor
	var chars []asciigraph.CharSet
	for i, l := range c.Lines {
		curves, dots = append(curves, b.columns(l.Points, columns, true)), append(dots, b.columns(l.Dots, columns, false))
		color, char, mark := asciigraph.Default, asciigraph.DefaultCharSet, "━"
		switch {
		case s.Colors:
			color = ansi[i%len(ansi)]
		case len(c.Lines) > 1:
			mark = string(rune('A' + i%26))
			char = asciigraph.CreateCharSet(mark)
		}
		colors, chars = append(colors, color), append(chars, char)
		parts := []string{mark + " " + l.Name}
		if len(l.Dots) > 0 {
			parts = append(parts, "● evaluation")
		}
		for _, x := range l.Rules {
			parts = append(parts, fmt.Sprintf("restart at %.0f", x))
		}
		name := words.Clip(strings.Join(parts, ", "), s.Width)
		if s.Colors {
			name = color.String() + name + asciigraph.Default.String()
		}
		legend = append(legend, name)
	}
	for range dots { // a dot ends where nothing follows it; what begins it is left out
		chars = append(chars, asciigraph.CharSet{StartCap: " ", EndCap: "●"})
	}
	places := 0
	if b.right-b.left < 10 {
		places = 1
	}
	graph := asciigraph.PlotMany(append(curves, dots...),
		asciigraph.Height(max(3, s.Height-len(legend)-belowCurves-2)), // it may take two rows more
		asciigraph.LowerBound(0), asciigraph.UpperBound(1), asciigraph.SeriesColors(append(colors, colors...)...), asciigraph.SeriesChars(chars...),
		asciigraph.YAxisValueFormatter(func(v float64) string { return fmt.Sprintf("%.3g", b.bottom+v*(b.top-b.bottom)) }),
		asciigraph.XAxisRange(b.left, b.right), asciigraph.XAxisTickCount(max(2, columns/tickEvery)),
		asciigraph.XAxisValueFormatter(func(v float64) string { return fmt.Sprintf("%.*f", places, v) }),
		asciigraph.Caption(words.Clip(c.Y+" by "+c.X, columns)))
	_, err := fmt.Fprintf(w, "%s\n%s\n", strings.Join(legend, "\n"), graph)
	return err
}

// columns is the height of points in each of n columns, 0 at the bottom and 1 at the top, and one that is empty. Where none is, it is not a number or, joined, on the line
// from the point before to the one after.
func (b box) columns(points []Point, n int, joined bool) []float64 {
	values := make([]float64, n+1)
	for i := range values {
		values[i] = math.NaN()
	}
	last := -1
	for _, p := range points {
		at := min(max(int(math.Round((p.X-b.left)/(b.right-b.left)*float64(n-1))), 0), n-1)
		values[at] = (p.Y - b.bottom) / (b.top - b.bottom)
		for k := last + 1; joined && last >= 0 && k < at; k++ {
			values[k] = values[last] + (values[at]-values[last])*float64(k-last)/float64(at-last)
		}
		last = at
	}
	return values
}
