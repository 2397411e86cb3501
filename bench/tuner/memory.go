package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/prometheus/procfs"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/profile"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/unixhttp"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/tuner"
)

// layout is one configuration whose memory is compared with the process that trains it.
type layout struct {
	Model     string `json:"model"`
	Stages    int    `json:"stages"`
	Pipelines int    `json:"pipelines"`
	Micros    int    `json:"micro_batches"`
	Schedule  string `json:"schedule"`
	Recompute string `json:"recompute"`
	Precision string `json:"precision"`
}

func (l layout) String() string {
	return fmt.Sprintf("%s K=%d N=%d M=%d %s recompute=%s %s", l.Model, l.Stages, l.Pipelines, l.Micros, l.Schedule, l.Recompute, l.Precision)
}

// layouts are a spread: every family and, with several values each, every dimension is there.
var layouts = []layout{
	{Model: "gpt2", Stages: 2, Pipelines: 1, Micros: 8, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "gpt2", Stages: 2, Pipelines: 2, Micros: 4, Schedule: "afp", Recompute: "none", Precision: "f32"},
	{Model: "gpt2", Stages: 4, Pipelines: 4, Micros: 4, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "gpt2", Stages: 4, Pipelines: 1, Micros: 16, Schedule: "gpipe", Recompute: "block", Precision: "f32"},
	{Model: "gpt2", Stages: 2, Pipelines: 2, Micros: 4, Schedule: "gpipe", Recompute: "full", Precision: "f32"},
	{Model: "gpt2", Stages: 2, Pipelines: 1, Micros: 2, Schedule: "1f1b", Recompute: "none", Precision: "bf16"},
	{Model: "gpt2", Stages: 2, Pipelines: 2, Micros: 8, Schedule: "zb-h1", Recompute: "none", Precision: "bf16"},
	{Model: "awd-lstm", Stages: 2, Pipelines: 1, Micros: 4, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "awd-lstm", Stages: 2, Pipelines: 4, Micros: 2, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "vgg", Stages: 2, Pipelines: 1, Micros: 2, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "vgg", Stages: 4, Pipelines: 2, Micros: 8, Schedule: "afp", Recompute: "none", Precision: "f32"},
	{Model: "vgg", Stages: 2, Pipelines: 2, Micros: 4, Schedule: "1f1b", Recompute: "block", Precision: "f32"},
	{Model: "llama", Stages: 2, Pipelines: 1, Micros: 4, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "llama", Stages: 2, Pipelines: 2, Micros: 4, Schedule: "afp", Recompute: "none", Precision: "bf16"},
	{Model: "bert", Stages: 2, Pipelines: 2, Micros: 4, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "bert", Stages: 2, Pipelines: 1, Micros: 4, Schedule: "gpipe", Recompute: "block", Precision: "bf16"},
	{Model: "mlp", Stages: 2, Pipelines: 2, Micros: 2, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "mlp", Stages: 2, Pipelines: 1, Micros: 4, Schedule: "gpipe", Recompute: "none", Precision: "bf16"},
	{Model: "resnet", Stages: 2, Pipelines: 1, Micros: 4, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "resnet", Stages: 2, Pipelines: 2, Micros: 4, Schedule: "afp", Recompute: "none", Precision: "f32"},
	{Model: "gnmt", Stages: 2, Pipelines: 1, Micros: 4, Schedule: "1f1b", Recompute: "none", Precision: "f32"},
	{Model: "gnmt", Stages: 3, Pipelines: 2, Micros: 4, Schedule: "gpipe", Recompute: "none", Precision: "f32"},
}

// empty is a worker that holds next to nothing: its peak is what a process takes before it trains.
var empty = layout{Model: "empty", Stages: 1, Pipelines: 1, Micros: 1, Schedule: "1f1b", Recompute: "none", Precision: "f32"}

// memory compares the memory that is predicted for a job with the peak of the worker process that trains it, evaluates it and
// commits a round, less the peak of an empty worker. What libraries and the runtime take is a part of that.
func memory(ctx context.Context, o options, dir string) ([]report.Figure, error) {
	var peaks []float64
	for range 3 { // they differ by 2 MB
		_, peak, err := trainOnce(ctx, dir, empty)
		if err != nil {
			return nil, fmt.Errorf("empty worker: %w", err)
		}
		peaks = append(peaks, float64(peak))
	}
	baseline := int64(report.Median(peaks))
	errs := make([]float64, 0, len(layouts))
	byLayout := map[string]any{"empty worker, bytes": baseline}
	for _, l := range layouts {
		if len(o.models) > 0 && !slices.Contains(o.models, l.Model) {
			continue
		}
		predicted, peak, err := trainOnce(ctx, dir, l)
		if err != nil {
			return nil, fmt.Errorf("%v: %w", l, err)
		}
		process := peak - baseline
		off := float64(predicted)/float64(process) - 1
		fmt.Fprintf(os.Stderr, "%-62v predicted %6.1f MB, process %6.1f MB (%+.1f%%)\n", l, float64(predicted)/1e6, float64(process)/1e6, 100*off)
		errs, byLayout[l.String()] = append(errs, math.Abs(off)), map[string]any{"predicted_bytes": predicted, "process_bytes": process}
	}
	return []report.Figure{{
		Bench: "tuner", Metric: "largest error of predicted memory against the process", Unit: "of 1", Value: slices.Max(errs), Bar: 0.1, Aim: 0.05, AtMost: true,
		Conditions: map[string]any{"layouts": byLayout, "median": report.Median(errs)},
	}}, nil
}

// trainOnce trains a layout in a worker process for a few rounds, the last of which is evaluated and committed. It returns what
// was predicted of its memory, and the process's peak.
func trainOnce(ctx context.Context, root string, l layout) (predicted, peak int64, err error) {
	dir, err := os.MkdirTemp(root, "worker-")
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	a, predicted, err := l.assignment(ctx, root, dir)
	if err != nil {
		return 0, 0, err
	}
	text, err := json.Marshal(a)
	if err != nil {
		return 0, 0, err
	}
	path := filepath.Join(dir, "assignment.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return 0, 0, err
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(ctx, os.Args[0], "-worker", path)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	peak, err = peakOf(ctx, cmd.Process.Pid, len(a.Stages), control.SocketPath(dir))
	if err != nil {
		_ = cmd.Process.Kill() // Wait says how it ended
	}
	if ended := cmd.Wait(); err == nil {
		err = ended
	}
	if err != nil {
		err = fmt.Errorf("%w\n%s", err, log.String())
	}
	return predicted, peak, err
}

// assignment lays the layout out by assumed times, whose memory is that of measured ones.
func (l layout) assignment(ctx context.Context, root, dir string) (a control.Assignment, predicted int64, err error) {
	r, err := request(l.Model, root)
	if err != nil {
		return a, 0, err
	}
	j := &r.Spec.Job
	j.Stages, j.Pipelines, j.MicroBatches = job.Count(l.Stages), job.Count(l.Pipelines), job.Count(l.Micros)
	j.Schedule, j.Recompute, j.Precision, j.Devices.CPU.Count = l.Schedule, []string{l.Recompute}, l.Precision, j.Stages
	j.Averaging.Alpha, j.Averaging.RateScale = 1, 1
	s, err := profile.Open(ctx, profile.Config{Request: r})
	if err != nil {
		return a, 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	space, err := s.Space()
	if err != nil {
		return a, 0, err
	}
	s.Guess(&space)
	out, err := tuner.Search(space)
	if err != nil {
		return a, 0, err
	}
	c := out.Ranked[0]
	trial, err := profile.Trial(&r, &c, 1)
	if err != nil {
		return a, 0, err
	}
	trial.Job.Train.Steps = 1 << 20
	return control.Assignment{
		Version: control.Version, JobID: "1", Generation: 1, Node: "bench", Dir: dir,
		Spec: spec.Spec{Version: spec.Version, Job: trial.Job, Model: r.Spec.Model, Layout: &spec.Layout{Split: trial.Split}},
		Plan: trial.Plan.Lines(), Stages: slices.Repeat([]control.StagePlace{{Node: "bench"}}, trial.Plan.Stages()),
		OrphanAfter: time.Minute,
	}, c.Predicted.Bytes(), nil
}

// rounds is how many a worker trains before it commits one and ends.
const rounds = 4

// peakOf waits until a worker has trained, evaluated and committed, ends it, and returns the most memory that it had.
func peakOf(ctx context.Context, pid, stages int, socket string) (int64, error) {
	client := unixhttp.New(socket, time.Second)
	defer client.Close()
	asked := false
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var s control.Status
		if err := client.Call(ctx, 10*time.Second, http.MethodGet, "/status", nil, &s); err != nil {
			if _, gone := os.Stat(fmt.Sprintf("/proc/%d/status", pid)); gone != nil || ctx.Err() != nil {
				return 0, err
			}
			continue // it has not opened its socket yet
		}
		switch {
		case s.Progress.State == api.Failed:
			return 0, errors.New("the worker failed")
		case !asked && s.Progress.State == api.Running && s.Progress.Round >= rounds:
			var answer control.CommitResponse // refused where the round has passed meanwhile
			request := control.CommitRequest{Generation: 1, Round: s.NextCommit + max(2, s.Progress.Round/2), Stop: true}
			if err := client.Call(ctx, 10*time.Second, http.MethodPost, "/commit", request, &answer); err != nil {
				return 0, err
			}
			asked = answer.Accepted
		case asked && committed(&s, stages, filepath.Dir(socket)):
			peak, err := highWater(pid)
			return peak, errors.Join(err, client.Call(ctx, 10*time.Second, http.MethodPost, "/abort", nil, nil))
		}
	}
	return 0, errors.New("the worker has not committed a round")
}

// committed reports whether a worker has evaluated and committed its last round.
func committed(s *control.Status, stages int, dir string) bool {
	shards, err := filepath.Glob(filepath.Join(dir, "shards", "*"))
	return err == nil && len(shards) >= stages && s.Progress.Round >= s.Final && s.Progress.EvalRound >= s.Final
}

// highWater is the most memory that a process had at once.
func highWater(pid int) (int64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, err
	}
	status, err := p.NewStatus()
	return int64(status.VmHWM), err //nolint:gosec // of a process
}

// runWorker is the process that peakOf looks at.
func runWorker(ctx context.Context, assignment string) error {
	_, err := worker.Run(ctx, worker.Config{Assignment: assignment, Log: io.Writer(os.Stderr)})
	return err
}
