package agenttest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// TuneSteps is how many steps the fake tuning takes.
const TuneSteps = 4

// Tune is the program of a fake tuning: it returns its exit code. What goes wrong is in the job's name: "nofit" says that no candidate
// fits, "tunedies-at-2" dies in step 2 every time, "tunedies-once" the first time, "tunefull" says that the disk is full every time,
// "tunefull-once" the first time, "tuneslow" can be watched, "tunehangs" takes until its daemon is gone, "tunegarbage" prints what is
// no message.
func Tune(request string) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the daemon is gone
		cancel()
	}()
	return tuning(ctx, request, os.Stdout, os.Stderr)
}

// tuning is Tune until ctx ends.
func tuning(ctx context.Context, request string, out, log io.Writer) int {
	r, err := control.ReadTuneRequest(request)
	if err != nil {
		fmt.Fprintln(log, "fake tuning:", err) //nolint:errcheck // only a log
		return control.ExitInvalid
	}
	first := os.Mkdir(r.Dir+"/began", 0o700) == nil
	say := func(m control.TuneMessage) int {
		_ = json.NewEncoder(out).Encode(m) // it is killed when nobody reads
		if m.Report == nil {
			return 1
		}
		return 0
	}
	kind, at, _ := strings.Cut(r.Spec.Job.Name, "-at-")
	dies, err := strconv.Atoi(at)
	if err != nil {
		dies = -1
	}
	if kind == "tunedies-once" && first {
		dies = 1
	}
	report := Report(&r.Spec.Job, len(r.Cores))
	switch {
	case r.Estimate:
		report = Report(&r.Spec.Job, r.NodeCores)
		report.Chosen.Measured = nil
		rate := report.Chosen.Predicted.SamplesPerSecond
		report.Estimate = &tuner.Estimate{JobSeconds: float64(r.Spec.Job.Wanted(Epoch)) / rate, TuningSeconds: 40, Basis: "a fake price"}
		return say(control.TuneMessage{Report: report})
	case kind == "tuneruled":
		return say(control.TuneMessage{Report: &tuner.Report{Version: tuner.ReportVersion, Ruled: Ruled}})
	}
	for step := range TuneSteps {
		say(control.TuneMessage{Progress: &api.TuneProgress{Done: step, Total: TuneSteps, Text: fmt.Sprintf("fake step %d", step+1)}})
		time.Sleep(2 * RoundTime)
		switch {
		case step == dies:
			fmt.Fprintf(log, "fake tuning: crash in step %d\n", step) //nolint:errcheck // only a log
			return 7
		case kind == "tuneslow":
			time.Sleep(150 * time.Millisecond) // long enough to be watched
		case kind == "tunegarbage":
			fmt.Fprintln(out, "hello") //nolint:errcheck // it is killed for that
			<-ctx.Done()
		case kind == "tunehangs":
			<-ctx.Done()
			return 1
		}
	}
	switch full := (&obstacle.Obstacle{Kind: obstacle.Space, Path: r.Dir, Bytes: 1, Text: FullDisk}); {
	case kind == "nofit":
		return say(control.TuneMessage{Error: NoFit, Permanent: true})
	case kind == "tunefull":
		full.Bytes = NeverFree
		return say(control.TuneMessage{Error: FullDisk, Obstacle: full})
	case kind == "tunefull-once" && first:
		return say(control.TuneMessage{Error: FullDisk, Obstacle: full})
	}
	return say(control.TuneMessage{Report: report})
}

// What the fake tuning says of jobs that are called so.
const (
	NoFit    = "no candidate fits: stage 0 lacks 1000 bytes; use more stages, recompute, or smaller micro-batches"
	Ruled    = "tuning would have cost about 40s for a job of about 2s; chosen by the rules"
	FullDisk = "tune: open a trial: no space left on device"
)

// Report is what the fake tuning finds for a job on so many cores: 2 stages, 2 pipelines, 2 micro-batches and blocks computed again
// where that is open, each stage with one layer of the fake job's model. What it predicts is what the fake trainer does.
func Report(j *job.Job, cores int) *tuner.Report {
	chosen := candidate(j, 2, 2)
	chosen.Verdict, chosen.Reason = tuner.Won, "the fastest that was measured"
	chosen.Measured = &tuner.Measurement{Prediction: chosen.Predicted, Batches: 8, Spread: 0.02}
	slower := candidate(j, 1, 4)
	slower.Predicted.BatchSeconds *= 1.5
	slower.Predicted.SamplesPerSecond /= 1.5
	slower.Verdict, slower.Reason = tuner.Slower, "33.3% slower, predicted"
	return &tuner.Report{
		Version: tuner.ReportVersion, Digest: strings.Repeat("ab", 32), Took: 0.02, Considered: 2,
		Chosen: chosen, RunnersUp: []tuner.Candidate{slower}, Bound: 0.5,
		Profile: tuner.Summary{Samples: []int{1, 2}, Device: fmt.Sprintf("fake, %d cores", cores)},
		Notes:   []string{"a fake profile"},
	}
}

func candidate(j *job.Job, pipelines, micro int) tuner.Candidate {
	given := func(count job.Count, chosen int) int {
		if count != job.Auto {
			return int(count)
		}
		return chosen
	}
	c := tuner.Candidate{
		Devices: given(j.Stages, 2), Chunks: 1, Pipelines: given(j.Pipelines, pipelines), MicroBatches: given(j.MicroBatches, micro),
		Schedule: j.Schedule, Threads: 1,
	}
	if c.Schedule == job.AutoSchedule {
		c.Schedule = "1f1b"
	}
	recompute := "none"
	if j.RecomputeOpen() {
		recompute = "block"
	}
	batch := RoundTime.Seconds()
	c.Costs = schedule.Uniform(c.Devices, 0.2*batch/float64(c.MicroBatches), 0.4*batch/float64(c.MicroBatches), 0)
	c.Predicted = tuner.Prediction{BatchSeconds: batch, SamplesPerSecond: float64(c.Pipelines*j.Train.Batch) / batch}
	for k := range c.Devices {
		c.Recompute = append(c.Recompute, recompute)
		c.Warmup = append(c.Warmup, min(c.MicroBatches, c.Devices-k))
		c.Predicted.Stages = append(c.Predicted.Stages, tuner.StageTerms{
			Device: k, ComputeSeconds: 0.9 * batch / float64(c.Pipelines), WaitSeconds: 0.1 * batch, Busy: 0.9,
			Memory: tuner.Memory{Weights: 1000, Gradients: 1000, Activations: 500, Center: 2000, Boundaries: 2 * messageBytes},
		})
	}
	for range c.Devices - 1 {
		c.Predicted.Links = append(c.Predicted.Links, tuner.LinkTerms{Bytes: int64(2 * c.MicroBatches * messageBytes), MessageSeconds: 25e-6})
	}
	return c
}
