package schedule

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// generator is one row of the table of schedules.
type generator struct {
	name  string
	about string // one line for help texts
	// generate returns the plan and why it looks as it does. The request is valid. It may pin more than
	// Request.PinnedLimit where the schedule has no choice; Generate refuses that.
	generate func(Request) (Plan, string)
}

// schedules holds every schedule. To add one, add a file and a row: docs/add-a-schedule.md.
var schedules = []generator{
	{"gpipe", "all forwards, then all backwards", gpipe},
	{"1f1b", "one forward, one backward after the least warm-up", oneForwardOneBackward},
	{"afp", "1f1b with forwards run ahead to hide the links", advanceForward},
}

// Names lists the schedules that Generate knows, in the order of the table.
func Names() []string {
	names := make([]string, len(schedules))
	for i, s := range schedules {
		names[i] = s.name
	}
	return names
}

// About describes a schedule in one line; empty for a name that Generate does not know.
func About(name string) string {
	for _, s := range schedules {
		if s.name == name {
			return s.about
		}
	}
	return ""
}

// Request says what a plan is for.
type Request struct {
	Stages       int
	MicroBatches int
	// Costs are the measured times, where they are known; nil where they are not. afp sizes its warm-up by them.
	Costs *Costs
	// PinnedLimit is, per stage, how many micro-batches its memory holds; 0 is no limit on that stage, nil none at all.
	PinnedLimit []int
}

// maxOps bounds a generated plan: 1 GiB of ops.
const maxOps = 1 << 25

// Validate refuses a request that no schedule can answer. Limits that a plan exceeds are for Generate.
func (r Request) Validate() error {
	if r.Stages < 1 {
		return fmt.Errorf("%d stages; want at least 1", r.Stages)
	}
	if r.MicroBatches < 1 {
		return fmt.Errorf("%d micro-batches; want at least 1", r.MicroBatches)
	}
	if r.MicroBatches > maxOps/2/r.Stages {
		return fmt.Errorf("%s on %s are more than the %d ops a plan may have; want fewer of either",
			countOf(r.MicroBatches, "micro-batch"), countOf(r.Stages, "stage"), maxOps)
	}
	if r.Costs != nil {
		if err := r.Costs.Validate(r.Stages); err != nil {
			return err
		}
	}
	return validateLimit("pinned", "stage", r.PinnedLimit, r.Stages)
}

// Generate returns the plan of the named schedule, and the reason for its shape in words for the user. The plan passes
// Check. An unknown name is refused with the nearest known one, and so is a plan that pins more than the limit.
func Generate(name string, r Request) (Plan, string, error) {
	for _, s := range schedules {
		if s.name != name {
			continue
		}
		if err := r.Validate(); err != nil {
			return nil, "", fmt.Errorf("schedule %s: %w", name, err)
		}
		plan, reason := s.generate(r)
		if err := withinLimit(plan, r.PinnedLimit); err != nil {
			return nil, "", fmt.Errorf("schedule %s: %w", name, err)
		}
		return plan, reason + fewMicroBatches(r), nil
	}
	guess := ""
	if near := nearest.Word(name, Names()); near != "" {
		guess = fmt.Sprintf(" did you mean %q?", near)
	}
	return nil, "", fmt.Errorf("schedule %q is unknown;%s Known: %s", clip(name, 40), guess, strings.Join(Names(), ", "))
}

// withinLimit refuses a plan that pins more than a stage may hold, and says what would fit.
func withinLimit(plan Plan, limits []int) error {
	pinned := Pinned(plan)
	for k, limit := range limits {
		if limit == 0 || pinned[k] <= limit {
			continue
		}
		if least := len(plan) - k; pinned[k] > least && least <= limit {
			return fmt.Errorf("stage %d pins %s, its limit is %d; 1f1b and afp pin as few as %d there",
				k, countOf(pinned[k], "micro-batch"), limit, least)
		}
		return fmt.Errorf("stage %d pins %s, its limit is %d; use smaller micro-batches, or no more than %d of them",
			k, countOf(pinned[k], "micro-batch"), limit, limit)
	}
	return nil
}

// fewMicroBatches warns where the batch cannot fill the pipeline: GPipe (Huang et al. 2019, section 2.3) has a bubble of
// (K-1)/(M+K-1) even when links cost nothing, and reordering whole backwards makes none smaller.
func fewMicroBatches(r Request) string {
	if r.MicroBatches >= r.Stages {
		return ""
	}
	idle := 100 * float64(r.Stages-1) / float64(r.MicroBatches+r.Stages-1)
	return fmt.Sprintf("; %s cannot fill %s: at least %.0f%% of the time is bubble",
		countOf(r.MicroBatches, "micro-batch"), countOf(r.Stages, "stage"), idle)
}

// forwardsAhead is the order all schedules of one whole backward share (AvgPipe: Chen et al. 2023; here with 0-based
// stages): stage k runs warmups[k] forwards, then for each micro-batch its backward and the next forward.
//
//	F0 .. F(w-1);  for j = 0..M-1: Bj, then F(w+j) if there is one
func forwardsAhead(warmups []int, microBatches int) Plan {
	plan := make(Plan, len(warmups))
	backing := make([]Op, 0, 2*microBatches*len(warmups))
	for k, w := range warmups {
		start := len(backing)
		for m := range w {
			backing = append(backing, Op{Kind: Forward, Stage: k, Micro: m})
		}
		for m := range microBatches {
			backing = append(backing, Op{Kind: Backward, Stage: k, Micro: m})
			if w+m < microBatches {
				backing = append(backing, Op{Kind: Forward, Stage: k, Micro: w + m})
			}
		}
		plan[k] = backing[start:len(backing):len(backing)]
	}
	return plan
}

// countOf prints a number and its noun: 1 stage, 2 stages, 3 micro-batches.
func countOf(n int, noun string) string {
	switch {
	case n == 1:
	case strings.HasSuffix(noun, "ch"):
		noun += "es"
	default:
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}
