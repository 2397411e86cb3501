package spec

import (
	"errors"
	"fmt"
	"iter"

	"github.com/avgpipe/avgpipe/internal/words"
)

// Whole says why a job never goes on with fewer groups of pipelines, or fewer stages, by itself; "": it may.
func (s *Spec) Whole() string {
	switch {
	case s.Job.Open():
		return "its counts are not chosen yet"
	case s.Groups() > 1:
		return ""
	case s.UserPlan != nil:
		return "its plan is the user's"
	case s.Job.Stages == 1:
		return "it has one stage"
	case int(s.Job.Stages) <= s.Job.MinStages:
		return fmt.Sprintf("min_stages is %d", s.Job.MinStages)
	}
	return ""
}

// Fewer are the specs of a job that goes on with fewer groups of pipelines, or, where stages is true, with one and fewer stages, by itself, with what the facts say that there
// is: one for each number, the largest first, down to the fewest that the job allows; or why there is none of that number. Each keeps the spec that the job had at
// first, and says why in Why.
func (s *Spec) Fewer(f Facts, stages bool, why string) iter.Seq2[*Spec, error] {
	s = s.Admitted()
	return func(yield func(*Spec, error) bool) {
		before, err := s.Before, error(nil)
		if before == nil {
			before, err = Encode(s)
		}
		if no := s.Whole(); no != "" {
			err = errors.New(no)
		}
		if err == nil && f.Model == nil {
			f.Model, err = s.BuildModel()
		}
		if err == nil && s.UserPlan != nil { // which each group has
			f.UserPlan, _, err = s.Plan()
		}
		if err != nil {
			yield(nil, err)
			return
		}
		for _, c := range s.fewer(stages) {
			out, problems := s.recount(c, f)
			if len(problems) > 0 {
				out, err = nil, fmt.Errorf("with %s: %s", c.shape(), problems[0].Message)
			} else {
				out.Before, out.Why, err = before, append(out.Why, why), nil
			}
			if !yield(out, err) {
				return
			}
		}
	}
}

// Shape says for people how many stages there are, and of how many groups of pipelines.
func (s *Spec) Shape() string { return Counts{Stages: s.Stages(), Groups: s.Groups()}.shape() }

func (c Counts) shape() string {
	if c.Groups > 1 {
		return fmt.Sprintf("%d groups of %s", c.Groups, words.Count(c.Stages, "stage"))
	}
	return words.Count(c.Stages, "stage")
}

// fewer are the counts of Fewer.
func (s *Spec) fewer(stages bool) (all []Counts) {
	shared := s.Job.Shared()
	for groups := s.Groups() - 1; groups > 0; groups-- {
		all = append(all, Counts{Stages: int(s.Job.Stages), Pipelines: groups * shared, Groups: groups})
	}
	for n := int(s.Job.Stages) - 1; stages && s.UserPlan == nil && n >= max(1, s.Job.MinStages); n-- {
		all = append(all, Counts{Stages: n, Pipelines: shared, Groups: 1})
	}
	return all
}

// Original is the spec that the job had before it went on with fewer stages; nil: it has its own.
func (s *Spec) Original() (*Spec, error) {
	if s.Before == nil {
		return nil, nil
	}
	out, err := Decode(s.Job.Name, s.Before, nil)
	if err != nil {
		return nil, fmt.Errorf("what the job had before it was split into fewer stages: %w", err)
	}
	return out, nil
}
