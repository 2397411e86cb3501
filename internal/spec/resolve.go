package spec

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// Facts are what automatic values depend on beside the job.
type Facts struct {
	Cores       int   // that the daemon may use on the node
	MemoryBytes int64 // of the node, that jobs may take; 0: not known, or checked before
	Model       *model.Model
	UserPlan    schedule.Plan // that the user wrote; nil: one is generated
	GPUs        []gpu.GPU     // of the node, the sick ones too
	NoGPU       string        // why this program can use none, whichever there are; empty: it can
	Epoch       uint64        // samples in an epoch; 0: not known
	Unread      bool          // it may be known later, once the data were read: what is refused for its length is refused then
	// Hosts are the nodes that stages may lie on, this one among them; fewer than two: this one alone.
	Hosts []Host

	alone string // why only this node counts, of several
	brief bool   // whether it is only asked if a job fits, not what would make it
}

// Resolution is a job with its automatic values decided. Those that a tuning is to choose stay open without its report.
type Resolution struct {
	Job           job.Job
	Layout        *Layout        // nil of an open job
	Plan          schedule.Plan  // nil of an open job, unless it is the user's
	Memory        []tuner.Memory // of each stage; nil where nobody says what there is
	Budget        *job.Budget    // nil: see Spec
	Why, Warnings []string

	userPlan bool
}

// Resolve decides every automatic value of a job: the file's, by the rules, or by the report of a tuning. It changes nothing about a
// job that it resolved. What is wrong names keys; there is then no more to the resolution than was found before.
func Resolve(j *job.Job, f Facts, r *tuner.Report) (*Resolution, strictyaml.Problems) {
	if j.Devices.Kind == job.KindAuto && r == nil {
		return resolveAuto(j, f)
	}
	return resolve(j, f, r)
}

// resolve resolves a job of a kind of device that is decided.
func resolve(j *job.Job, f Facts, r *tuner.Report) (*Resolution, strictyaml.Problems) {
	x := &resolver{Facts: f, Resolution: &Resolution{Job: *j}}
	dropUnread(&x.Job.Averaging)
	if x.Job.Open() && x.spreads() {
		x.alone = "; a job whose counts are measured is tuned on one node: `tuning: rules`, or to give " + strings.Join(x.Job.OpenKeys(), ", ") +
			", has it judged by all nodes"
	}
	switch {
	case r == nil:
	case r.Ruled != "":
		x.Job.Tuning = job.TuneByRules
		x.because(r.Ruled)
	default:
		x.report = r
	}
	if device.Floating(j.BoundaryPrecision) == device.BF16 {
		x.because("boundary_precision bf16: activations and gradients cross from stage to stage in half the bytes; what is computed depends on where stages are cut")
	}
	if x.Job.Devices.Kind == job.KindGPU && x.Job.Devices.GPU.TF32 {
		x.because("devices.gpu.tf32: products and convolutions round what they multiply to TF32")
	}
	switch {
	case x.report != nil:
		if x.decideRounds() {
			x.take(&r.Chosen)
		}
	case r == nil && x.Job.Devices.Kind == job.KindGPU && !x.takeGPUs():
	case !x.checkModel() || !x.decideRounds() || !x.checkPrediction() || !x.cutOnce():
	case x.Job.Open():
		x.checkOpen()
		if len(x.problems) == 0 {
			x.checkFits()
		}
		x.decideBudget()
	default:
		x.decide()
	}
	return x.Resolution, x.problems
}

// resolver is a resolution on its way.
type resolver struct {
	Facts
	*Resolution
	report   *tuner.Report // of what was chosen; nil: the rules decide
	problems strictyaml.Problems
}

func (x *resolver) refuse(key, nearest, format string, args ...any) {
	x.problems = append(x.problems, strictyaml.Problem{Key: key, Nearest: nearest, Message: fmt.Sprintf(format, args...)})
}

func (x *resolver) warn(format string, args ...any) {
	x.Warnings = append(x.Warnings, fmt.Sprintf(format, args...))
}

func (x *resolver) because(why string) { x.Why = append(x.Why, why) }

// checkModel checks what depends on the model alone. It reports whether the rest can be priced.
func (x *resolver) checkModel() bool {
	if !x.checkSize() {
		return false
	}
	if all, trained := x.Model.Weights(), x.Model.Trained(); trained < all {
		x.because(fmt.Sprintf("%s of %s parameters are trained, the others are frozen", words.Number(float64(trained)), words.Number(float64(all))))
	}
	for _, l := range x.Model.Adapted() {
		if most := min(l.In, l.Out); l.Adapter.Rank > most {
			x.warn("lora.rank is %d, and %s has %d inputs and %d outputs: adapters of rank %d and more can change all of its weight, and take more memory than it", l.Adapter.Rank,
				l.Path, l.In, l.Out, most)
			break
		}
	}
	longest := x.Model.Sequence()
	switch n := x.Job.Data.Sequence; {
	case n == 0:
		x.Job.Data.Sequence = longest
	case n > longest:
		x.refuse("data.sequence", strconv.Itoa(longest), "data.sequence is %d tokens; the model has %d positions", n, longest)
	}
	if x.Job.Train.Tokens == 0 {
		return true
	}
	if x.Model.Task == model.Images {
		x.refuse("train.tokens", "train.samples", "train.tokens counts what a %s does not read; say train.samples or train.epochs", x.Model.Family)
	} else if key, nearest, problem := x.Job.CheckWarmup(0); key != "" {
		x.refuse(key, nearest, "%s", problem)
	}
	return true
}

// mostOperations bounds a step of a job whose sizes are added up in integers: no layer keeps more values than it computes operations. At
// 10^12 a second, a step of so many takes 20 hours.
const mostOperations = 1 << 56

// Reserve is the part of the host's memory that no job is planned into: the daemon, commits, buffers of files, other processes.
const Reserve = 0.1

// HostMemory is how much of this host's memory jobs may take; 0 when the system does not say.
func HostMemory() int64 { return int64((1 - Reserve) * float64(device.HostTotal())) }

// parameters counts the values of a model, and those that are trained, in floating point: a model that nobody has memory for can have
// more than an integer holds.
func parameters(m *model.Model) (all, trained float64) {
	for _, p := range m.Params() {
		if p.TiedTo != "" || p.Running != 0 {
			continue
		}
		size := 1.0
		for _, d := range p.Shape {
			size *= float64(d)
		}
		all += size
		if !p.Frozen {
			trained += size
		}
	}
	return all, trained
}

// checkSize refuses a model whose weights, gradients and optimizer state alone, of one pipeline, are more than the host has, or the GPUs, and steps
// that nobody waits for, which are also those whose sizes an integer may not hold.
func (x *resolver) checkSize() bool {
	most, where := x.hostBytes(), x.host()
	if g := x.Job.Devices.GPU; x.Job.Devices.Kind == job.KindGPU && !x.Job.ModulesOnGPUs() {
		most = int64(g.Count) * int64(g.Memory)
		where = fmt.Sprintf("the job's %s have %s for it", words.Count(int(g.Count), "GPU"), words.Bytes(most))
	}
	if !x.Job.Devices.KeepValues() || most == 0 {
		return true
	}
	n, trained := parameters(x.Model)
	state := stage.Optimizer{Name: x.Job.Optimizer.Name, Momentum: x.Job.Optimizer.Momentum}.StateVectors()
	if need := 4*n + trained*float64(4*(1+state)); need > float64(most) {
		x.refuse("model", "", "model: it has %s parameters; weights, gradients and the %d vectors of %s take %s, and %s; use a smaller model",
			words.Number(n), state, x.Job.Optimizer.Name, words.Bytes(int64(min(need, math.MaxInt64/2))), where)
		return false
	}
	size, operations := footprint.Size(x.Model, &x.Job, 1), 0.0
	step := float64(x.Job.Train.Batch) * float64(max(1, x.Job.Pipelines))
	for _, cost := range x.Model.Costs(size) {
		operations += cost * step
	}
	if operations < mostOperations && step*float64(size.T) < math.MaxInt32 {
		return true
	}
	x.refuse("train.batch", "", "train.batch: %d samples of %d tokens, in each pipeline, take %s floating-point operations a step in this model; "+
		"use a smaller batch, shorter samples or a smaller model", x.Job.Train.Batch, size.T, words.Number(operations))
	return false
}

// cutOnce finds how many stages lie on each device, and takes the counts of a plan that the user wrote. It reports whether the counts
// can be resolved.
func (x *resolver) cutOnce() bool {
	if x.Job.Schedule == job.AutoSchedule && !x.Job.Open() {
		x.Job.Schedule = job.Default().Schedule
	}
	switch {
	case x.UserPlan != nil:
		if !x.takePlan() {
			return false
		}
	case x.Job.Schedule != job.AutoSchedule:
		chunks, err := schedule.Chunks(x.Job.Schedule, int(x.Job.Chunks))
		if err != nil {
			usual, _ := schedule.Chunks(x.Job.Schedule, 0) // the name is known
			x.refuse("chunks", strconv.Itoa(usual), "chunks: %v", err)
			return false
		}
		x.Job.Chunks = job.Count(chunks)
	}
	if n := max(1, len(x.Hosts)); x.Job.Center.Replicas > n {
		x.warn("center.replicas is %d and the cluster has %s: there %s of each shard", x.Job.Center.Replicas, words.Count(n, "node"), copies(n))
	}
	if n := max(1, len(x.Hosts)); x.Job.Groups > n {
		x.warn("groups is %d and the cluster has %s: each group has nodes of its own, so the job waits for more", x.Job.Groups, words.Count(n, "node"))
	}
	layers, stages, chunks := len(x.Model.Layers), int(x.Job.Stages), max(1, int(x.Job.Chunks))
	most := layers / chunks
	switch {
	case most == 0:
		x.refuse("chunks", strconv.Itoa(layers), "%d chunks for a model of %s; every chunk needs a layer, so at most %d fit, on one device", chunks, x.Model.Depth(), layers)
	case stages > most && chunks == 1:
		x.refuse("stages", strconv.Itoa(most), "%d stages for a model of %s; every stage needs a layer, so at most %d fit%s", stages, x.Model.Depth(), most, x.cutHint())
	case stages > most:
		x.refuse("stages", strconv.Itoa(most), "%d stages of %d chunks for a model of %s; every chunk needs a layer, so at most %d fit, or %d without chunks",
			stages, chunks, x.Model.Depth(), most, layers)
	default:
		return true
	}
	return false
}

// takePlan takes the counts from the plan that the user wrote, which was proved.
func (x *resolver) takePlan() (agrees bool) {
	plan, path := x.UserPlan, x.Job.PlanFile()
	agrees, x.userPlan = true, true
	for _, c := range []struct {
		key   string
		count *job.Count
		found int
	}{
		{"stages", &x.Job.Stages, len(plan)},
		{"chunks", &x.Job.Chunks, plan.Stages() / len(plan)},
		{"micro_batches", &x.Job.MicroBatches, plan.MicroBatches()},
	} {
		if *c.count != job.Auto && int(*c.count) != c.found {
			x.refuse(c.key, strconv.Itoa(c.found), "%s is %d, and the plan in %s has %d; leave the key out, or write that", c.key, *c.count, path, c.found)
			agrees = false
		}
		*c.count = job.Count(c.found)
	}
	if below, above := job.NearestDivisors(x.Job.Train.Batch, plan.MicroBatches()); agrees && below != above {
		x.refuse("train.batch", strconv.Itoa(plan.MicroBatches()*max(1, x.Job.Train.Batch/plan.MicroBatches())),
			"train.batch is %d, and the %d micro-batches of the plan in %s do not divide it", x.Job.Train.Batch, plan.MicroBatches(), path)
		agrees = false
	}
	return agrees
}

func (x *resolver) refuseDevices(devices, stages int) {
	x.refuse(x.Job.OfferedKey(), strconv.Itoa(stages),
		"%s is %d for %d stages; every stage computes on a device of its own", x.Job.OfferedKey(), devices, stages)
}

// checkOpen checks what is given of a job that is tuned before it starts. What is not known yet is checked when it is.
func (x *resolver) checkOpen() {
	stages, devices := int(x.Job.Stages), int(x.Job.Offered())
	if devices > 0 && devices < stages {
		x.refuseDevices(devices, stages)
	}
	if devices == 0 {
		devices = stages
	}
	if stages > 0 && x.Job.MicroBatches > 0 && x.Job.Schedule != job.AutoSchedule {
		if x.checkLists(devices) {
			plan, _, err := generate(&x.Job, nil) // the costs that will be measured shape it
			x.prove(plan, err)
		}
		return
	}
	lists, open := x.Job.EachStage(), "stages: auto"
	known := stages * max(1, int(x.Job.Chunks)) // 0: not known
	if stages > 0 && x.Job.Schedule == job.AutoSchedule && x.Job.Chunks == job.Auto {
		known, open = 0, "schedule: auto, and some have several on a device"
		delete(lists, "recompute") // a candidate for which it has no entries is left out; emulated devices would have to make times up
	}
	if known > 0 {
		lists = nil
	}
	for _, key := range slices.Sorted(maps.Keys(lists)) {
		x.refuse(key, "", "%s has entries for %d stages, and how many there are is to be measured (%s); give that, or a value that stands for all",
			key, lists[key], open)
	}
	if key, problem := x.Job.CheckEntries(known, devices); key != "" {
		x.refuse(key, "", "%s", problem)
	}
}

// maxPlan bounds stages times micro-batches: a plan is generated at every placement and sent to the worker as text, and this one takes
// 16 MB.
const maxPlan = 1 << 20

// checkLists checks lists against counts that are known, and that a plan may be as large.
func (x *resolver) checkLists(devices int) bool {
	n := stages(&x.Job)
	if most := maxPlan / n; int(x.Job.MicroBatches) > most {
		below, _ := job.NearestDivisors(x.Job.Train.Batch, most)
		x.refuse("micro_batches", strconv.Itoa(below), "micro_batches is %d; with %d stages at most %d", x.Job.MicroBatches, n, most)
		return false
	}
	if key, problem := x.Job.CheckEntries(n, devices); key != "" {
		x.refuse(key, "", "%s", problem)
		return false
	}
	return true
}

// decide decides by the rules what the file leaves open, and proves and prices the plan.
func (x *resolver) decide() {
	offered, open := int(x.Job.Offered()), x.Job.RecomputeOpen()
	why := x.count(x.Cores, len(x.Model.Layers), offered)
	if offered > 0 && offered < int(x.Job.Stages) {
		x.refuseDevices(offered, int(x.Job.Stages))
		return
	}
	x.because(why)
	x.warnOfCriticalBatch()
	if g := x.Job.Groups; g > 1 {
		x.because(fmt.Sprintf("groups %d: %s each, on nodes of their own, with a copy of the center", g, words.Count(x.Job.Shared(), "pipeline")))
	}
	if !x.checkLists(int(x.Job.Devices.CPU.Count)) {
		return
	}
	if slices.ContainsFunc(x.problems, func(p strictyaml.Problem) bool { return strings.HasPrefix(p.Key, "averaging") }) {
		return // nobody knows what it takes
	}
	a, err := x.arrange(&x.Job)
	if err != nil {
		x.refuse("schedule", "", "%v", err)
		return
	}
	if a.crowded {
		x.refuseCrowded()
		return
	}
	if len(a.short) > 0 {
		x.refuseShort(&x.Job, a.memory, &a.short[0], "")
		return
	}
	x.adopt(a, open)
	x.prove(a.plan, nil)
	x.decideBudget()
}

// adopt makes an arrangement the job's.
func (x *resolver) adopt(a *arrangement, recomputeOpen bool) {
	x.Job, x.Layout, x.Plan, x.Memory = a.job, &a.layout, a.plan, a.memory
	if recomputeOpen {
		x.because(x.whyRecompute())
	}
	x.whyLate()
	x.whyTau()
	x.because("schedule " + x.Job.Schedule + ": " + a.why)
	if x.Job.Devices.Kind == job.KindGPU {
		x.because(a.whyMemory())
	}
	if need := max(1, x.Job.Groups) * int(x.Job.Stages) * int(x.Job.Devices.CPU.Threads); need > x.cores() && !x.Job.Devices.OwnMemory() { // devices that compute elsewhere
		node := "node has"
		if x.spreads() {
			node = "nodes have"
		}
		each := words.Count(int(x.Job.Stages), "stage")
		if x.Job.Groups > 1 {
			each = words.Count(x.Job.Groups, "group") + " of " + each
		}
		x.warn("the job computes on %d cores (%s of %s) and the %s %d: they are shared, so it runs slower than it could",
			need, each, words.Count(int(x.Job.Devices.CPU.Threads), "thread"), node, x.cores())
	}
}

// whyRecompute says why stages recompute what they do, where the file left that open.
func (x *resolver) whyRecompute() string {
	all := x.Job.Recompute
	text := "recompute " + all[0]
	if len(all) > 1 {
		text = fmt.Sprintf("recompute [%s]", strings.Join(all, ", "))
	}
	switch {
	case len(all) > 1 || all[0] != RecomputeKinds[0]:
		return text + ": the least that the memory of the devices allows"
	case x.Job.Devices.OwnMemory() && x.bounded(&x.Job) || x.report != nil:
		return text + ": the devices hold everything"
	}
	return text + ": what the devices hold is not known before they are measured (tuning: profile)"
}

// prove proves the plan, refuses what its optimizer steps rule out, and warns of the bubble that few micro-batches cost.
func (x *resolver) prove(plan schedule.Plan, err error) {
	if err == nil {
		err = schedule.Check(plan, int(x.Job.MicroBatches))
	}
	if err != nil {
		x.refuse("schedule", "", "%v", err)
		return
	}
	if plan.Updates() > 0 {
		x.checkUpdates(plan)
		x.whyDrains(plan)
	}
	if x.Job.MicroBatches >= x.Job.Stages {
		return
	}
	// A backward costs about twice a forward: two matrix products for each one.
	timed, err := schedule.SimulateMany(plan, schedule.Uniform(plan.Stages(), 1, 2, 0), schedule.Load{})
	if err != nil {
		x.refuse("schedule", "", "%v", err)
		return
	}
	x.warn("micro_batches is %d, fewer than the %d stages: %.0f%% of a pipeline's time is bubble; other pipelines fill a part of it",
		x.Job.MicroBatches, x.Job.Stages, 100*timed.Bubble)
}

// checkUpdates refuses what needs all stages to wait for each other at every optimizer step, which those inside of a batch do not.
func (x *resolver) checkUpdates(plan schedule.Plan) {
	if x.Job.Averaging.TauMost > 0 {
		x.refuse("averaging.tau", "1", "averaging.tau is auto, and the schedule steps the optimizer inside of a batch and runs on across the batches of a round, so that its memory depends on tau; want a number")
	}
	if problem := jobfile.Inside(&x.Job, x.set); problem != "" {
		x.refuse("schedule", job.Default().Schedule, "%s", problem)
	}
	if clip := x.Job.Optimizer.ClipNorm; clip > 0 {
		x.refuse("optimizer.clip_norm", "0", "optimizer.clip_norm is %v, and the schedule %s steps the optimizer inside of a batch, where no stage waits for the gradients "+
			"of the others; use 0, or a schedule that steps after the batch, such as afp", clip, x.Job.Schedule)
	}
	for _, p := range x.Model.Params() {
		if p.TiedTo != "" && !p.Frozen && plan.Stages() > 1 {
			x.refuse("schedule", "afp", "the schedule %s steps the optimizer inside of a batch, where no stage waits for the gradients of the others, "+
				"but %s is tied to %s and trained; untie them in model.config, train others (train.only, lora), or use a schedule that steps after the "+
				"batch, such as afp", x.Job.Schedule, p.Name, p.TiedTo)
			return
		}
	}
}

// decideBudget resolves how much the job trains on, once its pipelines are known, and warns where it ends before its first commit would
// be due.
func (x *resolver) decideBudget() {
	j := &x.Job
	if j.Pipelines == job.Auto {
		return
	}
	x.Budget = j.Resolved(0) // that of epochs is the worker's, which has read the data
	why := fmt.Sprintf("budget %s: how many samples that is, is known once the data are open", j.Train.Budget())
	if b := j.Resolved(x.Epoch); b != nil {
		why = fmt.Sprintf("budget %s: %d samples, %s of each pipeline", j.Train.Budget(), b.Samples, words.Count(int(b.Steps), "step"))
		wanted := j.Wanted(x.Epoch)
		if b.Samples != wanted {
			why += ", rounded up to whole rounds"
		}
		if wanted > 0 && b.Samples >= 2*wanted {
			x.warn("the job asks for %d samples and trains on %d: %s take %d in a round, and rounds are whole; fewer pipelines or a smaller batch take fewer",
				wanted, b.Samples, words.Count(int(j.Pipelines), "pipeline"), b.Samples/(b.Steps/uint64(j.Averaging.Tau)))
		}
		if key, nearest, problem := CheckRounds(j, x.Epoch); key != "" {
			x.refuse(key, nearest, "%s", problem)
		}
		if rounds := b.Steps / uint64(j.Averaging.Tau); uint64(j.Center.CommitEvery) > rounds {
			x.warn("center.commit_every is %d and the job has %d rounds: only the last one is committed, so a crash costs the whole run", j.Center.CommitEvery, rounds)
		}
		if w := uint64(j.Averaging.Warmup); j.Pipelines > 1 && w >= b.Steps { //nolint:gosec // at least 0
			x.warn("averaging.warmup is %d and each pipeline takes %s: no gradient is ever late, so the job trains as with allreduce", w, words.Count(int(b.Steps), "step"))
		}
	}
	if !j.Open() {
		x.because(why)
	}
}
