package chart

import (
	"bytes"
	"image/color"
	"io"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// The measures of an image, in points.
const (
	imageWidth  = 720
	imageHeight = 420
	pngDPI      = 144
	fontSize    = 11
	lineWidth   = 1.6
)

// Colours of the curves: those of Okabe and Ito (2008) that are dark enough on white, told apart with any colour vision.
var colours = []color.NRGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff},
}

var (
	ink   = color.NRGBA{0x33, 0x33, 0x33, 0xff}
	muted = color.NRGBA{0x80, 0x80, 0x80, 0xff}
	faint = color.NRGBA{0xe6, 0xe6, 0xe6, 0xff}
)

// SVG draws the chart as a standalone image on white.
func (c *Chart) SVG(w io.Writer) error {
	canvas := vgsvg.New(imageWidth, imageHeight)
	c.draw(draw.New(canvas))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return err
	}
	_, err := w.Write(bytes.ReplaceAll(text.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")))
	return err
}

// PNG draws it as pixels, twice as fine as a screen's.
func (c *Chart) PNG(w io.Writer) error {
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(imageWidth, imageHeight), vgimg.UseDPI(pngDPI))}
	c.draw(draw.New(canvas))
	_, err := canvas.WriteTo(w)
	return err
}

// draw draws legend and curves.
func (c *Chart) draw(dc draw.Canvas) {
	dc.SetColor(color.White)
	dc.Fill(dc.Path())
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = c.X, c.Y
	b := c.bounds()
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = b.left, b.right, b.bottom, b.top
	p.X.Tick.Marker, p.Y.Tick.Marker = marker(10), marker(7)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		axis.LineStyle = draw.LineStyle{Color: muted, Width: 0.7}
		axis.Tick.LineStyle = axis.LineStyle
		axis.Label.TextStyle.Font, axis.Label.TextStyle.Color = sans(fontSize), ink
		axis.Tick.Label.Font, axis.Tick.Label.Color = sans(fontSize-1), ink
		axis.Label.Padding, axis.Padding = vg.Points(5), vg.Points(4)
	}
	area := draw.Crop(dc, 12, -18, 12, -c.head(dc))
	c.curves(p.DataCanvas(area), p)
	p.Draw(area)
}

// head draws the legend and returns how much they take.
func (c *Chart) head(dc draw.Canvas) vg.Length {
	const left, gap, row = 16, 16, 17
	x, y := vg.Length(left), dc.Max.Y-22
	entry := func(name string, sample vg.Length, show func(draw.Canvas, vg.Point)) {
		words := text.Style{Color: ink, Font: sans(fontSize), Handler: plot.DefaultTextHandler}
		width := sample + 6 + words.Width(name)
		if x > left && x+width > dc.Max.X-left {
			x, y = left, y-row
		}
		show(dc, vg.Point{X: x + sample/2, Y: y + 3.5})
		dc.FillText(words, vg.Point{X: x + sample + 6, Y: y}, name)
		x += width + gap
	}
	for i, l := range c.Lines {
		entry(l.Name, 20, func(dc draw.Canvas, at vg.Point) {
			dc.StrokeLine2(draw.LineStyle{Color: colour(i), Width: 2.4}, at.X-10, at.Y, at.X+10, at.Y)
		})
	}
	for _, m := range c.marks() {
		entry(m.name, 8, func(dc draw.Canvas, at vg.Point) {
			switch m.as {
			case dotRune:
				dot(dc, at, ink)
			case tickRune:
				tick(dc, at, ink)
			default:
				dc.StrokeLine2(dashes(ink), at.X, at.Y-6, at.X, at.Y+6)
			}
		})
	}
	return dc.Max.Y - y + 14
}

// curves draws the lines of a chart in the area of a plot.
func (c *Chart) curves(dc draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&dc)
	at := func(x, y float64) vg.Point { return vg.Point{X: tx(x), Y: ty(min(max(y, p.Y.Min), p.Y.Max))} }
	for _, t := range p.Y.Tick.Marker.Ticks(p.Y.Min, p.Y.Max) {
		dc.StrokeLine2(draw.LineStyle{Color: faint, Width: 0.7}, dc.Min.X, ty(t.Value), dc.Max.X, ty(t.Value))
	}
	for i, l := range c.Lines {
		band(dc, &l, at, fade(colour(i), 0x30))
	}
	for i, l := range c.Lines {
		for _, x := range l.Rules {
			dc.StrokeLine2(dashes(fade(colour(i), 0xb0)), tx(x), dc.Min.Y, tx(x), dc.Max.Y)
		}
		points := make([]vg.Point, len(l.Points))
		for j, v := range l.Points {
			points[j] = at(v.X, v.Y)
		}
		if len(points) == 1 {
			dot(dc, points[0], colour(i))
		}
		dc.StrokeLines(draw.LineStyle{Color: colour(i), Width: lineWidth}, points)
		for _, x := range l.Ticks {
			tick(dc, vg.Point{X: tx(x), Y: dc.Min.Y + 3}, colour(i))
		}
	}
	for i, l := range c.Lines {
		for _, v := range l.Dots {
			dot(dc, at(v.X, v.Y), colour(i))
		}
	}
}

// band fills between the least and the greatest of what points are the mean of.
func band(dc draw.Canvas, l *Line, at func(x, y float64) vg.Point, fill color.Color) {
	if len(l.Points) < 2 {
		return
	}
	outline := make([]vg.Point, 0, 2*len(l.Points))
	for _, p := range l.Points {
		outline = append(outline, at(p.X, p.High))
	}
	for i := range l.Points {
		p := l.Points[len(l.Points)-1-i]
		outline = append(outline, at(p.X, p.Low))
	}
	dc.FillPolygon(fill, outline)
}

func dot(dc draw.Canvas, at vg.Point, c color.Color) {
	dc.DrawGlyph(draw.GlyphStyle{Color: color.White, Radius: 4.2, Shape: draw.CircleGlyph{}}, at)
	dc.DrawGlyph(draw.GlyphStyle{Color: c, Radius: 3, Shape: draw.CircleGlyph{}}, at)
}

func tick(dc draw.Canvas, at vg.Point, c color.Color) {
	dc.DrawGlyph(draw.GlyphStyle{Color: c, Radius: 2.6, Shape: draw.PyramidGlyph{}}, at)
}

func dashes(c color.Color) draw.LineStyle {
	return draw.LineStyle{Color: c, Width: 1, Dashes: []vg.Length{3, 3}}
}

func colour(line int) color.NRGBA { return colours[line%len(colours)] }

func fade(c color.NRGBA, alpha uint8) color.NRGBA {
	c.A = alpha
	return c
}

func sans(size vg.Length) font.Font {
	f := font.From(plot.DefaultFont, size)
	f.Variant = "Sans"
	return f
}

// marker makes the ticks of an axis, about n of them.
func marker(n int) plot.Ticker {
	return plot.TickerFunc(func(from, to float64) (out []plot.Tick) {
		for _, v := range ticks(from, to, n) {
			out = append(out, plot.Tick{Value: v, Label: label(v)})
		}
		return out
	})
}
