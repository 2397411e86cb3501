package schedule

import (
	"errors"
	"fmt"
	"math"
)

// Candidate is one schedule of a comparison.
type Candidate struct {
	Schedule string
	Reason   string // for the shape of its plan, from Generate
	Result   Result // recorded, if the load says so
	Err      error  // why this schedule cannot run here; then the rest is empty
}

// Try simulates a schedule, to compare it with others on the same devices. The costs are those of one stage a device; SpreadOver cuts
// them for a schedule of several. chunks is how many stages a device has where the schedule leaves a choice, 0 for what it takes by
// default. A plan runs on across batches as far as the load averages and ends after as many. Where devices have a capacity, a schedule that can
// run with fewer in flight does so. The error is of the costs and the load,
// the same for all schedules, or that of Load.Proceed. What it returns holds no plan, unless the load has it recorded.
func Try(name string, microBatches, chunks int, costs Costs, load Load) (Candidate, error) {
	devices := len(costs.Forward)
	load.MicroBatches = microBatches
	request := Request{Devices: devices, MicroBatches: microBatches, RoundBatches: load.RoundBatches(), Costs: &costs}
	for _, err := range []error{request.Validate(), costs.validateDevices(devices), load.Validate(nil)} {
		if err != nil {
			return Candidate{}, fmt.Errorf("schedule: compare: %w", err)
		}
	}
	c := Candidate{Schedule: name}
	c.Err = c.simulate(request, chunks, load)
	if stopped, ok := errors.AsType[*StoppedError](c.Err); ok {
		return Candidate{}, stopped.Err
	}
	return c, nil
}

func (c *Candidate) simulate(request Request, chunks int, load Load) (err error) {
	costs := *request.Costs
	request.Chunks = chunks
	if _, err := Chunks(c.Schedule, chunks); err != nil {
		request.Chunks = 0 // a schedule with no choice
	}
	if n, err := Chunks(c.Schedule, request.Chunks); err != nil || n > 1 {
		request.Costs = nil // sizes of another number of stages
	} else {
		request.InFlightLimit = costs.inFlightLimits(load.withDefaults().Pipelines)
	}
	plan, reason, err := Generate(c.Schedule, request)
	if err != nil && request.InFlightLimit != nil {
		// It cannot run with fewer in flight. The result shows how many bytes that is too much.
		request.InFlightLimit = nil
		plan, reason, err = Generate(c.Schedule, request)
	}
	if err != nil {
		return err
	}
	c.Reason = reason
	c.Result, err = SimulateMany(plan, costs.SpreadOver(plan), load)
	return err
}

// inFlightLimits is how many micro-batches each device has memory for, of each of so many pipelines; 0 for a device without limit.
func (c Costs) inFlightLimits(pipelines int) []int {
	if c.CapacityBytes == nil || c.ActivationBytes == nil {
		return nil
	}
	limits := make([]int, len(c.CapacityBytes))
	for d, capacity := range c.CapacityBytes {
		if capacity == 0 || c.ActivationBytes[d] == 0 {
			continue
		}
		static := int64(pipelines)*(at(c.WeightBytes, d)+at(c.GradientBytes, d)+at(c.StateBytes, d)) + at(c.CenterBytes, d)
		limits[d] = int(max(1, min((capacity-static)/(int64(pipelines)*c.ActivationBytes[d]), math.MaxInt32)))
	}
	return limits
}

// Worst is the device that is short of most bytes or, where none is, the one that reserves most.
func (r Result) Worst() (device int, memory DeviceMemory) {
	for d, m := range r.Memory {
		best := r.Memory[device]
		if m.Short() > best.Short() || m.Short() == best.Short() && m.Reserved > best.Reserved {
			device = d
		}
	}
	return device, r.Memory[device]
}

// Busiest is the direction of a link that carries messages for the largest share of the time; the zero value if none does.
func (r Result) Busiest() LinkLoad {
	var busiest LinkLoad
	for _, l := range r.Links {
		if l.Busy > busiest.Busy {
			busiest = l
		}
	}
	return busiest
}

// ErrNoneFits is what Best returns when every candidate is short of memory.
var ErrNoneFits = errors.New("no schedule fits the devices' memory")

// Best is the index of the candidate of most batches a time that fits the devices' memory: of equals the one that reserves least,
// of those the first.
func Best(candidates []Candidate) (int, error) {
	best, period, least := -1, math.Inf(1), int64(0)
	for i, c := range candidates {
		if c.Err != nil {
			continue
		}
		_, memory := c.Result.Worst()
		faster, slower := c.Result.Period < period*(1-rounding), c.Result.Period > period*(1+rounding)
		if memory.Short() == 0 && (faster || !slower && memory.Reserved < least) {
			best, period, least = i, c.Result.Period, memory.Reserved
		}
	}
	if best < 0 {
		return 0, ErrNoneFits
	}
	return best, nil
}
