package spec_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
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
	s.UserPlan = []string{"F1 B1"}
	if _, problems = s.Recount(spec.Counts{Stages: 2}, spec.Facts{Cores: 2}); len(problems) == 0 || problems[0].Nearest != "4" {
		t.Errorf("another number of stages than the user's plan: %v", problems)
	}
}
