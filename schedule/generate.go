package schedule

import (
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/words"
)

// generator is one row of the table of schedules.
type generator struct {
	name  string
	about string // one line for help texts
	// chunks is how many stages a device may have.
	chunks chunkRule
	// steps is where the optimizer steps.
	steps steps
	// generate returns the plan and why it looks as it does. The request is valid. It may have more in flight than
	// Request.InFlightLimit where the schedule has no choice; Generate refuses that.
	generate func(Request) (Plan, string)
}

// schedules holds every schedule. To add one, add a file and a row: docs/add-a-schedule.md.
var schedules = []generator{
	{"gpipe", "all forwards, then all backwards", oneStage, afterBatch, gpipe},
	{"1f1b", "one forward, one backward after the least warm-up", oneStage, afterBatch, oneForwardOneBackward},
	{"afp", "1f1b with forwards run ahead to hide the links", oneStage, afterBatch, advanceForward},
	{"interleaved", "1f1b over several stages a device", chunkRule{auto: 2, least: 2, most: maxOps}, afterBatch, interleaved},
	{"zb-h1", "1f1b with weight halves of the backward in its bubbles", oneStage, afterBatch, zeroBubbleH1},
	{"zb-h2", "zb-h1 with twice the forwards ahead", oneStage, afterBatch, zeroBubbleH2},
	{"zb-v", "two stages a device in a V, weight halves in the bubbles", chunkRule{auto: 2, least: 2, most: 2}, afterBatch, zeroBubbleV},
	{"pipedream", "1f1b with an update after each micro-batch", oneStage, insideBatch, pipeDream},
	{"pipedream-2bw", "1f1b with updates and two versions of the weights", oneStage, insideBatch, pipeDream2BW},
}

// steps is where the optimizer steps: after the batch, for which the pipeline drains, or in the plan, which then runs on across batches.
type steps bool

const (
	afterBatch  steps = false
	insideBatch steps = true
)

// chunkRule is how many stages a device has: auto where the request does not say.
type chunkRule struct{ auto, least, most int }

var oneStage = chunkRule{auto: 1, least: 1, most: 1}

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
	if s, err := find(name); err == nil {
		return s.about
	}
	return ""
}

// Request says what a plan is for.
type Request struct {
	Devices      int // that the pipeline is laid over: the pipeline-parallel size
	MicroBatches int // in a batch
	// RoundBatches is how many batches there are between two moments at which the pipeline must be drained: those of a round. A schedule that
	// steps inside of its batches runs on across them (see Plan.Batches); one that steps after a batch drains for that. 0 is 1.
	RoundBatches int
	// Chunks is how many virtual stages each device has; 0 is what the schedule takes by default. The plan has Devices*Chunks stages.
	Chunks int
	// Costs are the measured times, where they are known; nil where they are not. afp sizes its warm-up by them.
	Costs *Costs
	// InFlightLimit is, per device, how many micro-batches its memory holds, counted on each of its stages; 0 is no limit on that
	// device, nil none at all.
	InFlightLimit []int
}

// maxOps bounds a generated plan: 1 GiB of ops.
const maxOps = 1 << 25

// Validate refuses a request that no schedule can answer. Limits that a plan exceeds are for Generate.
func (r Request) Validate() error {
	if r.Devices < 1 {
		return fmt.Errorf("%d stages; want at least 1", r.Devices)
	}
	if r.MicroBatches < 1 {
		return fmt.Errorf("%d micro-batches; want at least 1", r.MicroBatches)
	}
	if r.RoundBatches < 0 {
		return fmt.Errorf("%d batches in a round; want at least 1, or 0 for one", r.RoundBatches)
	}
	if r.Chunks < 0 {
		return fmt.Errorf("%d chunks; want at least 1, or 0 for what the schedule takes by default", r.Chunks)
	}
	chunks := max(1, r.Chunks)
	if r.Devices > maxOps/3/chunks || r.MicroBatches > maxOps/3/chunks/r.Devices {
		of := words.Count(r.Devices, "stage")
		if chunks > 1 {
			of = fmt.Sprintf("%d devices of %s", r.Devices, words.Count(chunks, "stage"))
		}
		return fmt.Errorf("%s on %s are more than the %d ops a plan may have; want fewer of either",
			words.Count(r.MicroBatches, "micro-batch"), of, maxOps)
	}
	if r.Costs != nil {
		if err := r.Costs.Validate(r.Devices * chunks); err != nil {
			return err
		}
	}
	if r.InFlightLimit != nil && len(r.InFlightLimit) != r.Devices {
		return fmt.Errorf("%d in-flight limits for %s; want one a device, or none", len(r.InFlightLimit), words.Count(r.Devices, "device"))
	}
	for d, limit := range r.InFlightLimit {
		if limit < 0 {
			return fmt.Errorf("in-flight limit of device %d is %d; want 1 or more, or 0 for no limit", d, limit)
		}
	}
	return nil
}

// Generate returns the plan of the named schedule, and the reason for its shape in words for the user. The plan passes
// Check. An unknown name is refused with the nearest known one, and so are chunks that the schedule has no use for and a plan
// with more in flight than the limit.
func Generate(name string, r Request) (Plan, string, error) {
	s, err := find(name)
	if err != nil {
		return nil, "", err
	}
	if r.Chunks, err = s.resolveChunks(r.Chunks); err != nil {
		return nil, "", err
	}
	if err := r.Validate(); err != nil {
		return nil, "", fmt.Errorf("schedule %s: %w", name, err)
	}
	plan, reason := s.generate(r)
	if err := withinLimit(plan, r); err != nil {
		return nil, "", fmt.Errorf("schedule %s: %w", name, err)
	}
	return plan, reason + fewMicroBatches(plan, r), nil
}

// Chunks is how many stages each device has by the named schedule: wanted, or its default where wanted is 0. A number that it
// has no use for is refused with the nearest fix.
func Chunks(name string, wanted int) (int, error) {
	s, err := find(name)
	if err != nil {
		return 0, err
	}
	return s.resolveChunks(wanted)
}

func find(name string) (*generator, error) {
	if i := slices.IndexFunc(schedules, func(s generator) bool { return s.name == name }); i >= 0 {
		return &schedules[i], nil
	}
	guess := ""
	if near := nearest.Word(name, Names()); near != "" {
		guess = fmt.Sprintf(" did you mean %q?", near)
	}
	return nil, fmt.Errorf("schedule %q is unknown;%s Known: %s", clip(name, 40), guess, strings.Join(Names(), ", "))
}

func (s *generator) resolveChunks(wanted int) (int, error) {
	switch rule := s.chunks; {
	case wanted == 0:
		return rule.auto, nil
	case rule == oneStage && wanted != 1:
		return 0, fmt.Errorf("schedule %s has one stage a device, found chunks %d; leave chunks out, or take interleaved", s.name, wanted)
	case rule.least == rule.most && wanted != rule.least:
		return 0, fmt.Errorf("schedule %s has %d stages a device, found chunks %d; want %d, or leave chunks out", s.name, rule.least, wanted, rule.least)
	case wanted < rule.least:
		return 0, fmt.Errorf("schedule %s has several stages a device, found chunks %d; want %d or more, or take afp", s.name, wanted, rule.least)
	}
	return wanted, nil
}

// withinLimit refuses a plan with more in flight than a device may hold, and says what would fit.
func withinLimit(plan Plan, r Request) error {
	inFlight := InFlight(plan)
	for d, limit := range r.InFlightLimit {
		if limit == 0 || inFlight[d] <= limit {
			continue
		}
		name := fmt.Sprintf("%s %d has %s in flight", plan.rowName(), d, words.Count(inFlight[d], "micro-batch"))
		if r.Chunks > 1 {
			return fmt.Errorf("%s on its %d stages, its limit is %d; use smaller micro-batches, no more than %d of them, or 1f1b",
				name, r.Chunks, limit, limit/r.Chunks)
		}
		if least := len(plan) - d; inFlight[d] > least && least <= limit {
			return fmt.Errorf("%s, its limit is %d; 1f1b and afp have as few as %d there", name, limit, least)
		}
		return fmt.Errorf("%s, its limit is %d; use smaller micro-batches, or no more than %d of them", name, limit, limit)
	}
	return nil
}

// fewMicroBatches warns where the batch cannot fill the pipeline: GPipe (Huang et al. 2019, section 2.3) has a bubble of
// (K-1)/(M+K-1) even when links cost nothing, and reordering whole backwards of whole devices makes none smaller.
func fewMicroBatches(plan Plan, r Request) string {
	if plan.Batches(r.MicroBatches) > 1 {
		return fewInFlight(plan, r)
	}
	halves := slices.ContainsFunc(plan[0], func(op Op) bool { return op.Kind == BackwardInput })
	if r.MicroBatches >= r.Devices || r.Chunks > 1 || halves {
		return ""
	}
	idle := 100 * float64(r.Devices-1) / float64(r.MicroBatches+r.Devices-1)
	return fmt.Sprintf("; %s cannot fill %s: at least %.0f%% of the time is bubble",
		words.Count(r.MicroBatches, "micro-batch"), words.Count(r.Devices, "stage"), idle)
}

// forwardsAhead is inTurn with whole backwards: F0 .. F(w-1); for j = 0..M-1: Bj, then F(w+j) if there is one.
func forwardsAhead(warmups []int, microBatches int) Plan {
	return inTurn(warmups, microBatches, nil, func(ops []Op, k, m int) []Op { return append(ops, Op{Kind: Backward, Stage: k, Micro: m}) })
}

// inTurn is the order that all schedules of one stage a device share (AvgPipe: Chen et al. 2023; here with 0-based stages): stage k runs
// warmups[k] forwards, then for each micro-batch its backward, which finish appends, and the next forward. read is the version of the
// weights that a forward reads; nil where there is one.
func inTurn(warmups []int, microBatches int, read func(k, m int) int, finish func(ops []Op, k, m int) []Op) Plan {
	plan := make(Plan, len(warmups))
	each := 1 + len(finish(nil, 0, 0)) // ops of a micro-batch
	for k, w := range warmups {
		ops := make([]Op, 0, each*microBatches)
		for j := -w; j < microBatches; j++ {
			if j >= 0 {
				ops = finish(ops, k, j)
			}
			if m := w + j; m < microBatches {
				op := Op{Kind: Forward, Stage: k, Micro: m}
				if read != nil {
					op.Version = read(k, m)
				}
				ops = append(ops, op)
			}
		}
		plan[k] = ops
	}
	return plan
}
