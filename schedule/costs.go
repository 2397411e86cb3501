package schedule

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/words"
)

// Costs are the times and bytes of a pipeline's stages, links and devices. Times, here and in results, are in one unit of the
// caller's choice (seconds, as a profile gives them). Only Forward and Backward must be there: a nil list means that its
// matter takes no time, holds no bytes, or sets no limit.
//
// Boundary s lies between the stages s and s+1, so S stages have S-1 of them. Its messages are the activations down and the
// gradients up.
type Costs struct {
	// Times of one micro-batch, per stage.
	Forward  []float64 `json:"Forward" yaml:"forward" rule:"required each=stage min=0"`
	Backward []float64 `json:"Backward" yaml:"backward" rule:"required each=stage min=0"` // the whole backward
	// BackwardInput and BackwardWeight are the two halves of a split backward; nil is half of Backward each.
	BackwardInput  []float64 `json:"BackwardInput" yaml:"backward_input" rule:"each=stage min=0"`
	BackwardWeight []float64 `json:"BackwardWeight" yaml:"backward_weight" rule:"each=stage min=0"`
	Update         []float64 `json:"Update" yaml:"update" rule:"each=stage min=0"`   // per stage: one optimizer step
	Average        []float64 `json:"Average" yaml:"average" rule:"each=stage min=0"` // per stage: averaging one pipeline with the center, once

	// Link is the one-way latency of a message, per boundary. Bandwidth, bytes a unit of time, is how fast it is put on its
	// link, 0 for at once: MessageBytes / Bandwidth occupies the link in that direction, one message after the other. All
	// boundaries between the same two devices share their link, one inside of a device takes no time.
	Link         []float64 `json:"Link" yaml:"latency" rule:"each=link min=0"`
	Bandwidth    []float64 `json:"Bandwidth" yaml:"bandwidth" rule:"each=link min=0"`
	MessageBytes []int64   `json:"MessageBytes" yaml:"message_bytes" rule:"each=link min=0 max=9e15"`

	// ActivationBytes is, per stage, what one micro-batch holds from the start of its forward to the end of its backward; with a
	// split backward HalfBytes from the end of the input half to the end of the weight half, nil for ActivationBytes there too.
	ActivationBytes []int64 `json:"ActivationBytes" yaml:"activation_bytes" rule:"each=stage min=0 max=9e15"`
	HalfBytes       []int64 `json:"HalfBytes" yaml:"half_bytes" rule:"each=stage min=0 max=9e15"`
	// Per stage and pipeline: one version of the weights, their gradients, the optimizer's state.
	WeightBytes   []int64 `json:"WeightBytes" yaml:"weight_bytes" rule:"each=stage min=0 max=9e15"`
	GradientBytes []int64 `json:"GradientBytes" yaml:"gradient_bytes" rule:"each=stage min=0 max=9e15"`
	StateBytes    []int64 `json:"StateBytes" yaml:"state_bytes" rule:"each=stage min=0 max=9e15"`
	CenterBytes   []int64 `json:"CenterBytes" yaml:"center_bytes" rule:"each=stage min=0 max=9e15"` // per stage, once for all pipelines: the center and what it accumulates

	// Utilisation is, per device, which share of it one op can use, above 0 and up to 1; nil is 1. A device that one op fills
	// runs one op at a time, another as many as there are side by side, slowed down once they want more than all of it.
	Utilisation   []float64 `json:"Utilisation" yaml:"utilisation" rule:"each=device above=0 max=1"`
	CapacityBytes []int64   `json:"CapacityBytes" yaml:"capacity_bytes" rule:"each=device min=0 max=9e15"` // per device; 0 is no limit
}

// Uniform are the costs of stages that are all alike.
func Uniform(stages int, forward, backward, link float64) Costs {
	return Costs{
		Forward:  repeat(forward, stages),
		Backward: repeat(backward, stages),
		Link:     repeat(link, stages-1),
	}
}

func repeat[T any](value T, n int) []T { return slices.Repeat([]T{value}, max(0, n)) }

// costList is one of the lists of Costs: numbers, which are times where no other unit is named, or bytes.
type costList struct {
	name    string
	per     string // what it has a value for each of: stage, link or device
	numbers *[]float64
	bytes   *[]int64
}

// lists are all of them.
func (c *Costs) lists() []costList {
	return []costList{
		{"forward", "stage", &c.Forward, nil},
		{"backward", "stage", &c.Backward, nil},
		{"backward input", "stage", &c.BackwardInput, nil},
		{"backward weight", "stage", &c.BackwardWeight, nil},
		{"update", "stage", &c.Update, nil},
		{"average", "stage", &c.Average, nil},
		{"latency", "link", &c.Link, nil},
		{"bandwidth", "link", &c.Bandwidth, nil},
		{"message bytes", "link", nil, &c.MessageBytes},
		{"activation bytes", "stage", nil, &c.ActivationBytes},
		{"half bytes", "stage", nil, &c.HalfBytes},
		{"weight bytes", "stage", nil, &c.WeightBytes},
		{"gradient bytes", "stage", nil, &c.GradientBytes},
		{"state bytes", "stage", nil, &c.StateBytes},
		{"center bytes", "stage", nil, &c.CenterBytes},
		{"utilisation", "device", &c.Utilisation, nil},
		{"capacity bytes", "device", nil, &c.CapacityBytes},
	}
}

// Times other than 0 lie between these: sums of as many ops as a plan can have, and quotients of them, stay numbers.
const (
	LeastTime = 1e-200
	MostTime  = 1e200
)

// Timely reports whether v can be a time: false for what is no number.
func Timely(v float64) bool { return v == 0 || v >= LeastTime && v <= MostTime }

// Validate refuses lists of the wrong length for a pipeline of so many stages, bytes that are negative, and times that are negative,
// not a number, or so large or small that sums of them are none, by name. How many devices there are is for Simulate.
func (c Costs) Validate(stages int) error {
	if err := c.validate(map[string]int{"stage": stages, "link": stages - 1}, words.Count(stages, "stage")); err != nil {
		return err
	}
	for i, v := range c.Bandwidth {
		if v > 0 && c.MessageBytes == nil {
			return fmt.Errorf("costs: link %d has a bandwidth and no message bytes; want the bytes of a message for each link", i)
		}
		if took := c.transmit(i); !Timely(took) {
			return fmt.Errorf("costs: at its bandwidth of %v link %d takes %v for a message; want 0, or a time from %v to %v",
				v, i, took, LeastTime, MostTime)
		}
	}
	return nil
}

// CostError is a value that its list cannot have.
type CostError struct {
	Key   string // of the list, as its tag has it: "backward_input"
	Index int
	Err   error
}

func (e *CostError) Error() string { return e.Err.Error() }
func (e *CostError) Unwrap() error { return e.Err }

func (c Costs) validateDevices(devices int) error {
	return c.validate(map[string]int{"device": devices}, words.Count(devices, "device"))
}

// validate checks the lists of what is counted.
func (c Costs) validate(counts map[string]int, all string) error {
	for _, l := range c.lists() {
		n, counted := counts[l.per]
		values := l.values()
		if !counted || values == nil && l.name != "forward" && l.name != "backward" {
			continue
		}
		if len(values) != n {
			return fmt.Errorf("costs: %s has %s for %s; want one a %s: %d", l.name, words.Count(len(values), "value"), all, l.per, n)
		}
		for i, v := range values {
			if want, valid := l.check(v); !valid {
				return &CostError{strings.ReplaceAll(l.name, " ", "_"), i, fmt.Errorf("costs: %s of %s %d is %v; want %s", l.name, l.per, i, v, want)}
			}
		}
	}
	return nil
}

func (l costList) values() []float64 {
	if l.numbers != nil {
		return *l.numbers
	}
	var values []float64
	for _, v := range *l.bytes {
		values = append(values, float64(v))
	}
	return values
}

// check says what a value of the list must be, and whether it is.
func (l costList) check(v float64) (want string, valid bool) {
	finite := v >= 0 && !math.IsInf(v, 1) // false for NaN
	switch {
	case l.bytes != nil:
		return "a number of bytes, 0 or more", finite
	case l.name == "bandwidth":
		return "bytes a unit of time, or 0 for a link without limit", finite
	case l.name == "utilisation":
		return "the share of a device that one op uses, above 0 and at most 1", v > 0 && v <= 1
	case finite:
		return fmt.Sprintf("0, or a time from %v to %v: choose another unit", LeastTime, MostTime), Timely(v)
	}
	return "a finite time, 0 or more", false
}

// of is the time of one op of stage k.
func (c Costs) of(k int, kind Kind) float64 {
	switch kind {
	case Forward:
		return c.Forward[k]
	case Backward:
		return c.Backward[k]
	case BackwardInput:
		if c.BackwardInput != nil {
			return c.BackwardInput[k]
		}
		return c.Backward[k] / 2
	case BackwardWeight:
		if c.BackwardWeight != nil {
			return c.BackwardWeight[k]
		}
		return c.Backward[k] / 2
	case Update:
		return at(c.Update, k)
	}
	return 0
}

// link is the one-way time of a message over boundary k when no other is on its way.
func (c Costs) link(k int) float64 { return at(c.Link, k) + c.transmit(k) }

// transmit is how long a message over boundary k occupies its link.
func (c Costs) transmit(k int) float64 {
	if bandwidth := at(c.Bandwidth, k); bandwidth > 0 {
		return float64(at(c.MessageBytes, k)) / bandwidth
	}
	return 0
}

// at is element i of an optional list.
func at[T any](list []T, i int) T {
	if list == nil {
		var none T
		return none
	}
	return list[i]
}

// SpreadOver turns costs that are known for one stage a device into those of a plan of the same devices with several stages
// each. A stage is cut into as many equal parts, in the order of the model, which the plan then places; so times are
// those of layers, and devices are taken to be alike. Links stay between their devices: neighbours have theirs, others
// one like the slowest. What crosses a cut inside of a former stage is as large as what leaves that stage.
//
// The costs must be valid for len(plan) stages, and Check must have passed the plan.
func (c Costs) SpreadOver(plan Plan) Costs {
	placement := plan.Placement()
	parts := len(placement) / len(plan)
	if parts == 1 {
		return c
	}
	out := c
	out.Link, out.Bandwidth, out.MessageBytes = nil, nil, nil
	for _, l := range out.lists() {
		switch {
		case l.per != "stage":
		case l.numbers != nil:
			*l.numbers = cut(*l.numbers, parts)
		default:
			*l.bytes = cut(*l.bytes, parts)
		}
	}
	if len(plan) == 1 {
		return out // nothing crosses a link
	}
	for b := range len(placement) - 1 {
		latency, bandwidth := c.between(placement[b], placement[b+1])
		out.Link, out.Bandwidth = append(out.Link, latency), append(out.Bandwidth, bandwidth)
		if c.MessageBytes != nil {
			out.MessageBytes = append(out.MessageBytes, c.MessageBytes[min(b/parts, len(c.MessageBytes)-1)])
		}
	}
	return out
}

// cut divides each value into equal parts; nil stays nil.
func cut[T int64 | float64](values []T, parts int) []T {
	var out []T
	for _, v := range values {
		out = append(out, repeat(v/T(parts), parts)...)
	}
	return out
}

// between is the latency and bandwidth from one device to another, where boundary d lies between the devices d and d+1.
func (c Costs) between(from, to int) (latency, bandwidth float64) {
	switch to - from {
	case 0:
		return 0, 0
	case 1:
		return at(c.Link, from), at(c.Bandwidth, from)
	case -1:
		return at(c.Link, to), at(c.Bandwidth, to)
	}
	for b := range c.Link {
		latency = max(latency, c.Link[b])
	}
	for _, v := range c.Bandwidth {
		if v > 0 && (bandwidth == 0 || v < bandwidth) {
			bandwidth = v
		}
	}
	return latency, bandwidth
}
