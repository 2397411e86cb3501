package schedule

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// drawn is the plan in the comment of a schedule: three devices, six micro-batches. The schedules that are about links are drawn with
// one as slow as a forward, the others with free links, backwards of two forwards and updates of one.
func drawn(t *testing.T, name string) (Plan, Costs) {
	t.Helper()
	request := Request{Devices: 3, MicroBatches: 6}
	if name == "pipedream-2bw" {
		request.MicroBatches = 9 // three groups, so that the second version shows
	}
	plan := mustGenerate(t, name, request)
	switch name {
	case "gpipe", "1f1b", "afp":
		return plan, Uniform(plan.Stages(), 1, 1, 1)
	}
	costs := Uniform(plan.Stages(), 1, 2, 0)
	if plan.Updates() > 0 {
		costs.Update = repeat(1.0, plan.Stages())
	}
	return plan, costs
}

// TestCommentOfEachScheduleIsItsDrawing holds the drawing in each generator's comment to what the tool draws.
func TestCommentOfEachScheduleIsItsDrawing(t *testing.T) {
	sources := readSources(t)
	for _, name := range Names() {
		plan, costs := drawn(t, name)
		drawing := asComment(DrawText(mustSimulate(t, plan, costs), 0))
		if !strings.Contains(sources, drawing) {
			t.Errorf("no comment has the drawing of %s:\n%s", name, drawing)
		}
	}
}

func asComment(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("//\t" + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}

// readSources is all Go source of the package but its tests.
func readSources(t *testing.T) string {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b.Write(source)
	}
	return b.String()
}

// TestSecondStageOfADeviceIsDrawnLighter.
func TestSecondStageOfADeviceIsDrawnLighter(t *testing.T) {
	image := DrawSVG(Drawing{Result: mustSimulate(t, mustParse(t, "0F0 1F0 1B0 0B0"), Uniform(2, 1, 2, 0))})
	for _, class := range []string{"f second", "b second"} {
		if n := strings.Count(image, `class="`+class+`"`); n != 1 {
			t.Errorf("%d cells of class %q; want 1", n, class)
		}
	}
}

// TestTraceHasAThreadForEachPipelineOnEachDevice, whose events are those of the timeline, in microseconds.
func TestTraceHasAThreadForEachPipelineOnEachDevice(t *testing.T) {
	plan := mustParse(t, "F0 B0\nF0 B0\nF0 B0")
	r := mustSimulateMany(t, plan, Uniform(3, 1, 2, 0.25), Load{Pipelines: 2, Record: true})
	var trace struct {
		Events []traceEvent `json:"traceEvents"`
	}
	if err := json.Unmarshal([]byte(DrawTrace(1e3, Drawing{Title: "mine", Result: r})), &trace); err != nil {
		t.Fatal(err)
	}
	threads, found := make(map[int]any), make(map[string]int)
	for _, e := range trace.Events {
		switch {
		case e.Phase == "M" && e.Name == "thread_name":
			threads[e.Thread] = e.Args["name"]
		case e.Phase == "X":
			found[fmt.Sprintf("%v: %s of stage %v at %v for %v", threads[e.Thread], e.Name, e.Args["stage"], e.Time, e.Duration)]++
		}
	}
	if len(threads) != 6 {
		t.Errorf("threads %v; want 3 devices of 2 pipelines", threads)
	}
	for _, e := range r.Events {
		want := fmt.Sprintf("stage %d, pipeline %d: %v of stage %d at %v for %v", e.Device, e.Pipeline, Op{Kind: e.Op.Kind, Micro: e.Op.Micro}, e.Op.Stage, 1e3*e.Start, 1e3*(e.End-e.Start))
		if found[want] != 1 {
			t.Errorf("%q is there %d times; want it once", want, found[want])
		}
	}
}
