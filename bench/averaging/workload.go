package main

import (
	"fmt"
	"slices"
	"strings"
)

// workload is a model and its data.
type workload struct {
	name     string
	file     string   // its job file
	settings []string // that make it smaller
	steps    []int    // lengths of runs
	batch    int      // samples in a step of one pipeline
	warmup   int      // steps of each pipeline in which the learning rate rises
	heldOut  int      // samples that a loss is measured on
	rates    []float64
	classes  bool // it classifies: an accuracy counts beside the loss
}

// workloads are those that there are. All but the first need `make examples-data`.
var workloads = []workload{
	{ // 0.25 million parameters
		name: "source", file: "examples/go-source.yaml", steps: []int{512, 2048}, batch: 16, warmup: 50, heldOut: 1024, rates: []float64{3e-3, 6e-3},
		settings: []string{"model.config.n_layer=2", "model.config.n_embd=96", "model.config.n_head=3", "model.config.n_positions=64", "data.sequence=64"},
	},
	{ // 0.24 million parameters, SGD with momentum
		name: "mlp", file: "examples/mlp.yaml", steps: []int{512}, batch: 16, warmup: 25, heldOut: 10000, rates: []float64{0.02, 0.05, 0.1, 0.2}, classes: true,
	},
	{ // a small convolutional network with group norm, AdamW
		name: "cnn", file: "examples/vgg.yaml", steps: []int{512}, batch: 16, warmup: 25, heldOut: 4000, rates: []float64{1e-3, 2e-3, 4e-3, 8e-3}, classes: true,
		settings: []string{"model.config.hidden_sizes=[8, 16, 32]", "model.config.depths=[1, 1, 1]", "model.config.classifier_sizes=[64]", "model.config.dropout=0"},
	},
	{ // a residual network with batch norm, SGD with Nesterov's momentum
		name: "resnet", file: "examples/resnet.yaml", steps: []int{256}, batch: 16, warmup: 15, heldOut: 4000, rates: []float64{0.05, 0.1, 0.2, 0.4}, classes: true,
		settings: []string{"model.config.embedding_size=8", "model.config.hidden_sizes=[8, 16, 32]"},
	},
	{ // a GPT on the Brown corpus, its tokens of byte pairs, AdamW
		name: "gpt", file: "examples/gpt2.yaml", steps: []int{512}, batch: 8, warmup: 50, heldOut: 1024, rates: []float64{1.5e-3, 3e-3, 6e-3, 1.2e-2},
		settings: []string{"model.config.n_layer=2", "model.config.n_embd=64", "model.config.n_head=4", "model.config.n_positions=32", "data.sequence=32"},
	},
	{ // BERT that tells spam, AdamW
		name: "bert", file: "examples/bert.yaml", steps: []int{256}, batch: 8, warmup: 25, heldOut: 600, rates: []float64{2.5e-4, 5e-4, 1e-3, 2e-3}, classes: true,
		settings: []string{"model.config.hidden_size=64", "model.config.intermediate_size=256", "precision=f32"},
	},
}

// workloadOf finds a workload by its name.
func workloadOf(name string) (workload, error) {
	at := slices.IndexFunc(workloads, func(w workload) bool { return w.name == name })
	if at < 0 {
		return workload{}, fmt.Errorf("no workload %q; there are %s", name, workloadNames())
	}
	return workloads[at], nil
}

func workloadNames() string {
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	return strings.Join(names, ", ")
}
