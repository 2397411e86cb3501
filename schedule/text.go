package schedule

import (
	"bytes"
	"fmt"
	"math"
	"strings"
)

// maxColumns bounds a text drawing of no given width.
const maxColumns = 4000

// DrawText draws a recorded simulation over time, one row a device, as papers do: each op as wide as it takes, with its
// micro-batch, and its stage where a device has several; U is the step and A the averaging at the end of a batch; a dot is a
// bubble. Of several pipelines, each has its rows.
//
//	time     0              5              10             15
//	stage 0  F0 F1 F2 ......B0--- F3 B1--- ...B2--- ...B3---   busy  75%, 3 in flight
//	stage 1  .....F0 B0--- F1 B1--- F2 B2--- F3 B3--- .......  busy  75%, 1 in flight
//	batch time 16, bubble 25.0%
//
// width is how many columns the time may take, 0 for as many as show every label. In a drawing that has to be narrower, a
// cell too small for its label shows the kind alone: "Bbb".
func DrawText(r Result, width int) string {
	if width <= 0 {
		width = maxColumns
	}
	rows := rowsOf(r)
	cell, name := 0, len("time")
	for _, row := range rows {
		name = max(name, len(row.name))
		for _, c := range row.cells {
			cell = max(cell, len(c.label)+1)
		}
	}
	scale := scaleOf(r, float64(cell), float64(width))
	apart := 0 // least columns after a label; a drawing at full scale has one already
	if scale*r.Makespan >= float64(width) {
		apart = 1
	}
	column := func(t float64) int { return int(math.Round(t * scale)) }

	var b strings.Builder
	fmt.Fprintf(&b, "%-*s  %s\n", name, "time", textAxis(r, scale, column))
	narrow := false
	for _, row := range rows {
		columns := bytes.Repeat([]byte{'.'}, column(r.Makespan))
		for _, c := range row.cells {
			narrow = fillCell(columns[column(c.Start):column(c.End)], c, apart) || narrow
		}
		line := fmt.Sprintf("%-*s  %s  %s", name, row.name, columns, row.note)
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	b.WriteString(summary(r) + "\n")
	if narrow {
		b.WriteString("lower-case letters carry on an op that is too narrow for its number\n")
	}
	return b.String()
}

// fillCell writes an op over its columns: "B0--- " where the label fits, "Bbb" where it does not. It reports whether it used lower case.
func fillCell(columns []byte, c drawnCell, apart int) (lower bool) {
	if len(c.label)+apart <= len(columns) {
		fill := columns[copy(columns, c.label):]
		for i := range fill {
			fill[i] = '-'
		}
		if len(fill) > 0 {
			fill[len(fill)-1] = ' '
		}
		return false
	}
	for i := range columns {
		columns[i] = c.Op.Kind.String()[0]
		if i > 0 {
			columns[i] += 'a' - 'A'
		}
	}
	return len(columns) > 1
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
