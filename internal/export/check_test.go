package export_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/stage/model"
)

// untrained writes weights of a tiny model, after a change of them, and returns the directory and the model.
func untrained(t *testing.T, change func(all []checkpoint.Tensor) []checkpoint.Tensor, value float32) (string, *model.Model) {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{"vocab_size": 16, "n_positions": 4, "n_embd": 8, "n_layer": 1, "n_head": 2})
	if err != nil {
		t.Fatal(err)
	}
	var all []checkpoint.Tensor
	for _, p := range m.Params() {
		if p.TiedTo == "" {
			all = append(all, checkpoint.Tensor{Name: p.Name, Shape: p.Shape})
		}
	}
	dir := t.TempDir()
	_, write, err := checkpoint.EncodeSafetensors(change(all), nil, func(_ checkpoint.Tensor, dst []float32, _ int) error {
		clear(dst)
		dst[len(dst)/2] = value
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Create(filepath.Join(dir, export.WeightsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(write(file), file.Close()); err != nil {
		t.Fatal(err)
	}
	return dir, m
}

// TestDamagedWeightsAreFoundBeforeTheyAreUsed, with the file, the tensor, and what was expected in place of what was found.
func TestDamagedWeightsAreFoundBeforeTheyAreUsed(t *testing.T) {
	same := func(all []checkpoint.Tensor) []checkpoint.Tensor { return all }
	dir, m := untrained(t, same, 1)
	if _, err := export.Check(nil, dir, m); err != nil {
		t.Fatalf("whole weights: %v", err)
	}
	const name = "transformer.h.0.mlp.c_fc.weight"
	at := func(all []checkpoint.Tensor) int {
		return slices.IndexFunc(all, func(t checkpoint.Tensor) bool { return t.Name == name })
	}
	for what, c := range map[string]struct {
		change func(all []checkpoint.Tensor) []checkpoint.Tensor
		value  float32
		damage func(path string) error
		want   []string
	}{
		"truncated": {same, 1, func(path string) error { return os.Truncate(path, 2000) }, []string{"truncated or damaged"}},
		"changed": {same, 1, func(path string) error {
			text, err := os.ReadFile(path)
			if err == nil {
				text[len(text)-1] ^= 1
				err = os.WriteFile(path, text, 0o600)
			}
			return err
		}, []string{"its digest is"}},
		"missing": {
			func(all []checkpoint.Tensor) []checkpoint.Tensor { return slices.Delete(all, at(all), at(all)+1) }, 1, nil,
			[]string{name, "[8 32]", "is missing among"},
		},
		"shape": {func(all []checkpoint.Tensor) []checkpoint.Tensor {
			all[at(all)].Shape = []int{32, 8}
			return all
		}, 1, nil, []string{name, "has shape [32 8]; the config makes it [8 32]"}},
		"NaN": {same, float32(math.NaN()), nil, []string{"tensor", "is NaN, expected finite values"}},
		"Inf": {same, float32(math.Inf(-1)), nil, []string{"tensor", "is -Inf, expected finite values"}},
		"absent file": {same, 1, func(path string) error {
			index := `{"weight_map": {"` + name + `": "model-00001-of-00001.safetensors"}}`
			return os.Rename(path, writeIndex(t, filepath.Dir(path), index))
		}, []string{"model-00001-of-00001.safetensors", "no such file"}},
	} {
		dir, m := untrained(t, c.change, c.value)
		path := filepath.Join(dir, export.WeightsFile)
		if c.damage != nil {
			if err := c.damage(path); err != nil {
				t.Fatal(err)
			}
		}
		_, err := export.Check(nil, dir, m)
		for _, part := range append(c.want, dir+"/model") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v does not say %q", what, err, part)
			}
		}
	}
}

// writeIndex writes an index of tensors and returns a path that it does not name.
func writeIndex(t *testing.T, dir, text string) string {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, export.IndexFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "other")
}
