package spec_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
)

// TestAJobGoesOnWithFewerStages, the most first, and back to what it was at first, however often it was split anew.
func TestAJobGoesOnWithFewerStages(t *testing.T) {
	s, err := emulatedSpec(t) // of 4 stages
	if err != nil {
		t.Fatal(err)
	}
	s.Job.MinStages = 2
	var said []int
	var two *spec.Spec
	for fewer, err := range s.Fewer(spec.Facts{Cores: 2}, true, "node c is gone") {
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, fewer.Stages())
		if !slices.Contains(fewer.Why, "node c is gone") {
			t.Errorf("why: %q", fewer.Why)
		}
		two = fewer
	}
	if !slices.Equal(said, []int{3, 2}) {
		t.Fatalf("it may have %v stages", said)
	}
	if why := two.Whole(); why != "min_stages is 2" {
		t.Errorf("with 2 stages it is whole since %q", why)
	}
	two.Job.MinStages = 0
	text, err := spec.Encode(two)
	if err != nil {
		t.Fatal(err)
	}
	two, err = spec.Decode("1", text, nil)
	if err != nil {
		t.Fatal(err)
	}
	for one, err := range two.Fewer(spec.Facts{Cores: 2}, true, "node b is gone") {
		if err != nil {
			t.Fatal(err)
		}
		before, err := one.Original()
		if err != nil || before.Stages() != 4 || !slices.Equal(before.Split(), s.Split()) || before.Before != nil {
			t.Errorf("before: %+v (%v)", before, err)
		}
	}
	if own, err := s.Original(); own != nil || err != nil {
		t.Errorf("a job that was never split anew: %v (%v)", own, err)
	}
	if again, problems := two.Recount(spec.Counts{Stages: 4}, spec.Facts{Cores: 2}); len(problems) > 0 || again.Before != nil {
		t.Errorf("what somebody chooses is no loss: %v, %s", problems, again.Before)
	}
}

// TestAJobOfThePlanOfAUserKeepsItsStages, and so does one without more than it may have.
func TestAJobOfThePlanOfAUserKeepsItsStages(t *testing.T) {
	for name, change := range map[string]func(*spec.Spec){
		"its plan is the user's":        func(s *spec.Spec) { s.UserPlan = []string{"F1 B1"} },
		"min_stages is 9":               func(s *spec.Spec) { s.Job.MinStages = 9 },
		"it has one stage":              func(s *spec.Spec) { s.Job.Stages = 1 },
		"its counts are not chosen yet": func(s *spec.Spec) { s.Job.Pipelines = 0 },
	} {
		s, err := emulatedSpec(t)
		if err != nil {
			t.Fatal(err)
		}
		change(s)
		for fewer, err := range s.Fewer(spec.Facts{Cores: 2}, true, "") {
			if fewer != nil || err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v (%v)", name, fewer, err)
			}
		}
	}
}

// TestAJobGoesOnWithFewerGroups before it goes on with fewer stages, and each group keeps its pipelines.
func TestAJobGoesOnWithFewerGroups(t *testing.T) {
	s, err := emulatedSpec(t) // of 4 stages
	if err != nil {
		t.Fatal(err)
	}
	s.Job.Groups, s.Job.Pipelines, s.Job.MinStages = 3, 6, 3
	var said []string
	for fewer, err := range s.Fewer(spec.Facts{Cores: 2}, true, "node c is gone") {
		if err != nil {
			t.Fatal(err)
		}
		if fewer.Job.Shared() != 2 {
			t.Errorf("%s have %d pipelines each", fewer.Shape(), fewer.Job.Shared())
		}
		if before, err := fewer.Original(); err != nil || before.Groups() != 3 || before.Job.Pipelines != 6 {
			t.Errorf("before, there were %+v (%v)", before, err)
		}
		said = append(said, fewer.Shape())
	}
	if want := []string{"2 groups of 4 stages", "4 stages", "3 stages"}; !slices.Equal(said, want) {
		t.Errorf("it may have %q, want %q", said, want)
	}
	var alone []string
	for fewer, err := range s.Fewer(spec.Facts{Cores: 2}, false, "node c is gone") {
		if err != nil {
			t.Fatal(err)
		}
		alone = append(alone, fewer.Shape())
	}
	if !slices.Equal(alone, said[:2]) {
		t.Errorf("with all its stages it may have %q", alone)
	}
	other, problems := s.Recount(spec.Counts{Pipelines: 4}, spec.Facts{Cores: 2})
	if len(problems) > 0 || other.Groups() != 2 {
		t.Errorf("with 4 pipelines there are %d groups of 3: %v", other.Groups(), problems)
	}
	for _, groups := range []int{1, 2} {
		regrouped, problems := s.Recount(spec.Counts{Groups: groups}, spec.Facts{Cores: 2})
		if len(problems) > 0 || regrouped.Groups() != groups || regrouped.Job.Pipelines != 6 {
			t.Fatalf("in %d groups: %+v, %v", groups, regrouped, problems)
		}
		if why := strings.Join(regrouped.Why, "; "); strings.Contains(why, "the job goes on with") {
			t.Errorf("%d groups, with as many stages and pipelines as before: %s", groups, why)
		}
	}
	if _, problems := s.Recount(spec.Counts{Groups: 4}, spec.Facts{Cores: 2}); len(problems) != 1 || problems[0].Key != "groups" || problems[0].Nearest != "3" {
		t.Errorf("6 pipelines in 4 groups: %v", problems)
	}
}
