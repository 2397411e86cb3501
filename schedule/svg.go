package schedule

import (
	"fmt"
	"html"
	"math"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
)

// The measures of an SVG drawing, in pixels.
const (
	svgCell    = 22   // width of the shortest op
	svgWidest  = 1600 // of the time
	svgRow     = 24   // height of a stage's row
	svgGap     = 6    // between rows
	svgLabels  = 72   // left of the rows, at least
	svgNotes   = 120  // right of the rows
	svgTop     = 34   // above the rows, for the legend
	svgTitle   = 26   // of a drawing's title
	svgBottom  = 40   // below the rows, for the axis
	svgDigit   = 6.6  // width of a digit of a micro-batch number
	svgTick    = 60   // between ticks of the axis
	svgNarrow  = 420  // least width of the rows, for the legend
	svgMargin  = 12   // of the drawing
	svgInkGrey = "#767676"
)

// svgKinds are the classes, colours and legends of the kinds. The colours are those of Okabe and Ito (2008), told apart with any
// colour vision and all light enough for black numbers.
var svgKinds = [kinds + 1]struct{ class, colour, legend string }{
	Forward:        {"f", "#56b4e9", "forward"},
	Backward:       {"b", "#e69f00", "backward"},
	BackwardInput:  {"i", "#cc79a7", "backward, input half"},
	BackwardWeight: {"w", "#009e73", "backward, weight half"},
	Update:         {"u", "#f0e442", "update"},
	averaging:      {"a", "#d55e00", "averaging"},
}

// Drawing is one of the drawings of an image.
type Drawing struct {
	Title  string // above it; "" for none
	Result Result // recorded
}

// DrawSVG draws recorded simulations over time as one standalone SVG image, below each other in one scale: one row a device,
// each op as wide as it takes with its micro-batch number, lighter for every second stage of a device, bubbles left grey, a legend
// and a time axis. It has no background of its own and reads on light and dark ones.
func DrawSVG(drawings ...Drawing) string {
	d := &svgDrawing{scale: math.Inf(1), chart: svgNarrow}
	for _, one := range drawings {
		d.scale = min(d.scale, scaleOf(one.Result, svgCell, svgWidest))
	}
	height, rows := 0, make([][]drawnRow, len(drawings))
	for i, one := range drawings {
		rows[i] = rowsOf(one.Result)
		d.chart = max(d.chart, one.Result.Makespan*d.scale)
		for _, row := range rows[i] {
			d.labels = max(d.labels, svgMargin+svgDigit*float64(len(row.name))+8)
		}
		height += svgTop + len(rows[i])*(svgRow+svgGap) + svgBottom
		if one.Title != "" {
			height += svgTitle
		}
	}
	d.labels = max(d.labels, svgLabels)
	d.open(drawings, height)
	top := 0
	for i, one := range drawings {
		if one.Title != "" {
			d.printf(`<text class="h" x="%d" y="%d">%s</text>`+"\n", svgMargin, top+svgTitle-8, html.EscapeString(one.Title))
			top += svgTitle
		}
		d.printf(`<g transform="translate(%s,%d)">`+"\n", pixels(d.labels), top)
		d.legend(rows[i])
		for k, row := range rows[i] {
			d.row(svgTop+k*(svgRow+svgGap), row, one.Result)
		}
		d.axis(svgTop+len(rows[i])*(svgRow+svgGap), one.Result)
		d.printf("</g>\n")
		top += svgTop + len(rows[i])*(svgRow+svgGap) + svgBottom
	}
	d.printf("</svg>\n")
	return d.String()
}

// svgDrawing writes the parts of an image.
type svgDrawing struct {
	strings.Builder
	scale  float64 // pixels a unit of time
	chart  float64 // pixels the rows are wide
	labels float64 // pixels left of them
}

func (d *svgDrawing) printf(format string, args ...any) { fmt.Fprintf(&d.Builder, format, args...) }

func (d *svgDrawing) open(drawings []Drawing, height int) {
	width := d.labels + d.chart + svgNotes
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" class="avgpipe-plan" role="img" width="%s" height="%d" viewBox="0 0 %[1]s %[2]d">`+"\n",
		pixels(width), height)
	var titles []string
	for _, one := range drawings {
		title := words.Count(len(one.Result.plan), "device") + ", " + summary(one.Result)
		if one.Title != "" {
			title = one.Title + ": " + title
		}
		titles = append(titles, title)
	}
	d.printf("<title>Pipeline plan: %s</title>\n", html.EscapeString(strings.Join(titles, "; ")))
	d.printf("<style>\n.avgpipe-plan text{font:12px ui-sans-serif,system-ui,sans-serif;fill:%s}\n", svgInkGrey)
	d.printf(".avgpipe-plan .n{font-size:11px;fill:#000;text-anchor:middle}\n.avgpipe-plan .t{text-anchor:middle}\n.avgpipe-plan .h{font-size:14px}\n")
	d.printf(".avgpipe-plan .bubble{fill:#808080;fill-opacity:.18}\n.avgpipe-plan line{stroke:%s}\n.avgpipe-plan .second{fill-opacity:.55}\n", svgInkGrey)
	for _, kind := range svgKinds {
		d.printf(".avgpipe-plan .%s{fill:%s}\n", kind.class, kind.colour)
	}
	d.printf("</style>\n")
}

// legend names the colours that the rows use.
func (d *svgDrawing) legend(rows []drawnRow) {
	var used [len(svgKinds)]bool
	for _, row := range rows {
		for _, c := range row.cells {
			used[c.Op.Kind] = true
		}
	}
	x := 0.0
	entry := func(class, legend string) {
		d.printf(`<rect class="%s" x="%s" y="8" width="14" height="14" rx="2"/><text x="%s" y="19">%s</text>`+"\n",
			class, pixels(x), pixels(x+20), legend)
		x += 20 + svgDigit*float64(len(legend)) + 18
	}
	for kind, k := range svgKinds {
		if used[kind] {
			entry(k.class, k.legend)
		}
	}
	entry("bubble", "bubble")
}

func (d *svgDrawing) row(y int, row drawnRow, r Result) {
	d.printf(`<g transform="translate(0,%d)">`+"\n", y)
	d.printf(`<text x="%s" y="16">%s</text><rect class="bubble" width="%s" height="%d" rx="2"/>`+"\n",
		pixels(svgMargin-d.labels), row.name, pixels(r.Makespan*d.scale), svgRow)
	for _, c := range row.cells {
		x, width := c.Start*d.scale, (c.End-c.Start)*d.scale
		class := svgKinds[c.Op.Kind].class
		if c.second {
			class += " second"
		}
		d.printf(`<rect class="%s" x="%s" width="%s" height="%d" rx="2"><title>%s, %s to %s</title></rect>`,
			class, pixels(x), pixels(width-min(1, width/8)), svgRow, c.label, formatTime(c.Start), formatTime(c.End))
		for _, text := range c.texts() {
			if text != "" && width >= svgDigit*float64(len(text))+3 {
				d.printf(`<text class="n" x="%s" y="16">%s</text>`, pixels(x+(width-1)/2), text)
				break
			}
		}
		d.printf("\n")
	}
	d.printf(`<text x="%s" y="16">%s</text>`+"\n</g>\n", pixels(r.Makespan*d.scale+svgMargin), row.note)
}

// texts are what a cell shows if there is room, the first first: with colours for kinds, only a device of several stages needs the
// label.
func (c drawnCell) texts() []string {
	if c.named {
		return []string{c.label, c.number}
	}
	return []string{c.number}
}

func (d *svgDrawing) axis(y int, r Result) {
	d.printf(`<g transform="translate(0,%d)">`+"\n", y)
	d.printf(`<line x1="0" y1="2" x2="%s" y2="2"/><text x="%s" y="20">time</text>`+"\n",
		pixels(r.Makespan*d.scale), pixels(svgMargin-d.labels))
	for _, t := range ticksOf(r, d.scale, svgTick) {
		d.printf(`<line x1="%s" y1="2" x2="%[1]s" y2="7"/><text class="t" x="%[1]s" y="20">%s</text>`+"\n",
			pixels(t*d.scale), formatTime(t))
	}
	d.printf("</g>\n")
}

// pixels prints a length to a hundredth.
func pixels(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }
