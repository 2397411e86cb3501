package schedule

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScenarios runs the text files of testdata; -rewrite records what the code now prints.
//
//	generate schedule=NAME stages=K micro-batches=M [chunks=V] [forward= backward= link=] [in-flight-limit=(A,B,..)]
//	parse              the input is a plan
//	check micro-batches=M                                  the input is a plan
//	measure            the input is a plan
//	simulate [forward= backward= link=]                    the input is a plan
//	draw [forward= backward= link=] [width=COLUMNS]        the input is a plan
//	svg [forward= backward= link=]                         the input is a plan
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			out, err := runScenario(t, d)
			if err != nil {
				return "error: " + err.Error()
			}
			return out
		})
	})
}

func runScenario(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	if d.Cmd == "generate" {
		return generateScenario(t, d)
	}
	plan, err := Parse(d.Input)
	if err != nil {
		return "", err
	}
	switch d.Cmd {
	case "parse":
		return plan.String(), nil
	case "check":
		var micros int
		d.ScanArgs(t, "micro-batches", &micros)
		return "ok", Check(plan, micros)
	case "measure":
		return fmt.Sprintf("warm-up %v\nin flight %v, by stage %v, halves %v\nversions %v, delay %v", Warmup(plan), InFlight(plan),
			InFlightByStage(plan), HalvesByStage(plan), VersionsByStage(plan), GradientDelay(plan)), nil
	}
	result, err := Simulate(plan, *costsArg(t, d, len(plan)))
	if err != nil {
		return "", err
	}
	switch d.Cmd {
	case "draw":
		var width int
		if d.HasArg("width") {
			d.ScanArgs(t, "width", &width)
		}
		return DrawText(result, width), nil
	case "svg":
		return DrawSVG(Drawing{Result: result}), nil
	case "simulate":
		return fmt.Sprintf("makespan %.4f\nbusy %.4f\nbubble %.4f\nin flight %v", result.Makespan, result.Busy, result.Bubble, result.InFlight), nil
	}
	t.Fatalf("%s: unknown command %s", d.Pos, d.Cmd)
	return "", nil
}

func generateScenario(t *testing.T, d *datadriven.TestData) (string, error) {
	t.Helper()
	var name string
	var r Request
	d.ScanArgs(t, "schedule", &name)
	d.ScanArgs(t, "stages", &r.Devices)
	d.ScanArgs(t, "micro-batches", &r.MicroBatches)
	if d.HasArg("chunks") {
		d.ScanArgs(t, "chunks", &r.Chunks)
	}
	if d.HasArg("round-batches") {
		d.ScanArgs(t, "round-batches", &r.RoundBatches)
	}
	if d.HasArg("forward") {
		r.Costs = costsArg(t, d, r.Devices)
	}
	r.InFlightLimit = intsArg(t, d, "in-flight-limit")
	plan, reason, err := Generate(name, r)
	if err != nil {
		return "", err
	}
	return plan.String() + "\n" + reason, nil
}

// intsArg reads name=(1,2,3), nil when it is absent.
func intsArg(t *testing.T, d *datadriven.TestData, name string) []int {
	t.Helper()
	values := floatsArg(t, d, name)
	if values == nil {
		return nil
	}
	ints := make([]int, len(values))
	for i, v := range values {
		ints[i] = int(v)
	}
	return ints
}

func floatsArg(t *testing.T, d *datadriven.TestData, name string) []float64 {
	t.Helper()
	var texts []string
	for _, arg := range d.CmdArgs {
		if arg.Key == name {
			texts = arg.Vals
		}
	}
	var values []float64
	for _, text := range texts {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("%s: %s: %v", d.Pos, name, err)
		}
		values = append(values, v)
	}
	return values
}

// costsArg reads forward, backward and link: one value for all, or a list. Absent is 1, 1 and 0.
func costsArg(t *testing.T, d *datadriven.TestData, stages int) *Costs {
	t.Helper()
	list := func(name string, n int, absent float64) []float64 {
		values := floatsArg(t, d, name)
		switch len(values) {
		case 0:
			return repeat(absent, n)
		case 1:
			return repeat(values[0], n)
		}
		return values
	}
	return &Costs{
		Forward: list("forward", stages, 1), Backward: list("backward", stages, 1), Link: list("link", stages-1, 0),
	}
}
