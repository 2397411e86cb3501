package worker

import (
	"context"
	"math"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/history"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/stage"
)

// stepHistory joins what the pipelines report of a step into one record of the job's history. Its methods may be called
// concurrently; durable alone waits for the disk.
type stepHistory struct {
	file       *history.Writer // keeps nothing where the file cannot be used, which was said
	end        func()          // stops writing and waits for it
	generation uint64
	pipelines  int
	stages     int // that live here
	tau        uint64
	rate       stage.Schedule
	origin     origin

	mu      sync.Mutex
	steps   map[uint64][]pipeline.StepReport // of the steps that not every pipeline has done
	commits map[uint64]int                   // stages here whose shard of a round is durable
}

// openHistory opens the job's history and marks where this worker begins. Training does not depend on the file: what goes wrong
// with it is a warning.
func (t *trainer) openHistory(ctx context.Context, stages int, budget job.Budget) *stepHistory {
	h := &stepHistory{
		end: func() {}, generation: t.assignment.Generation, pipelines: t.assignment.Spec.Job.Shared(), stages: stages, tau: t.tau(),
		rate: learningRate(t.assignment.Spec.Job, budget), origin: originOf(&t.assignment), steps: map[uint64][]pipeline.StepReport{}, commits: map[uint64]int{},
	}
	warn := func(err error) { t.log.Warn("the history of this job lacks something", zap.Error(err)) }
	file, err := history.Open(control.HistoryPath(t.assignment.Dir), warn)
	if err != nil {
		warn(err)
		return h
	}
	h.file = file
	round := uint64(0)
	if r := t.assignment.Restore; r != nil {
		round = r.Round
	}
	file.Append(history.Mark(history.Start, round*h.tau, round, h.generation, time.Now()))
	writes, stop := context.WithCancel(context.WithoutCancel(ctx)) // the last records come when ctx has ended
	var writing sync.WaitGroup
	writing.Go(func() { file.Run(writes) })
	h.end = func() {
		stop()
		writing.Wait()
		if err := file.Close(); err != nil {
			warn(err)
		}
	}
	return h
}

// step takes a pipeline's report, with the tokens per second of all of them. The record of a step is made when the last pipeline
// has done it: the mean, the least and the greatest loss and norm of the pipelines.
func (h *stepHistory) step(r pipeline.StepReport, tokensPerS float64, now time.Time) {
	h.mu.Lock()
	all := append(h.steps[r.Step], r)
	h.steps[r.Step] = all
	if len(all) == h.pipelines {
		delete(h.steps, r.Step)
	}
	h.mu.Unlock()
	if len(all) < h.pipelines {
		return
	}
	record := history.Mark(history.Step, r.Step, r.Step/h.tau+1, h.generation, now)
	record.Values[history.Loss] = over(all, func(r *pipeline.StepReport) float64 { return r.Loss })
	record.Values[history.GradientNorm] = over(all, func(r *pipeline.StepReport) float64 { return r.GradientNorm })
	record.Values[history.LearningRate] = history.One(h.rate.At(h.origin.scheduled(r.Step)))
	if record.Values[history.GradientNorm].Max == 0 { // without clipping nobody knows it
		record.Values[history.GradientNorm] = history.Unknown
	}
	if tokensPerS > 0 {
		record.Values[history.TokensPerS] = history.One(tokensPerS)
	}
	h.file.Append(record)
}

// over is a value of all pipelines together.
func over(reports []pipeline.StepReport, value func(*pipeline.StepReport) float64) history.Stat {
	s := history.Stat{Min: math.Inf(1), Max: math.Inf(-1)}
	for i := range reports {
		v := value(&reports[i])
		s.Mean += v / float64(len(reports))
		s.Min, s.Max = min(s.Min, v), max(s.Max, v)
	}
	return s
}

// evaluated marks an evaluation of the center.
func (h *stepHistory) evaluated(round uint64, loss float64, now time.Time) {
	r := history.Mark(history.Evaluation, round*h.tau, round, h.generation, now)
	r.Values[history.Loss] = history.One(loss)
	h.file.Append(r)
}

// durable notes that the shard of one more stage is on the disk. With the last of a round, the round is marked, and what was
// recorded up to it is on the disk as well: a worker that resumes from there finds no gap.
func (h *stepHistory) durable(round uint64, now time.Time) {
	h.mu.Lock()
	h.commits[round]++
	whole := h.commits[round] == h.stages
	if whole {
		delete(h.commits, round)
	}
	h.mu.Unlock()
	if whole {
		h.file.Append(history.Mark(history.Commit, round*h.tau, round, h.generation, now))
		h.file.Sync()
	}
}
