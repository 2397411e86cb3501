package spec

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
)

// Counts are those that may change between two generations of a job. 0: as it was; of the groups, at most as many as it was that divide the pipelines.
type Counts struct{ Stages, Pipelines, Groups int }

// mostTried bounds how many other counts are tried for the nearest that fits.
const mostTried = 32

// mostCount is the most stages, and pipelines, that a job file may ask for.
const mostCount = 1024

// Recount is the spec of a job that goes on with other counts. What depended on them, and was not the user's, is decided anew: the cut, the
// averaging, the memory. The rest stays as it was. Where the counts do not fit, problems say why, and the first one has the nearest that
// do, if there are any.
func (s *Spec) Recount(c Counts, f Facts) (*Spec, strictyaml.Problems) {
	s = s.Admitted()
	if s.Job.Open() {
		return nil, refusal("stages", "", "its counts are not chosen yet; resume it without --stages, --pipelines and --groups")
	}
	was := Counts{Stages: int(s.Job.Stages), Pipelines: int(s.Job.Pipelines)}
	if c.Stages == 0 {
		c.Stages = was.Stages
	}
	if c.Pipelines == 0 {
		c.Pipelines = was.Pipelines
	}
	for _, one := range []struct {
		key   string
		count int
	}{{"stages", c.Stages}, {"pipelines", c.Pipelines}} {
		if one.count < 1 || one.count > mostCount {
			return nil, refusal(one.key, "", "%s: %d; want 1 to %d, as in a job file", one.key, one.count, mostCount)
		}
	}
	if c.Groups > 1 && c.Pipelines%c.Groups != 0 {
		return nil, refusal("groups", strconv.Itoa(divisor(c.Pipelines, c.Groups)), "groups is %d: %d pipelines cannot be in as many groups of equal size", c.Groups, c.Pipelines)
	}
	if f.Model == nil {
		m, err := s.BuildModel()
		if err != nil {
			return nil, refusal("model", "", "model: %v", err)
		}
		f.Model = m
	}
	if s.UserPlan != nil {
		if c.Stages != was.Stages {
			return nil, refusal("stages", strconv.Itoa(was.Stages), "the plan that the job was submitted with has %d stages; only pipelines can change", was.Stages)
		}
		plan, _, err := s.Plan()
		if err != nil {
			return nil, refusal("schedule", "", "schedule: %v", err)
		}
		f.UserPlan = plan
	}
	out, problems := s.recount(c, f)
	if len(problems) > 0 {
		if near := s.nearest(c, f); near != (Counts{}) {
			problems[0].Nearest = fmt.Sprintf("%d stages and %d pipelines", near.Stages, near.Pipelines)
		}
		return nil, problems
	}
	return out, nil
}

// divisor is the largest divisor of n below most.
func divisor(n, most int) int {
	most--
	for n%most != 0 {
		most--
	}
	return most
}

func refusal(key, nearest, format string, args ...any) strictyaml.Problems {
	return strictyaml.Problems{{Key: key, Nearest: nearest, Message: fmt.Sprintf(format, args...)}}
}

// recount resolves the job with counts that are all given.
func (s *Spec) recount(c Counts, f Facts) (*Spec, strictyaml.Problems) {
	j, was := s.Job, s.Job
	j.Stages, j.Pipelines = job.Count(c.Stages), job.Count(c.Pipelines)
	if c.Groups > 0 {
		j.Groups = c.Groups
	}
	for j.Groups > 1 && c.Pipelines%j.Groups != 0 {
		j.Groups--
	}
	if j.Stages != was.Stages {
		for _, n := range []*job.Count{&j.Devices.CPU.Count, &j.Devices.Emulated.Count} {
			if *n == was.Stages || *n > 0 && *n < j.Stages {
				*n = j.Stages
			}
		}
		if j.Devices.GPU.Count == was.Stages {
			j.Devices.GPU.Count = job.Auto
		}
		if len(j.Recompute) > 1 {
			j.Recompute = []string{job.AutoRecompute}
		}
		j.Tuning = job.TuneByRules // what was measured was measured of another cut
	}
	reopenAveraging(&j, int(was.Pipelines))
	found, problems := Resolve(&j, f, nil)
	if len(problems) > 0 {
		return nil, problems
	}
	out := *s
	out.Why, out.Warnings, out.Report, out.Before = nil, nil, nil, nil
	if j.Stages == was.Stages && s.Layout != nil {
		found.Layout = s.Layout
	}
	out.take(found)
	if j.Groups != was.Groups {
		out.Why = append(out.Why, fmt.Sprintf("its pipelines are in %s; before, they were in %d", words.Count(j.Groups, "group"), s.Groups()))
	}
	if j.Stages != was.Stages || j.Pipelines != was.Pipelines {
		out.Why = append(out.Why, fmt.Sprintf("the job goes on with %s and %s; before, it had %d and %d",
			words.Count(c.Stages, "stage"), words.Count(c.Pipelines, "pipeline"), was.Stages, was.Pipelines))
	}
	return &out, nil
}

// nearest are the counts nearest to c that fit; zero where none of those that are tried does.
func (s *Spec) nearest(c Counts, f Facts) Counts {
	var all []Counts
	for stages := 1; stages <= min(2*c.Stages, len(f.Model.Layers)); stages++ {
		for pipelines := 1; pipelines <= c.Pipelines; pipelines++ {
			all = append(all, Counts{Stages: stages, Pipelines: pipelines})
		}
	}
	away := func(o Counts) int { return abs(o.Stages-c.Stages) + abs(o.Pipelines-c.Pipelines) }
	f.brief = true // what else would make them fit is of those that were asked for
	slices.SortStableFunc(all, func(a, b Counts) int { return away(a) - away(b) })
	for _, o := range all[:min(len(all), mostTried)] {
		if _, problems := s.recount(o, f); len(problems) == 0 {
			return o
		}
	}
	return Counts{}
}

func abs(n int) int { return max(n, -n) }
