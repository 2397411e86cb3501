package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// mostDrawnOps bounds a plan that is drawn in a terminal.
const mostDrawnOps = 400

// printReport prints what a tuning found: the profile, the choice with its plan and its stages, and what lost against it.
func printReport(p *page, r *tuner.Report) {
	printProfile(p, r)
	c := &r.Chosen
	p.printf("\nchosen: %s; %s\n\n", shape(c), c.Reason)
	p.drawing(drawCandidate(c, p.drawingWidth()))
	printTerms(p, c, nil)
	printCandidates(p, r)
	printNotes(p, r)
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
	var t table
	t.add("LAYER", "FORWARD", "BACKWARD", "OPTIMIZER", "ACTIVATIONS", "PARAMETERS")
	for _, l := range profile.Layers {
		t.add(l.Name, words.Seconds(l.ForwardSeconds), words.Seconds(l.BackwardInputSeconds+l.BackwardWeightSeconds), words.Seconds(l.OptimizerSeconds),
			size(l.ActivationBytes), thousands(float64(l.Parameters)))
	}
	p.table(&t)
}

// drawing puts a drawing on the page, if there is one.
func (p *page) drawing(text string) {
	if text != "" {
		p.printf("%s\n", text)
	}
}

// shape says how a candidate lays a job out.
func shape(c *tuner.Candidate) string {
	text := fmt.Sprintf("%s, %s, %s, schedule %s", words.Count(c.Devices, "stage"), words.Count(c.Pipelines, "pipeline"),
		words.Count(c.MicroBatches, "micro-batch"), c.Schedule)
	if c.Chunks > 1 {
		text += fmt.Sprintf(", %d chunks a device", c.Chunks)
	}
	if words := recomputes(c.Recompute); words != "" {
		text += ", " + words
	}
	return text
}

// recomputes says what is computed again; "" for nothing.
func recomputes(all []string) string {
	same, some := true, false
	for _, word := range all {
		same, some = same && word == all[0], some || word != "none"
	}
	switch {
	case !some:
		return ""
	case all[0] == job.AutoRecompute:
		return "recomputation auto"
	case same:
		return "recomputes " + all[0]
	}
	return "recomputes by stage " + strings.Join(all, " ")
}

// drawCandidate draws a batch of a candidate's plan; "" when it is too long to show.
func drawCandidate(c *tuner.Candidate, width int) string {
	plan, _, err := tuner.Plan(c)
	if err != nil || plan.Ops() > mostDrawnOps {
		return ""
	}
	return drawPlan(plan, c.Costs, width, "milliseconds", 1e3)
}

// drawPlan draws a batch of one pipeline; "" when the costs do not fit. Times are printed in a unit of which there are so many in
// one of the costs.
func drawPlan(plan schedule.Plan, costs schedule.Costs, width int, unit string, scale float64) string {
	for _, list := range []*[]float64{
		&costs.Forward, &costs.Backward, &costs.BackwardInput, &costs.BackwardWeight, &costs.Update, &costs.Average, &costs.Link,
	} {
		*list = scaled(*list, scale)
	}
	costs.Bandwidth = scaled(costs.Bandwidth, 1/scale)
	result, err := schedule.Simulate(plan, costs)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("one batch of one pipeline, in %s:\n%s", unit, schedule.DrawText(result, width))
}

// scaled multiplies a list; nil stays nil.
func scaled(values []float64, by float64) []float64 {
	if values == nil {
		return nil
	}
	out := make([]float64, len(values))
	for i, v := range values {
		out[i] = v * by
	}
	return out
}

// printTerms prints where the time of each stage goes in a batch of one pipeline, and what it holds: predicted, measured by the
// tuning, and observed while the job trains, where there is each. A job that was not tuned has no candidate.
func printTerms(p *page, c *tuner.Candidate, observed *tuner.Measurement) {
	var t table
	t.add("STAGE", "LAYERS", "", "COMPUTE", "OPTIMIZER", "AVERAGE", "WAIT", "BUSY", "MEMORY")
	row := func(k int, what string, s tuner.StageTerms) {
		layers := "-"
		if c != nil && k < len(c.Split) {
			layers = fmt.Sprintf("%d-%d", c.Split[k][0], c.Split[k][1]-1)
		}
		t.add(strconv.Itoa(k), layers, what, words.Seconds(s.ComputeSeconds), words.Seconds(s.OptimizerSeconds), words.Seconds(s.AverageSeconds),
			words.Seconds(s.WaitSeconds), fmt.Sprintf("%.0f%%", 100*s.Busy), size(s.Memory.OnDevice()))
	}
	kinds := []struct {
		what   string
		stages []tuner.StageTerms
	}{{"predicted", nil}, {"measured", nil}, {"observed", nil}}
	if c != nil {
		kinds[0].stages = c.Predicted.Stages
		if c.Measured != nil {
			kinds[1].stages = c.Measured.Stages
		}
	}
	if observed != nil {
		kinds[2].stages = observed.Stages
	}
	for k := range max(len(kinds[0].stages), len(kinds[2].stages)) {
		for _, kind := range kinds {
			if k < len(kind.stages) {
				row(k, kind.what, kind.stages[k])
			}
		}
	}
	if len(t.rows) == 1 {
		return
	}
	p.table(&t)
	p.printf("a batch of each pipeline: %s\n", batchTimes(c, observed))
	printLinks(p, c, observed)
	printMemory(p, c, observed)
}

// batchTimes says how long a batch takes.
func batchTimes(c *tuner.Candidate, observed *tuner.Measurement) string {
	var parts []string
	add := func(what string, p tuner.Prediction) {
		parts = append(parts, fmt.Sprintf("%s %s, %.4g samples/s", what, words.Seconds(p.BatchSeconds), p.SamplesPerSecond))
	}
	if c != nil {
		add("predicted", c.Predicted)
		if c.Measured != nil {
			add("measured", c.Measured.Prediction)
		}
	}
	if observed != nil {
		add("observed", observed.Prediction)
	}
	return strings.Join(parts, "; ")
}

// printCandidates prints the chosen candidate and the runners-up, and why each lost.
func printCandidates(p *page, r *tuner.Report) {
	count := words.Count(r.Considered, "candidate")
	if listed := 1 + len(r.RunnersUp); listed < r.Considered {
		count = fmt.Sprintf("%d of %s", listed, count)
	}
	p.printf("\n%s: those that were run, the others by what was predicted, what cannot run:\n", count)
	var t table
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
}

// memories lists what each stage holds.
func memories(stages []tuner.StageTerms) string {
	const most = 4
	if len(stages) == 0 {
		return "-"
	}
	var words []string
	for k, s := range stages {
		if k == most {
			words = append(words, "...")
			break
		}
		words = append(words, size(s.Memory.Total()))
	}
	return strings.Join(words, " ")
}

func printNotes(p *page, r *tuner.Report) {
	for _, note := range r.Notes {
		p.printf("note: %s\n", note)
	}
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
	var b strings.Builder
	for i, v := range values {
		if i == len(values)-1 {
			return b.String() + words.Count(v, "sample")
		}
		fmt.Fprintf(&b, "%d, ", v)
	}
	return "no sample"
}

// drawingWidth is how many columns a drawing's time may take: those of a terminal less its labels, else 100.
func (p *page) drawingWidth() int {
	const labels = 40
	if p.colors {
		return max(40, p.width-labels)
	}
	return 100
}

// tuningText says how far a tuning is.
func tuningText(p *api.TuneProgress) string {
	if p.Total == 0 {
		if p.Text != "" {
			return p.Text
		}
		return "starting"
	}
	return fmt.Sprintf("step %d of %d: %s", min(p.Done+1, p.Total), p.Total, p.Text)
}
