package worker

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
)

// trialOf is the trial that runs what an assignment says.
func trialOf(t *testing.T, a control.Assignment) TrialConfig {
	t.Helper()
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return TrialConfig{Job: a.Spec.Job, Plan: plan, Split: a.Spec.Split(), WarmUp: 2, Batches: 5}
}

func TestTrialsOfOneJobRunOneAfterTheOther(t *testing.T) {
	first := setup(t, 2, 2, nil)
	trials, err := OpenTrials(t.Context(), &first.Spec, cuda.Config{}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := trials.Close(); err != nil {
			t.Error(err)
		}
	}()
	change := func(j *job.Job) { j.Data, j.MicroBatches, j.Averaging.Tau = first.Spec.Job.Data, 4, 3 }
	for _, a := range []control.Assignment{first, setup(t, 3, 1, change), setup(t, 1, 2, change)} {
		c := trialOf(t, a)
		r, err := trials.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		checkTrial(t, c, r)
	}
}

// checkTrial holds what was measured to what must have happened.
func checkTrial(t *testing.T, c TrialConfig, r TrialResult) {
	t.Helper()
	if len(r.Batches) != c.Batches || len(r.Stages) != c.Plan.Stages() || len(r.Devices) != len(c.Plan) {
		t.Fatalf("%d batches, %d stages, %d devices", len(r.Batches), len(r.Stages), len(r.Devices))
	}
	sum := r.Start
	for i, b := range r.Batches {
		if b < 0 {
			t.Errorf("batch %d took %v", i, b)
		}
		sum += b
	}
	if sum != r.End {
		t.Errorf("the batches end at %v, the watch at %v", sum, r.End)
	}
	work := make([]map[schedule.Kind]int, c.Job.Pipelines)
	for i := range work {
		work[i] = map[schedule.Kind]int{}
	}
	for _, e := range r.Spans {
		if e.End <= r.Start || e.End > r.End {
			t.Errorf("%+v lies outside of %v to %v", e, r.Start, r.End)
		}
		if e.Kind == trace.Compute && e.Stage == 0 {
			work[e.Pipeline][e.Work]++
		}
	}
	// The pipeline that was the slowest when the watch began does all batches in it; stage 0 may have been a batch ahead of the others.
	least := (c.Batches - 1) * int(c.Job.MicroBatches)
	if !slices.ContainsFunc(work, func(w map[schedule.Kind]int) bool {
		return w[schedule.Forward] >= least && w[schedule.Backward] >= least
	}) {
		t.Errorf("stage 0 was seen at %v, want %d forwards and backwards at least of one pipeline", work, least)
	}
	for k, s := range r.Stages {
		vectors := int64(4*s.Shape.Parameters) * int64(c.Job.Pipelines)
		least := vectors*int64(2+s.Shape.StateVectors) + int64(s.Shape.InFlightBytes)
		if s.Shape.Parameters == 0 || s.AllocatedBytes < least || s.AllocatedBytes > 10*least {
			t.Errorf("stage %d took %d bytes, its parameters, gradients and state alone take %d", k, s.AllocatedBytes, least)
		}
	}
	if allocated := r.Stages[0].AllocatedBytes; runtime.GOOS == "linux" && r.PeakRSSBytes < allocated {
		t.Errorf("the process held %d bytes at most, stage 0 alone %d", r.PeakRSSBytes, allocated)
	}
	for d, device := range r.Devices {
		if device.Name == "" || device.Busy <= 0 || device.Busy > 1 {
			t.Errorf("device %d: %+v", d, device)
		}
	}
}

func TestATrialTakesTheSplitThatItIsGiven(t *testing.T) {
	a := setup(t, 2, 1, nil)
	trials, err := OpenTrials(t.Context(), &a.Spec, cuda.Config{}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer trials.Close()
	layers := len(trials.model.Layers)
	small := func(split [][2]int) (parameters [2]int) {
		c := trialOf(t, a)
		c.Split = split
		r, err := trials.Run(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		return [2]int{r.Stages[0].Shape.Parameters, r.Stages[1].Shape.Parameters}
	}
	early, late := small([][2]int{{0, 1}, {1, layers}}), small([][2]int{{0, layers - 1}, {layers - 1, layers}})
	if early[0] >= late[0] || early[1] <= late[1] {
		t.Errorf("a stage of one layer has %d parameters, one of all but one %d", early[0], late[0])
	}
	for want, split := range map[string][][2]int{
		"stage 1 has layers 2 to 4": {{0, 1}, {2, layers}},
		"stage 1 has layers 1 to 1": {{0, 1}, {1, 1}},
		"3 stages of":               {{0, 1}, {1, 2}, {2, layers}},
		"2 stages of 2 layers":      {{0, 1}, {1, 2}},
	} {
		c := trialOf(t, a)
		c.Split = split
		if _, err := trials.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("split %v of %d layers: %v, want %q", split, layers, err, want)
		}
	}
}

func TestATrialThatCannotRunIsRefused(t *testing.T) {
	a := setup(t, 2, 1, nil)
	trials, err := OpenTrials(t.Context(), &a.Spec, cuda.Config{}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer trials.Close()
	for want, change := range map[string]func(c *TrialConfig){
		"0 batches":        func(c *TrialConfig) { c.Batches = 0 },
		"no rows":          func(c *TrialConfig) { c.Plan = nil },
		"must be resolved": func(c *TrialConfig) { c.Job.Pipelines = job.Auto },
	} {
		c := trialOf(t, a)
		change(&c)
		if _, err := trials.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run: %v, want %q", err, want)
		}
	}
}

// TestATrialCountsNoWorkThatWasDoneBeforeItWatched: two stages that take 4 ms forward and 8 ms back for each of four pipelines
// cannot end a batch of all of them in less than 48 ms, whatever the host does. They could seem to, where a pipeline that is ahead
// when the watch begins has nothing left to do when it ends.
func TestATrialCountsNoWorkThatWasDoneBeforeItWatched(t *testing.T) {
	const forward, pipelines = 4 * time.Millisecond, 4
	a := setup(t, 2, pipelines, func(j *job.Job) {
		j.MicroBatches, j.Schedule, j.Optimizer.ClipNorm = 1, "gpipe", 0
		j.Devices.Kind, j.Devices.Emulated.Forward = job.KindEmulated, []time.Duration{forward}
		j.Devices.Emulated.Backward = []time.Duration{2 * forward}
	})
	trials, err := OpenTrials(t.Context(), &a.Spec, cuda.Config{}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer trials.Close()
	c := trialOf(t, a)
	c.CoolDown = 1
	r, err := trials.Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if batch := (r.End - r.Start).Seconds() / r.Worked; batch < 0.999*(3*pipelines*forward).Seconds() {
		t.Errorf("a batch of all pipelines took %.4g s, the work of a device for it %v", batch, 3*pipelines*forward)
	}
}
