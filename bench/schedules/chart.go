package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// chart is a line chart.
type chart struct {
	title, x, y string
	logarithmic bool // x in powers of 2
	series      []series
}

// series is one line of a chart.
type series struct {
	name   string
	dashed bool
	points []point
}

type point struct{ x, y float64 }

// The measures of a chart, in pixels.
const (
	chartWidth, chartHeight = 560, 320 // of the plane between the axes
	chartLeft, chartTop     = 64, 60
	chartRight, chartBottom = 150, 56
)

// colours are those of Okabe and Ito (2008), told apart with any colour vision.
var colours = []string{"#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"}

// svg draws the chart as a standalone image, which reads on light and dark backgrounds.
func (c chart) svg() string {
	left, right, top := math.Inf(1), math.Inf(-1), 0.0
	for _, s := range c.series {
		for _, p := range s.points {
			left, right, top = min(left, p.x), max(right, p.x), max(top, p.y)
		}
	}
	step := tickStep(top)
	top = math.Ceil(top/step-1e-9) * step
	along := func(x float64) float64 { return (x - left) / (right - left) * chartWidth }
	if c.logarithmic {
		along = func(x float64) float64 { return math.Log(x/left) / math.Log(right/left) * chartWidth }
	}
	up := func(y float64) float64 { return chartHeight - y/top*chartHeight }

	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" class="avgpipe-chart" role="img" viewBox="0 0 %d %d" width="%[1]d" height="%[2]d">`+"\n",
		chartLeft+chartWidth+chartRight, chartTop+chartHeight+chartBottom)
	fmt.Fprintf(&b, "<title>%s</title>\n<style>\n.avgpipe-chart text{font:12px ui-sans-serif,system-ui,sans-serif;fill:#767676}\n", html.EscapeString(c.title))
	b.WriteString(".avgpipe-chart .h{font-size:14px}\n.avgpipe-chart .m{text-anchor:middle}\n.avgpipe-chart .e{text-anchor:end}\n")
	b.WriteString(".avgpipe-chart .g{stroke:#808080;stroke-opacity:.3}\n.avgpipe-chart polyline{fill:none;stroke-width:2}\n</style>\n")
	fmt.Fprintf(&b, `<text class="h" x="%d" y="20">%s</text>`+"\n", chartLeft, html.EscapeString(c.title))
	fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", chartLeft, chartTop)
	for y := 0.0; y <= top*(1+1e-9); y += step {
		fmt.Fprintf(&b, `<line class="g" x1="0" x2="%d" y1="%.1f" y2="%.1[2]f"/><text class="e" x="-8" y="%.1f">%.4g</text>`+"\n", chartWidth, up(y), up(y)+4, y)
	}
	for _, x := range c.ticks() {
		fmt.Fprintf(&b, `<line class="g" x1="%.1f" x2="%.1[1]f" y1="%d" y2="%d"/><text class="m" x="%.1[1]f" y="%[4]d">%.4[5]g</text>`+"\n",
			along(x), chartHeight, chartHeight+5, chartHeight+20, x)
	}
	fmt.Fprintf(&b, `<text class="m" x="%d" y="%d">%s</text>`+"\n", chartWidth/2, chartHeight+42, html.EscapeString(c.x))
	fmt.Fprintf(&b, `<text x="-40" y="-14">%s</text>`+"\n", html.EscapeString(c.y))
	for i, s := range c.series {
		c.line(&b, i, s, along, up)
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

// line draws one series and its entry of the legend.
func (c chart) line(b *strings.Builder, i int, s series, along, up func(float64) float64) {
	dashes := ""
	if s.dashed {
		dashes = ` stroke-dasharray="6 4"`
	}
	colour := colours[i%len(colours)]
	var points []string
	for _, p := range s.points {
		points = append(points, fmt.Sprintf("%.1f,%.1f", along(p.x), up(p.y)))
	}
	fmt.Fprintf(b, `<polyline stroke="%s"%s points="%s"/>`+"\n", colour, dashes, strings.Join(points, " "))
	for _, p := range s.points {
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s: %.4g, %.4g</title></circle>`+"\n",
			along(p.x), up(p.y), colour, html.EscapeString(s.name), p.x, p.y)
	}
	y := 12 + 20*i
	fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%d" y2="%[3]d" stroke="%s" stroke-width="2"%s/><text x="%d" y="%d">%s</text>`+"\n",
		chartWidth+14, chartWidth+38, y, colour, dashes, chartWidth+44, y+4, html.EscapeString(s.name))
}

// ticks are the x of the longest series.
func (c chart) ticks() []float64 {
	var ticks []float64
	for _, s := range c.series {
		if len(s.points) > len(ticks) {
			ticks = ticks[:0]
			for _, p := range s.points {
				ticks = append(ticks, p.x)
			}
		}
	}
	return ticks
}

// tickStep is a round step that divides an axis up to top into 4 to 10 parts.
func tickStep(top float64) float64 {
	step := math.Pow(10, math.Floor(math.Log10(top)))
	for _, part := range []float64{0.1, 0.2, 0.25, 0.5, 1} {
		if top/(step*part) <= 10 {
			return step * part
		}
	}
	return step
}
