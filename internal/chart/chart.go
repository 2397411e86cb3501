// Package chart draws curves of training: as text for a terminal, as SVG and as PNG. A chart is a value; how it looks is the same for
// every metric.
package chart

import (
	"math"
	"slices"
)

// Chart is what is drawn.
type Chart struct {
	X, Y  string // what the axes count
	Lines []Line
}

// Line is one curve and what is marked beside it.
type Line struct {
	Name   string
	Points []Point
	// Dots are values of another kind: evaluations beside the training loss.
	Dots []Point
	// Ticks mark places on the x axis: committed rounds.
	Ticks []float64
	// Rules mark breaks: restarts.
	Rules []float64
}

// Point is a value, and the range of what it is the mean of.
type Point struct{ X, Y, Low, High float64 }

// box is a range of both axes.
type box struct{ left, right, bottom, top float64 }

// bounds is the range that shows every mean, every dot and every mark, with some room above and below. Ranges of means that reach
// beyond are cut: one wild step would flatten the rest.
func (c *Chart) bounds() box {
	var xs, ys []float64
	for _, l := range c.Lines {
		for _, p := range slices.Concat(l.Points, l.Dots) {
			xs, ys = append(xs, p.X), append(ys, p.Y)
		}
		xs = slices.Concat(xs, l.Ticks, l.Rules)
	}
	b := box{0, 1, 0, 1}
	if len(xs) > 0 {
		b.left, b.right = slices.Min(xs), slices.Max(xs)
	}
	if len(ys) > 0 {
		b.bottom, b.top = slices.Min(ys), slices.Max(ys)
	}
	if b.right == b.left {
		b.right++
	}
	room := 0.04 * (b.top - b.bottom)
	if room == 0 {
		room = max(0.1*math.Abs(b.top), 1e-9)
	}
	below := b.bottom >= 0 // what is never negative does not seem so
	b.bottom, b.top = b.bottom-room, b.top+room
	if below {
		b.bottom = max(b.bottom, 0)
	}
	return b
}
