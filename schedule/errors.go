package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Problem is the kind of fault a PlanError reports.
type Problem string

// The faults of a plan.
const (
	Malformed    Problem = "malformed"     // a cell that the grammar does not know
	OutOfRange   Problem = "out of range"  // a micro-batch that the batch does not have, or a kind that does not exist
	Repeated     Problem = "repeated"      // work done twice
	Premature    Problem = "premature"     // a backward before its forward, or a weight half before its input half
	Missing      Problem = "missing"       // work never done
	Misordered   Problem = "misordered"    // a link would deliver micro-batches in another order than the receiver takes them; an update that other stages do not take
	Deadlock     Problem = "deadlock"      // every unfinished device waits for another
	Misplaced    Problem = "misplaced"     // one stage on two devices
	WrongVersion Problem = "wrong version" // a forward of weights that do not exist by then
)

// PlanError is a fault of a plan at one cell of its grid.
type PlanError struct {
	Problem  Problem
	Device   int    // 0-based: the row of the grid
	Position int    // index into the device's list; its length where something is missing at the end
	Message  string // one line: the cell, what was found, what was expected
	Grid     string // the plan around the cell, which is marked >like this<
	row      string // what the message calls a row: a stage, or a device of several
}

func (e *PlanError) Error() string {
	return fmt.Sprintf("schedule: %s: %s %d, position %d: %s\n%s", e.Problem, e.row, e.Device, e.Position, e.Message, e.Grid)
}

// The words for a row of a grid.
const (
	stageRow  = "stage"
	deviceRow = "device"
)

// rowName is what a row of the plan is called.
func (p Plan) rowName() string {
	if p.plain() {
		return stageRow
	}
	return deviceRow
}

// cell is a place in a grid.
type cell struct{ device, position int }

// malformed reports a cell of the text rows that does not parse.
func malformed(rows [][]string, device, position int, message string) error {
	name := stageRow
	for _, row := range rows {
		if len(row) > 0 && row[0][0] >= '0' && row[0][0] <= '9' {
			name = deviceRow
		}
	}
	row := func(k int) []string { return rows[k] }
	at := cell{device, position}
	return &PlanError{
		Problem: Malformed, Device: device, Position: position, Message: message, row: name,
		Grid: drawMarked(name, len(rows), row, at, map[int]int{device: position}),
	}
}

// fault reports a cell of the plan. also marks one more cell on each of other devices: device -> position.
func (p Plan) fault(problem Problem, at cell, also map[int]int, message string) error {
	name := p.rowName()
	row := func(d int) []string { return strings.Fields(formatRow(p[d], name == deviceRow)) }
	marks := maps.Clone(also)
	if marks == nil {
		marks = make(map[int]int)
	}
	marks[at.device] = at.position
	return &PlanError{
		Problem: problem, Device: at.device, Position: at.position, Message: message, row: name,
		Grid: drawMarked(name, len(p), row, at, marks),
	}
}

// How much of a large grid an error shows around its cell.
const (
	windowRows  = 4  // above and below
	windowCells = 14 // before and after
)

// drawMarked prints the rows around at, one line each, with the cell marks[k] of row k in angle brackets. A mark past the end
// of a row shows as >?<.
func drawMarked(name string, rows int, row func(k int) []string, at cell, marks map[int]int) string {
	first, last := max(0, at.device-windowRows), min(rows, at.device+windowRows+1)
	labelWidth := len(strconv.Itoa(last - 1))
	var lines []string
	if first > 0 {
		lines = append(lines, "  ...")
	}
	for k := first; k < last; k++ {
		mark, marked := marks[k]
		center := mark
		if !marked {
			center = at.position
		}
		lines = append(lines, fmt.Sprintf("  %s %*d |", name, labelWidth, k)+drawRow(row(k), center, marked))
	}
	if last < rows {
		lines = append(lines, "  ...")
	}
	return strings.Join(lines, "\n")
}

// drawRow prints the cells around center, and center itself in angle brackets when it is marked.
func drawRow(cells []string, center int, marked bool) string {
	if marked && center >= len(cells) {
		cells = append(slices.Clip(cells), "?")
	}
	from, to := max(0, min(center, len(cells))-windowCells), min(len(cells), center+windowCells+1)
	var b strings.Builder
	if from > 0 {
		b.WriteString(" ...")
	}
	for i := from; i < to; i++ {
		text := strings.Trim(strconv.QuoteToASCII(clip(cells[i], 16)), `"`)
		if marked && i == center {
			text = ">" + text + "<"
		} else {
			text = " " + text + " "
		}
		fmt.Fprintf(&b, "%-5s", text)
	}
	if to < len(cells) {
		b.WriteString(" ...")
	}
	return strings.TrimRight(b.String(), " ")
}

// clip shortens s to at most n bytes for a message.
func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "..."
}
