package spec_test

import (
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
)

func TestAJobGoesOnWithOtherCounts(t *testing.T) {
	s, err := emulatedSpec(t)
	if err != nil {
		t.Fatal(err)
	}
	same, problems := s.Recount(spec.Counts{}, spec.Facts{Cores: 2})
	if len(problems) > 0 || same.Job.Averaging != s.Job.Averaging || *same.Budget != *s.Budget || len(same.Split()) != 4 {
		t.Fatalf("the same counts: %v, averaging %+v, budget %+v", problems, same.Job.Averaging, same.Budget)
	}
	other, problems := s.Recount(spec.Counts{Stages: 2, Pipelines: 4}, spec.Facts{Cores: 2})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	if other.Stages() != 2 || len(other.Split()) != 2 || other.Job.Devices.Emulated.Count != 2 || other.Job.Pipelines != 4 {
		t.Errorf("%d stages cut as %v on %d devices, %d pipelines", other.Stages(), other.Split(), other.Job.Devices.Emulated.Count, other.Job.Pipelines)
	}
	if got := float64(other.Job.Averaging.RateScale); got != 2 { // the root of 4
		t.Errorf("lr_scale stays at %v, that of 2 pipelines", got)
	}
	if other.Budget.Samples < 8*16 || other.Budget.Steps != 2 {
		t.Errorf("the budget is %+v", other.Budget)
	}
	if plan, _, err := other.Plan(); err != nil || plan.Stages() != 2 {
		t.Errorf("plan of %d stages (%v)", plan.Stages(), err)
	}
}

func TestCountsThatDoNotFitAreRefusedWithTheNearest(t *testing.T) {
	s, err := emulatedSpec(t)
	if err != nil {
		t.Fatal(err)
	}
	_, problems := s.Recount(spec.Counts{Stages: 9}, spec.Facts{Cores: 2})
	if len(problems) == 0 || problems[0].Nearest != "8 stages and 2 pipelines" || !strings.Contains(problems[0].Message, "9 stages") {
		t.Errorf("9 stages: %v", problems)
	}
	if _, problems = s.Recount(spec.Counts{Pipelines: 4, Groups: 3}, spec.Facts{Cores: 2}); problems.Error() != "groups is 3: 4 pipelines cannot be in as many groups of equal size\n  nearest: 2" {
		t.Errorf("3 groups of 4 pipelines: %v", problems)
	}
	s.UserPlan = []string{"F1 B1"}
	if _, problems = s.Recount(spec.Counts{Stages: 2}, spec.Facts{Cores: 2}); len(problems) == 0 || problems[0].Nearest != "4" {
		t.Errorf("another number of stages than the user's plan: %v", problems)
	}
}

// TestAnAlphaThatMorePipelinesCannotHaveIsRefused where a job is to go on with them, with its bound for them and the most that it allows. One that was decided by their number is decided anew.
func TestAnAlphaThatMorePipelinesCannotHaveIsRefused(t *testing.T) {
	for given, want := range map[string]string{
		"0.6":  "averaging.alpha is 0.6: with pull: elastic and 4 pipelines at most 2/(4+1) = 0.4, beyond which center and pipelines oscillate with growing distance",
		"auto": "",
	} {
		s, err := emulatedSpec(t, "averaging={pull: elastic, alpha: "+given+"}")
		if err != nil {
			t.Fatal(err)
		}
		more, problems := s.Recount(spec.Counts{Pipelines: 4}, spec.Facts{Cores: 2})
		switch {
		case want == "" && (len(problems) > 0 || more.Job.Averaging.Alpha != 0.25):
			t.Errorf("alpha %s: %v, %+v", given, problems, more)
		case want != "" && (len(problems) == 0 || !strings.Contains(problems[0].Message, want) || problems[0].Nearest != "4 stages and 2 pipelines"):
			t.Errorf("alpha %s: %v", given, problems)
		}
	}
}

// TestCountsThatNoJobFileMayAskForAreRefusedAtOnce asks for so many that only to weigh them would take minutes.
func TestCountsThatNoJobFileMayAskForAreRefusedAtOnce(t *testing.T) {
	s, err := emulatedSpec(t)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []spec.Counts{{Pipelines: 1025}, {Pipelines: math.MaxInt}, {Stages: 1025}, {Stages: math.MaxInt, Pipelines: math.MaxInt}, {Pipelines: -1}} {
		_, problems := s.Recount(c, spec.Facts{Cores: 2})
		if len(problems) != 1 || !strings.Contains(problems[0].Message, "want 1 to 1024, as in a job file") {
			t.Errorf("%+v: %v", c, problems)
		}
	}
	for _, name := range []string{"Stages", "Pipelines"} {
		if f, _ := reflect.TypeFor[job.Job]().FieldByName(name); !strings.Contains(f.Tag.Get("rule"), "min=1 max=1024 ") {
			t.Errorf("a job file's %s has the rule %q", name, f.Tag.Get("rule"))
		}
	}
}

// TestAThousandPipelinesThatDoNotFitAreRefusedWithHowManyDo: as many fit as are named, and one more does not.
func TestAThousandPipelinesThatDoNotFitAreRefusedWithHowManyDo(t *testing.T) {
	j, facts := parsed(t, strings.ReplaceAll(emulatedJob, "devices: {kind: emulated, emulated: {forward: 0.1ms}}", "devices: {kind: cpu}"), 0)
	found, problems := spec.Resolve(j, facts, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s, err := spec.New(found, facts.Model, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	host := spec.Facts{Cores: 2, MemoryBytes: 200 << 20}
	_, problems = s.Recount(spec.Counts{Pipelines: 1024}, host)
	var n int
	if len(problems) != 1 {
		t.Fatalf("1024 pipelines in 200 MB: %v", problems)
	}
	if _, err := fmt.Sscanf(problems[0].Nearest, "pipelines: %d", &n); err != nil {
		t.Fatalf("the nearest is %q: %v", problems[0].Nearest, err)
	}
	if _, problems = s.Recount(spec.Counts{Pipelines: n}, host); len(problems) > 0 {
		t.Errorf("%d pipelines do not fit: %v", n, problems)
	}
	if _, problems = s.Recount(spec.Counts{Pipelines: n + 1}, host); len(problems) == 0 {
		t.Errorf("%d pipelines fit too", n+1)
	}
}
