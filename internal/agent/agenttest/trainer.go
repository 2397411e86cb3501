package agenttest

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/tuner"
)

// NeverFree is the bytes that a worker wants whose disk is full: more than any disk has.
const NeverFree = 1 << 60

// RoundTime is how long the fake trainer takes for a round.
const RoundTime = 2 * time.Millisecond

// messageBytes is what the fake trainer's stages send for a micro-batch.
const messageBytes = 4000

// Patience bounds every wait of a test. Nothing waits this long unless something is broken.
const Patience = 30 * time.Second

// trainer pretends to train. What goes wrong is in the job's name: "nan-at-12" fails for good in round 12, "crash-at-12"
// dies there every time, "full-at-12" finds the disk full from there on, "slow-at-12" says that its batches take twice as long.
type trainer struct {
	a     control.Assignment
	store shard.Store
	end   context.CancelFunc

	mu     sync.Mutex
	round  uint64
	final  uint64
	wanted map[uint64]bool // rounds to commit
	events []control.Event
	grown  chan struct{}
	asked  time.Time
	code   int
	done   bool   // Finished was said
	words  string // the last in its log
	log    io.Writer
}

// run trains to the end.
func (t *trainer) run(ctx context.Context) {
	if err := t.restore(ctx); err != nil {
		t.fail(err, false)
		return
	}
	t.emit(control.Event{Kind: control.Started})
	t.train(ctx)
}

func newTrainer(a control.Assignment, store shard.Store, log io.Writer) *trainer {
	if a.Spec.Budget == nil { // as where the worker finds out how long an epoch is
		a.Spec.Budget = a.Spec.Job.Resolved(Epoch)
	}
	return &trainer{
		a: a, store: store, log: log, wanted: map[uint64]bool{}, grown: make(chan struct{}), asked: time.Now(),
		final: a.Spec.Budget.Steps / uint64(a.Spec.Job.Averaging.Tau),
	}
}

func (t *trainer) restore(ctx context.Context) error {
	r := t.a.Restore
	if r == nil {
		return nil
	}
	for _, d := range r.Shards {
		if _, err := t.store.Verify(ctx, shard.Digest(d)); err != nil {
			return err
		}
	}
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

func (t *trainer) train(ctx context.Context) {
	ticker := time.NewTicker(RoundTime)
	defer ticker.Stop()
	kind, at := t.trouble()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		t.mu.Lock()
		orphan := time.Since(t.asked) > t.a.OrphanAfter
		if t.round < t.final {
			t.round++
		}
		now, full := t.round, kind == "full" && t.round >= at
		finished := t.round == t.final && !t.done
		commit := t.wanted[now]
		delete(t.wanted, now)
		t.mu.Unlock()
		switch {
		case orphan:
			t.code = control.ExitOrphan
			return
		case kind == "nan" && now == at:
			t.fail(fmt.Errorf("step %d, stage 1: loss is NaN: lower optimizer.lr", now), true)
			return
		case kind == "crash" && now == at:
			t.say(fmt.Errorf("crash in round %d", now))
			t.code = 7
			return
		case commit && full:
			t.fail(&checkpoint.SpaceError{Dir: control.ShardDir(t.a.Dir), Needed: NeverFree, Available: -1, Err: syscall.ENOSPC}, false)
			return
		case commit:
			if err := t.snapshot(ctx, now); err != nil {
				t.fail(err, false)
				return
			}
		}
		if finished {
			t.mu.Lock()
			t.done = true
			t.mu.Unlock()
			t.emit(control.Event{Kind: control.Finished, Round: now})
		}
	}
}

func (t *trainer) fail(err error, permanent bool) {
	t.say(err)
	t.code = control.ExitFailed
	t.emit(control.Event{Kind: control.FailedNow, Error: err.Error(), Permanent: permanent, Obstacle: obstacle.Of(err)})
}

// say writes to the log.
func (t *trainer) say(err error) {
	t.words = "fake worker: " + err.Error()
	fmt.Fprintln(t.log, t.words) //nolint:errcheck // only a log
}

func (t *trainer) emit(e control.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.Seq, e.Time, e.Generation = uint64(len(t.events))+1, time.Now(), t.a.Generation
	t.events = append(t.events, e)
	close(t.grown)
	t.grown = make(chan struct{})
}

// snapshot writes the shards of all stages.
func (t *trainer) snapshot(ctx context.Context, round uint64) error {
	for k := range t.a.Stages {
		header, values, err := makeShard(t.a, k, round)
		if err != nil {
			return err
		}
		digest, bytes, err := shard.Write(ctx, t.store, header, func(_ int, dst []float32, offset int) error {
			copy(dst, values[offset:])
			return nil
		})
		if err != nil {
			return err
		}
		cursors := make([]control.Cursor, len(header.Cursors))
		for i, c := range header.Cursors {
			cursors[i] = control.Cursor(c)
		}
		t.emit(control.Event{Kind: control.Shard, Round: round, Shard: &control.ShardInfo{
			Stage: k, Digest: string(digest), Bytes: bytes, Cursors: cursors, Meta: t.meta(round),
		}})
	}
	return nil
}

func (t *trainer) meta(round uint64) control.RoundMeta {
	loss, initial := Loss(round), Loss(0)
	return control.RoundMeta{
		ElapsedS: float64(round) * RoundTime.Seconds(), Loss: &loss, EvalLoss: &loss, EvalRound: round, InitialLoss: &initial,
		SamplesSeen: round * uint64(t.a.Spec.Job.Train.Batch) * uint64(t.a.Spec.Job.Pipelines), DataDigest: "fake", Budget: t.a.Spec.Budget,
	}
}

// Epoch is how many samples the fake trainer finds in the data.
const Epoch = 160

// Loss is what the fake trainer reports after a round.
func Loss(round uint64) float64 { return 5.5 / (1 + float64(round)/50) }

func (t *trainer) status() control.Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := control.Status{JobID: t.a.JobID, Generation: t.a.Generation, PID: os.Getpid(), Final: t.final, NextCommit: t.earliest()}
	m := t.meta(t.round)
	s.Job = api.JobStatus{
		State: api.Running, Round: t.round, Step: t.round * uint64(t.a.Spec.Job.Averaging.Tau), Steps: t.a.Spec.Budget.Steps, BudgetSamples: t.a.Spec.Budget.Samples,
		Loss: m.Loss, EvalLoss: m.EvalLoss, EvalRound: m.EvalRound, InitialLoss: m.InitialLoss, SamplesSeen: m.SamplesSeen,
		TokensPerS: 1000, ElapsedS: m.ElapsedS, Device: "fake",
	}
	batch := RoundTime.Seconds()
	if kind, at := t.trouble(); kind == "slow" && t.round >= at {
		batch *= 2
	}
	s.Job.BatchS = &batch
	for k := range t.a.Stages {
		m := tuner.Memory{Weights: 1000, Gradients: 1000, Activations: 500, Center: 2000}
		s.Job.StageStatus = append(s.Job.StageStatus, api.StageStatus{
			Stage: k, Device: "fake", Busy: 0.9, WaitUpstream: 0.1, MemoryBytes: m.Total(), Memory: &m,
		})
	}
	for k := range len(t.a.Stages) - 1 {
		down, up := 30e-6, 40e-6
		s.Job.LinkStatus = append(s.Job.LinkStatus, api.LinkStatus{Link: k, MessageBytes: messageBytes, DownS: &down, UpS: &up})
	}
	s.Job.MicroBatches = int(t.a.Spec.Job.MicroBatches)
	return s
}

// earliest is the earliest round that can still be committed. The caller holds the lock.
func (t *trainer) earliest() uint64 {
	if t.round == t.final {
		return t.final
	}
	return t.round + 1
}

func (t *trainer) commit(r control.CommitRequest) control.CommitResponse {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Generation != t.a.Generation || r.Round < t.earliest() || r.Round > t.final {
		return control.CommitResponse{Earliest: t.earliest(), Reason: "too late"}
	}
	t.wanted[r.Round] = true
	if r.Stop {
		t.final = r.Round
	}
	return control.CommitResponse{Accepted: true}
}

// follow calls each with every event after a number, and flush after those that are there, until ctx ends or either fails.
func (t *trainer) follow(ctx context.Context, after int, each func(control.Event) bool, flush func() error) {
	for {
		t.mu.Lock()
		events, grown := t.events[min(after, len(t.events)):], t.grown
		t.mu.Unlock()
		for _, e := range events {
			if !each(e) {
				return
			}
		}
		after += len(events)
		if flush() != nil {
			return
		}
		select {
		case <-grown:
		case <-ctx.Done():
			return
		}
	}
}
