package schedule

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// The measures of an SVG drawing, in pixels.
const (
	svgCell    = 22   // width of the shortest op
	svgWidest  = 1600 // of the time
	svgRow     = 24   // height of a stage's row
	svgGap     = 6    // between rows
	svgLabels  = 72   // left of the rows
	svgNotes   = 120  // right of the rows
	svgTop     = 34   // above the rows, for the legend
	svgBottom  = 40   // below the rows, for the axis
	svgDigit   = 6.6  // width of a digit of a micro-batch number
	svgTick    = 60   // between ticks of the axis
	svgNarrow  = 420  // least width of the rows, for the legend
	svgMargin  = 12   // of the drawing
	svgInkGrey = "#767676"
)

// svgKinds are the classes, colours and legends of the kinds. The colours are those of Okabe and Ito (2008), told apart with any
// colour vision and all light enough for black numbers.
var svgKinds = [len(kindLetters)]struct{ class, colour, legend string }{
	Forward:        {"f", "#56b4e9", "forward"},
	Backward:       {"b", "#e69f00", "backward"},
	BackwardInput:  {"i", "#cc79a7", "backward, input half"},
	BackwardWeight: {"w", "#009e73", "backward, weight half"},
	Update:         {"u", "#f0e442", "update"},
}

// DrawSVG draws a plan over time as a standalone SVG image: one row a stage, each op as wide as it takes with its micro-batch
// number, bubbles left grey, a legend and a time axis. It has no background of its own and reads on light and dark ones.
// The result must be the plan's, from Simulate.
func DrawSVG(plan Plan, r Result) string {
	scale := scaleOf(r, svgCell, svgWidest)
	d := &svgDrawing{scale: scale, chart: max(svgNarrow, r.Makespan*scale)}
	d.open(plan, r)
	d.legend(plan)
	for k, ops := range plan {
		d.stage(k, ops, r)
	}
	d.axis(len(plan), r)
	d.printf("</svg>\n")
	return d.String()
}

// svgDrawing writes the parts of an image.
type svgDrawing struct {
	strings.Builder
	scale float64 // pixels a unit of time
	chart float64 // pixels the rows are wide
}

func (d *svgDrawing) printf(format string, args ...any) { fmt.Fprintf(&d.Builder, format, args...) }

func (d *svgDrawing) open(plan Plan, r Result) {
	width := svgLabels + d.chart + svgNotes
	height := float64(svgTop + len(plan)*(svgRow+svgGap) + svgBottom)
	d.printf(`<svg xmlns="http://www.w3.org/2000/svg" class="avgpipe-plan" role="img" width="%s" height="%s" viewBox="0 0 %[1]s %[2]s">`+"\n",
		pixels(width), pixels(height))
	d.printf("<title>Pipeline plan: %s, batch time %s, bubble %.1f%%</title>\n",
		countOf(len(plan), "stage"), formatTime(r.Makespan), 100*r.Bubble)
	d.printf("<style>\n.avgpipe-plan text{font:12px ui-sans-serif,system-ui,sans-serif;fill:%s}\n", svgInkGrey)
	d.printf(".avgpipe-plan .n{font-size:11px;fill:#000;text-anchor:middle}\n.avgpipe-plan .t{text-anchor:middle}\n")
	d.printf(".avgpipe-plan .bubble{fill:#808080;fill-opacity:.18}\n.avgpipe-plan line{stroke:%s}\n", svgInkGrey)
	for _, kind := range svgKinds {
		d.printf(".avgpipe-plan .%s{fill:%s}\n", kind.class, kind.colour)
	}
	d.printf("</style>\n")
}

// legend names the colours that the plan uses.
func (d *svgDrawing) legend(plan Plan) {
	var used kindSet
	for _, ops := range plan {
		for _, op := range ops {
			used = used.with(op.Kind)
		}
	}
	x := float64(svgLabels)
	entry := func(class, legend string) {
		d.printf(`<rect class="%s" x="%s" y="8" width="14" height="14" rx="2"/><text x="%s" y="19">%s</text>`+"\n",
			class, pixels(x), pixels(x+20), legend)
		x += 20 + svgDigit*float64(len(legend)) + 18
	}
	for kind, k := range svgKinds {
		if used.has(Kind(kind)) {
			entry(k.class, k.legend)
		}
	}
	entry("bubble", "bubble")
}

func (d *svgDrawing) stage(k int, ops []Op, r Result) {
	d.printf(`<g transform="translate(%d,%d)">`+"\n", svgLabels, svgTop+k*(svgRow+svgGap))
	d.printf(`<text x="%d" y="16">stage %d</text><rect class="bubble" width="%s" height="%d" rx="2"/>`+"\n",
		svgMargin-svgLabels, k, pixels(r.Makespan*d.scale), svgRow)
	for i, op := range ops {
		s := r.Spans[k][i]
		x, width := s.Start*d.scale, (s.End-s.Start)*d.scale
		d.printf(`<rect class="%s" x="%s" width="%s" height="%d" rx="2"><title>%v, %s to %s</title></rect>`,
			svgKinds[op.Kind].class, pixels(x), pixels(width-min(1, width/8)), svgRow, op, formatTime(s.Start), formatTime(s.End))
		if number := strconv.Itoa(op.Micro); width >= svgDigit*float64(len(number))+3 {
			d.printf(`<text class="n" x="%s" y="16">%s</text>`, pixels(x+(width-1)/2), number)
		}
		d.printf("\n")
	}
	d.printf(`<text x="%s" y="16">busy %.0f%%, pins %d</text>`+"\n</g>\n",
		pixels(r.Makespan*d.scale+svgMargin), percentBusy(r, k), r.Pinned[k])
}

func (d *svgDrawing) axis(stages int, r Result) {
	y := svgTop + stages*(svgRow+svgGap)
	d.printf(`<g transform="translate(%d,%d)">`+"\n", svgLabels, y)
	d.printf(`<line x1="0" y1="2" x2="%s" y2="2"/><text x="%d" y="20">time</text>`+"\n",
		pixels(r.Makespan*d.scale), svgMargin-svgLabels)
	for _, t := range ticksOf(r, d.scale, svgTick) {
		d.printf(`<line x1="%s" y1="2" x2="%[1]s" y2="7"/><text class="t" x="%[1]s" y="20">%s</text>`+"\n",
			pixels(t*d.scale), formatTime(t))
	}
	d.printf("</g>\n")
}

// pixels prints a length to a hundredth.
func pixels(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }
