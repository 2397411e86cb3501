package main

import (
	"fmt"
	"slices"
)

// quality is a record: how the held-out loss of one training fell. It does not say how long that took.
type quality struct {
	Model      string    `json:"model"`
	Side       string    `json:"side"`
	Devices    int       `json:"devices"`       // that the pipeline was laid over; 1 where it makes no difference
	Pipelines  int       `json:"pipelines"`     //
	Micros     int       `json:"micro_batches"` // of a batch of one pipeline
	Micro      int       `json:"micro_samples"` // in each of them
	Rate       float64   `json:"lr"`
	Seed       int       `json:"seed"`
	Averaging  string    `json:"averaging"`
	Parameters int       `json:"parameters"`
	Samples    []int     `json:"samples"` // that all pipelines had seen at each evaluation
	Loss       []float64 `json:"loss"`    // of the center, on held-out samples
}

// key is what a run is made of; two runs of one key are the same.
func (q quality) key() string {
	return fmt.Sprintf("%s %s K=%d N=%d M=%d of %d lr=%g seed=%d", q.Model, q.Side, q.Devices, q.Pipelines, q.Micros, q.Micro, q.Rate, q.Seed)
}

// batch is the samples of a step of all pipelines.
func (q quality) batch() int { return q.Pipelines * q.Micros * q.Micro }

// goneTo reports whether the run has nothing more to tell of a workload: it has reached the last target, or used up its budget.
func (q quality) goneTo(w workload) bool {
	_, reached := q.samplesTo(w.last())
	return reached || len(q.Samples) > 0 && q.Samples[len(q.Samples)-1]+q.batch() > w.budget
}

// longest are the runs without those that another one of the same key goes on from: it has their curve, and more.
func longest(all []quality) (left []quality) {
	at := map[string]int{}
	for _, q := range all {
		i, there := at[q.key()]
		switch {
		case !there:
			at[q.key()], left = len(left), append(left, q)
		case len(q.Samples) > len(left[i].Samples):
			left[i] = q
		}
	}
	return left
}

// roundBatches is how many batches a pipeline runs on across, one that steps inside of them and has nobody to average with: from one evaluation to the next.
func (q quality) roundBatches(w workload) int {
	if q.Side == pipeDream || q.Side == pipeDream2BW {
		return max(1, w.every/q.batch())
	}
	return 1
}

// samplesTo is how many samples it took to the target, linear between evaluations; false where the run did not reach it.
func (q quality) samplesTo(target float64) (float64, bool) {
	for i, loss := range q.Loss {
		if loss > target {
			continue
		}
		if i == 0 {
			return 0, true
		}
		before, part := q.Loss[i-1], 0.0
		if before > loss {
			part = (before - target) / (before - loss)
		}
		return float64(q.Samples[i-1]) + part*float64(q.Samples[i]-q.Samples[i-1]), true
	}
	return 0, false
}

// need is the fewest samples that a side needs to a target with batches of so many micro-batches, over its learning rates: the mean over the seeds
// that were run with a rate, all of which must have reached it.
func need(all []quality, model, side string, devices, pipelines, micros int, target float64) (samples, rate float64, found bool) {
	type sum struct {
		samples float64
		runs    int
		missed  bool
	}
	sums := map[float64]*sum{}
	for _, q := range all {
		if q.Model != model || q.Side != side || q.Pipelines != pipelines || q.Micros != micros || lies(side) && q.Devices != devices {
			continue
		}
		if sums[q.Rate] == nil {
			sums[q.Rate] = &sum{}
		}
		s, ok := q.samplesTo(target)
		at := sums[q.Rate]
		at.samples, at.runs, at.missed = at.samples+s, at.runs+1, at.missed || !ok
	}
	var rates []float64
	for r := range sums {
		rates = append(rates, r)
	}
	slices.Sort(rates)
	for _, r := range rates {
		s := sums[r]
		if mean := s.samples / float64(s.runs); !s.missed && (!found || mean < samples) {
			samples, rate, found = mean, r, true
		}
	}
	return samples, rate, found
}
