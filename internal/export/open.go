package export

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Weights are the tensors of an open model directory.
type Weights struct{ file *checkpoint.Safetensors }

// Open opens a model directory in Hugging Face's form and checks that its tensors are those of its config. The caller
// closes the Weights.
func Open(dir string) (*model.Model, *Weights, error) {
	fail := func(err error) (*model.Model, *Weights, error) { return nil, nil, fmt.Errorf("model %s: %w", dir, err) }
	config, err := os.ReadFile(filepath.Join(dir, ConfigFile))
	if err != nil {
		return fail(err)
	}
	m, err := model.FromHuggingFace(config)
	if err != nil {
		return fail(err)
	}
	file, err := checkpoint.OpenSafetensors(checkpoint.OS, filepath.Join(dir, WeightsFile))
	if err != nil {
		return fail(err)
	}
	shapes := map[string][]int{}
	for _, t := range file.Tensors() {
		shapes[t.Name] = t.Shape
	}
	if err := m.CheckTensors(shapes); err != nil {
		return fail(errors.Join(err, file.Close()))
	}
	return m, &Weights{file}, nil
}

// Lookup reads a tensor; it is a stage.Lookup.
func (w *Weights) Lookup(name string) (shape []int, values []float32, ok bool, err error) {
	t, ok := w.file.Tensor(name)
	if !ok {
		return nil, nil, false, nil
	}
	values = make([]float32, t.Elements())
	return t.Shape, values, true, w.file.ReadF32(name, values, 0)
}

// Close closes the file.
func (w *Weights) Close() error { return w.file.Close() }
