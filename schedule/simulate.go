package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/internal/words"
)

// Load says how much work SimulateMany gives the devices. The zero value is one batch of one pipeline.
type Load struct {
	// Pipelines is how many pipelines run the plan at once on the same devices; 0 is 1.
	Pipelines int
	// Batches is how many each pipeline runs, one after the other; 0 is 1, or as many as the plan runs on across, of which it is a multiple.
	Batches int
	// MicroBatches is how many a batch has, for a plan that runs on across batches (see Plan.Batches); 0 is all that the plan has.
	MicroBatches int
	// AverageEvery is how many batches lie between two averagings of a pipeline with the center, each of which takes
	// Costs.Average on each stage, a multiple of those that the plan runs on across; 0 is none.
	AverageEvery int
	// AwaitRound has each stage average only when it has come to it in all pipelines, and then one pipeline after the other, as
	// averaging.pull: new does. Else a pipeline waits for no other.
	AwaitRound bool
	// ExchangeNorm has the stages find the norm of the whole gradient before any of them steps, as optimizer.clip_norm does:
	// the sum of squares goes down the stages, each of which occupies its device to add its own, and the total back up.
	// What adding takes is a part of Costs.Update.
	ExchangeNorm bool
	// Shares is, of each device, the one whose time it takes, as rows of a plan on one GPU take that of the GPU: their ops run one after the
	// other. A device that keeps its own time is its own. Nil: all do.
	Shares []int
	// Jitter is how far times of ops lie around Costs, as a part of them, below 1: evenly between (1-Jitter) and (1+Jitter)
	// times as long, the same in every simulation of the load. Pipelines whose ops take exactly as long as each other's can stay
	// in a step that makes all of them wait, which no real devices keep; a few hundredths end that. 0 is none.
	Jitter float64
	// Record keeps Result.Events and DeviceMemory.Over: about 400 bytes an op.
	Record bool
	// Proceed, if there, hears now and then how many of all ops have run. Its error ends the simulation: a *StoppedError has it.
	Proceed func(ran, all int) error
}

// StoppedError ends a simulation whose Load.Proceed said so.
type StoppedError struct{ Err error }

func (e *StoppedError) Error() string { return "schedule: simulate: " + e.Err.Error() }
func (e *StoppedError) Unwrap() error { return e.Err }

func (l Load) withDefaults() Load {
	l.Pipelines, l.Batches = max(l.Pipelines, 1), max(l.Batches, 1)
	return l
}

// maxRuns bounds the ops that a simulation runs, all batches of all pipelines: hours of work.
const maxRuns = 1 << 36

// Validate refuses counts below 0, loads that no simulation would finish, and a norm that the plan does not wait for.
func (l Load) Validate(plan Plan) error {
	for _, count := range []struct {
		name  string
		value int
	}{{"pipelines", l.Pipelines}, {"batches", l.Batches}, {"average every", l.AverageEvery}} {
		if count.value < 0 || count.value > 1<<20 {
			return fmt.Errorf("load: %s is %d; want 0 to %d", count.name, count.value, 1<<20)
		}
	}
	if l.MicroBatches < 0 {
		return fmt.Errorf("load: micro-batches is %d; want those of a batch, or 0 for all that the plan has", l.MicroBatches)
	}
	for d, of := range l.Shares {
		if len(l.Shares) != len(plan) || of < 0 || of >= len(plan) || l.Shares[of] != of {
			return fmt.Errorf("load: device %d of %d shares the time of %d in %v; want one for each, that keeps its own", d, len(plan), of, l.Shares)
		}
	}
	if !(l.Jitter >= 0 && l.Jitter < 1) {
		return fmt.Errorf("load: jitter is %v; want at least 0 and less than 1", l.Jitter)
	}
	if l.ExchangeNorm && plan.Updates() > 0 {
		return errors.New("load: the plan takes optimizer steps inside of the batch, where no stage waits for the norm of the others; want no norm exchanged, or a plan without updates")
	}
	if err := l.checkAcross(plan); err != nil {
		return err
	}
	l = l.withDefaults()
	if l.Pipelines > math.MaxInt32/4/max(1, len(plan)) || l.Pipelines*l.Batches > maxRuns/max(1, plan.Ops()) {
		return fmt.Errorf("load: %d batches of %s are more than can be simulated; want fewer of either", l.Batches, words.Count(l.Pipelines, "pipeline"))
	}
	return nil
}

// Span is when an op runs, in the unit of Costs, counted from the start of the first batch.
type Span struct{ Start, End float64 }

// Result is what a simulation finds. Times are in the unit of Costs.
type Result struct {
	Makespan float64 // from the first start to the last end: the time of one batch, or of all
	// Period is the time from the end of a batch to the end of the next, while all pipelines run: the mean over those that a plan runs on
	// across. With one run of the plan it is the share of a batch in Makespan.
	Period   float64
	Busy     []float64 // per device: time in which it computes, steps and averages included
	Bubble   float64   // the share of all devices' time in which nothing runs, 0..1
	InFlight []int     // per device and pipeline: peak of micro-batches held between forward and backward
	Memory   []DeviceMemory
	Links    []LinkLoad // in the order of their devices; those that carry no message are left out
	Events   []Event    // if recorded: by device, pipeline and start

	plan Plan
	load Load
}

// LinkLoad is what one direction of the link between two devices carries.
type LinkLoad struct {
	From     int     `json:"from"` // device
	To       int     `json:"to"`
	Messages int     `json:"messages"`
	Bytes    int64   `json:"bytes"`
	Busy     float64 `json:"busy"`   // the share of the makespan in which a message is being put on it, 0..1
	Waited   float64 `json:"waited"` // the longest time that a message waited for those before it
}

// Throughput is the number of batches, of all pipelines together, that end in a unit of time.
func (r Result) Throughput() float64 { return float64(r.load.withDefaults().Pipelines) / r.Period }

// Simulate times one batch of one pipeline. An op starts when its device is free and its message has arrived; a message
// starts on its way when its op ends and the link is free, and sending costs the device nothing. Without Bandwidth a
// link carries any number of messages at once. The optimizer step of a plan without updates follows the stage's own ops, while
// its device goes on with other stages. Events are recorded. The result depends on the arguments only.
//
// A plan that Check refuses is refused here with the same error.
func Simulate(plan Plan, costs Costs) (Result, error) {
	return SimulateMany(plan, costs, Load{Record: true})
}

// SimulateMany is Simulate for pipelines that share the devices and for batches that follow each other. A device that one op
// fills runs them first come, first served: the op that was ready first, of equals that of the lower pipeline, as
// the executor of package pipeline does. The work is O(ops log devices).
func SimulateMany(plan Plan, costs Costs, load Load) (Result, error) {
	if err := Check(plan, max(1, cmp.Or(load.MicroBatches, plan.MicroBatches()))); err != nil {
		return Result{}, err
	}
	for _, err := range []error{costs.Validate(plan.Stages()), costs.validateDevices(len(plan)), load.Validate(plan)} {
		if err != nil {
			return Result{}, fmt.Errorf("schedule: simulate: %w", err)
		}
	}
	return simulate(plan, costs, load)
}

// simulate runs a plan that Check has passed.
func simulate(plan Plan, costs Costs, load Load) (Result, error) {
	across := plan.Batches(load.MicroBatches)
	e := newEngine(plan, costs, load.runs(across))
	if err := e.run(); err != nil {
		return Result{}, &StoppedError{err}
	}
	for l := range e.processes {
		if !e.processes[l].done {
			return Result{}, errors.New("schedule: simulate: a plan that passed Check does not end")
		}
	}
	r := e.result()
	r.load = load.withDefaults()
	r.load.Batches = e.load.Batches * across
	r.Period /= float64(across)
	return r, nil
}

func (e *engine) result() Result {
	r := Result{
		Busy: make([]float64, len(e.plan)), InFlight: InFlight(e.plan), Memory: e.memory.result(), Events: e.events,
	}
	if e.load.Record { // to draw it
		r.plan = e.plan
	}
	slices.SortFunc(r.Events, func(a, b Event) int {
		return cmp.Or(a.Device-b.Device, a.Pipeline-b.Pipeline, cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End))
	})
	for _, end := range e.ends {
		r.Makespan = max(r.Makespan, end)
	}
	total := 0.0
	for d := range e.devices {
		r.Busy[d] = e.device(d).busy
		total += r.Busy[d]
	}
	if r.Makespan > 0 {
		r.Bubble = max(0, 1-total/(float64(len(e.plan))*r.Makespan)) // not below 0 by rounding
	}
	for _, w := range e.wires {
		if w.Messages > 0 {
			if r.Makespan > 0 {
				w.Busy /= r.Makespan
			}
			r.Links = append(r.Links, w.LinkLoad)
		}
	}
	slices.SortFunc(r.Links, func(a, b LinkLoad) int { return cmp.Or(a.From-b.From, a.To-b.To) })
	r.Period = steadyPeriod(e.ends, e.load)
	return r
}

// steadyPeriod is the time between the ends of a pipeline's batches while all pipelines run: from the end of its first batch to
// that of its last before the first pipeline has no more. The mean is that of the pipelines' rates. ends[p*B+b] is when
// batch b of pipeline p ends.
func steadyPeriod(ends []float64, load Load) float64 {
	until := math.Inf(1)
	for p := range load.Pipelines {
		until = min(until, ends[(p+1)*load.Batches-1])
	}
	rate, counted := 0.0, 0
	last := 0.0
	for p := range load.Pipelines {
		of := ends[p*load.Batches : (p+1)*load.Batches]
		last = max(last, of[len(of)-1])
		n := 0
		for n < len(of) && of[n] <= until {
			n++
		}
		if n > 1 && of[n-1] > of[0] {
			rate += float64(n-1) / (of[n-1] - of[0])
			counted++
		}
	}
	if counted == 0 {
		return last / float64(load.Batches)
	}
	return float64(counted) / rate
}

// Event is one piece of work of a recorded simulation.
type Event struct {
	Device, Pipeline int
	Batch            int // or, of a plan that runs on across several, the run of the plan
	Op               Op  // an optimizer step that no Update of the plan takes, and averaging with the center, have Micro -1
	Span
}
