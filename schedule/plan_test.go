package schedule

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

const twoStages = "F0 F1 B0 B1\nF0 I0 W0 F1 B1"

func mustParse(t *testing.T, text string) Plan {
	t.Helper()
	plan, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func TestPlanIsALineAStageInTextAndAnArrayOfLinesInJSON(t *testing.T) {
	plan := mustParse(t, twoStages)
	if text := plan.String(); text != twoStages {
		t.Errorf("text %q; want %q", text, twoStages)
	}
	data, err := json.Marshal(struct{ Plan Plan }{plan})
	if want := `{"Plan":["F0 F1 B0 B1","F0 I0 W0 F1 B1"]}`; err != nil || string(data) != want {
		t.Errorf("JSON %s, %v; want %s", data, err, want)
	}
}

func TestErrorsSayWhatAndWhere(t *testing.T) {
	for _, c := range []struct {
		text     string
		problem  Problem
		device   int
		position int
	}{
		{"F0 F1 B0 B1\nF0 Q0", Malformed, 1, 1},
		{"F0 F2 B0 B2", OutOfRange, 0, 1},
		{"F0 F1 B0 B1\nF0 F0 B0 B1", Repeated, 1, 1},
		{"F0 F1 B0 B1\nF0 F1 W0 B1 I0", Premature, 1, 2},
		{"F0 F1 B0", Missing, 0, 3},
		{"F0 F1 B0 B1\nF0 F1 B1 B0", Misordered, 0, 2},
		{"F0 B0 F1 B1\nF0 F1 B0 B1", Deadlock, 0, 1},
	} {
		plan, err := Parse(c.text)
		if err == nil {
			err = Check(plan, 2)
		}
		var fault *PlanError
		if !errors.As(err, &fault) {
			t.Errorf("%q: error %v; want a *PlanError", c.text, err)
			continue
		}
		if fault.Problem != c.problem || fault.Device != c.device || fault.Position != c.position {
			t.Errorf("%q: %v at stage %d, position %d; want %v at %d, %d",
				c.text, fault.Problem, fault.Device, fault.Position, c.problem, c.device, c.position)
		}
	}
}

func TestCheckRefusesWhatTheGrammarCannotSay(t *testing.T) {
	for _, c := range []struct {
		plan Plan
		want string
	}{
		{nil, "no devices"},
		{Plan{nil}, "the device has no work"},
		{Plan{{{Kind: 9}, {Kind: Backward}}}, "kind 9 does not exist"},
		{Plan{{{Micro: -1}, {Kind: Backward}}}, "want a number from 0 to 0"},
	} {
		if err := Check(c.plan, 1); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v; want %q in it", c.plan, err, c.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(twoStages)
	f.Add("F0 B\n")
	f.Add("0F0 3F0 3I0 0I0 3W0 0W0\n1F0,2F0,,2B0,1B0")
	f.Add("F0 F1 B0 U0 F2@1 B1 U1 B2 U2\nF0 B0 U0 F1@1 B1 U1 F2@2 B2 U2")
	f.Add("  W1\t\x00\xff")
	f.Fuzz(func(t *testing.T, text string) {
		plan, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(plan.String())
		if err != nil || !slices.EqualFunc(again, plan, slices.Equal) {
			t.Fatalf("%q parsed as\n%v\nwhich parses as\n%v, %v", text, plan, again, err)
		}
		// No plan, however odd, makes what consumes it fail other than by an error.
		if Check(plan, plan.MicroBatches()) != nil {
			return
		}
		for _, peaks := range [][]int{InFlight(plan), Warmup(plan)} {
			if len(peaks) != len(plan) {
				t.Fatalf("%v\n%d peaks for %d devices", plan, len(peaks), len(plan))
			}
		}
		for _, peaks := range [][]int{InFlightByStage(plan), HalvesByStage(plan), VersionsByStage(plan), GradientDelay(plan)} {
			if len(peaks) != plan.Stages() {
				t.Fatalf("%v\n%d peaks for %d stages", plan, len(peaks), plan.Stages())
			}
		}
		result, err := Simulate(plan, Uniform(plan.Stages(), 1, 2, 0.5))
		if err != nil {
			t.Fatalf("%v\npasses Check, and cannot be simulated: %v", plan, err)
		}
		DrawText(result, 100)
	})
}
