package lint

import (
	"fmt"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// here is an environment in which every variable is set: whether a file's data exist is not the question.
var here = job.Environment{
	Lookup:    func(string) (string, bool) { return "/somewhere", true },
	Schedules: schedule.Names(),
}

func TestExamplesAreJobFiles(t *testing.T) {
	for _, name := range allFiles(t, func(name string) bool { return path.Dir(name) == "examples" && path.Ext(name) == ".yaml" }) {
		if _, _, err := job.Parse(name, []byte(read(t, name)), nil, here); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// What the README shows is what people try first.
func TestJobInReadmeIsAJobFile(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(read(t, "README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("README.md shows no job file")
	}
	for _, block := range blocks {
		if _, _, err := job.Parse("README.md", []byte(block[1]), nil, here); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// What the README draws is what the program draws.
func TestPlanInReadmeIsThePlan(t *testing.T) {
	readme := read(t, "README.md")
	draw := func(name string) (drawing string, makespan float64) {
		costs := schedule.Uniform(3, 1, 2, 0.5)
		plan, _, err := schedule.Generate(name, schedule.Request{Devices: 3, MicroBatches: 6, Costs: &costs})
		if err != nil {
			t.Fatal(err)
		}
		result, err := schedule.Simulate(plan, costs)
		if err != nil {
			t.Fatal(err)
		}
		return schedule.DrawText(result, 0), result.Makespan
	}
	drawing, _ := draw("afp")
	if !strings.Contains(readme, "```\n"+drawing+"```") {
		t.Errorf("README.md does not show the plan of its command:\n%s", drawing)
	}
	_, makespan := draw("1f1b")
	if claim := fmt.Sprintf("1f1b takes %g for the same batch", makespan); !strings.Contains(readme, claim) {
		t.Errorf("README.md does not say %q", claim)
	}
}
