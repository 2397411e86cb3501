package schedule

import (
	"fmt"
	"math"
	"strconv"

	"github.com/avgpipe/avgpipe/internal/words"
)

// drawnRow is one line of a drawing: what a device does for one pipeline.
type drawnRow struct {
	name  string // "stage 0"; "device 0" where devices have several stages, "device 0, pipeline 1" where several pipelines run
	note  string // how busy the device is and how many micro-batches are in flight
	cells []drawnCell
}

// drawnCell is one op of a row.
type drawnCell struct {
	Event
	label  string // "F0", "2F0", "U", "A"
	number string // its micro-batch; "" for a step at the end of the batch
	named  bool   // its device has several stages, so its label tells which
	second bool   // of every second stage of the device: drawn lighter
}

// rowsOf lists what a recorded simulation of a plan ran.
func rowsOf(r Result) []drawnRow {
	unit, chunks := r.plan.rowName(), chunksOf(r.plan)
	digits := func(n int) int { return len(strconv.Itoa(n - 1)) }
	var rows []drawnRow
	for i, e := range r.Events {
		if i == 0 || e.Device != r.Events[i-1].Device || e.Pipeline != r.Events[i-1].Pipeline {
			row := drawnRow{name: fmt.Sprintf("%s %*d", unit, digits(len(r.plan)), e.Device)}
			if r.load.Pipelines > 1 {
				row.name += fmt.Sprintf(", pipeline %*d", digits(r.load.Pipelines), e.Pipeline)
			}
			if e.Pipeline == 0 {
				row.note = fmt.Sprintf("busy %3.0f%%, %d in flight", 100*r.Busy[e.Device]/max(r.Makespan, math.SmallestNonzeroFloat64), r.InFlight[e.Device])
			}
			rows = append(rows, row)
		}
		named := unit == deviceRow
		cell := drawnCell{Event: e, label: string(e.Op.appendCell(nil, named)), named: named, second: chunks[e.Op.Stage]%2 == 1}
		if e.Op.Micro >= 0 {
			cell.number = strconv.Itoa(e.Op.Micro)
		}
		rows[len(rows)-1].cells = append(rows[len(rows)-1].cells, cell)
	}
	return rows
}

// chunksOf numbers, per stage, those of its device.
func chunksOf(plan Plan) []int {
	chunks, count := make([]int, plan.Stages()), make([]int, len(plan))
	for s, d := range plan.Placement() {
		chunks[s] = count[d]
		count[d]++
	}
	return chunks
}

// summary is the last line of a drawing.
func summary(r Result) string {
	if r.load.Pipelines*r.load.Batches <= 1 {
		return fmt.Sprintf("batch time %s, bubble %.1f%%", formatTime(r.Makespan), 100*r.Bubble)
	}
	who := words.Count(r.load.Batches, "batch")
	if r.load.Pipelines > 1 {
		who += " of each of " + words.Count(r.load.Pipelines, "pipeline")
	}
	return fmt.Sprintf("%s take %s, each ends %s after the one before, bubble %.1f%%", who, formatTime(r.Makespan), formatTime(r.Period), 100*r.Bubble)
}

// scaleOf is how many columns (or pixels) a unit of time gets so that the shortest op that takes any time is cell wide, in a
// drawing of at most limit.
func scaleOf(r Result, cell, limit float64) float64 {
	shortest := math.Inf(1)
	for _, e := range r.Events {
		if d := e.End - e.Start; d > 0 {
			shortest = min(shortest, d)
		}
	}
	if r.Makespan <= 0 {
		return 0
	}
	return min(cell/shortest, limit/r.Makespan)
}

// ticksOf are the round times of an axis, at least apart columns (or pixels) from each other.
func ticksOf(r Result, scale, apart float64) []float64 {
	if scale <= 0 {
		return []float64{0}
	}
	step := math.Pow(10, math.Floor(math.Log10(apart/scale)))
	for _, times := range []float64{1, 2, 5, 10} {
		if step*times*scale >= apart {
			step *= times
			break
		}
	}
	var ticks []float64
	for i := 0; float64(i)*step <= r.Makespan; i++ {
		ticks = append(ticks, float64(i)*step)
	}
	return ticks
}

// formatTime prints a time to at most six digits.
func formatTime(t float64) string { return strconv.FormatFloat(t, 'g', 6, 64) }
