package chart

import (
	"bytes"
	"image/color"
	"io"
	"maps"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
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
)

// palette has the colours of Okabe and Ito (2008) that are dark enough on white, told apart with any colour vision.
var palette = []color.NRGBA{
	{0x00, 0x72, 0xb2, 0xff}, {0xd5, 0x5e, 0x00, 0xff}, {0x00, 0x9e, 0x73, 0xff}, {0xcc, 0x79, 0xa7, 0xff}, {0xe6, 0x9f, 0x00, 0xff}, {0x56, 0xb4, 0xe9, 0xff},
}

// SVG draws the chart as a standalone image on white.
func (c *Chart) SVG(w io.Writer) error {
	canvas := vgsvg.New(imageWidth, imageHeight)
	c.draw(draw.New(canvas))
	var image bytes.Buffer
	if _, err := canvas.WriteTo(&image); err != nil {
		return err
	}
	_, err := w.Write(bytes.ReplaceAll(image.Bytes(), []byte("font-family:Liberation Sans"), []byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif")))
	return err
}

// PNG draws it as pixels, twice as fine as a screen's.
func (c *Chart) PNG(w io.Writer) error {
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(imageWidth, imageHeight), vgimg.UseDPI(pngDPI))}
	c.draw(draw.New(canvas))
	_, err := canvas.WriteTo(w)
	return err
}

// draw draws the chart with what its lines are called beside it, where no line crosses that.
func (c *Chart) draw(canvas draw.Canvas) {
	const apart = vg.Length(8)
	p := c.plot()
	legend := p.Legend
	p.Legend = plot.NewLegend()
	p.Draw(draw.Crop(canvas, 0, -legend.Rectangle(canvas).Size().X-apart, 0, 0))
	legend.Draw(canvas)
}

// plot is the chart for gonum.
func (c *Chart) plot() *plot.Plot {
	p, b := plot.New(), c.bounds()
	p.X.Label.Text, p.Y.Label.Text = c.X, c.Y
	p.X.Padding, p.Y.Padding, p.Legend.Top = vg.Points(4), vg.Points(4), true
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font.Variant = "Sans"
	}
	p.Add(plotter.NewGrid())
	legend := map[string]plot.Thumbnailer{}
	for i, l := range c.Lines {
		fill := palette[i%len(palette)]
		curve := &plotter.Line{LineStyle: draw.LineStyle{Color: fill, Width: 1.6}}
		if i >= len(palette) { // another line has the colour
			curve.Dashes = []vg.Length{7, 3}
		}
		dots := &plotter.Scatter{GlyphStyle: draw.GlyphStyle{Color: fill, Radius: 3, Shape: draw.CircleGlyph{}}}
		commits := &plotter.Scatter{GlyphStyle: draw.GlyphStyle{Color: fill, Radius: 2.6, Shape: draw.PyramidGlyph{}}}
		fill.A = 0x30
		band := &plotter.Polygon{XYs: make([]plotter.XYs, 1), Color: fill}
		for _, point := range l.Points {
			curve.XYs = append(curve.XYs, plotter.XY{X: point.X, Y: point.Y})
			band.XYs[0] = append(band.XYs[0], plotter.XY{X: point.X, Y: point.High})
		}
		for k := range l.Points {
			point := l.Points[len(l.Points)-1-k]
			band.XYs[0] = append(band.XYs[0], plotter.XY{X: point.X, Y: point.Low})
		}
		for _, point := range l.Dots {
			dots.XYs = append(dots.XYs, plotter.XY{X: point.X, Y: point.Y})
			legend["evaluation"] = dots
		}
		if len(l.Points) == 1 { // a curve of one point is none
			dots.XYs = append(dots.XYs, curve.XYs...)
		}
		for _, x := range l.Ticks {
			commits.XYs = append(commits.XYs, plotter.XY{X: x, Y: b.bottom})
			legend["committed round"] = commits
		}
		p.Add(band, curve, dots, commits)
		for _, x := range l.Rules {
			rule := &plotter.Line{XYs: plotter.XYs{{X: x, Y: b.bottom}, {X: x, Y: b.top}}, LineStyle: curve.LineStyle}
			rule.Dashes = []vg.Length{3, 3}
			p.Add(rule)
			legend["restart"] = rule
		}
		p.Legend.Add(l.Name, curve)
	}
	for _, name := range slices.Sorted(maps.Keys(legend)) {
		p.Legend.Add(name, legend[name])
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = b.left, b.right, b.bottom, b.top // what reaches beyond is cut
	return p
}
