package schedule

import (
	"encoding/json"
	"fmt"
)

// DrawTrace prints recorded simulations in the trace-event format that Perfetto and Chrome's tracing page open: a process for
// each drawing, a thread for each device and pipeline, and a counter of each device's memory. unit is how many microseconds,
// the format's unit, a unit of the results' time stands for.
func DrawTrace(unit float64, drawings ...Drawing) string {
	var trace struct {
		Unit   string       `json:"displayTimeUnit"`
		Events []traceEvent `json:"traceEvents"`
	}
	trace.Unit = "ms"
	for i, one := range drawings {
		trace.Events = append(trace.Events, traceEvents(unit, i+1, one)...)
	}
	text, err := json.Marshal(trace)
	if err != nil {
		panic(fmt.Sprintf("schedule: trace: %v", err)) // finite numbers and text
	}
	return string(text) + "\n"
}

// traceEvent is an event of the format. Phase X is a span, C a counter, M a name.
type traceEvent struct {
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	Phase    string         `json:"ph"`
	Process  int            `json:"pid"`
	Thread   int            `json:"tid"`
	Time     float64        `json:"ts"`
	Duration float64        `json:"dur,omitempty"`
	Args     map[string]any `json:"args,omitempty"`
}

// traceEvents are those of one drawing.
func traceEvents(unit float64, process int, one Drawing) (events []traceEvent) {
	r := one.Result
	events = append(events, traceEvent{Name: "process_name", Phase: "M", Process: process, Args: map[string]any{"name": one.Title + ": " + summary(r)}})
	for i, row := range rowsOf(r) {
		events = append(events, traceEvent{Name: "thread_name", Phase: "M", Process: process, Thread: i + 1, Args: map[string]any{"name": row.name}})
		for _, c := range row.cells {
			events = append(events, traceEvent{
				Name: c.label, Category: svgKinds[c.Op.Kind].legend, Phase: "X", Process: process, Thread: i + 1,
				Time: c.Start * unit, Duration: (c.End - c.Start) * unit,
				Args: map[string]any{"stage": c.Op.Stage, "micro_batch": c.Op.Micro, "batch": c.Batch},
			})
		}
	}
	for d, m := range r.Memory {
		for _, point := range m.Over {
			events = append(events, traceEvent{
				Name: fmt.Sprintf("memory of device %d", d), Phase: "C", Process: process, Time: point.Time * unit,
				Args: map[string]any{"bytes": point.Bytes},
			})
		}
	}
	return events
}
