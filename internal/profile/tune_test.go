package profile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// request is a job of a tiny GPT-2 on ref whose counts are open, on a node of two cores.
func request(t *testing.T, change func(*job.Job)) control.TuneRequest {
	t.Helper()
	dir := t.TempDir()
	var lines strings.Builder
	for i := range 400 {
		fmt.Fprintf(&lines, "the %d little rabbits ate %d carrots\n", i%17, i*i%23)
	}
	corpus := filepath.Join(dir, "corpus.txt")
	if err := os.WriteFile(corpus, []byte(lines.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	j := *job.Default()
	j.Name, j.Version = "tiny", job.Version
	j.Model = job.Model{Family: "gpt2", Config: map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}}
	j.Data.Files = []string{corpus}
	j.Optimizer.LearningRate, j.Averaging.Tau = 1e-3, 1
	j.Train.Steps, j.Train.Batch, j.Train.EvalSamples = 8, 4, 8
	j.Devices.Kind = "ref"
	if change != nil {
		change(&j)
	}
	config := maps.Clone(j.Model.Config)
	config["model_type"] = j.Model.Family
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	return control.TuneRequest{
		Version: control.Version, Node: "here", Dir: dir, Spec: spec.Spec{Version: spec.Version, Job: j, Model: text}, NodeCores: 2, Cache: filepath.Join(dir, "plans"),
	}
}

func TestTuningChoosesWhatIsOpenAndSaysWhy(t *testing.T) {
	r := request(t, func(j *job.Job) { j.Schedule = job.AutoSchedule })
	var progress []api.TuneProgress
	report, err := Tune(t.Context(), Config{Request: r, Batches: 2, Watch: -1, Progress: func(p api.TuneProgress) { progress = append(progress, p) }})
	if err != nil {
		t.Fatal(err)
	}
	c := report.Chosen
	if c.Verdict != tuner.Won || c.Measured == nil || c.Reason == "" || report.Cached || report.Bound <= 0 {
		t.Errorf("chosen: %+v", c)
	}
	holdCandidate(t, r, c)
	ran := 0
	for _, other := range report.RunnersUp {
		if other.Verdict == tuner.Won || other.Reason == "" {
			t.Errorf("runner-up: %s %q", other.Verdict, other.Reason)
		}
		if other.Measured != nil {
			ran++
		}
	}
	if ran != 2 {
		t.Errorf("%d others were run, want 2", ran)
	}
	last := progress[len(progress)-1]
	if last.Done >= last.Total || last.Text == "" {
		t.Errorf("the last progress is %+v", last)
	}
	if n := len(report.Profile.Layers); n != 4 || report.Profile.Layers[1].ForwardSeconds <= 0 {
		t.Errorf("profile: %+v", report.Profile)
	}
	again, err := Tune(t.Context(), Config{Request: r})
	if err != nil || !again.Cached || again.Digest != report.Digest {
		t.Errorf("the second tuning: cached %v, %v", again != nil && again.Cached, err)
	}
}

// holdCandidate proves that a candidate's plan can be made and run.
func holdCandidate(t *testing.T, r control.TuneRequest, c tuner.Candidate) {
	t.Helper()
	plan, _, err := tuner.Plan(&c)
	if err != nil {
		t.Fatal(err)
	}
	if err := schedule.Check(plan, c.MicroBatches); err != nil {
		t.Error(err)
	}
	if r.Spec.Job.Train.Batch%c.MicroBatches != 0 || len(c.Split) != plan.Stages() || c.Split[len(c.Split)-1][1] != 4 {
		t.Errorf("%d micro-batches of %d, split %v for %d stages of 4 layers", c.MicroBatches, r.Spec.Job.Train.Batch, c.Split, plan.Stages())
	}
	if c.Predicted.BatchSeconds <= 0 || c.Predicted.Stages[0].Memory.Total() <= 0 {
		t.Errorf("predicted: %+v", c.Predicted)
	}
}

// What a candidate is predicted to hold on its devices is what its run allocates there, to the byte.
func TestPredictedMemoryIsWhatIsAllocated(t *testing.T) {
	for _, change := range []func(*job.Job){
		func(j *job.Job) { j.Stages, j.Pipelines, j.MicroBatches = 2, 1, 4 },
		func(j *job.Job) { j.Stages, j.Pipelines, j.MicroBatches, j.Schedule = 2, 3, 2, "gpipe" },
		func(j *job.Job) { j.Stages, j.Pipelines, j.Schedule = 2, 2, "zb-h1" },
		func(j *job.Job) { j.Stages, j.Pipelines, j.Schedule = 2, 2, "interleaved" },
		func(j *job.Job) { j.Stages, j.Pipelines, j.Recompute = 1, 2, []string{"block"} },
	} {
		r := request(t, change)
		report, err := Tune(t.Context(), Config{Request: r, Batches: 2, Watch: -1, Runs: 2})
		if err != nil {
			t.Fatal(err)
		}
		if report.Chosen.Measured == nil {
			t.Fatalf("%+v was not run", report.Chosen)
		}
		for _, c := range append(report.RunnersUp, report.Chosen) {
			if c.Measured == nil {
				continue
			}
			for s, terms := range c.Measured.Stages {
				if got, want := terms.Memory.Allocated, c.Predicted.Stages[s].Memory.OnDevice(); got != want {
					t.Errorf("%s N=%d M=%d, stage %d holds %d bytes, predicted %d", c.Schedule, c.Pipelines, c.MicroBatches, s, got, want)
				}
			}
		}
	}
}

func TestWhatIsGivenIsKept(t *testing.T) {
	r := request(t, func(j *job.Job) { j.Stages, j.Pipelines, j.MicroBatches, j.Schedule = 2, 2, 2, "1f1b" })
	report, err := Tune(t.Context(), Config{Request: r, Batches: 2, Watch: -1})
	if err != nil {
		t.Fatal(err)
	}
	if c := report.Chosen; c.Devices != 2 || c.Pipelines != 2 || c.MicroBatches != 2 || c.Schedule != "1f1b" {
		t.Errorf("chosen: %+v", c)
	}
}

func TestMoreStagesThanLayersAreRefusedBeforeAnythingRuns(t *testing.T) {
	_, err := Tune(t.Context(), Config{Request: request(t, func(j *job.Job) { j.Stages = 9 })})
	if short, is := errors.AsType[*tuner.StagesError](err); !is || short.Layers != 4 {
		t.Errorf("error is %v", err)
	}
}

func TestInterruptedTuningEndsWithItsCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("nobody waits for it any more")
	_, err := Tune(ctx, Config{Request: request(t, nil), Progress: func(p api.TuneProgress) {
		if p.Done == 1 {
			cancel(gone)
		}
	}})
	if !errors.Is(err, gone) {
		t.Errorf("error is %v", err)
	}
}

func TestSizesAreTheEndsAndTheMiddle(t *testing.T) {
	s := &subject{}
	for _, test := range []struct {
		stages int
		micros []int
		want   string
	}{
		{1, []int{1, 2, 4, 8, 16}, "[1 4 16]"},
		{2, []int{1, 2, 4, 8, 16}, "[1 4 8]"}, // one micro-batch does not fill two stages
		{4, []int{1, 2}, "[8]"},
		{1, []int{1, 2}, "[8 16]"},
		{2, []int{4}, "[4]"},
	} {
		space := tuner.Space{Batch: 16, MicroBatches: test.micros, Targets: []tuner.Target{{Devices: test.stages}}}
		if got := fmt.Sprint(s.sizes(space)); got != test.want {
			t.Errorf("%d stages, micro-batches %v: measured at %s, want %s", test.stages, test.micros, got, test.want)
		}
	}
}

func TestSpaceHasWhatThePredictionMustCount(t *testing.T) {
	for _, test := range []struct {
		pull string
		clip float64
	}{{"old", 0}, {"new", 1}, {"elastic", 0.5}} {
		r := request(t, func(j *job.Job) { j.Averaging.Pull, j.Averaging.Tau, j.Optimizer.ClipNorm = test.pull, 3, test.clip })
		s := spec.Candidates{Job: &r.Spec.Job, Facts: spec.Facts{Model: &model.Model{Layers: make([]layer.Layer, 2)}, Cores: 2}}
		space, err := s.Space()
		if err != nil {
			t.Fatal(err)
		}
		if space.AwaitRound != (test.pull == "new") || space.ExchangeNorm != (test.clip > 0) || space.AverageEvery != 3 {
			t.Errorf("%+v: %+v", test, space)
		}
	}
}
