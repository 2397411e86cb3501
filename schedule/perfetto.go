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
	plain := r.plan.plain()
	thread := func(device, pipeline int) int { return 1 + device*r.load.Pipelines + pipeline }
	for d := range r.plan {
		for p := range r.load.Pipelines {
			name := r.row(d, p, plain).name
			events = append(events, traceEvent{Name: "thread_name", Phase: "M", Process: process, Thread: thread(d, p), Args: map[string]any{"name": name}})
		}
	}
	for _, e := range r.Events {
		name := string(e.Op.appendCell(nil, !plain))
		events = append(events, traceEvent{
			Name: name, Category: svgKinds[e.Op.Kind].legend, Phase: "X", Process: process, Thread: thread(e.Device, e.Pipeline),
			Time: e.Start * unit, Duration: (e.End - e.Start) * unit,
			Args: map[string]any{"stage": e.Op.Stage, "micro_batch": e.Op.Micro, "batch": e.Batch},
		})
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
