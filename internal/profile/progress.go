package profile

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/tuner"
)

// progress says how far a tuning is. The total is the most steps that may be needed: a repeated run counts as the same step, and a
// step that is not needed is taken off. So the total never grows.
type progress struct {
	say   func(api.TuneProgress) // nil: nobody listens
	begun map[string]bool        // steps
	total int                    // of steps; 0 while it is not known
}

// step says that one begins, or begins again: steps differ in their texts, or in which run of that text they are.
func (p *progress) step(run int, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	key := fmt.Sprint(run, text)
	if p.begun[key] {
		text += ", again"
	}
	if p.begun == nil {
		p.begun = map[string]bool{}
	}
	p.begun[key] = true
	if p.say != nil {
		p.say(api.TuneProgress{Done: len(p.begun) - 1, Total: max(p.total, len(p.begun)), Text: text})
	}
}

// left says how many steps there are at most after those that have begun.
func (p *progress) left(steps int) { p.total = len(p.begun) + max(steps, 0) }

// drop takes a step off that is not needed.
func (p *progress) drop() { p.total = max(p.total-1, len(p.begun)) }

// steps is the most that profiling a space, the search and the runs of the best candidates take.
func (s *Session) steps(space tuner.Space) int {
	sizes := s.subject.sizes(space)
	n := 1 + repeats*max(s.config.Runs, 0)
	for _, target := range space.Targets {
		n += len(s.subject.layeredSizes(sizes)) + len(sizes)
		if s.alone(target) == 1 && s.subject.several(target) {
			n += len(sizes)
		}
	}
	return n
}

// alone is how many pipelines the merged readings of a target have: two where the job has no use for one.
func (s *Session) alone(target tuner.Target) int {
	if s.config.Request.Spec.Job.Pipelines > 1 && s.subject.several(target) {
		return 2
	}
	return 1
}
