package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/envtest"
	specs "github.com/avgpipe/avgpipe/internal/spec"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/export/exporttest"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// corpus writes some text with structure in it and returns its path.
func corpus(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "corpus.txt")
	var text strings.Builder
	for i := range 400 {
		fmt.Fprintf(&text, "the %d little rabbits ate %d carrots\n", i%17, i*i%23)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// setup is an assignment on ref for a tiny GPT-2, with K stages and N pipelines.
func setup(t testing.TB, stages, pipelines int, change func(*job.Job)) control.Assignment {
	t.Helper()
	spec := job.Job{
		Version: 1, Name: "tiny",
		Model:     job.Model{Family: "gpt2", Config: map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 16, "vocab_size": 256}},
		Data:      job.Data{Files: []string{corpus(t)}, Format: "text", Tokenizer: "bytes", Header: true, Holdout: 0.1},
		Optimizer: job.Optimizer{Name: "adamw", LearningRate: 3e-3, Betas: []float64{0.9, 0.95}, Epsilon: 1e-8, ClipNorm: 1, Schedule: "constant"},
		Train:     job.Train{Steps: 8, Batch: 4, EvalEvery: 4, EvalSamples: 6},
		Stages:    job.Count(stages), Pipelines: job.Count(pipelines), MicroBatches: 2, Schedule: "afp",
		Averaging: job.Averaging{Method: "elastic", Pull: "old", Tau: 1},
		Center:    job.Center{CommitEvery: 4, Replicas: 1, Keep: 2, State: "full"},
		Devices:   job.Devices{Kind: "ref", CPU: job.CPU{Count: job.Count(stages), Threads: 1}},
		Seed:      7,
	}
	if change != nil {
		change(&spec)
	}
	plan, _, err := schedule.Generate(spec.Schedule, schedule.Request{Devices: stages, MicroBatches: int(spec.MicroBatches)})
	if err != nil {
		t.Fatal(err)
	}
	a := control.Assignment{
		Version: control.Version, JobID: "1", Generation: 1, Node: "a", Dir: t.TempDir(),
		Spec: specs.Spec{Version: specs.Version, Job: spec, Model: configOf(t, &spec)}, Plan: plan.Lines(),
	}
	a.Stages = slices.Repeat([]control.StagePlace{{Node: "a"}}, plan.Stages())
	a.Spec.Budget = &job.Budget{
		Samples: uint64(spec.Train.Steps * spec.Train.Batch * int(spec.Pipelines)), Steps: uint64(spec.Train.Steps),
		Warmup: uint64(spec.Optimizer.Warmup), T0: uint64(spec.Optimizer.T0),
	}
	return a
}

// outcome is what a run left behind.
type outcome struct {
	err    error
	events []control.Event
	status control.Status
	shards map[int]control.ShardInfo // of the last committed round, by stage
	round  uint64
}

// train runs a worker in this process. drive, unless nil, asks it for commits while it trains; the final round is always
// committed. It ends when that is durable.
func train(t *testing.T, a control.Assignment, drive func(*trainer)) outcome {
	t.Helper()
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkAssignment(a, plan); err != nil {
		t.Fatal(err)
	}
	tr := newTrainer(a, plan, zap.NewNop())
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- tr.serveAndTrain(ctx) }()
	out := outcome{shards: map[int]control.ShardInfo{}}
	here := 0
	for _, place := range a.Stages {
		if place.Node == a.Node {
			here++
		}
	}
	driven := false
	for seq, ended := uint64(0), false; !ended; {
		events, err := nextEvents(ctx, tr, seq, done)
		if err != nil {
			out.err = err
			break
		}
		for _, e := range events {
			seq = e.Seq
			out.events = append(out.events, e)
			switch e.Kind {
			case control.Started:
				if drive != nil && !driven {
					driven = true
					drive(tr)
				}
			case control.Finished:
				if answer := tr.Commit(control.CommitRequest{Generation: a.Generation, Round: e.Round}); !answer.Accepted {
					t.Errorf("the commit of the final round %d was refused: %s", e.Round, answer.Reason)
				}
				out.round = e.Round
			case control.Shard:
				if e.Round >= out.round && out.round > 0 {
					out.shards[e.Shard.Stage] = *e.Shard
				}
				ended = len(out.shards) == here
			case control.Evaluated, control.FailedNow, control.Note, control.Refused:
			}
		}
	}
	out.status = tr.Status()
	if out.err == nil {
		tr.Abort()
		out.err = <-done
	}
	return out
}

// nextEvents waits for events or for the end of the worker.
func nextEvents(ctx context.Context, tr *trainer, seq uint64, done chan error) ([]control.Event, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		events []control.Event
		err    error
	}
	got := make(chan result, 1)
	go func() {
		events, err := tr.events.After(ctx, seq)
		got <- result{events, err}
	}()
	select {
	case r := <-got:
		return r.events, r.err
	case err := <-done:
		cancel()
		<-got
		if err == nil {
			err = fmt.Errorf("the worker ended without being told to")
		}
		return nil, err
	}
}

// exported assembles the model of an outcome and returns its weights file.
func exported(t *testing.T, a control.Assignment, o outcome) []byte {
	t.Helper()
	m, store, digests := parts(t, a, o)
	return exporttest.Weights(t, m, store, digests, control.ModelDir(a.Dir))
}

// parts are what the model of an outcome is assembled from.
func parts(t *testing.T, a control.Assignment, o outcome) (*model.Model, shard.Store, []shard.Digest) {
	t.Helper()
	if len(o.shards) != len(a.Stages) {
		t.Fatalf("%d shards for %d stages; the worker ended with %v", len(o.shards), len(a.Stages), o.err)
	}
	store, err := shard.OpenStore(control.ShardDir(a.Dir))
	if err != nil {
		t.Fatal(err)
	}
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{assignment: a, plan: plan}
	if err := h.openModel(t.Context()); err != nil {
		t.Fatal(err)
	}
	var digests []shard.Digest
	for k := range a.Stages {
		digests = append(digests, shard.Digest(o.shards[k].Digest))
	}
	return h.model, store, digests
}

func restoreOf(o outcome) *cluster.Manifest {
	r := &cluster.Manifest{Round: o.round, Stages: len(o.shards)}
	for k := range len(o.shards) {
		s := o.shards[k]
		r.Shards = append(r.Shards, cluster.ShardRef{Stage: k, Digest: shard.Digest(s.Digest), Frozen: s.Frozen.Digest, FrozenBytes: s.Frozen.Bytes, Layers: s.Layers})
		r.Cursors = o.shards[k].Cursors
		r.SamplesSeen = s.Meta.SamplesSeen
		r.Meta, _ = json.Marshal(o.shards[k].Meta)
	}
	return r
}

func TestWorkerTrainsAndReportsWhatStatusShows(t *testing.T) {
	a := setup(t, 2, 2, func(j *job.Job) { j.Train.Steps = 40; j.Train.EvalEvery = 10 })
	o := train(t, a, nil)
	weights := exported(t, a, o)
	if len(weights) < 10000 {
		t.Errorf("the exported weights are %d bytes", len(weights))
	}
	s := o.status.Progress
	if s.Step != 40 || s.Round != 40 || s.SamplesSeen != 40*2*4 || s.State != api.Running {
		t.Errorf("status is step %d round %d samples %d state %s", s.Step, s.Round, s.SamplesSeen, s.State)
	}
	if s.InitialLoss == nil || s.EvalLoss == nil || !(*s.EvalLoss < 0.8**s.InitialLoss) || s.EvalRound != 40 {
		t.Errorf("evaluation loss went from %v to %v at round %d; expected a fall by a fifth", s.InitialLoss, s.EvalLoss, s.EvalRound)
	}
	if s.Perplexity == nil || math.Abs(math.Log(*s.Perplexity)-*s.EvalLoss) > 1e-9 || s.Accuracy != nil || s.F1 != nil {
		t.Errorf("metrics of a language model: %+v beside a loss of %v", s.Metrics, *s.EvalLoss)
	}
	if math.Abs(*s.InitialLoss-math.Log(256)) > 0.2 {
		t.Errorf("the untrained model has a loss of %v, expected about ln 256", *s.InitialLoss)
	}
	if len(s.StageStatus) != 2 {
		t.Fatalf("status has %d stages, expected 2", len(s.StageStatus))
	}
	if len(s.LinkStatus) != 1 || s.LinkStatus[0].MessageBytes != 2*16*16*4 { // samples, tokens, width, bytes
		t.Errorf("links are %+v", s.LinkStatus)
	}
	held := int64(0)
	for _, st := range s.StageStatus {
		if m := st.Memory; m == nil || m.Total() != st.MemoryBytes || m.Boundaries != 0 || m.Center <= 0 || m.Center%(m.Weights/2) != 0 {
			t.Errorf("stage %d holds %d bytes: %+v; want parts that add up, and a center of whole vectors", st.Stage, st.MemoryBytes, m)
		}
		sum := st.Busy + st.WaitUpstream + st.WaitDownstream + st.Average + st.Optimizer + st.Commit
		if st.Busy <= 0 || sum > 1.001 {
			t.Errorf("stage %d: %+v: busy must show, and the fractions may not exceed 1", st.Stage, st)
		}
		held += st.MemoryBytes
	}
	if weights := int64(4 * s.Parameters * 2); held < 2*weights { // and their gradients, at least
		t.Errorf("stages hold %d bytes, the pipelines' weights alone are %d", held, weights)
	}
	if s.BatchS == nil || *s.BatchS <= 0 || *s.BatchS > s.ElapsedS {
		t.Errorf("a batch takes %v s of %v", s.BatchS, s.ElapsedS)
	}
	var rounds []uint64
	for _, e := range o.events {
		if e.Kind == control.Evaluated {
			rounds = append(rounds, e.Round)
		}
	}
	if !slices.Equal(rounds, []uint64{0, 10, 20, 30, 40}) {
		t.Errorf("evaluated rounds %v, expected 0 10 20 30 40", rounds)
	}
}

func TestEverySplitGivesTheSameBits(t *testing.T) {
	for _, precision := range []string{"f32", "bf16"} {
		t.Run(precision, func(t *testing.T) { everySplit(t, precision) })
	}
}

func everySplit(t *testing.T, precision string) {
	var want []byte
	for _, c := range []struct {
		stages    int
		recompute []string
	}{{1, nil}, {2, []string{"none"}}, {3, []string{"full", "block", "none"}}, {4, []string{"block"}}} {
		a := setup(t, c.stages, 1, func(j *job.Job) { j.Recompute, j.Precision = c.recompute, precision })
		a.Spec.Job.Data.Files = sharedCorpus(t)
		got := exported(t, a, train(t, a, nil))
		if want == nil {
			want = got
		}
		if !bytes.Equal(got, want) {
			t.Errorf("the weights after training in %d stages (recompute %v) differ from those in 1", c.stages, c.recompute)
		}
	}
}

// sharedCorpus is the same for every call in a test: same path, same bytes.
func sharedCorpus(t *testing.T) []string {
	t.Helper()
	return []string{corpus(t)}
}

func TestBF16TrainsAlmostAsF32(t *testing.T) {
	losses := map[string]float64{}
	for _, precision := range []string{"f32", "bf16"} {
		a := setup(t, 2, 1, func(j *job.Job) { j.Precision, j.Train.Steps = precision, 40 })
		o := train(t, a, nil)
		if o.status.Progress.EvalLoss == nil {
			t.Fatalf("%s: no evaluation; the worker ended with %v", precision, o.err)
		}
		losses[precision] = *o.status.Progress.EvalLoss
	}
	if d := math.Abs(losses["bf16"] - losses["f32"]); d == 0 || d > 0.05*losses["f32"] {
		t.Errorf("evaluation losses %v: they differ, by 5%% at most", losses)
	}
}

// stopAfter has a worker commit a round, or the first one after it that it can, and stop there.
func stopAfter(round uint64) func(*trainer) {
	return func(tr *trainer) {
		for at := round; !tr.Commit(control.CommitRequest{Generation: 1, Round: at, Stop: true}).Accepted; at++ { //nolint:revive // empty
		}
	}
}

func TestResumeFromACommitGivesTheBitsOfAnUninterruptedRun(t *testing.T) {
	for _, pull := range []string{"predicted", "old", "new", "elastic"} {
		change := func(j *job.Job) { j.Averaging.Pull = pull }
		whole := setup(t, 2, 2, change)
		want := exported(t, whole, train(t, whole, nil))

		first := setup(t, 2, 2, change)
		first.Spec.Job.Data.Files = whole.Spec.Job.Data.Files
		half := train(t, first, stopAfter(3))
		if half.round < 3 || half.round > 8 {
			t.Fatalf("pull %s: stopped at round %d", pull, half.round)
		}
		second := first
		second.Generation, second.Restore = 2, restoreOf(half)
		got := exported(t, second, train(t, second, nil))
		if !bytes.Equal(got, want) {
			t.Errorf("pull %s: stopped at round %d and resumed, the final weights differ from an uninterrupted run's", pull, half.round)
		}
	}
}

func TestTwoNodesComputeTheShardsOfOne(t *testing.T) {
	for _, pull := range []string{"predicted", "old", "new"} {
		alone := setup(t, 3, 2, func(j *job.Job) { j.Averaging.Pull = pull })
		want := train(t, alone, nil)

		both := [2]control.Assignment{alone, alone}
		places := []control.StagePlace{{Node: "a", Address: envtest.FreeAddress(t)}, {Node: "b", Address: envtest.FreeAddress(t)}, {}}
		places[2] = places[1]
		var got [2]outcome
		var group sync.WaitGroup
		for i, node := range []string{"a", "b"} {
			both[i].Node, both[i].Dir, both[i].Stages = node, t.TempDir(), places
			group.Go(func() { got[i] = train(t, both[i], nil) })
		}
		group.Wait()
		for k, node := range []int{0, 1, 1} {
			for _, l := range got[node].status.Progress.LinkStatus {
				if across := l.Link == 0; across && (node == 0 && l.DownS != nil || node == 1 && l.UpS != nil) {
					t.Errorf("node %d says of messages that arrive at the other one: %+v", node, l)
				}
			}
			if d := got[node].shards[k].Digest; d != want.shards[k].Digest || d == "" {
				t.Errorf("pull %s: stage %d over TCP gave shard %.12s, in one process %.12s (the node ended with %v)",
					pull, k, d, want.shards[k].Digest, got[node].err)
			}
		}
	}
}

func TestAssignmentsThatCannotWorkAreRefused(t *testing.T) {
	for want, change := range map[string]func(*control.Assignment){
		"version 1":                            func(a *control.Assignment) { a.Version = 1 },
		"not an absolute path":                 func(a *control.Assignment) { a.Dir = "here" },
		"must be resolved":                     func(a *control.Assignment) { a.Spec.Job.Pipelines = job.Auto },
		"not a multiple of":                    func(a *control.Assignment) { a.Spec.Job.Train.Batch = 5 },
		"not a whole number of":                func(a *control.Assignment) { a.Spec.Job.Averaging.Tau = 3 },
		"the job 2 devices and 3 stage places": func(a *control.Assignment) { a.Stages = append(a.Stages, a.Stages[0]) },
		"the plan has 1 devices and 1 stages":  func(a *control.Assignment) { a.Plan = a.Plan[:1] },
		"1 shards and 0 cursors": func(a *control.Assignment) {
			a.Restore = &cluster.Manifest{Shards: make([]cluster.ShardRef, 1)}
		},
		"F9": func(a *control.Assignment) { a.Plan[0] += " F9" },
	} {
		a := setup(t, 2, 1, nil)
		change(&a)
		text, err := json.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "assignment.json")
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		code, err := Run(t.Context(), Config{Assignment: path, Log: io.Discard})
		if code != control.ExitInvalid || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("exit code %d, error %v; want %d and %q", code, err, control.ExitInvalid, want)
		}
	}
}

func TestLossThatIsNotANumberFailsForGood(t *testing.T) {
	a := setup(t, 2, 1, func(j *job.Job) { j.Optimizer.LearningRate = 1e30; j.Optimizer.ClipNorm = 0 })
	o := train(t, a, nil)
	if o.err == nil || !strings.Contains(o.err.Error(), "stage") {
		t.Fatalf("the worker ended with %v, expected a loss that is not finite", o.err)
	}
	plan, _ := schedule.Parse(strings.Join(a.Plan, "\n"))
	tr := newTrainer(a, plan, zap.NewNop())
	tr.fail(t.Context(), o.err)
	events, err := tr.events.After(t.Context(), 0)
	if err != nil || len(events) != 1 || !events[0].Permanent || !strings.Contains(events[0].Error, "step") {
		t.Errorf("events are %+v (%v), expected one permanent failure that names the step", events, err)
	}
}

func TestChangedDataAreRefused(t *testing.T) {
	a := setup(t, 1, 1, nil)
	o := train(t, a, nil)
	if err := os.WriteFile(a.Spec.Job.Data.Files[0], bytes.Repeat([]byte("something else\n"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	a.Generation, a.Restore = 2, restoreOf(o)
	again := train(t, a, nil)
	if again.err == nil || !strings.Contains(again.err.Error(), "the files have changed since round 8") {
		t.Errorf("the worker ended with %v, expected a refusal of changed data", again.err)
	}
}

func TestShardOfAnotherOptimizerIsNotLoaded(t *testing.T) {
	a := setup(t, 2, 1, nil)
	o := train(t, a, nil)
	a.Generation, a.Restore = 2, restoreOf(o)
	a.Spec.Job.Optimizer = job.Optimizer{Name: "sgd", LearningRate: 0.1, Schedule: "constant"}
	again := train(t, a, nil)
	if again.err == nil || !strings.Contains(again.err.Error(), "its 4 vectors are not those of 1 pipelines with 10912 parameters and 0 vectors") {
		t.Errorf("the worker ended with %v, expected a refusal of the other optimizer's state", again.err)
	}
}

func TestDamagedShardIsNeverLoaded(t *testing.T) {
	a := setup(t, 2, 1, nil)
	o := train(t, a, nil)
	a.Generation, a.Restore = 2, restoreOf(o)
	name := o.shards[1].Digest
	files, err := filepath.Glob(filepath.Join(control.ShardDir(a.Dir), name+"*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("shard files %v (%v)", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 4
	if err := os.Chmod(files[0], 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], data, 0o600); err != nil {
		t.Fatal(err)
	}
	again := train(t, a, nil)
	if again.err == nil || !strings.Contains(again.err.Error(), name) || !strings.Contains(again.err.Error(), "damaged") {
		t.Errorf("the worker ended with %v, expected a refusal that names shard %s", again.err, name)
	}
}
