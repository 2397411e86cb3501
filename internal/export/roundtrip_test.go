package export_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// exported are tiny models of every family that Hugging Face's library has.
var exported = map[string]struct {
	family string
	config map[string]any
}{
	"gpt2": {"gpt2", map[string]any{
		"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": 11, "initializer_range": 0.3,
	}},
	"gpt2 untied": {"gpt2", map[string]any{
		"n_layer": 1, "n_head": 2, "n_embd": 8, "n_positions": 6, "vocab_size": 11, "initializer_range": 0.3, "tie_word_embeddings": false,
	}},
	"llama": {"llama", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 20,
		"max_position_embeddings": 6, "vocab_size": 11, "initializer_range": 0.3, "attention_bias": true,
	}},
	"llama tied": {"llama", map[string]any{
		"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 12, "max_position_embeddings": 6,
		"vocab_size": 11, "initializer_range": 0.3, "tie_word_embeddings": true,
	}},
	"mistral": {"mistral", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 20,
		"max_position_embeddings": 6, "vocab_size": 11, "initializer_range": 0.3, "sliding_window": 3,
	}},
	"qwen2": {"qwen2", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 16, "intermediate_size": 20,
		"max_position_embeddings": 6, "vocab_size": 11, "initializer_range": 0.3,
	}},
	"bert": {"bert", map[string]any{
		"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 12, "max_position_embeddings": 6,
		"vocab_size": 11, "num_labels": 3, "initializer_range": 0.3,
	}},
	"bert masked": {"bert", map[string]any{
		"architectures": "BertForMaskedLM", "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 8, "intermediate_size": 12,
		"max_position_embeddings": 6, "vocab_size": 11, "initializer_range": 0.3,
	}},
}

// example is an input of two samples, the second padded.
func example(m *model.Model) stagetest.Batch {
	var b stagetest.Batch
	for i := range 2 * m.Sequence() {
		sample, position := i/m.Sequence(), i%m.Sequence()
		mask := int32(1)
		if sample == 1 && position > 3 {
			mask = 0
		}
		b.IDs, b.Mask = append(b.IDs, int32(i*i*7+3)%int32(m.Vocabulary())), append(b.Mask, mask)
		b.Types = append(b.Types, int32(position/3)*mask)
	}
	return b
}

// logits computes those of an exported model on the example.
func logits(t *testing.T, dir string) []float32 {
	t.Helper()
	m, weights, err := export.Open(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	dev := ref.New()
	s, err := stage.New(stage.Config{Device: dev, Model: m, Samples: 2, ForwardOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Load(weights.Lookup), weights.Close()); err != nil {
		t.Fatal(err)
	}
	out := make([]float32, s.Shape().OutputBytes/4)
	input := example(m).Input(m.Layers[0], layer.Size{B: 2, T: m.Sequence()}, 0)
	if _, err := s.Evaluate(nil, input, nil, device.FloatBytes(out)); err != nil {
		t.Fatal(err)
	}
	return out
}

// unpackBelow packs a model with a limit to the bytes of a file, and unpacks it into dir.
func unpackBelow(t *testing.T, dir string, m *model.Model, stages int, limit int64) {
	t.Helper()
	store, digests, _ := writeShards(t, m, stages)
	var archive bytes.Buffer
	if err := export.PackBelow(t.Context(), &archive, m, store, digests, "", "", limit); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := modeldir.Unpack(&archive, dir); err != nil {
		t.Fatal(err)
	}
}

func TestPyTorchComputesTheSameLogitsAndBack(t *testing.T) {
	interpreter := stagetest.Python(t)
	for name, c := range exported {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m, err := model.Build(c.family, c.config)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
			limit := int64(export.MaxFileBytes)
			if m.Family == "llama" {
				limit = 2000 // several files
			}
			unpackBelow(t, from, m, 2, limit)
			theirs := roundTrip(t, interpreter, from, to, example(m), m)
			compare(t, "exported", logits(t, from), theirs.Read)
			compare(t, "imported", logits(t, to), theirs.Written)
		})
	}
}

// peer is what PyTorch computed.
type peer struct{ Read, Written []float32 }

func roundTrip(t *testing.T, interpreter, from, to string, b stagetest.Batch, m *model.Model) peer {
	t.Helper()
	given := map[string][][]int32{"ids": rows(b.IDs, m.Sequence())}
	if m.Family == "bert" {
		given["token_types"], given["mask"] = rows(b.Types, m.Sequence()), rows(b.Mask, m.Sequence())
	}
	input, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), interpreter, "testdata/roundtrip.py", from, to)
	var out, problems bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(input), &out, &problems
	if err := command.Run(); err != nil {
		t.Fatalf("%v: %s", err, problems.String())
	}
	var p peer
	if err := json.Unmarshal(out.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	return p
}

func rows(ids []int32, width int) [][]int32 {
	var out [][]int32
	for len(ids) > 0 {
		out, ids = append(out, ids[:width]), ids[width:]
	}
	return out
}

// compare holds logits against PyTorch's: the largest difference is at most 1e-4, and less where all logits are below 1.
func compare(t *testing.T, what string, ours, theirs []float32) {
	t.Helper()
	if len(ours) != len(theirs) {
		t.Fatalf("%s: %d logits, PyTorch has %d", what, len(ours), len(theirs))
	}
	largest, worst := 0.0, 0.0
	for i, v := range theirs {
		largest, worst = max(largest, math.Abs(float64(v))), max(worst, math.Abs(float64(v-ours[i])))
	}
	tolerance := 1e-4 * min(largest, 1)
	t.Logf("%s: %d logits up to %.3g differ by at most %.3g; tolerance %.3g", what, len(ours), largest, worst, tolerance)
	if !(worst <= tolerance) || largest < 0.1 {
		t.Errorf("%s: logits up to %.3g differ by %.3g; tolerance %.3g, and the largest is to be at least 0.1", what, largest, worst, tolerance)
	}
}

func TestLargeModelsAreCutIntoFiles(t *testing.T) {
	m := tinyModel(t)
	dir := filepath.Join(t.TempDir(), "model")
	unpackBelow(t, dir, m, 2, 1000)
	files, err := filepath.Glob(filepath.Join(dir, "model-*.safetensors"))
	if err != nil || len(files) < 4 {
		t.Fatalf("files %v (%v), expected several", files, err)
	}
	for _, path := range files {
		f, err := checkpoint.OpenSafetensors(path, os.Open)
		if err != nil {
			t.Fatal(err)
		}
		bytes := 0
		for _, tensor := range f.Tensors() {
			bytes += 4 * tensor.Elements()
		}
		if bytes > 1000 && len(f.Tensors()) > 1 || len(f.Tensors()) == 0 {
			t.Errorf("%s has %d bytes of %d tensors", path, bytes, len(f.Tensors()))
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	whole := filepath.Join(t.TempDir(), "model")
	unpackBelow(t, whole, m, 2, export.MaxFileBytes)
	a, b := logits(t, dir), logits(t, whole)
	for i := range a {
		if a[i] != b[i] {
			t.Fatalf("logit %d is %v from several files, %v from one", i, a[i], b[i])
		}
	}
}

func TestOpenLoadsNothingOfAModelThatIsAnother(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string
	}{
		"another width": {
			edit(export.ConfigFile, `"n_embd": 8`, `"n_embd": 10`),
			`tensor "transformer.wte.weight" has shape [11 8]; the config makes it [11 10]`,
		},
		"another family": {edit(export.ConfigFile, `"gpt2"`, `"gpt"`), `model_type is "gpt"; allowed is one of`},
		"more layers":    {edit(export.ConfigFile, `"n_layer": 2`, `"n_layer": 3`), `tensor "transformer.h.2.ln_1.weight" [8] is missing`},
		"fewer layers": {
			edit(export.ConfigFile, `"n_layer": 2`, `"n_layer": 1`),
			`tensor "transformer.h.1.attn.c_attn.bias" [24] belongs to no parameter`,
		},
		"a truncated file": {func(t *testing.T, dir string) {
			path := filepath.Join(dir, export.WeightsFile)
			if err := os.Truncate(path, 3000); err != nil {
				t.Fatal(err)
			}
		}, "truncated"},
		"no tensors": {func(t *testing.T, dir string) {
			if err := os.Remove(filepath.Join(dir, export.WeightsFile)); err != nil {
				t.Fatal(err)
			}
		}, "neither model.safetensors nor model.safetensors.index.json is there"},
		"integers": {func(t *testing.T, dir string) {
			path := filepath.Join(dir, export.WeightsFile)
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text = bytes.Replace(text, []byte("avgpipe.sha256"), []byte("avgpipe.other_"), 1)
			if err := os.WriteFile(path, bytes.Replace(text, []byte(`"F32"`), []byte(`"I32"`), 1), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "is I32, expected F32, F16 or BF16"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "model")
			unpackBelow(t, dir, tinyModel(t), 1, export.MaxFileBytes)
			c.change(t, dir)
			m, weights, err := export.Open(nil, dir)
			if err == nil || m != nil || weights != nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), dir) {
				t.Errorf("error %v, expected one of %s with %q", err, dir, c.want)
			}
		})
	}
}

// edit replaces text in a file of a model directory.
func edit(file, from, to string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), from, to, 1)
		if changed == string(text) {
			t.Fatalf("%s holds no %s", file, from)
		}
		if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
