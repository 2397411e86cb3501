package worker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/data"
	"github.com/avgpipe/avgpipe/internal/data/tokenizer"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/feed"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// host is what a worker holds for as long as it lives: model, data, devices and the shard store of the job.
type host struct {
	opened
	assignment control.Assignment
	plan       schedule.Plan
	budget     job.Budget
	origin     origin
	feed       feed.Feed
	ranges     []stage.Range // the layers of each stage
	devices    []*hostedDevice
	stages     []hosted          // those that live here, ascending
	companions map[string]string // digests of the files that go with the exported model
	store      shard.Store
	network    *wire.Network // between emulated devices; else nil
	repairing  sync.Mutex    // of files of frozen parameters
	graphics   cuda.Config   // where libraries of GPUs are
	log        *zap.Logger   // nil in a trial
}

// opened is what a job is made of, however it is laid over devices.
type opened struct {
	access     *access.Opener // what the job names is opened with its user's rights
	model      *model.Model
	weights    *export.Weights // of model.from; nil: fresh ones, or restored
	vocabulary []byte          // the job's tokenizer.json; nil: tokens are bytes
	set        *data.Set
	fetched    string // directory of what is read from elsewhere
}

// hostedDevice is a device of this node: a row of the plan.
type hostedDevice struct {
	device.Device
	row   int
	name  string // the device's
	about string // the device, and why it is that one
	// initial are the values that the user's modules start with; nil: the model says what they are.
	initial stage.Lookup
}

// hosted is a stage that lives here.
type hosted struct {
	index  int
	on     *hostedDevice
	device *meter // what the stage computes with: that of on, and counts
	gpu    string // its UUID, where on is one
	meta   export.ShardMeta
	shape  stage.Shape
	bytes  stage.Bytes // of one pipeline
	frozen frozen
}

// memory says what the stage's memory is for, with so many pipelines; nil while they are being made. Their parts are known
// exactly. What is there beside them is the center, and what averaging and evaluations keep.
func (s *hosted) memory(pipelines int) *tuner.Memory {
	n, held := int64(pipelines), s.device.now.Load()
	all := n*s.bytes.Total() + s.bytes.Frozen
	if held < all {
		return nil
	}
	return &tuner.Memory{
		Weights: n*s.bytes.Parameters + s.bytes.Frozen, Gradients: n * s.bytes.Gradients, State: n * s.bytes.State,
		Activations: n * (s.bytes.Activations + s.bytes.Boundaries), Center: held - all,
	}
}

// permanentError marks what would fail again: the job's own data or model, not this process.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent reports whether an error of this package is about the job, which would fail with it again. Others are of the host
// (package obstacle names those that pass), or say that something was given up.
func Permanent(err error) bool {
	var (
		notFinite *stage.NonFiniteError
		permanent *permanentError
		program   *foreign.ProgramError
	)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) || obstacle.Of(err) != nil {
		return false
	}
	return errors.As(err, &notFinite) || errors.As(err, &permanent) || errors.As(err, &program)
}

// newHost opens everything that the assignment names. After an error nothing is left open.
func newHost(ctx context.Context, a control.Assignment, plan schedule.Plan, graphics cuda.Config, log *zap.Logger) (*host, error) {
	h := &host{assignment: a, plan: plan, origin: originOf(&a), graphics: graphics, log: log}
	h.fetched = a.Data
	for _, open := range []func(context.Context) error{h.openModel, h.openStore, h.openCompanions, h.openData, h.resolveBudget, h.writeCard, h.openDevices, h.priceStages} {
		if err := open(ctx); err != nil {
			return nil, errors.Join(err, h.close())
		}
	}
	h.vocabulary = nil // the data have read it
	return h, nil
}

// resolveBudget says how much is trained on. Epochs leave that to who has opened the data.
func (h *host) resolveBudget(context.Context) error {
	if b := h.assignment.Spec.Budget; b != nil {
		h.budget = *b
		return nil
	}
	spec, epoch := h.assignment.Spec.Job, h.set.Samples()
	if _, nearest, problem := spec.CheckWarmup(epoch); problem != "" {
		return &permanentError{fmt.Errorf("%s; the nearest that fits: %s", problem, nearest)}
	}
	if _, nearest, problem := spec.CheckRound(epoch); problem != "" && h.assignment.Restore == nil { // a job that goes on may have more pipelines than its file
		return &permanentError{fmt.Errorf("%s; the nearest that fits: %s", problem, nearest)}
	}
	b := spec.Resolved(epoch)
	if b == nil {
		return &permanentError{fmt.Errorf("a budget of %s makes no samples: an epoch has %d", spec.Train.Budget(), epoch)}
	}
	h.budget = *b
	return nil
}

// openModel builds the model, cuts it into stages, and opens what it begins with.
func (h *host) openModel(context.Context) error {
	if err := h.build(&h.assignment.Spec); err != nil {
		return err
	}
	if h.assignment.Restore == nil {
		if err := h.openWeights(&h.assignment.Spec); err != nil {
			return err
		}
	}
	return h.cut()
}

// build makes the model of a job, with the config that was read when the job was submitted.
func (o *opened) build(s *spec.Spec) (err error) {
	o.access = &access.Opener{User: s.User}
	if o.model, err = s.BuildModel(); err != nil {
		return &permanentError{fmt.Errorf("model: %w", err)}
	}
	return o.checkProgram(s)
}

// openWeights opens the weights that the job begins with, which are those that it was submitted with.
func (o *opened) openWeights(s *spec.Spec) (err error) {
	if from := s.Job.Model.From; from != "" {
		if o.weights, err = export.OpenWeights(o.access, from, o.model, s.Weights); err != nil {
			return &permanentError{fmt.Errorf("model.from: %w", err)}
		}
	}
	return nil
}

// read reads the corpus of a job.
func (o *opened) read(ctx context.Context, s *spec.Spec) error {
	if err := o.readTokenizer(s); err != nil {
		return &permanentError{fmt.Errorf("data.tokenizer: %w", err)}
	}
	c := feed.ConfigOf(&s.Job, o.model)
	c.Access, c.Vocabulary, c.Remote, c.RemoteDir = o.access, o.vocabulary, s.Remote, o.fetched
	set, err := data.Open(ctx, c)
	if err != nil {
		return &permanentError{fmt.Errorf("data: %w", err)}
	}
	o.set = set
	return nil
}

// readTokenizer reads the job's tokenizer.json, as it was when the job was submitted; none when tokens are bytes.
func (o *opened) readTokenizer(s *spec.Spec) (err error) {
	path := o.tokenizerPath(&s.Job)
	if path == "" || o.vocabulary != nil {
		return nil
	}
	if o.vocabulary, err = o.access.ReadFile(path, tokenizer.MaxBytes); err != nil {
		return err
	}
	if found := checkpoint.ObjectDigest(o.vocabulary); s.Tokenizer != "" && found != s.Tokenizer {
		return export.Changed(path, found, s.Tokenizer)
	}
	return nil
}

// tokenizerPath is where the job's tokenizer.json lies; "" when it needs none.
func (o *opened) tokenizerPath(j *job.Job) string {
	path := j.Data.Tokenizer
	if o.model.Task == model.Images || path == "" || path == job.TokenizerBytes {
		return ""
	}
	if info, err := o.access.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, export.TokenizerFile)
	}
	return path
}

// close closes what is open.
func (o *opened) close() error {
	var errs []error
	if o.set != nil {
		errs = append(errs, o.set.Close())
	}
	if o.weights != nil {
		errs = append(errs, o.weights.Close())
	}
	return errors.Join(errs...)
}

// cut cuts the model into the plan's stages. Every worker of the job gets the same cut: it depends on the assignment alone.
func (h *host) cut() (err error) {
	stages := h.plan.Stages()
	if h.assignment.Spec.Split() == nil {
		if h.ranges, err = stage.Split(h.model.Costs(h.size()), stages); err != nil {
			return &permanentError{fmt.Errorf("stages: %w", err)}
		}
		return nil
	}
	h.ranges = nil
	from := 0
	for k, layers := range h.assignment.Spec.Split() {
		if layers[0] != from || layers[1] <= from {
			return &permanentError{fmt.Errorf("split: stage %d has layers %d to %d: every stage begins at the layer after the one before, %d, "+
				"and has at least one", k, layers[0], layers[1], from)}
		}
		from = layers[1]
		h.ranges = append(h.ranges, stage.Range{From: layers[0], To: layers[1]})
	}
	if len(h.ranges) != stages || from != len(h.model.Layers) {
		return &permanentError{fmt.Errorf("split: %d stages of %d layers: the plan has %d, the model %d",
			len(h.ranges), from, stages, len(h.model.Layers))}
	}
	return nil
}

// size is the shape of a micro-batch.
func (h *host) size() layer.Size {
	return layer.Size{B: h.samples(), T: h.sequence(), Compute: device.Floating(h.assignment.Spec.Job.Precision)}
}

// samples is the number of samples in a micro-batch.
func (h *host) samples() int {
	return h.assignment.Spec.Job.Train.Batch / int(h.assignment.Spec.Job.MicroBatches)
}

// sequence is the number of tokens in a sample.
func (h *host) sequence() int {
	if n := h.assignment.Spec.Job.Data.Sequence; n > 0 {
		return n
	}
	return h.model.Sequence()
}

// openData reads the corpus, and refuses one that has changed since the round that is restored.
func (h *host) openData(ctx context.Context) error {
	if err := h.read(ctx, &h.assignment.Spec); err != nil {
		return err
	}
	r := h.assignment.Restore
	if was := control.MetaOf(r).DataDigest; was != "" && was != h.set.Identity.Digest {
		return &permanentError{fmt.Errorf("data: the files have changed since round %d was committed: their digest was %.12s, they are now %v; "+
			"restore them, or submit the job anew", r.Round, was, h.set.Identity)}
	}
	return h.newFeed()
}

// newFeed makes what turns samples into micro-batches.
func (h *host) newFeed() (err error) {
	ports, _ := layer.Ports(h.model.Layers[0], h.size())
	if h.feed, err = feed.New(ports, h.samples()); err != nil {
		return &permanentError{err}
	}
	return nil
}

func (h *host) openStore(context.Context) (err error) {
	dir := control.ShardDir(h.assignment.Dir)
	if h.assignment.Restore != nil { // it is there, or on a mount that is late
		h.store = shard.StoreAt(dir)
		return nil
	}
	h.store, err = shard.OpenStore(dir)
	return err
}

// openDevices opens a device for each row of the plan whose stages live here. With fewer devices than rows, rows share the cores
// of one, or the GPU.
func (h *host) openDevices(ctx context.Context) error {
	spec := h.assignment.Spec.Job.Devices
	h.network = network(spec, len(h.plan))
	for k, row := range h.plan.Placement() {
		if h.assignment.Stages[k].Node != h.assignment.Node {
			continue
		}
		on := h.deviceOf(row)
		if on == nil {
			cores := coresOf(len(h.devices)%int(spec.CPU.Count), spec.CPU, h.assignment.Cores)
			var initial stage.Lookup
			kind := spec.Kind
			if h.assignment.Spec.Job.ModulesOnGPUs() { // the interpreter has the GPU
				kind = "cpu"
			}
			dev, about, err := pick.Open(kind, pick.Config{
				Threads: int(spec.CPU.Threads), Cores: cores, Over: h.overInterpreter(ctx, row, h.assignment.Stages[k].GPU, cores, &initial),
				Emulated: emulate(spec.Emulated, row, len(h.ranges)), Computes: spec.Emulated.Compute, Graphics: h.onGPU(k),
			})
			if err != nil {
				return fmt.Errorf("open device %d, of stage %d: %w", row, k, err)
			}
			on = &hostedDevice{Device: dev, row: row, name: dev.Name(), about: about, initial: initial}
			h.devices = append(h.devices, on)
		}
		r := h.ranges[k]
		h.stages = append(h.stages, hosted{
			index: k, on: on, device: &meter{Device: on.Device}, gpu: h.assignment.Stages[k].GPU,
			meta: export.ShardMeta{Layers: [2]int{r.From, r.To}, Tensors: stage.Layout(h.model.Layers[r.From:r.To], false), Companions: h.companions},
		})
	}
	return nil
}

// onGPU is how the GPU of a stage is opened.
func (h *host) onGPU(stage int) cuda.Config {
	c := h.graphics
	c.TF32 = h.assignment.Spec.Job.Devices.GPU.TF32
	c.Queues = device.QueuesFor(h.assignment.Spec.Job.Shared())
	if bytes, _ := spec.Memories(&h.assignment.Spec.Job, len(h.plan)); h.assignment.Spec.Job.Devices.Kind == job.KindGPU {
		c.MemoryBytes = bytes[0] // of each GPU as much
	}
	for _, at := range h.assignment.Stages {
		if at.Node == h.assignment.Node && at.GPU != "" && !slices.Contains(c.Visible, at.GPU) {
			c.Visible = append(c.Visible, at.GPU)
		}
	}
	c.Ordinal = max(0, slices.Index(c.Visible, h.assignment.Stages[stage].GPU))
	return c
}

// hosted finds a stage that lives here.
func (h *host) hosted(index int) *hosted {
	return &h.stages[slices.IndexFunc(h.stages, func(s hosted) bool { return s.index == index })]
}

// share reports whether two rows of the plan are on devices here that share memory.
func (h *host) share(row, other int) bool {
	a, b := h.deviceOf(row), h.deviceOf(other)
	return a != nil && b != nil && device.Share(a.Device, b.Device)
}

// deviceOf is the device of a row of the plan; nil where it is not here.
func (h *host) deviceOf(row int) *hostedDevice {
	for _, d := range h.devices {
		if d.row == row {
			return d
		}
	}
	return nil
}

// queues are those of the device of a row of the plan; nil where it has one.
func (h *host) queues(row int) *device.Queues { return device.QueuesOf(h.deviceOf(row).Device) }

// whileWaiting has the device of a row of the plan call f while it waits, if it does.
func (h *host) whileWaiting(row int, f func()) {
	if w, ok := device.Of[device.Waiter](h.deviceOf(row).Device); ok {
		w.WhileWaiting(f)
	}
}

// attach binds the calling thread to the device of a row of the plan.
func (h *host) attach(row int) error {
	if t, ok := h.deviceOf(row).Device.(device.Threaded); ok {
		return t.Attach()
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

// optimizer translates the job file.
func (h *host) optimizer() stage.Optimizer {
	o := h.assignment.Spec.Job.Optimizer
	return stage.Optimizer{
		Name: o.Name, Momentum: o.Momentum, Nesterov: o.Nesterov, Betas: o.Betas, Epsilon: o.Epsilon, WeightDecay: o.WeightDecay,
		T0: h.origin.unscheduled(h.budget.T0),
	}
}

// learningRate is the schedule of the job file, times the factor for averaged pipelines. That of a trial may be open: then nobody
// asks what it learns.
func learningRate(spec job.Job, b job.Budget) stage.Schedule {
	o, scale := spec.Optimizer, float64(spec.Averaging.RateScale)
	if spec.Averaging.RateScale == job.AutoFactor {
		scale = 1
	}
	return stage.Schedule{
		Name: o.Schedule, Peak: o.LearningRate * scale, Warmup: b.Warmup, Steps: b.Steps, MinRatio: o.MinimumRatio,
	}
}

// close closes what is open.
func (h *host) close() error { return errors.Join(h.closeDevices(), h.opened.close()) }

func (h *host) closeDevices() error {
	h.network.Close()
	var errs []error
	for _, d := range h.devices {
		errs = append(errs, d.Close())
	}
	return errors.Join(errs...)
}
