package schedule

import (
	"encoding/json"
	"fmt"
	"strings"
)

// DrawTrace prints recorded simulations in the trace-event format that Perfetto and Chrome's tracing page open: a process for
// each drawing, a thread for each device and pipeline, and a counter of each device's memory. unit is how many microseconds,
// the format's unit, a unit of the results' time stands for.
func DrawTrace(unit float64, drawings ...Drawing) string {
	t := traceDrawing{unit: unit}
	t.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`)
	for i, one := range drawings {
		t.draw(i+1, one)
	}
	t.WriteString("\n]}\n")
	return t.String()
}

// traceDrawing writes events, each on a line of its own.
type traceDrawing struct {
	strings.Builder
	unit   float64
	events int
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

func (t *traceDrawing) event(e traceEvent) {
	if t.events++; t.events > 1 {
		t.WriteString(",")
	}
	line, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("schedule: trace event %+v: %v", e, err)) // finite numbers and text
	}
	t.WriteString("\n")
	t.Write(line)
}

func (t *traceDrawing) draw(process int, one Drawing) {
	r := one.Result
	t.event(traceEvent{Name: "process_name", Phase: "M", Process: process, Args: map[string]any{"name": one.Title + ": " + summary(r)}})
	plain := r.plan.plain()
	thread := func(device, pipeline int) int { return 1 + device*r.load.Pipelines + pipeline }
	for d := range r.plan {
		for p := range r.load.Pipelines {
			name := r.row(d, p, plain).name
			t.event(traceEvent{Name: "thread_name", Phase: "M", Process: process, Thread: thread(d, p), Args: map[string]any{"name": name}})
		}
	}
	for _, e := range r.Events {
		name := string(e.Op.appendCell(nil, !plain))
		t.event(traceEvent{
			Name: name, Category: svgKinds[e.Op.Kind].legend, Phase: "X", Process: process, Thread: thread(e.Device, e.Pipeline),
			Time: e.Start * t.unit, Duration: (e.End - e.Start) * t.unit,
			Args: map[string]any{"stage": e.Op.Stage, "micro_batch": e.Op.Micro, "batch": e.Batch},
		})
	}
	for d, m := range r.Memory {
		for _, point := range m.Over {
			t.event(traceEvent{
				Name: fmt.Sprintf("memory of device %d", d), Phase: "C", Process: process, Time: point.Time * t.unit,
				Args: map[string]any{"bytes": point.Bytes},
			})
		}
	}
}
