package main

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// All times of settings are in forwards: what a device takes for the forward of one micro-batch through its part of the model.
const (
	forward  = 1.0
	backward = 2.0
	// update is an optimizer step, and averaging: both read and write all weights of a stage once or twice.
	update = 0.05
)

// setting is where methods are compared: devices in a row, each part of the model as long as the others.
type setting struct {
	devices int
	link    float64 // what a message of one micro-batch takes on a link, which carries one at a time each way
}

func (s setting) String() string { return fmt.Sprintf("K=%d,c=%g", s.devices, s.link) }

// costs are those of one stage a device.
func (s setting) costs() schedule.Costs {
	c := schedule.Uniform(s.devices, forward, backward, 0)
	c.Update, c.Average = make([]float64, s.devices), make([]float64, s.devices)
	for k := range s.devices {
		c.Update[k], c.Average[k] = update, update
	}
	if s.link == 0 {
		return c
	}
	c.Bandwidth, c.MessageBytes = make([]float64, s.devices-1), make([]int64, s.devices-1)
	for l := range s.devices - 1 {
		c.Bandwidth[l], c.MessageBytes[l] = 1/s.link, 1
	}
	return c
}

// period is what a batch of each of so many pipelines takes, once all of them run.
func (s setting) period(name string, chunks, pipelines, micros int) (float64, error) {
	return s.across(name, chunks, pipelines, micros, 1)
}

// across is the same where one pipeline runs on across so many batches, if it steps inside of them.
func (s setting) across(name string, chunks, pipelines, micros, batches int) (float64, error) {
	costs := s.costs()
	request := schedule.Request{Devices: s.devices, MicroBatches: micros, RoundBatches: batches, Costs: &costs}
	if chunks > 1 {
		request.Chunks, request.Costs = chunks, nil // costs of another number of stages
	}
	plan, _, err := schedule.Generate(name, request)
	if err != nil {
		return 0, err
	}
	load := schedule.Load{Pipelines: pipelines, MicroBatches: micros}
	if pipelines > 1 {
		load.AverageEvery = 1
	}
	return tuner.Period(plan, costs.SpreadOver(plan), load)
}

// undrained is what so many micro-batches take in the middle of a long batch of a method that does not drain for its steps: as published,
// where batches have no end.
func (s setting) undrained(name string, micros int) (float64, error) {
	const long = 8 // times so many
	var took [2]float64
	for i, times := range []int{long, 2 * long} {
		period, err := s.period(name, 1, 1, times*micros)
		if err != nil {
			return 0, err
		}
		took[i] = period
	}
	return (took[1] - took[0]) / long, nil
}

// choice is what tuning would choose.
type choice struct {
	schedule  string
	pipelines int
	period    float64
}

// The schedules that tuning chooses among: those that change times and memory, and not what is computed. Those of several stages a
// device are left out, since the emulated devices of this benchmark take as long for a stage however many there are.
var choosable = []string{"1f1b", "afp", "zb-h1", "zb-h2", "gpipe"}

// mostPipelines ends the search, as it does that of tuning.
const mostPipelines = 16

// merit is a throughput of which each further pipeline must gain tuner.UnknownGain.
func (c choice) merit() float64 {
	return tuner.Merit(float64(c.pipelines)/c.period, c.pipelines, tuner.UnknownGain)
}

// choose looks for the highest throughput as tuning does: pipelines are added until neither of two more gains anything, and of what is
// within tuner.Tie of the best the fewest pipelines are taken. Of equal schedules it is the first, which has the least in flight.
func (s setting) choose(micros int) (best choice, err error) {
	var all []choice
	fastest, most, idle := 0.0, 0.0, 0
	for n := 1; n <= mostPipelines && idle < 2; n++ {
		idle++
		for _, name := range choosable {
			period, err := s.period(name, 1, n, micros)
			if err != nil {
				return best, fmt.Errorf("%v, %s, N=%d, M=%d: %w", s, name, n, micros, err)
			}
			c := choice{name, n, period}
			all, most = append(all, c), max(most, c.merit())
			if throughput := float64(n) / period; throughput > fastest*(1+tuner.Tie) {
				fastest, idle = throughput, 0
			}
		}
	}
	at := slices.IndexFunc(all, func(c choice) bool { return c.merit() >= most*(1-tuner.Tie) })
	return all[at], nil
}

// exchange is a synchronous exchange of gradients between replicas of a model.
type exchange struct {
	weights float64 // of the whole model, in messages: its bytes over those of a message of one micro-batch between stages
	layers  int     // whose gradients go one after the other
}

// replicated is the time of a step of data parallelism: each device has the whole model and a share of the micro-batches. Gradients are
// summed in a ring, which takes 2 (K-1)/K of their bytes over each link, begins when the last layer has them in the last backward, and goes on beside
// it, a layer at a time. It is an optimistic form: links are full all the time, and cost the devices nothing.
func (s setting) replicated(e exchange, micros int) (float64, error) {
	if micros%s.devices != 0 {
		return 0, fmt.Errorf("%d micro-batches for %d replicas: want a multiple", micros, s.devices)
	}
	k := float64(s.devices)
	last := k * backward // the last backward, of the whole model
	compute := float64(micros/s.devices) * k * (forward + backward)
	took := 2 * (k - 1) / k * e.weights * s.link
	first := last / float64(e.layers) // until the first layer's gradients are there
	after := max(took/float64(e.layers), first+took-last)
	if s.link == 0 {
		after = 0
	}
	return compute + after + k*update, nil
}
