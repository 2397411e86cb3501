package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/cockroachdb/datadriven"
)

// images, if set, is where TestImages leaves what it drew, to be looked at.
var images = flag.String("images", "", "directory that gets the images of the tests")

// curve is a loss that falls, with everything that can be marked.
func curve(name string, n int, lowest float64) Line {
	l := Line{Name: name}
	for i := range n {
		x := float64(i * 2000 / n)
		y := lowest + 4*math.Exp(-x/300) + 0.05*math.Sin(x)
		l.Points = append(l.Points, Point{x, y, y - 0.15, y + 0.2})
	}
	for i := 0; i <= 8; i++ {
		x := float64(i) * 250
		l.Dots = append(l.Dots, Point{X: x, Y: lowest + 0.1 + 4*math.Exp(-x/300)})
	}
	return l
}

func sample(lines int) *Chart {
	c := &Chart{X: "optimizer steps", Y: "loss, nats per token"}
	for i := range lines {
		c.Lines = append(c.Lines, curve(fmt.Sprintf("%d shakespeare-%d", i+1, i+1), 300, 1.2+0.3*float64(i)))
	}
	c.Lines[0].Ticks, c.Lines[0].Rules = []float64{500, 1000, 1500, 2000}, []float64{1000}
	return c
}

// TestText draws the charts of testdata/text.
func TestText(t *testing.T) {
	datadriven.RunTest(t, "testdata/text", func(t *testing.T, d *datadriven.TestData) string {
		var lines, width, height int
		d.ScanArgs(t, "lines", &lines)
		d.ScanArgs(t, "width", &width)
		d.ScanArgs(t, "height", &height)
		var out bytes.Buffer
		if err := sample(lines).Text(&out, TextStyle{Width: width, Height: height}); err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(out.String(), "\n") {
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("line %d has %d columns of %d", i+1, n, width)
			}
		}
		if n := strings.Count(out.String(), "\n"); n > height {
			t.Errorf("%d lines of %d", n, height)
		}
		return out.String()
	})
}

// Whatever the values and the size, a drawing ends, fits, and is one.
func TestOddCharts(t *testing.T) {
	big := math.MaxFloat64 / 4
	for name, c := range map[string]*Chart{
		"no line":       {},
		"no point":      {Lines: []Line{{Name: "a"}}},
		"one point":     {Lines: []Line{{Name: "a", Points: []Point{{3, 7, 7, 7}}}}},
		"a constant":    {Lines: []Line{{Name: "a", Points: []Point{{0, 0.1, 0.1, 0.1}, {9, 0.1, 0.1, 0.1}}}}},
		"zeros":         {Lines: []Line{{Name: "a", Points: []Point{{0, 0, 0, 0}, {9, 0, 0, 0}}}}},
		"huge":          {Lines: []Line{{Name: "a", Points: []Point{{0, -big, -big, -big}, {9, big, big, big}}}}},
		"tiny":          {Lines: []Line{{Name: "a", Points: []Point{{0, 1, 1, 1}, {9, 1 + 1e-15, 1, 1}}}}},
		"only marks":    {Lines: []Line{{Name: "a", Ticks: []float64{4}, Rules: []float64{5}}}},
		"a long name":   {Lines: []Line{curve(strings.Repeat("name", 30), 20, 1)}},
		"many colors":   sample(9),
		"markup & such": {X: "<x>", Lines: []Line{{Name: "<b>&amp;", Points: []Point{{0, 1, 1, 1}}}}},
	} {
		for _, s := range []TextStyle{{}, {Width: 30, Height: 9, Colors: true}, {Width: 200, Height: 60}} {
			var out bytes.Buffer
			if err := c.Text(&out, s); err != nil || out.Len() == 0 {
				t.Errorf("%s: %d bytes of text, %v", name, out.Len(), err)
			}
		}
		wellFormed(t, name, c)
	}
}

// wellFormed draws a chart as SVG and PNG and reads them back.
func wellFormed(t *testing.T, name string, c *Chart) {
	t.Helper()
	var svg, pixels bytes.Buffer
	if err := errors.Join(c.SVG(&svg), c.PNG(&pixels)); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if *images != "" {
		file := filepath.Join(*images, strings.ReplaceAll(name, " ", "-"))
		if err := errors.Join(os.WriteFile(file+".svg", svg.Bytes(), 0o600), os.WriteFile(file+".png", pixels.Bytes(), 0o600)); err != nil {
			t.Error(err)
		}
	}
	decoder := xml.NewDecoder(&svg)
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Errorf("%s: not XML: %v", name, err)
			break
		}
	}
	if picture, err := png.Decode(&pixels); err != nil || picture.Bounds().Dx() != imageWidth*pngDPI/72 {
		t.Errorf("%s: the PNG is not one of %d pixels: %v", name, imageWidth*pngDPI/72, err)
	}
}

func TestImages(t *testing.T) {
	one, three := sample(1), sample(3)
	wellFormed(t, "one job", one)
	wellFormed(t, "three jobs", three)
}
