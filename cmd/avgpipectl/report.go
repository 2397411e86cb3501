package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// printReport prints what a tuning found: the profile, the choice with its plan and its stages, and what lost against it.
func printReport(p *page, r *tuner.Report) {
	printProfile(p, r)
	c := &r.Chosen
	chosen := shape(c.Devices, c.Pipelines, c.MicroBatches, c.Schedule, c.Recompute)
	if c.Chunks > 1 {
		chosen += fmt.Sprintf(", %d chunks a device", c.Chunks)
	}
	p.printf("\nchosen: %s; %s\n\n", chosen, c.Reason)
	plan, _, _ := tuner.Plan(c) // one that cannot be made is not drawn
	p.drawing(plan, c)
	printTerms(p, c, nil)
	printMemoryParts(p, memoryOf(c), nil)
	printCandidates(p, r)
}

// printProfile prints what was measured of the layers.
func printProfile(p *page, r *tuner.Report) {
	profile, took := r.Profile, "took "+words.Seconds(r.Took)
	if r.Cached {
		took = "of an earlier tuning, from the cache"
	}
	p.printf("profile of micro-batches of %s, %s\ndevice: %s\n", sampleCounts(profile.Samples), took, profile.Device)
	if len(profile.Layers) == 0 {
		return
	}
	middle := words.Count(profile.Samples[len(profile.Samples)/2], "sample") // see tuner.LayerSummary
	p.printf("\nlayers, of a micro-batch of %s:\n", middle)
	t := table{narrow: []string{"OPTIMIZER", "PARAMETERS", "ACTIVATIONS"}}
	t.add("LAYER", "FORWARD", "BACKWARD", "OPTIMIZER", "ACTIVATIONS", "PARAMETERS")
	for _, l := range profile.Layers {
		t.add(l.Name, words.Seconds(l.ForwardSeconds), words.Seconds(l.BackwardInputSeconds+l.BackwardWeightSeconds), words.Seconds(l.OptimizerSeconds),
			size(l.ActivationBytes), words.Number(float64(l.Parameters)))
	}
	p.table(&t)
}

// What is drawn on a page: plans of so many ops at most, with so many columns beside the time, and the time in no fewer columns.
const (
	mostDrawnOps = 400
	besideTime   = 40
	leastTime    = 24
)

// drawing draws a batch of one pipeline by a plan, if it is short enough: with the times of a candidate that has its stages, else with
// forwards that take 1 and backwards that take 2.
func (p *page) drawing(plan schedule.Plan, c *tuner.Candidate) {
	width := 100
	if p.colors {
		width = p.width - besideTime
	}
	if len(plan) == 0 || plan.Ops() > mostDrawnOps || width < leastTime {
		return
	}
	costs, unit := schedule.Uniform(plan.Stages(), 1, 2, 0), "forwards, a backward being two"
	if c != nil && len(c.Costs.Forward) == plan.Stages() && c.MicroBatches == plan.MicroBatches() {
		costs, unit = inMilliseconds(c.Costs), "milliseconds"
	}
	if result, err := schedule.Simulate(plan, costs); err == nil {
		p.printf("one batch of one pipeline, in %s:\n%s\n", unit, schedule.DrawText(result, width))
	}
}

// inMilliseconds are costs whose times were in seconds.
func inMilliseconds(c schedule.Costs) schedule.Costs {
	scale := func(list *[]float64, by float64) {
		*list = slices.Clone(*list)
		for i := range *list {
			(*list)[i] *= by
		}
	}
	for _, times := range []*[]float64{&c.Forward, &c.Backward, &c.BackwardInput, &c.BackwardWeight, &c.Update, &c.Average, &c.Link} {
		scale(times, 1e3)
	}
	scale(&c.Bandwidth, 1e-3)
	return c
}

// evidence is what one source says of a plan's times and memory.
type evidence struct {
	source string
	tuner.Prediction
}

// evidenceOf lists what was predicted of a candidate and measured of it by the tuning, and what is observed while the job trains, as far
// as there is each. A job that was not tuned has no candidate.
func evidenceOf(c *tuner.Candidate, observed *tuner.Measurement) []evidence {
	var list []evidence
	if c != nil {
		list = append(list, evidence{"predicted", c.Predicted})
		if c.Measured != nil {
			list = append(list, evidence{"measured", c.Measured.Prediction})
		}
	}
	if observed != nil {
		list = append(list, evidence{"observed", observed.Prediction})
	}
	return list
}

// side puts what the sources say of each stage, or each link, next to each other.
func side(list []evidence, count func(e evidence) int, add func(k int, e evidence)) {
	most := 0
	for _, e := range list {
		most = max(most, count(e))
	}
	for k := range most {
		for _, e := range list {
			if k < count(e) {
				add(k, e)
			}
		}
	}
}

// printTerms prints where the time of each stage goes in a batch of one pipeline, and what a message takes on each link.
func printTerms(p *page, c *tuner.Candidate, observed *tuner.Measurement) {
	list := evidenceOf(c, observed)
	stages := func(e evidence) int { return len(e.Stages) }
	t := table{narrow: []string{"LAYERS", "AVERAGE", "OPTIMIZER", "WAIT"}}
	t.add("STAGE", "LAYERS", "", "COMPUTE", "OPTIMIZER", "AVERAGE", "WAIT", "BUSY", "MEMORY")
	side(list, stages, func(k int, e evidence) {
		layers, s := "-", e.Stages[k]
		if c != nil && k < len(c.Split) {
			layers = fmt.Sprintf("%d-%d", c.Split[k][0], c.Split[k][1]-1)
		}
		t.add(strconv.Itoa(k), layers, e.source, words.Seconds(s.ComputeSeconds), words.Seconds(s.OptimizerSeconds), words.Seconds(s.AverageSeconds),
			words.Seconds(s.WaitSeconds), fmt.Sprintf("%.0f%%", 100*s.Busy), size(s.Memory.OnDevice()))
	})
	if len(t.rows) == 1 {
		return
	}
	p.table(&t)
	var times []string
	for _, e := range list {
		times = append(times, fmt.Sprintf("%s %s, %.4g samples/s", e.source, words.Seconds(e.BatchSeconds), e.SamplesPerSecond))
	}
	p.printf("a batch of each pipeline: %s\n", strings.Join(times, "; "))

	list = slices.DeleteFunc(list, func(e evidence) bool { return e.source == "measured" }) // it has stages' times alone
	var links table
	links.add("LINK", "", "MESSAGE", "BYTES OF A BATCH")
	side(list, func(e evidence) int { return len(e.Links) }, func(k int, e evidence) {
		took := "-" // nothing was observed
		if l := e.Links[k]; l.MessageSeconds > 0 || e.source == "predicted" {
			took = words.Seconds(l.MessageSeconds)
		}
		links.add(fmt.Sprintf("%d-%d", k, k+1), e.source, took, size(e.Links[k].Bytes))
	})
	p.below(&links)
}

// printMemoryParts prints what each stage is predicted to hold for what, and is observed to. What is observed is taken of the devices, so it
// lacks messages and what else the worker process holds in the host's memory.
func printMemoryParts(p *page, predicted []tuner.Memory, observed *tuner.Measurement) {
	t := table{narrow: []string{"CENTER", "STATE", "GRADIENTS", "MESSAGES", "ACTIVATIONS", "WEIGHTS"}}
	t.add("MEMORY", "", "WEIGHTS", "GRADIENTS", "STATE", "ACTIVATIONS", "CENTER", "ON DEVICE", "MESSAGES", "PROCESS")
	add := func(k int, source string, m tuner.Memory) {
		if m.Total() > 0 {
			t.add(strconv.Itoa(k), source, size(m.Weights), size(m.Gradients), size(m.State), size(m.Activations), size(m.Center),
				size(m.OnDevice()), size(m.Boundaries), size(m.Host))
		}
	}
	for k, m := range predicted {
		add(k, "predicted", m)
		if observed != nil && k < len(observed.Stages) {
			add(k, "observed", observed.Stages[k].Memory)
		}
	}
	p.below(&t)
}

// memoryOf is what a candidate's stages are predicted to hold.
func memoryOf(c *tuner.Candidate) (all []tuner.Memory) {
	for _, s := range c.Predicted.Stages {
		all = append(all, s.Memory)
	}
	return all
}

// printCandidates prints the chosen candidate and the runners-up, why each lost, and what is to be noted.
func printCandidates(p *page, r *tuner.Report) {
	count := words.Count(r.Considered, "candidate")
	if listed := 1 + len(r.RunnersUp); listed < r.Considered {
		count = fmt.Sprintf("%d of %s", listed, count)
	}
	p.printf("\n%s: those that were run, the others by what was predicted, what cannot run:\n", count)
	t := table{narrow: []string{"MEMORY", "SAMPLES/S", "PREDICTED", "MICRO", "MEASURED"}}
	t.add("STAGES", "PIPELINES", "MICRO", "SCHEDULE", "PREDICTED", "MEASURED", "SAMPLES/S", "MEMORY", "WHY")
	for i, c := range append([]tuner.Candidate{r.Chosen}, r.RunnersUp...) {
		predicted, measured, speed := "-", "-", "-"
		if c.Predicted.BatchSeconds > 0 {
			predicted, speed = words.Seconds(c.Predicted.BatchSeconds), fmt.Sprintf("%.4g", c.Predicted.SamplesPerSecond)
		}
		if c.Measured != nil {
			measured, speed = words.Seconds(c.Measured.BatchSeconds), fmt.Sprintf("%.4g", c.Measured.SamplesPerSecond)
		}
		why := c.Reason
		if i == 0 {
			why = "chosen: " + why
		}
		if words := recomputes(c.Recompute); words != "" {
			why = words + "; " + why
		}
		t.add(strconv.Itoa(c.Devices), strconv.Itoa(c.Pipelines), strconv.Itoa(c.MicroBatches), c.Schedule, predicted, measured, speed,
			memories(c.Predicted.Stages), why)
	}
	p.table(&t)
	for _, note := range r.Notes {
		p.printf("note: %s\n", note)
	}
}

// memories lists what each stage holds, as far as there is room for it.
func memories(stages []tuner.StageTerms) string {
	const most = 4
	var list []string
	for _, s := range stages[:min(most, len(stages))] {
		list = append(list, size(s.Memory.Total()))
	}
	if len(stages) > most {
		list = append(list, "...")
	}
	return cmp.Or(strings.Join(list, " "), "-")
}

// size prints bytes; none are not known.
func size(bytes int64) string {
	if bytes <= 0 {
		return "-"
	}
	return words.Bytes(bytes)
}

// sampleCounts lists sizes of micro-batches: 1, 4, 16 samples.
func sampleCounts(values []int) string {
	var list []string
	for _, v := range values {
		list = append(list, words.Count(v, "sample"))
	}
	for i := range max(0, len(list)-1) {
		list[i], _, _ = strings.Cut(list[i], " ")
	}
	return strings.Join(list, ", ")
}
