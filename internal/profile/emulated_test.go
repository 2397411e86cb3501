package profile

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// emulate makes a job's devices emulated ones, of which the second is half as fast, with so much memory each.
func emulate(bytes float64) func(j *job.Job) {
	return func(j *job.Job) {
		j.Devices.Kind, j.Stages, j.Pipelines = job.KindEmulated, 2, 1
		j.Devices.Emulated.FLOPs = []float64{2e9, 1e9}
		j.Devices.Emulated.Memory = []float64{bytes}
	}
}

// The slow one of two devices gets the smaller part of the work, by what was measured on both.
func TestEmulatedDevicesAreTunedLikeOthers(t *testing.T) {
	report, err := Tune(t.Context(), Config{Request: request(t, emulate(1e9)), Batches: 2, Watch: -1})
	if err != nil {
		t.Fatal(err)
	}
	c := report.Chosen
	if c.Measured == nil || c.Measured.BatchSeconds <= 0 {
		t.Fatalf("chosen: %+v", c)
	}
	first, second := c.Split[0][1]-c.Split[0][0], c.Split[1][1]-c.Split[1][0]
	if first < second {
		t.Errorf("the fast device has %d layers, the slow one %d", first, second)
	}
}

// whole refuses runs with more stages than devices.
type whole struct{ bench }

func (w whole) Run(ctx context.Context, c worker.TrialConfig) (worker.TrialResult, error) {
	if len(c.Split) > len(c.Plan) {
		return worker.TrialResult{}, errors.New("no room for buffers of each layer")
	}
	return w.bench.Run(ctx, c)
}

// Devices that hold their stages, but not every layer as a stage: the parts of layers are then guessed.
func TestLayersThatCannotBeMeasuredAloneAreGuessed(t *testing.T) {
	s, err := Open(t.Context(), Config{Request: request(t, emulate(1e9)), Batches: 2, Watch: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.bench = whole{s.bench}
	report, err := s.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(strings.Join(report.Notes, "\n"), "no room for buffers of each layer") || report.Profile.Layers[1].ForwardSeconds <= 0 || report.Chosen.Measured == nil {
		t.Errorf("notes %q, chosen %+v", report.Notes, report.Chosen)
	}
}

func TestTooSmallDevicesAreRefusedWithStageBytesAndAFix(t *testing.T) {
	_, err := Tune(t.Context(), Config{Request: request(t, emulate(5e4))})
	short, is := errors.AsType[*tuner.NoFitError](err)
	if !is || short.Bytes() <= 0 || !strings.Contains(err.Error(), "stage ") || !strings.Contains(err.Error(), "use a smaller model") {
		t.Errorf("error is %v", err)
	}
}

// held is what the fullest stage of a candidate takes of a device.
func held(c tuner.Candidate) int64 {
	most := int64(0)
	for _, s := range c.Predicted.Stages {
		most = max(most, s.Memory.OnDevice())
	}
	return most
}

// A job that fits only when something is computed again is measured all the same, and what it computes again is chosen and run.
func TestWhatFitsOnlyWithRecomputationIsTuned(t *testing.T) {
	for schedule, micros := range map[string]job.Count{"gpipe": 32, "1f1b": 2} { // of which a profile, by 1f1b, needs less; as much
		given := func(memory int64, recompute string) func(j *job.Job) {
			return func(j *job.Job) {
				emulate(float64(memory))(j)
				j.Train.Batch, j.MicroBatches, j.Schedule, j.Recompute = 32, micros, schedule, []string{recompute}
			}
		}
		predict := func(recompute string) int64 {
			report, err := Tune(t.Context(), Config{Request: request(t, given(1e9, recompute)), Batches: 2, Watch: -1, Runs: -1})
			if err != nil {
				t.Fatal(err)
			}
			return held(report.Chosen)
		}
		none, block := predict("none"), predict("block")
		if none <= block {
			t.Fatalf("%s: nothing again takes %d bytes, blocks %d", schedule, none, block)
		}
		for memory, want := range map[int64]string{none: "none", block: "block"} {
			report, err := Tune(t.Context(), Config{Request: request(t, given(memory, job.AutoRecompute)), Batches: 2, Watch: -1})
			if err != nil {
				t.Fatalf("%s, %d bytes: %v", schedule, memory, err)
			}
			c := report.Chosen
			if !slices.Contains(c.Recompute, want) || c.Measured == nil || held(c) > memory {
				t.Errorf("%s, %d bytes: recompute %v holds %d, %s; want %s", schedule, memory, c.Recompute, held(c), c.Reason, want)
			}
			if want == "none" && len(slices.Compact(slices.Clone(c.Recompute))) > 1 {
				t.Errorf("%s, %d bytes: recompute %v where all fits", schedule, memory, c.Recompute)
			}
		}
		_, err := Tune(t.Context(), Config{Request: request(t, given(block, "none"))})
		if _, is := errors.AsType[*tuner.NoFitError](err); !is || !strings.Contains(err.Error(), "recompute: block") {
			t.Errorf("%s without recomputation: %v", schedule, err)
		}
	}
}

// What a reading computes again only to fit is no part of what it found.
func TestRecomputationOfAReadingIsTakenOff(t *testing.T) {
	at := func(work schedule.Kind, stage int, from, to time.Duration) trace.Span {
		return trace.Span{Kind: trace.Compute, Work: work, Stage: stage, Start: from, End: to}
	}
	result := worker.TrialResult{Spans: []trace.Span{
		at(schedule.Forward, 0, 0, 2), at(schedule.Backward, 0, 10, 16), at(schedule.BackwardInput, 0, 20, 25), at(schedule.BackwardWeight, 0, 25, 28),
		at(schedule.Forward, 1, 0, 3), at(schedule.Backward, 1, 10, 16),
	}}
	r := reading{}
	r.trial.Job.Recompute = []string{"block", "none"}
	alone := withoutRecompute(r, result)
	for i, want := range []time.Duration{2, 4, 3, 3, 3, 6} {
		if got := alone(result.Spans[i]); math.Abs(got-want.Seconds()) > 1e-12 {
			t.Errorf("event %d takes %v, want %v", i, got, want.Seconds())
		}
	}
}

// Where a job says what a pass takes, there is nothing to learn of single layers, and lists for two stages are no reason to end.
func TestFixedTimesAreTuned(t *testing.T) {
	r := request(t, func(j *job.Job) {
		emulate(1e9)(j)
		j.MicroBatches, j.Devices.Emulated = job.Auto, job.Emulated{
			Forward: []time.Duration{time.Millisecond, 2 * time.Millisecond}, Step: []time.Duration{time.Millisecond},
		}
	})
	report, err := Tune(t.Context(), Config{Request: r, Batches: 2, Watch: -1, Runs: 2, Progress: func(p api.TuneProgress) {
		if strings.Contains(p.Text, string(layered)) {
			t.Errorf("a step is: %s", p.Text)
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	c := report.Chosen
	if c.Measured == nil || c.MicroBatches != 2 && c.MicroBatches != 1 || c.Predicted.Stages[1].OptimizerSeconds <= 0 {
		t.Errorf("chosen: %d micro-batches, %+v; the fewer the faster, since each takes the same", c.MicroBatches, c.Predicted.Stages)
	}
}

// A schedule with two stages a device makes each of them take what the job says of a stage, as its run does.
func TestFixedTimesAreThoseOfEveryStage(t *testing.T) {
	r := request(t, func(j *job.Job) {
		emulate(1e9)(j)
		j.MicroBatches, j.Schedule, j.Devices.Emulated = 4, job.AutoSchedule, job.Emulated{Forward: []time.Duration{2 * time.Millisecond}}
	})
	report, err := Tune(t.Context(), Config{Request: r, Batches: 2, Watch: -1, Runs: -1})
	if err != nil {
		t.Fatal(err)
	}
	chunked := 0
	for _, c := range append(report.RunnersUp, report.Chosen) {
		if c.Chunks > 1 {
			chunked++
		}
		for s, forward := range c.Costs.Forward {
			if forward < 2e-3 || c.Costs.Backward[s] < 4e-3 {
				t.Errorf("%s: stage %d is predicted to take %v and %v s", c.Schedule, s, forward, c.Costs.Backward[s])
			}
		}
	}
	if chunked == 0 || report.Chosen.Chunks > 1 {
		t.Errorf("%d candidates with several stages a device; chosen: %s", chunked, report.Chosen.Schedule)
	}
}
