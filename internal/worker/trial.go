package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/trace"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/pipeline"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Trials runs a job for a few batches at a time, each time laid over this host's devices in another way, and measures. Model and
// data are opened once. Nothing is committed. Trials run one after the other.
//
//	trials, err := worker.OpenTrials(ctx, spec, cuda.Config{})
//	defer trials.Close()
//	for _, c := range candidates {
//	    result, err := trials.Run(ctx, worker.TrialConfig{Job: c.job, Plan: c.plan, WarmUp: 2, Batches: 8})
//	}
type Trials struct {
	opened
	graphics cuda.Config
}

// OpenTrials opens the model and the data of a job. graphics says where the libraries of GPUs are, and in Visible which GPUs the trials may have: the
// process sees these from the first trial on, also where that needs fewer; copies is the directory of what the job reads from elsewhere.
func OpenTrials(ctx context.Context, s *spec.Spec, graphics cuda.Config, copies string) (*Trials, error) {
	t := &Trials{graphics: graphics}
	t.fetched = copies
	err := t.build(s)
	if err == nil {
		err = t.openWeights(s)
	}
	if err == nil {
		err = t.read(ctx, s)
	}
	if err != nil {
		return nil, errors.Join(err, t.close())
	}
	return t, nil
}

// Model is the job's.
func (t *Trials) Model() *model.Model { return t.model }

// Epoch is how many samples the job may train on.
func (t *Trials) Epoch() uint64 { return t.set.Samples() }

// Close closes them.
func (t *Trials) Close() error { return t.close() }

// OpenDevice opens the first device that a job asks for, to ask it what it is: not of GPUs, which others may use. The caller closes it.
func (t *Trials) OpenDevice(spec job.Devices) (device.Device, error) {
	dev, _, err := pick.Open(spec.Kind, pick.Config{Threads: max(int(spec.CPU.Threads), 1), Emulated: emulate(spec.Emulated, 0, 1), Computes: spec.Emulated.Compute})
	return dev, err
}

// TrialConfig is one way to lay a job over devices.
type TrialConfig struct {
	// Job is that of OpenTrials, with every count resolved.
	Job job.Job
	// Plan has one row a device.
	Plan schedule.Plan
	// Split is, of each stage, its first layer and the one after its last. Empty: as even as their costs allow.
	Split [][2]int
	// Cores that the devices are pinned to, each taking its threads from the front. Empty: no pinning.
	Cores []int
	// Batches that each pipeline is watched for, after WarmUp batches that are not: pools fill, kernels are made. Both at least 1.
	WarmUp, Batches int
	// CoolDown is how many batches follow those that are watched: while the slowest of several pipelines ends the last of these, the
	// others go on, as they do in training. 1 is enough for TrialResult.Worked; 0 will do where single spans are of interest.
	CoolDown int
}

// total is how many batches each pipeline runs: the above, rounded up to whole rounds.
func (c *TrialConfig) total() int {
	tau := c.Job.Averaging.Tau
	return (c.WarmUp + c.Batches + c.CoolDown + tau - 1) / tau * tau
}

// Validate reports the first setting that no trial can run with.
func (c *TrialConfig) Validate() error {
	if c.WarmUp < 1 || c.Batches < 1 || c.CoolDown < 0 {
		return fmt.Errorf("trial: %d batches after %d of warm-up, then %d: at least 1, 1 and 0", c.Batches, c.WarmUp, c.CoolDown)
	}
	if len(c.Plan) == 0 {
		return errors.New("trial: the plan has no rows")
	}
	return nil
}

// TrialResult is what a trial measured. Times are of the watched batches; spans lie on the clock of package trace.
type TrialResult struct {
	// Batches[i] is how long batch i took: from the moment at which the last pipeline had ended the one before to that at which
	// the last had ended it. Every pipeline did one.
	Batches []time.Duration
	// Start and End of the watched time.
	Start, End time.Duration
	// Worked is how many batches, of which every pipeline does one, the passes come to that the devices ran in the watched time. It
	// is not quite len(Batches): some pipelines are ahead of the slowest one, further at one end of that time than at the other.
	Worked float64
	// Spans that ended in it, in the order in which they did. Those of one device do not overlap, nor those of rows on one GPU: see inTurn.
	Spans   []trace.Span
	Stages  []StageTrial  // by stage
	Devices []DeviceTrial // by row of the plan
	// PeakRSSBytes is the most memory that the process held at any time of the trial, all that it had before included. 0 where
	// the system does not say.
	PeakRSSBytes int64
}

// StageTrial is one stage of a trial.
type StageTrial struct {
	Device int // row of the plan
	Shape  stage.Shape
	// AllocatedBytes is what the stage and its part of the center took of the device's memory, for all pipelines.
	AllocatedBytes int64
}

// DeviceTrial is one device of a trial.
type DeviceTrial struct {
	Name  string
	About string  // the device, and why it is that one
	Busy  float64 // the part of the watched time that it worked, 0..1; of a row on a GPU, that the GPU did
	Lag   float64 // by which part of the watched time it was later than dictated, where it is emulated
}

// Run lays the job out and trains it.
func (t *Trials) Run(ctx context.Context, c TrialConfig) (result TrialResult, err error) {
	if err := c.Validate(); err != nil {
		return result, err
	}
	h, err := t.host(ctx, c)
	if err != nil {
		return result, fmt.Errorf("trial: %w", err)
	}
	defer func() { err = cmp.Or(err, h.closeDevices()) }()
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), pipeline.Processors(len(h.devices))))
	w := newWatch(c, h.lags)
	config, err := h.groupConfig(ctx)
	if err != nil {
		return result, fmt.Errorf("trial: %w", err)
	}
	config.FinalRound = uint64(c.total() / c.Job.Averaging.Tau)
	config.Evaluation.Due = func(uint64) bool { return false } // it is there for the memory that it takes
	config.Events = pipeline.Events{OnStep: w.step, Trace: w.span}
	group, err := pipeline.New(config)
	if err != nil {
		return result, fmt.Errorf("trial: %w", err)
	}
	resetPeakRSS()
	if err := group.Run(ctx); err != nil {
		return result, fmt.Errorf("trial: %w", err)
	}
	return w.result(h), nil
}

// host lays the job of a trial over devices of its own.
func (t *Trials) host(ctx context.Context, c TrialConfig) (*host, error) {
	places := slices.Repeat([]control.StagePlace{{Node: "here"}}, c.Plan.Stages())
	if g := c.Job.Devices.GPU; c.Job.Devices.Kind == job.KindGPU && int(g.Count) <= len(t.graphics.Visible) {
		for k, row := range c.Plan.Placement() {
			places[k].GPU = t.graphics.Visible[g.Of(row, len(c.Plan))]
		}
	}
	a := control.Assignment{
		Version: control.Version, JobID: "trial", Generation: 1, Node: "here", Dir: "/", Plan: c.Plan.Lines(), Cores: c.Cores,
		Spec:   spec.Spec{Job: c.Job, Budget: &job.Budget{Steps: uint64(c.total())}, Layout: &spec.Layout{Split: c.Split}},
		Stages: places,
	}
	if err := checkAssignment(a, c.Plan); err != nil {
		return nil, err
	}
	h := &host{opened: t.opened, assignment: a, plan: c.Plan, origin: originOf(&a), budget: *a.Spec.Budget, graphics: t.graphics}
	err := errors.Join(h.cut(), h.newFeed())
	if err == nil {
		err = h.openDevices(ctx)
	}
	if err == nil {
		err = h.priceStages(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, h.closeDevices())
	}
	return h, nil
}

// watch collects what a trial's group tells.
type watch struct {
	warmUp, batches int
	lags            func() []time.Duration // host.lags

	mu    sync.Mutex
	spans []trace.Span
	ended [][]time.Duration  // when each step ended, by pipeline
	late  [2][]time.Duration // of each stage: how late it was before the watched time, and at its end
}

func newWatch(c TrialConfig, lags func() []time.Duration) *watch {
	return &watch{warmUp: c.WarmUp, batches: c.Batches, lags: lags, ended: make([][]time.Duration, c.Job.Pipelines)}
}

func (w *watch) step(r pipeline.StepReport) {
	now := trace.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended[r.Pipeline] = append(w.ended[r.Pipeline], now)
	switch len(w.ended[r.Pipeline]) { // of the last pipeline to come
	case w.warmUp:
		w.late[0] = w.lags()
	case w.warmUp + w.batches:
		w.late[1] = w.lags()
	}
}

func (w *watch) span(e trace.Span) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.spans = append(w.spans, e)
}

// timeOf is the first row of the plan that takes the time which a row does: rows on one GPU take that of the GPU.
func (h *host) timeOf(row int) int {
	on := slices.IndexFunc(h.stages, func(s hosted) bool { return s.on.row == row })
	if gpu := h.stages[on].gpu; gpu != "" {
		on = slices.IndexFunc(h.stages, func(s hosted) bool { return s.gpu == gpu })
	}
	return h.stages[on].on.row
}

// slowest is when the last pipeline ended a step.
func (w *watch) slowest(step int) (last time.Duration) {
	for _, ended := range w.ended {
		last = max(last, ended[step])
	}
	return last
}

// result sums up. The group has ended.
func (w *watch) result(h *host) TrialResult {
	r := TrialResult{
		Start: w.slowest(w.warmUp - 1), End: w.slowest(w.warmUp + w.batches - 1), PeakRSSBytes: peakRSS(),
	}
	onDevice := make(map[int][]*trace.Span)
	for i := range w.spans {
		if e := &w.spans[i]; e.Kind.OnDevice() {
			on := h.timeOf(h.hosted(e.Stage).on.row)
			onDevice[on] = append(onDevice[on], e)
		}
	}
	for _, spans := range onDevice {
		inTurn(spans)
	}
	r.Worked = worked(w.spans, r.Start, r.End, len(w.ended[0]))
	for i := range w.batches {
		r.Batches = append(r.Batches, w.slowest(w.warmUp+i)-w.slowest(w.warmUp+i-1))
	}
	slices.SortStableFunc(w.spans, func(a, b trace.Span) int { return int(a.End - b.End) })
	held := make(map[int]time.Duration) // by device whose time it is
	for _, e := range w.spans {
		if e.End <= r.Start || e.End > r.End {
			continue
		}
		r.Spans = append(r.Spans, e)
		if e.Kind.OnDevice() {
			held[h.timeOf(h.hosted(e.Stage).on.row)] += e.End - max(e.Start, r.Start)
		}
	}
	for i := range h.stages {
		s := &h.stages[i]
		r.Stages = append(r.Stages, StageTrial{
			Device: s.on.row, Shape: s.shape, AllocatedBytes: s.device.most.Load(),
		})
	}
	for _, d := range h.devices {
		r.Devices = append(r.Devices, DeviceTrial{
			Name: d.name, About: d.about, Busy: float64(held[h.timeOf(d.row)]) / float64(r.End-r.Start), Lag: w.lag(h, d) / float64(r.End-r.Start),
		})
	}
	return r
}

// lag is how late a device was in the watched time.
func (w *watch) lag(h *host, d *hostedDevice) float64 {
	on := slices.IndexFunc(h.stages, func(s hosted) bool { return s.on == d })
	return float64(w.late[1][on] - w.late[0][on])
}

// worked is how many batches of a run the passes between two moments come to. The run did so many in all. A pass of which a part
// lies between the moments counts in part; passes count by the time that those of their stage and kind take in the mean.
func worked(spans []trace.Span, from, to time.Duration, batches int) float64 {
	type pass struct {
		stage int
		work  schedule.Kind
	}
	type sum struct {
		ran, inside  int           // in all, and from begin to end between the moments
		took, within time.Duration // those inside; all parts between the moments
	}
	sums := map[pass]*sum{}
	for _, e := range spans {
		if e.Kind != trace.Compute {
			continue
		}
		of := pass{e.Stage, e.Work}
		if sums[of] == nil {
			sums[of] = &sum{}
		}
		s := sums[of]
		s.ran++
		s.within += max(0, min(e.End, to)-max(e.Start, from))
		if e.Start >= from && e.End <= to {
			s.inside++
			s.took += e.End - e.Start
		}
	}
	within, each := 0.0, 0.0
	for _, s := range sums {
		if s.inside > 0 {
			within += s.within.Seconds()
			each += s.took.Seconds() / float64(s.inside) * float64(s.ran) / float64(batches)
		}
	}
	if each == 0 {
		return 0
	}
	return within / each
}
