package main

import (
	"fmt"
	"path/filepath"
	"slices"
)

// workload is a model that learns something.
type workload struct {
	name   string // of its job file
	micro  int    // samples in a micro-batch
	budget int    // samples after which a run gives up
	every  int    // samples between two evaluations
	warmup int    // samples in which the learning rate rises
	// rates to choose from; those of pipedream, whose steps are of single micro-batches, besides.
	rates, single []float64
	targets       []float64 // held-out losses in nats, falling: an early one, which small batches reach first, and a late one, where a run ends
	layers        int       // of the model: how many stages it can be cut into, and buckets of gradients
}

var workloads = []workload{
	{name: "gpt", micro: 4, budget: 98304, every: 1024, warmup: 1024, rates: []float64{2e-3, 4e-3, 8e-3, 1.6e-2}, single: []float64{1e-3, 2e-3, 4e-3}, targets: []float64{2.25, 1.95}, layers: 8},
	{name: "awd-lstm", micro: 4, budget: 98304, every: 1024, warmup: 1024, rates: []float64{3e-3, 6e-3, 1.2e-2, 2.4e-2}, single: []float64{3e-3, 6e-3, 1.2e-2, 2.4e-2}, targets: []float64{2.25, 1.95}, layers: 5},
	{name: "bert", micro: 4, budget: 16384, every: 512, warmup: 512, rates: []float64{5e-4, 1e-3, 2e-3}, single: []float64{2.5e-4, 5e-4, 1e-3}, targets: []float64{0.25, 0.12}, layers: 8},
	{name: "gnmt", micro: 4, budget: 49152, every: 1024, warmup: 1024, rates: []float64{2e-3, 4e-3, 8e-3}, single: []float64{1e-3, 2e-3, 4e-3}, targets: []float64{5.2, 4.5}, layers: 6},
}

// workloadOf finds one by its name.
func workloadOf(name string) (workload, error) {
	at := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
	if at < 0 {
		return workload{}, fmt.Errorf("no model %q; there are gpt, awd-lstm, bert, gnmt", name)
	}
	return workloads[at], nil
}

// first is the early target.
func (w workload) first() float64 { return w.targets[0] }

// last is the late target, at which a run ends.
func (w workload) last() float64 { return w.targets[len(w.targets)-1] }

// file is the workload's job file, in the directory of them.
func (w workload) file(jobs string) string { return filepath.Join(jobs, w.name+".yaml") }
