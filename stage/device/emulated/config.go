package emulated

import (
	"fmt"
	"math"
	"time"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Config says how fast a device is and how much it holds. The zero Config is a device that takes no time and holds everything.
type Config struct {
	// Memory is how many bytes Alloc gives out; 0 for no limit.
	Memory int64
	// FLOPs is how many floating-point operations of products, attention, convolutions and recurrent layers it does in a
	// second; 0: they take no time.
	FLOPs float64
	// Bandwidth is how many bytes all other operations move in a second, every operand counted once; 0: they take no time.
	Bandwidth float64
	// Launch is added to each operation.
	Launch time.Duration
	// Stages gives the time of whole passes, by stage, the only entry standing for all. It takes the place of what the
	// operations of such a pass would take; Memory counts either way.
	Stages []Times
}

// Times are how long a stage's passes of one micro-batch take.
type Times struct {
	// Forward, also that of an evaluation. 0: what its operations take.
	Forward time.Duration
	// Backward, without the forward that is computed again: that takes Forward. Half of it is the input half of a split
	// backward, half the weight half. 0: what its operations take.
	Backward time.Duration
	// Step of the optimizer, once a batch. 0: what its operations take.
	Step time.Duration
}

// Validate reports the first field that is out of range.
func (c Config) Validate() error {
	if c.Memory < 0 {
		return fmt.Errorf("emulated device: memory is %d bytes: 0 (no limit) or more", c.Memory)
	}
	for _, rate := range []struct {
		name  string
		value float64
	}{{"flops", c.FLOPs}, {"bandwidth", c.Bandwidth}} {
		if !(rate.value >= 0) || math.IsInf(rate.value, 0) { // also refuses NaN
			return fmt.Errorf("emulated device: %s is %v a second: 0 (no time) or more, and finite", rate.name, rate.value)
		}
	}
	if c.Launch < 0 {
		return fmt.Errorf("emulated device: launch is %v: 0 or more", c.Launch)
	}
	for k, t := range c.Stages {
		if t.Forward < 0 || t.Backward < 0 || t.Step < 0 {
			return fmt.Errorf("emulated device: the times of stage %d are %+v: 0 or more", k, t)
		}
	}
	return nil
}

// fixed is the time of a pass that the configuration gives; 0 when its operations say.
func (c Config) fixed(w device.Work) time.Duration {
	if len(c.Stages) == 0 {
		return 0
	}
	t := c.Stages[0]
	if len(c.Stages) > 1 {
		t = c.Stages[w.Stage]
	}
	again := time.Duration(0)
	if w.Again {
		again = t.Forward
	}
	switch w.Kind {
	case device.ForwardWork:
		return t.Forward
	case device.BackwardWork:
		return t.Backward + again
	case device.BackwardInputWork:
		return t.Backward/2 + again
	case device.BackwardWeightWork:
		return t.Backward - t.Backward/2
	case device.UpdateWork:
		return t.Step
	}
	return 0
}
