package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/profile"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/model"
)

// jobs are the models that are measured: matrix products, recurrences and convolutions, small enough for many runs.
var jobs = map[string]func(j *job.Job, dir string) error{
	"empty": func(j *job.Job, dir string) error { // of next to no weights
		j.Model = job.Model{Family: "mlp", Config: map[string]any{"image_size": 28, "num_channels": 1, "hidden_sizes": []any{}, "num_labels": 10}}
		return digits(j, dir)
	},
	"mlp": func(j *job.Job, dir string) error {
		j.Model = job.Model{Family: "mlp", Config: map[string]any{
			"image_size": 28, "num_channels": 1, "hidden_sizes": []any{1536, 1536, 1024}, "num_labels": 10,
		}}
		return digits(j, dir)
	},
	"gpt2": func(j *job.Job, dir string) error {
		j.Model = job.Model{Family: "gpt2", Config: map[string]any{
			"n_layer": 6, "n_embd": 192, "n_head": 6, "n_positions": 64, "vocab_size": 256, "tie_word_embeddings": false,
		}}
		return text(j, dir)
	},
	"small gpt2": func(j *job.Job, dir string) error { // of which every count is run
		j.Model = job.Model{Family: "gpt2", Config: map[string]any{
			"n_layer": 4, "n_embd": 128, "n_head": 4, "n_positions": 64, "vocab_size": 256, "tie_word_embeddings": false,
		}}
		return text(j, dir)
	},
	"llama": func(j *job.Job, dir string) error {
		j.Model = job.Model{Family: "llama", Config: map[string]any{
			"num_hidden_layers": 6, "hidden_size": 192, "intermediate_size": 512, "num_attention_heads": 6, "num_key_value_heads": 2,
			"max_position_embeddings": 64, "vocab_size": 256,
		}}
		return text(j, dir)
	},
	"bert": func(j *job.Job, dir string) error {
		j.Model = job.Model{Family: "bert", Config: map[string]any{
			"architectures": "BertForMaskedLM", "num_hidden_layers": 6, "hidden_size": 192, "intermediate_size": 768, "num_attention_heads": 6,
			"max_position_embeddings": 64, "vocab_size": 256,
		}}
		j.Data.Tokenizer = "bytes"
		return text(j, dir)
	},
	"gnmt": func(j *job.Job, dir string) error {
		j.Model = job.Model{Family: "gnmt", Config: map[string]any{"vocab_size": 256, "hidden_size": 256, "num_layers": 3, "max_length": 32}}
		return pairs(j, dir)
	},
	"awd-lstm": func(j *job.Job, dir string) error {
		j.Model = job.Model{Family: "awd-lstm", Config: map[string]any{
			"ntoken": 256, "ninp": 192, "nhid": 320, "nlayers": 4, "bptt": 48, "tie_weights": false,
		}}
		j.Optimizer.Name, j.Optimizer.Momentum = "sgd", 0.9
		return text(j, dir)
	},
	"resnet": func(j *job.Job, dir string) error {
		j.Model = job.Model{Family: "resnet", Config: map[string]any{
			"image_size": 28, "num_channels": 1, "stem": "cifar", "layer_type": "basic", "embedding_size": 32, "hidden_sizes": []any{32, 64, 128, 256},
			"depths": []any{2, 2, 2, 2}, "num_labels": 10,
		}}
		j.Optimizer.Name, j.Optimizer.Momentum = "sgd", 0.9
		return digits(j, dir)
	},
	"vgg": func(j *job.Job, dir string) error {
		j.Model = job.Model{Family: "vgg", Config: map[string]any{
			"image_size": 28, "num_channels": 1, "hidden_sizes": []any{64, 128, 128}, "depths": []any{2, 2, 2}, "classifier_sizes": []any{256},
			"dropout": 0.2, "norm": "group", "groups": 8, "num_labels": 10,
		}}
		return digits(j, dir)
	},
}

// request asks for a model to be tuned on two devices of a core each.
func request(name, dir string) (control.TuneRequest, error) {
	r := control.TuneRequest{Version: control.Version, Node: "bench", Dir: dir, Cores: []int{0, 1}, NodeCores: 2}
	fill, known := jobs[name]
	if !known {
		return r, fmt.Errorf("model %q is unknown", name)
	}
	j := job.Default()
	j.Name, j.Version = name, job.Version
	j.Optimizer.LearningRate, j.Averaging.Tau = 1e-4, 1
	j.Train.Steps, j.Train.Batch, j.Train.EvalSamples = 1000, 16, 64
	j.Stages, j.Devices.CPU.Count, j.Devices.CPU.Threads = 2, 2, 1
	if err := fill(j, dir); err != nil {
		return r, err
	}
	m, err := model.Build(j.Model.Family, j.Model.Config)
	if err != nil {
		return r, err
	}
	s, err := spec.New(&spec.Resolution{Job: *j}, m, nil, false)
	if err != nil {
		return r, err
	}
	r.Spec = *s
	return r, nil
}

// config is how every part tunes.
func config(r control.TuneRequest, o options) profile.Config {
	return profile.Config{Request: r, Batches: o.batches, Progress: func(p api.TuneProgress) {
		fmt.Fprintf(os.Stderr, "%d/%d %s\n", p.Done, p.Total, p.Text)
	}}
}

// text is a corpus of random words.
func text(j *job.Job, dir string) error {
	j.Data.Files = []string{filepath.Join(dir, "words.txt")}
	return os.WriteFile(j.Data.Files[0], []byte(words(rand.New(rand.NewPCG(1, 2)), 1<<16)), 0o600)
}

// words are n random ones.
func words(random *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		for range 1 + random.IntN(9) {
			b.WriteByte(byte('a' + random.IntN(26)))
		}
		b.WriteByte(' ')
	}
	return b.String()
}

// pairs are sentences of random words and what they would be in another language.
func pairs(j *job.Job, dir string) error {
	random := rand.New(rand.NewPCG(5, 6))
	var b strings.Builder
	for range 1 << 12 {
		fmt.Fprintf(&b, "{\"source\": %q, \"target\": %q}\n", words(random, 4), words(random, 4))
	}
	j.Data.Format, j.Data.Files = "jsonl", []string{filepath.Join(dir, "pairs.jsonl")}
	return os.WriteFile(j.Data.Files[0], []byte(b.String()), 0o600)
}

// digits are random images of 28 by 28 in the format of MNIST's files.
func digits(j *job.Job, dir string) error {
	const count, side = 2048, 28
	random := rand.New(rand.NewPCG(3, 4))
	header := func(dimensions ...uint32) []byte {
		b := []byte{0, 0, 8, byte(len(dimensions))}
		for _, n := range dimensions {
			b = binary.BigEndian.AppendUint32(b, n)
		}
		return b
	}
	images, labels := header(count, side, side), header(count)
	for range count * side * side {
		images = append(images, byte(random.IntN(256)))
	}
	for range count {
		labels = append(labels, byte(random.IntN(10)))
	}
	j.Data.Format, j.Data.Files = "idx", []string{filepath.Join(dir, "images"), filepath.Join(dir, "labels")}
	if err := os.WriteFile(j.Data.Files[0], images, 0o600); err != nil {
		return err
	}
	return os.WriteFile(j.Data.Files[1], labels, 0o600)
}
