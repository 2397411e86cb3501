package schedule

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// maxColumns bounds a text drawing of no given width.
const maxColumns = 4000

// DrawText draws a plan over time, one row a stage, as papers do: each op as wide as it takes, with its micro-batch; a dot is
// a bubble.
//
//	time     0              5              10             15
//	stage 0  F0 F1 F2 ......B0--- F3 B1--- ...B2--- ...B3---   busy  75%, pins 3
//	stage 1  .....F0 B0--- F1 B1--- F2 B2--- F3 B3--- .......  busy  75%, pins 1
//	batch time 16, bubble 25.0%
//
// width is how many columns the time may take, 0 for as many as show every label. In a drawing that has to be narrower, a
// cell too small for its label shows the kind alone: "Bbb". The result must be the plan's, from Simulate.
func DrawText(plan Plan, r Result, width int) string {
	if width <= 0 {
		width = maxColumns
	}
	cell := 0
	for _, ops := range plan {
		for _, op := range ops {
			cell = max(cell, len(op.String())+1)
		}
	}
	scale := scaleOf(r, float64(cell), float64(width))
	apart := 0 // least columns after a label; a drawing at full scale has one already
	if scale*r.Makespan >= float64(width) {
		apart = 1
	}
	column := func(t float64) int { return int(math.Round(t * scale)) }
	label := len("stage ") + len(strconv.Itoa(len(plan)-1))

	var b strings.Builder
	fmt.Fprintf(&b, "%-*s  %s\n", label, "time", textAxis(r, scale, column))
	for k, ops := range plan {
		row := bytes.Repeat([]byte{'.'}, column(r.Makespan))
		for i, op := range ops {
			s := r.Spans[k][i]
			fillCell(row[column(s.Start):column(s.End)], op, apart)
		}
		fmt.Fprintf(&b, "stage %*d  %s  busy %3.0f%%, pins %d\n", label-len("stage "), k, row, percentBusy(r, k), r.Pinned[k])
	}
	fmt.Fprintf(&b, "batch time %s, bubble %.1f%%\n", formatTime(r.Makespan), 100*r.Bubble)
	return b.String()
}

// fillCell writes an op over its columns: "B0--- " where the label fits, "Bbb" where it does not.
func fillCell(columns []byte, op Op, apart int) {
	if label := op.String(); len(label)+apart <= len(columns) {
		fill := columns[copy(columns, label):]
		for i := range fill {
			fill[i] = '-'
		}
		if len(fill) > 0 {
			fill[len(fill)-1] = ' '
		}
		return
	}
	for i := range columns {
		columns[i] = op.Kind.String()[0]
		if i > 0 {
			columns[i] += 'a' - 'A'
		}
	}
}

// textAxis prints round times, each starting in its column.
func textAxis(r Result, scale float64, column func(float64) int) string {
	const apart = 10
	var axis []byte
	for _, t := range ticksOf(r, scale, apart) {
		for len(axis) < column(t) {
			axis = append(axis, ' ')
		}
		axis = append(axis, formatTime(t)...)
	}
	return string(axis)
}
