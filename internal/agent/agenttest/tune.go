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

	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// tuneSteps is how many steps the fake tuning takes.
const tuneSteps = 4

// Tune is the program of a fake tuning: it returns its exit code. What goes wrong is in the job's name: "nofit" says that no candidate
// fits, "tunedies-at-2" dies in step 2 every time, "tunedies-once" the first time, "tunefull" says that the disk is full every time,
// "tunefull-once" the first time, "tuneslow" can be watched, "tunehangs" takes until its daemon is gone, "tunegarbage" prints what is
// no message.
func Tune(request string) int {
	r, err := control.ReadTuneRequest(request)
	if err != nil {
		fmt.Fprintln(os.Stderr, "fake tuning:", err)
		return control.ExitInvalid
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the daemon is gone
		cancel()
	}()
	first := os.Mkdir(r.Dir+"/began", 0o700) == nil
	code, words := pretendToTune(ctx, &r, first, func(m control.TuneMessage) { _ = json.NewEncoder(os.Stdout).Encode(m) })
	if words == garbage {
		fmt.Println(words)
		time.Sleep(2 * Patience)
	} else if words != "" {
		fmt.Fprintln(os.Stderr, words)
	}
	return code
}

// garbage is no message of a tuning.
const garbage = "hello"

// pretendToTune does what the job's name says, and returns an exit code and last words. first says that it was not done before.
func pretendToTune(ctx context.Context, r *control.TuneRequest, first bool, say func(control.TuneMessage)) (code int, words string) {
	kind, at, _ := strings.Cut(r.Spec.Job.Name, "-at-")
	dies, err := strconv.Atoi(at)
	if err != nil {
		dies = -1
	}
	if kind == "tunedies-once" && first {
		dies = 1
	}
	if r.Estimate {
		report := Report(&r.Spec.Job, r.NodeCores)
		report.Chosen.Measured = nil
		rate := report.Chosen.Predicted.SamplesPerSecond
		report.Estimate = &tuner.Estimate{JobSeconds: float64(r.Spec.Job.Wanted(Epoch)) / rate, TuningSeconds: 40, Basis: "a fake price"}
		say(control.TuneMessage{Report: report})
		return 0, ""
	}
	if kind == "tuneruled" {
		say(control.TuneMessage{Report: &tuner.Report{Version: tuner.ReportVersion, Ruled: Ruled}})
		return 0, ""
	}
	for step := range tuneSteps {
		say(control.TuneMessage{Progress: &control.TuneProgress{Done: step, Total: tuneSteps, Text: fmt.Sprintf("fake step %d", step+1)}})
		time.Sleep(2 * RoundTime)
		switch {
		case step == dies:
			return 7, fmt.Sprintf("fake tuning: crash in step %d", step)
		case kind == "tuneslow":
			time.Sleep(150 * time.Millisecond) // long enough to be watched
		case kind == "tunehangs":
			<-ctx.Done()
			return 1, ""
		case kind == "tunegarbage":
			return 1, garbage
		}
	}
	if kind == "nofit" {
		say(control.TuneMessage{Error: NoFit, Permanent: true})
		return 1, ""
	}
	if kind == "tunefull" || kind == "tunefull-once" && first {
		full := &obstacle.Obstacle{Kind: obstacle.Space, Path: r.Dir, Bytes: 1, Text: FullDisk}
		if kind == "tunefull" {
			full.Bytes = NeverFree
		}
		say(control.TuneMessage{Error: FullDisk, Obstacle: full})
		return 1, ""
	}
	say(control.TuneMessage{Report: Report(&r.Spec.Job, len(r.Cores))})
	return 0, ""
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
