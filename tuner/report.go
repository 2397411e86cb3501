package tuner

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
)

// ReportVersion is the version of Report's JSON form that this program writes and reads.
const ReportVersion = 2

// Report is what tuning found: the choice, what it was chosen from, and why. Its JSON form is what the daemon keeps of it.
type Report struct {
	Version int `json:"version"` // ReportVersion
	// Digest is the SHA-256, in hexadecimal, of all that the choice depends on: model, shape of the data, devices, links,
	// and the counts that the job gives.
	Digest string  `json:"digest"`
	Cached bool    `json:"cached"` // an earlier tuning's, read from the plan cache
	Took   float64 `json:"took_seconds"`
	// Considered is the number of candidates that were predicted.
	Considered int       `json:"considered"`
	Chosen     Candidate `json:"chosen"`
	// RunnersUp are the others worth reading, the best first: those that were run as well, then the nearest by prediction, and
	// of each kind of refusal one.
	RunnersUp []Candidate `json:"runners_up"`
	Profile   Summary     `json:"profile"`
	// Bound is the relative distance from the prediction, 0.15 being 15%, beyond which an observed batch time says that
	// something has changed since.
	Bound float64 `json:"bound"`
	// Ruled, unless empty, says why nothing was measured but left to the rules, and what it would have cost. Nothing is chosen then.
	Ruled string `json:"ruled,omitempty"`
	// Estimate is what the job and its tuning are expected to take, where that was asked for or an earlier tuning tells.
	Estimate *Estimate `json:"estimate,omitempty"`
	Notes    []string  `json:"notes,omitempty"` // what the reader should know: a choice the job's file ruled out, a profile that scatters
}

// leastTuningSeconds is what any job may be measured for, whatever its share of that would be.
const leastTuningSeconds = 2

// Estimate is what a job is expected to take.
type Estimate struct {
	JobSeconds    float64 `json:"job_seconds"`    // of training, the whole budget; 0 while nobody knows how many samples that is
	TuningSeconds float64 `json:"tuning_seconds"` // of measuring everything first; 0 where an earlier tuning is at hand
	Basis         string  `json:"basis"`          // what it rests on, for people
}

// Affordable reports whether a tuning that takes so long keeps to its share of the job's time; a share of 0 is no bound.
func (e *Estimate) Affordable(share, seconds float64) bool {
	return share == 0 || seconds <= max(leastTuningSeconds, share*e.JobSeconds)
}

// TooDear says why a job is not measured; empty when it is.
func (e *Estimate) TooDear(share float64) string {
	if e.Affordable(share, e.TuningSeconds) {
		return ""
	}
	return fmt.Sprintf("tuning would have cost about %s for a job of about %s, of which it may take %.3g%% (tuning_share); chosen by the rules",
		words.Seconds(e.TuningSeconds), words.Seconds(e.JobSeconds), 100*share)
}

// Verdict says how a candidate came out.
type Verdict string

// The verdicts.
const (
	Won       Verdict = "won"
	Slower    Verdict = "slower"     // than the winner, as predicted or as measured
	Equal     Verdict = "equal"      // as fast as the winner, with more pipelines or memory
	NoMemory  Verdict = "no-memory"  // a device cannot hold its stage
	Fails     Verdict = "fails"      // its schedule refuses it, or its run failed
	NotNeeded Verdict = "not-needed" // another candidate gives the same plan
	NotRun    Verdict = "not-run"    // predicted to be faster than the winner, which was measured; only the best few run
)

// Candidate is one way to lay the job over its devices. It has all that Plan needs to make its plan again.
type Candidate struct {
	// Devices is the pipeline-parallel size, `stages` of the job file; each device has Chunks virtual stages.
	Devices      int `json:"stages"`
	Chunks       int `json:"chunks"`
	Pipelines    int `json:"pipelines"`
	MicroBatches int `json:"micro_batches"`
	// RoundBatches are those of a round, across which the plan runs on where it steps the optimizer inside of them; 0 is 1.
	RoundBatches int    `json:"round_batches,omitempty"`
	Schedule     string `json:"schedule"`
	// Threads of each device, where devices are processor cores; else 0.
	Threads int `json:"threads"`
	// Warmup is the forwards before the first backward, of each device.
	Warmup []int `json:"warmup"`
	// Recompute is what each stage recomputes: none, block or full.
	Recompute []string `json:"recompute"`
	// Split is, of each stage, its first layer and the one after its last.
	Split [][2]int `json:"split"`
	// InFlightLimit is, per device, the most micro-batches that its memory holds, where that shaped the plan; else empty.
	InFlightLimit []int `json:"pinned_limit,omitempty"`
	// SampleWorth is how much a sample counts toward a target, over one of a single pipeline, 0..1: with more pipelines a round is of more samples. 0: the critical batch is not known, and all count alike.
	SampleWorth float64        `json:"sample_worth,omitempty"`
	Costs       schedule.Costs `json:"costs"` // seconds of one micro-batch, of each stage, with one pipeline at work
	Predicted   Prediction     `json:"predicted"`
	Measured    *Measurement   `json:"measured,omitempty"` // nil: it was not run
	Verdict     Verdict        `json:"verdict"`
	Reason      string         `json:"reason"` // a sentence for people: "4.1% slower, predicted", "stage 0 lacks 1.2 GB"
}

// Prediction is what the model of time and memory says of a candidate.
type Prediction struct {
	BatchSeconds     float64 `json:"batch_seconds"` // from one optimizer step of a pipeline to its next
	SamplesPerSecond float64 `json:"samples_per_second"`
	// Stages are the model's stages, the input side first.
	Stages []StageTerms `json:"stages"`
	// Links[s] is between stage s and s+1.
	Links []LinkTerms `json:"links,omitempty"`
}

// Measurement is the same, observed: in a confirming run, or while the job trains.
type Measurement struct {
	Prediction
	Batches int `json:"batches"` // that each pipeline was watched for
	// Spread is half of the distance between the two fastest runs, relative to the batch time.
	Spread float64 `json:"spread"`
}

// StageTerms are where the time of a stage goes in one batch of one pipeline, in seconds, and what it holds. Compute,
// Optimizer and Average are what one pipeline takes of the device; the N pipelines that share it each take as much. Wait is the
// rest of the batch time that the device spends on no pipeline at all.
type StageTerms struct {
	Device           int     `json:"device"` // that the stage lives on, 0-based
	ComputeSeconds   float64 `json:"compute_seconds"`
	OptimizerSeconds float64 `json:"optimizer_seconds"`
	AverageSeconds   float64 `json:"average_seconds"`
	WaitSeconds      float64 `json:"wait_seconds"` // of the device, whichever of its stages it waits for
	Busy             float64 `json:"busy"`         // of the device: the part of its time that it works, 0..1
	Memory           Memory  `json:"memory"`
}

// Memory is what one stage holds on its device, for all pipelines, in bytes.
type Memory struct {
	Weights     int64 `json:"weights"` // of the pipelines, with the versions that asynchronous plans keep
	Gradients   int64 `json:"gradients"`
	State       int64 `json:"state"`       // of the optimizers
	Activations int64 `json:"activations"` // held between forwards and backwards, and the work space of passes
	Boundaries  int64 `json:"boundaries"`  // messages that arrived or leave, in the memory of the host; 0 where observed
	Center      int64 `json:"center"`      // the averaged weights and what averaging keeps beside them
	// Host is what the worker process holds in the host's memory beside all of these: the copy that a commit writes, what allocations
	// of whole pages waste, the work space of libraries. 0 in reports of older versions and where observed.
	Host int64 `json:"host,omitempty"`
	// Queues is the work space that libraries have on a GPU for each queue of it, beside the stage: nobody counts it. 0 where observed.
	Queues int64 `json:"queues,omitempty"`
	// Copies is what the interpreter of a user's modules has on a GPU: copies of weights and gradients, what it keeps between passes, and the work space of its
	// libraries. All else is then in the memory of the host. 0: the modules compute where all else does, or there are none; and where observed.
	Copies int64 `json:"copies,omitempty"`
	// Allocated, where measured, is what the allocator of the device gave out; the parts above are 0 then, since nobody measures them.
	Allocated int64 `json:"allocated,omitempty"`
}

// Total is the sum of the parts.
func (m Memory) Total() int64 {
	return m.Weights + m.Gradients + m.State + m.Activations + m.Boundaries + m.Center + m.Host + m.Queues + m.Copies + m.Allocated
}

// OnDevice is what is allocated on the device: all but messages and what else is the host's. Where an interpreter has the device, it is what that has.
func (m Memory) OnDevice() int64 {
	if m.Copies > 0 {
		return m.Copies
	}
	return m.Total() - m.Boundaries - m.Host
}

// Counted is what the stage itself allocates, which is what a worker counts.
func (m Memory) Counted() int64 { return m.Total() - m.Boundaries - m.Host - m.Queues - m.Copies }

// LinkTerms are what a link carries in one batch of one pipeline, both ways.
type LinkTerms struct {
	Bytes          int64   `json:"bytes"`
	MessageSeconds float64 `json:"message_seconds"` // one message, one way; of observed ones the mean of both ways, 0 where none was seen
}

// Summary is what profiling measured, for people.
type Summary struct {
	// Samples are the sizes of micro-batch that were measured.
	Samples []int          `json:"samples"`
	Device  string         `json:"device"` // its name and what it is
	Layers  []LayerSummary `json:"layers"`
	Links   []Link         `json:"links,omitempty"`
	// Contention is how many times as long passes take, at each of Samples, when several pipelines share the devices.
	Contention []float64 `json:"contention"`
	// DispatchSeconds is the time between two ops of a device.
	DispatchSeconds float64 `json:"hand_over_seconds"`
}

// LayerSummary is one layer at the middle of the measured sizes.
type LayerSummary struct {
	Name                  string  `json:"name"`
	ForwardSeconds        float64 `json:"forward_seconds"`
	BackwardInputSeconds  float64 `json:"backward_input_seconds"`
	BackwardWeightSeconds float64 `json:"backward_weight_seconds"`
	OptimizerSeconds      float64 `json:"optimizer_seconds"`
	ActivationBytes       int64   `json:"activation_bytes"` // held by one micro-batch
	OutputBytes           int64   `json:"output_bytes"`
	Parameters            int64   `json:"parameters"`
}
