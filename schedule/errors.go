package schedule

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Problem is the kind of fault a PlanError reports.
type Problem uint8

// The faults of a plan.
const (
	Malformed  Problem = iota // a cell that the grammar does not know
	OutOfRange                // a micro-batch that the batch does not have, or a kind that does not exist
	Repeated                  // work done twice
	Premature                 // a backward before its forward, or a weight half before its input half
	Missing                   // work never done
	Misordered                // a link would deliver micro-batches in another order than the receiver takes them
	OverLimit                 // more micro-batches pinned than the stage may hold
	Deadlock                  // every unfinished stage waits for another
)

var problemNames = [...]string{
	"malformed", "out of range", "repeated", "premature", "missing", "misordered", "over limit", "deadlock",
}

// String names the fault.
func (p Problem) String() string {
	if int(p) >= len(problemNames) {
		return fmt.Sprintf("Problem(%d)", uint8(p))
	}
	return problemNames[p]
}

// PlanError is a fault of a plan at one cell of its grid.
type PlanError struct {
	Problem  Problem
	Stage    int    // 0-based
	Position int    // index into the stage's list; its length where something is missing at the end
	Message  string // one line: the cell, what was found, what was expected
	Grid     string // the plan around the cell, which is marked >like this<
}

func (e *PlanError) Error() string {
	return fmt.Sprintf("schedule: %s: stage %d, position %d: %s\n%s", e.Problem, e.Stage, e.Position, e.Message, e.Grid)
}

// cell is a place in a grid.
type cell struct{ stage, position int }

// malformed reports a cell of the text rows that does not parse.
func malformed(rows [][]string, stage, position int, message string) error {
	row := func(k int) []string { return rows[k] }
	at := cell{stage, position}
	return &PlanError{
		Problem: Malformed, Stage: stage, Position: position, Message: message,
		Grid: drawMarked(len(rows), row, at, map[int]int{stage: position}),
	}
}

// fault reports a cell of the plan. also marks one more cell on each of other stages: stage -> position.
func (p Plan) fault(problem Problem, at cell, also map[int]int, message string) error {
	row := func(k int) []string { return strings.Fields(formatRow(p[k], !p.plain())) }
	marks := map[int]int{at.stage: at.position}
	maps.Copy(marks, also)
	return &PlanError{
		Problem: problem, Stage: at.stage, Position: at.position, Message: message,
		Grid: drawMarked(len(p), row, at, marks),
	}
}

// How much of a large grid an error shows around its cell.
const (
	windowStages = 4  // above and below
	windowCells  = 14 // before and after
)

// drawMarked prints the rows around at, one line a stage, with the cell marks[k] of row k in angle brackets. A mark past
// the end of a row shows as >?<.
func drawMarked(stages int, row func(k int) []string, at cell, marks map[int]int) string {
	first, last := max(0, at.stage-windowStages), min(stages, at.stage+windowStages+1)
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
		lines = append(lines, fmt.Sprintf("  stage %*d |", labelWidth, k)+drawRow(row(k), center, marked))
	}
	if last < stages {
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
