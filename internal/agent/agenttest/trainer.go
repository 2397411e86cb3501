package agenttest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// NeverFree is the bytes that a worker wants whose disk is full: more than any disk has.
const NeverFree = 1 << 60

// RoundTime is how long the fake trainer takes for a round, unless Processes say otherwise.
const RoundTime = 2 * time.Millisecond

// lateTrouble is the earliest round of trouble before which the fake trainer waits for commits. It waits at half of it.
const lateTrouble = 100

// messageBytes is what the fake trainer's stages send for a micro-batch.
const messageBytes = 4000

// Assignment is one of the fake worker: so many rounds.
func Assignment(id, name string, generation, rounds uint64) control.Assignment {
	return control.Assignment{
		JobID: id, Generation: generation, Spec: spec.Spec{Version: spec.Version, Job: TrainJob(name), Budget: &job.Budget{Steps: rounds, Samples: 4 * rounds}},
		Stages: []control.StagePlace{{Node: "a"}},
	}
}

// TrainJob is a job that the fake worker trains; its name says what goes wrong.
func TrainJob(name string) job.Job {
	j := *job.Default()
	j.Name, j.Stages, j.Pipelines, j.MicroBatches, j.Train.Batch = name, 1, 1, 1, 4
	j.Averaging.Tau = 1
	j.Model.Family = "gpt2"
	j.Model.Config = map[string]any{"vocab_size": 16, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 1}
	return j
}

// trainer pretends to train. What goes wrong is in the job's name: "nan-at-12" fails for good in round 12, "crash-at-12"
// dies there every time, "full-at-12" finds the disk full from there on, "slow-at-12" says that its batches take twice as long,
// "refuses-at-12" commits no round from there on; "good-at-12" trains. From lateTrouble on, two rounds are committed before, however busy the machine is.
type trainer struct {
	a      control.Assignment
	pid    int
	store  shard.Store
	events *control.EventLog
	log    io.Writer
	end    context.CancelFunc
	pace   time.Duration // of a round

	mu     sync.Mutex
	round  uint64
	final  uint64
	wanted map[uint64]bool // rounds to commit
	asked  int             // commits that were accepted
	done   bool            // Finished was said
}

// Worker is the program of a fake worker: it returns its exit code.
func Worker(assignment string) int {
	return worker(context.Background(), assignment, os.Getpid(), RoundTime, os.Stderr, control.Listen)
}

// worker is Worker until ctx ends, with a socket that listen makes, and rounds that take so long.
func worker(ctx context.Context, path string, pid int, pace time.Duration, log io.Writer, listen func(context.Context, string) (net.Listener, error)) int {
	a, err := control.ReadAssignment(path)
	if err != nil {
		fmt.Fprintln(log, "fake worker:", err) //nolint:errcheck // only a log
		return control.ExitInvalid
	}
	if a.Spec.Budget == nil { // as where the worker finds out how long an epoch is
		a.Spec.Budget = a.Spec.Job.Resolved(Epoch)
	}
	killed := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t := &trainer{
		a: a, pid: pid, pace: pace, log: log, end: func() { cancel(nil) }, wanted: map[uint64]bool{}, final: a.Spec.Budget.Steps / uint64(a.Spec.Job.Averaging.Tau),
		events: control.NewEventLog(a.Generation),
	}
	socket, err := listen(ctx, control.SocketPath(a.Dir))
	if err == nil {
		t.store, err = shard.OpenStore(control.ShardDir(a.Dir))
	}
	if err != nil {
		return t.fail(err, false)
	}
	server := control.Server{Trainer: t, Events: t.events}
	serving, stop := context.WithCancel(killed)
	var tasks sync.WaitGroup
	tasks.Go(func() { _ = server.Serve(serving, socket) }) // it ends as told
	tasks.Go(func() {
		if err := server.WatchOrphan(ctx, a.OrphanAfter); err != nil {
			cancel(err)
		}
	})
	code := t.train(ctx)
	if errors.Is(context.Cause(ctx), control.ErrOrphan) {
		code = control.ExitOrphan
	}
	cancel(nil)
	if killed.Err() == nil {
		t.events.Drain(killed, Patience/3)
	}
	stop()
	tasks.Wait()
	return code
}

func (t *trainer) restore(ctx context.Context) error {
	r := t.a.Restore
	if r == nil {
		return nil
	}
	from, to := t.a.Shared()
	all := r.Holding(from, to)
	for _, s := range all {
		if len(all) == len(t.a.Stages) && !slices.Contains(t.stages(), s.Stage) {
			continue
		}
		if _, err := t.store.Verify(ctx, s.Digest); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.round = r.Round
	return nil
}

// trouble returns what the job's name asks for, and the round.
func (t *trainer) trouble() (string, uint64) {
	kind, at, ok := strings.Cut(t.a.Spec.Job.Name, "-at-")
	n, err := strconv.ParseUint(at, 10, 64)
	if !ok || err != nil {
		return "", 0
	}
	return kind, n
}

// train trains until it fails or ctx ends, and returns the exit code.
func (t *trainer) train(ctx context.Context) int {
	if err := t.restore(ctx); err != nil {
		return t.fail(err, false)
	}
	t.events.Append(control.Event{Kind: control.Started})
	ticker := time.NewTicker(t.pace)
	defer ticker.Stop()
	kind, at := t.trouble()
	for {
		select {
		case <-ctx.Done():
			return control.ExitDone
		case <-ticker.C:
		}
		t.mu.Lock()
		if !t.waits(at) {
			t.round = min(t.round+1, t.final)
		}
		now, commit, finished := t.round, t.wanted[t.round], t.round == t.final && !t.done
		delete(t.wanted, now)
		t.done = t.done || finished
		t.mu.Unlock()
		switch {
		case kind == "nan" && now == at:
			return t.fail(fmt.Errorf("step %d, stage 1: loss is NaN: lower optimizer.lr", now), true)
		case kind == "crash" && now == at:
			fmt.Fprintf(t.log, "fake worker: crash in round %d\n", now) //nolint:errcheck // only a log
			return 7
		case commit && kind == "full" && now >= at:
			return t.fail(&checkpoint.SpaceError{Dir: control.ShardDir(t.a.Dir), Needed: NeverFree, Available: -1, Err: syscall.ENOSPC}, false)
		case commit:
			if err := t.snapshot(ctx, now); err != nil {
				return t.fail(err, false)
			}
		}
		if finished {
			t.events.Append(control.Event{Kind: control.Finished, Round: now})
		}
	}
}

// waits reports whether trouble in round at, if any, would come too early: a job that begins has two rounds committed first, which is so
// when the third commit is asked for. The caller holds the lock.
func (t *trainer) waits(at uint64) bool {
	return at >= lateTrouble && t.round >= at/2 && t.a.Restore == nil && t.asked < 3 && len(t.wanted) == 0
}

// fail says why training ends.
func (t *trainer) fail(err error, permanent bool) int {
	fmt.Fprintln(t.log, "fake worker:", err) //nolint:errcheck // only a log
	t.events.Append(control.Event{Kind: control.FailedNow, Error: err.Error(), Permanent: permanent, Obstacle: obstacle.Of(err)})
	return control.ExitFailed
}

// stages are those that the trainer has.
func (t *trainer) stages() (own []int) {
	for k, at := range t.a.Stages {
		if at.Node == t.a.Node {
			own = append(own, k)
		}
	}
	return own
}

// snapshot writes the shards of the trainer's stages.
func (t *trainer) snapshot(ctx context.Context, round uint64) error {
	for _, k := range t.stages() {
		header, values, err := makeShard(t.a, k, round)
		if err != nil {
			return err
		}
		digest, bytes, err := shard.Write(ctx, t.store, header, [][]float32{values})
		if err != nil {
			return err
		}
		t.events.Append(control.Event{Kind: control.Shard, Round: round, Shard: &control.ShardInfo{
			Group: t.a.Group, Stage: k, Digest: string(digest), Bytes: bytes, Cursors: header.Cursors, Meta: t.meta(round),
		}})
	}
	return nil
}

func (t *trainer) meta(round uint64) control.RoundMeta {
	loss, initial := Loss(round), Loss(0)
	from, before := uint64(0), uint64(0)
	if r := t.a.Restore; r != nil && r.SamplesSeen > 0 {
		from, before = r.Round, r.SamplesSeen
	}
	return control.RoundMeta{
		ElapsedS: float64(round) * t.pace.Seconds(), Loss: &loss, EvalLoss: &loss, EvalRound: round, InitialLoss: &initial,
		SamplesSeen: before + (round-from)*uint64(t.a.Spec.Job.Averaging.Tau)*uint64(t.a.Spec.Job.Train.Batch)*uint64(t.a.Spec.Job.Pipelines), DataDigest: "fake", Budget: t.a.Spec.Budget,
	}
}

// Epoch is how many samples the fake trainer finds in the data.
const Epoch = 160

// Loss is what the fake trainer reports after a round.
func Loss(round uint64) float64 { return 5.5 / (1 + float64(round)/50) }

// Status implements control.Trainer.
func (t *trainer) Status() control.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := control.Status{JobID: t.a.JobID, Generation: t.a.Generation, PID: t.pid, Final: t.final, NextCommit: t.earliest()}
	m := t.meta(t.round)
	s.Progress = api.JobStatus{
		State: api.Running, Round: t.round, Step: t.round * uint64(t.a.Spec.Job.Averaging.Tau), Steps: t.a.Spec.Budget.Steps, BudgetSamples: t.a.Spec.Budget.Samples,
		Loss: m.Loss, EvalLoss: m.EvalLoss, EvalRound: m.EvalRound, InitialLoss: m.InitialLoss, SamplesSeen: m.SamplesSeen,
		TokensPerS: 1000, ElapsedS: m.ElapsedS, Device: "fake",
	}
	batch := t.pace.Seconds()
	if t.pace != RoundTime { // it takes as long as others, and says until when, as they do
		left := float64(t.final-t.round) * batch
		s.Progress.ETAS = &left
	}
	if kind, at := t.trouble(); (kind == "slow" || kind == "slow-link") && t.round >= at {
		batch *= 2
	}
	s.Progress.BatchS = &batch
	if own := t.stages(); own[len(own)-1] != len(t.a.Stages)-1 { // the last stage knows the loss
		s.Progress.Loss, s.Progress.EvalLoss, s.Progress.InitialLoss = nil, nil, nil
	}
	for _, k := range t.stages() {
		m := tuner.Memory{Weights: 1000, Gradients: 1000, Activations: 500, Center: 2000}
		s.Progress.StageStatus = append(s.Progress.StageStatus, api.StageStatus{
			Group: t.a.Group, Stage: k, Device: "fake", Busy: 0.9, WaitUpstream: 0.1, MemoryBytes: m.Total(), Memory: &m,
		})
	}
	s.Progress.LinkStatus = t.links()
	return s
}

// links are those of its stages. Of one to another node it says what arrives at it, and there all messages take a hundred times as long once the trouble is slow-link.
func (t *trainer) links() (all []api.LinkStatus) {
	for k := range len(t.a.Stages) - 1 {
		down, up := 30e-6, 40e-6
		l := api.LinkStatus{Group: t.a.Group, Link: k, MessageBytes: messageBytes, DownS: &down, UpS: &up}
		lower, upper := t.a.Stages[k].Node == t.a.Node, t.a.Stages[k+1].Node == t.a.Node
		if lower != upper {
			if kind, at := t.trouble(); kind == "slow-link" && t.round >= at {
				down, up = 100*down, 100*up
			}
			if lower {
				l.DownS, l.Network = nil, &api.NetworkStatus{Peer: t.a.Stages[k+1].Node, RoundTripS: 20e-6, BoundS: 3}
			} else {
				l.UpS = nil
			}
		}
		if lower || upper {
			all = append(all, l)
		}
	}
	return all
}

// earliest is the earliest round that can still be committed. The caller holds the lock.
func (t *trainer) earliest() uint64 {
	if t.round == t.final {
		return t.final
	}
	return t.round + 1
}

// Commit implements control.Trainer.
func (t *trainer) Commit(r control.CommitRequest) control.CommitResponse {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Generation == t.a.Generation && (t.a.Group > 0 || !slices.Contains(t.stages(), 0)) {
		// The worker with the first stage, of the first group, has agreed, and no other is past it. Fake ones do not wait for each other: this one goes back.
		t.round = min(t.round, max(r.Round, 1)-1)
	}
	if r.Generation != t.a.Generation || r.Round < t.earliest() || r.Round > t.final {
		return control.CommitResponse{Earliest: t.earliest(), Reason: "too late"}
	}
	if kind, at := t.trouble(); kind == "refuses" && r.Round >= at {
		return control.CommitResponse{Earliest: r.Round, Reason: "it refuses"}
	}
	earliest := t.earliest()
	t.wanted[r.Round] = true
	t.asked++
	if r.Stop {
		t.final = r.Round
	}
	return control.CommitResponse{Accepted: true, Earliest: earliest}
}

// Abort implements control.Trainer.
func (t *trainer) Abort() { t.end() }

// makeShard makes a stage's shard of a round. Stage 0 has all the model's tensors, so that the round can be exported; every
// value is the round's number, so that one can tell rounds apart.
func makeShard(a control.Assignment, k int, round uint64) (*shard.Header, []float32, error) {
	meta, elements := export.ShardMeta{Layers: [2]int{k, k + 1}}, 1
	meta.First, _ = a.Shared()
	if k == 0 {
		m, err := model.Build(a.Spec.Job.Model.Family, a.Spec.Job.Model.Config)
		if err != nil {
			return nil, nil, fmt.Errorf("build the model: %w", err)
		}
		meta.Tensors = stage.Layout(m.Layers, false)
		for _, t := range meta.Tensors {
			elements = max(elements, t.Offset+t.Len())
		}
	}
	text, err := json.Marshal(meta)
	if err != nil {
		return nil, nil, fmt.Errorf("encode the shard's meta: %w", err)
	}
	h := &shard.Header{
		Job: a.JobID, Generation: a.Generation, Round: round, Stage: k, Stages: len(a.Stages), Meta: text,
		Vectors: []shard.Vector{{Name: shard.CenterVector, Elements: elements}},
	}
	for i := range int(a.Spec.Job.Pipelines) {
		h.Cursors = append(h.Cursors, shard.Cursor{Pipeline: i, Step: round * uint64(a.Spec.Job.Averaging.Tau)})
	}
	return h, slices.Repeat([]float32{float32(round)}, elements), nil
}
