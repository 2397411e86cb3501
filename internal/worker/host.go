package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// host is what a worker holds for as long as it lives: model, data, devices and the shard store of the job.
type host struct {
	assignment control.Assignment
	plan       schedule.Plan
	model      *model.Model
	weights    *export.Weights // of model.from; nil: fresh ones, or restored
	set        *data.Set
	feed       feed.Feed
	ranges     []stage.Range // the layers of each stage
	stages     []hosted      // those that live here, ascending
	store      elastic.Store
}

// hosted is a stage that lives here.
type hosted struct {
	index  int
	device device.Device
	name   string // the device's
	about  string // the device, and why it is that one
	meta   export.ShardMeta
}

// permanentError marks what would fail again: the job's own data or model, not this process.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// newHost opens everything that the assignment names. After an error nothing is left open.
func newHost(ctx context.Context, a control.Assignment, plan schedule.Plan) (*host, error) {
	h := &host{assignment: a, plan: plan}
	for _, open := range []func(context.Context) error{h.openModel, h.openData, h.openStore, h.openDevices} {
		if err := open(ctx); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	return h, nil
}

// openModel builds the model and cuts it into stages. Every worker of the job gets the same cut: it depends on the job alone.
func (h *host) openModel(context.Context) (err error) {
	spec := h.assignment.Job
	if spec.Model.From != "" {
		if h.model, h.weights, err = export.Open(spec.Model.From); err != nil {
			return &permanentError{fmt.Errorf("model.from: %w", err)}
		}
	} else if h.model, err = model.Build(spec.Model.Family, spec.Model.Config); err != nil {
		return &permanentError{fmt.Errorf("model.config: %w", err)}
	}
	if err := h.model.CheckCompute(h.compute()); err != nil {
		return &permanentError{fmt.Errorf("precision: %w", err)}
	}
	h.ranges, err = stage.Split(h.model.Costs(h.size()), len(h.plan))
	if err != nil {
		return &permanentError{fmt.Errorf("stages: %w", err)}
	}
	return nil
}

// size is the shape of a micro-batch.
func (h *host) size() layer.Size {
	return layer.Size{B: h.samples(), T: h.sequence(), Compute: h.compute()}
}

// compute is the type in which products take their operands.
func (h *host) compute() device.Type {
	if h.assignment.Job.Precision == device.BF16.String() {
		return device.BF16
	}
	return device.F32
}

// samples is the number of samples in a micro-batch.
func (h *host) samples() int {
	return h.assignment.Job.Train.Batch / int(h.assignment.Job.MicroBatches)
}

// sequence is the number of tokens in a sample.
func (h *host) sequence() int {
	if n := h.assignment.Job.Data.Sequence; n > 0 {
		return n
	}
	return h.model.Sequence()
}

// recompute is what stage k computes again.
func (h *host) recompute(k int) stage.Recompute {
	switch all := h.assignment.Job.Recompute; len(all) {
	case 0: // written before there was a choice
		return stage.RecomputeNone
	case 1:
		return stage.Recompute(all[0])
	default:
		return stage.Recompute(all[k])
	}
}

// openData reads the corpus, and refuses one that has changed since the round that is restored.
func (h *host) openData(ctx context.Context) error {
	set, err := data.Open(ctx, data.ConfigOf(&h.assignment.Job, feed.ModelOf(h.model)))
	if err != nil {
		return &permanentError{fmt.Errorf("data: %w", err)}
	}
	h.set = set
	if r := h.assignment.Restore; r != nil && r.Data != "" && r.Data != set.Identity().Digest {
		return &permanentError{fmt.Errorf("data: the files have changed since round %d was committed: their digest was %.12s, they are now %v; "+
			"restore them, or submit the job anew", r.Round, r.Data, set.Identity())}
	}
	ports, _ := h.model.Layers[0].Ports(h.size())
	if h.feed, err = feed.New(ports, h.samples()); err != nil {
		return &permanentError{err}
	}
	return h.leaveCard()
}

// leaveCard leaves what whoever exports the model needs to use it.
func (h *host) leaveCard() error {
	c := export.Card{Task: h.model.Task, Sequence: h.sequence(), Data: h.assignment.Job.Data}
	c.Data.Labels = h.set.Labels()
	tokenizer, err := readTokenizer(h.set, c.Data.Tokenizer)
	if err != nil {
		return &permanentError{fmt.Errorf("data.tokenizer: %w", err)}
	}
	if err := export.WriteBeside(control.ModelDir(h.assignment.Dir), c, tokenizer); err != nil {
		return fmt.Errorf("leave what goes with the model: %w", err)
	}
	return nil
}

// readTokenizer reads the file of a data set's tokenizer, or the one in a directory; nil when it is none.
func readTokenizer(set *data.Set, path string) ([]byte, error) {
	if t := set.Tokenizer(); t == nil || t.IsBytes() {
		return nil, nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, export.TokenizerFile)
	}
	return os.ReadFile(path)
}

func (h *host) openStore(context.Context) (err error) {
	h.store, err = elastic.OpenDirStore(checkpoint.OS, control.ShardDir(h.assignment.Dir))
	return err
}

// openDevices opens a device for each stage that lives here. With fewer devices than stages, stages share the cores of one.
func (h *host) openDevices(context.Context) error {
	spec := h.assignment.Job.Devices
	for k, place := range h.assignment.Stages {
		if place.Node != h.assignment.Node {
			continue
		}
		dev, about, err := pick.Open(spec.Kind, pick.Config{
			Threads: int(spec.CPU.Threads), Cores: coresOf(len(h.stages)%int(spec.CPU.Count), spec.CPU, h.assignment.Cores),
		})
		if err != nil {
			return fmt.Errorf("open the device of stage %d: %w", k, err)
		}
		r := h.ranges[k]
		h.stages = append(h.stages, hosted{
			index: k, device: dev, name: dev.Name(), about: about,
			meta: export.ShardMeta{Layers: [2]int{r.From, r.To}, Tensors: stage.Layout(h.model.Layers[r.From:r.To])},
		})
	}
	return nil
}

// hosted finds a stage that lives here.
func (h *host) hosted(index int) *hosted {
	return &h.stages[slices.IndexFunc(h.stages, func(s hosted) bool { return s.index == index })]
}

// attach is what the executor of the stage's device must run first; nil for nothing.
func (s *hosted) attach() func() error {
	if t, ok := s.device.(device.Threaded); ok {
		return t.Attach
	}
	return nil
}

// coresOf are the cores of device d, each device taking its threads from the front of cores. Nil when there are not enough: then
// the device is not pinned.
func coresOf(d int, cpu job.CPU, cores []int) []int {
	from, to := d*int(cpu.Threads), (d+1)*int(cpu.Threads)
	if to > len(cores) {
		return nil
	}
	return cores[from:to]
}

// build makes stage s of a pipeline. Every pipeline starts with the same weights.
func (h *host) build(s *hosted, pipeline int) (*stage.Computed, error) {
	spec := h.assignment.Job
	c, err := stage.New(stage.Config{
		Device: s.device, Model: h.model, Range: h.ranges[s.index], Index: s.index, Count: len(h.plan),
		Samples: h.samples(), Sequence: h.sequence(), Compute: h.compute(), Slots: schedule.Pinned(h.plan)[s.index],
		Recompute: h.recompute(s.index), Optimizer: optimizer(spec.Optimizer), Seed: spec.Seed, Pipeline: pipeline,
	})
	if err != nil {
		return nil, err
	}
	if h.weights != nil && h.assignment.Restore == nil {
		if err := c.Load(h.weights.Lookup); err != nil {
			return nil, errors.Join(&permanentError{err}, c.Close())
		}
	}
	return c, nil
}

// optimizer translates the job file.
func optimizer(o job.Optimizer) stage.Optimizer {
	out := stage.Optimizer{
		Name: o.Name, Momentum: o.Momentum, Nesterov: o.Nesterov, Epsilon: o.Epsilon, WeightDecay: o.WeightDecay,
		T0: uint64(o.T0),
	}
	if len(o.Betas) == 2 {
		out.Beta1, out.Beta2 = o.Betas[0], o.Betas[1]
	}
	return out
}

// learningRate is the schedule of the job file.
func learningRate(spec job.Job) stage.Schedule {
	o := spec.Optimizer
	return stage.Schedule{
		Name: o.Schedule, Peak: o.LearningRate, Warmup: uint64(o.Warmup), Steps: uint64(spec.Train.Steps), MinRatio: o.MinimumRatio,
	}
}

// close closes what is open.
func (h *host) close() error {
	var errs []error
	for _, s := range h.stages {
		errs = append(errs, s.device.Close())
	}
	if h.set != nil {
		errs = append(errs, h.set.Close())
	}
	if h.weights != nil {
		errs = append(errs, h.weights.Close())
	}
	return errors.Join(errs...)
}
