package export

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/stage/model"
)

// tensors are those of one file or of several.
type tensors interface {
	Tensors() []checkpoint.Tensor
	Tensor(name string) (checkpoint.Tensor, bool)
	ReadF32(name string, dst []float32, offset int) error
	Close() error
}

// Weights are the tensors of an open model directory.
type Weights struct{ file tensors }

// Open opens a model directory in Hugging Face's form and checks that its tensors, in one file or in several with an index, are
// those of its config. The caller closes the Weights.
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
	file, err := openTensors(dir)
	if err != nil {
		return fail(err)
	}
	shapes := map[string][]int{}
	for _, t := range file.Tensors() {
		shapes[t.Name] = t.Shape
	}
	if err := errors.Join(m.CheckTensors(shapes), checkTypes(m, file)); err != nil {
		return fail(errors.Join(err, file.Close()))
	}
	return m, &Weights{file}, nil
}

// checkTypes refuses parameters of types that cannot be read, before any is loaded.
func checkTypes(m *model.Model, file tensors) error {
	for _, p := range m.Params() {
		for _, name := range m.TensorNames(p) {
			if t, ok := file.Tensor(name); ok && !t.DType.Float32() {
				return fmt.Errorf("tensor %q is %s, expected F32, F16 or BF16", name, t.DType)
			}
		}
	}
	return nil
}

// openTensors opens the one file, or else the index.
func openTensors(dir string) (tensors, error) {
	one, index := filepath.Join(dir, WeightsFile), filepath.Join(dir, IndexFile)
	_, err := os.Stat(one)
	if err == nil {
		return checkpoint.OpenSafetensors(checkpoint.OS, one)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, err := os.Stat(index); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("neither %s nor %s is there: files of other formats are not read, save_pretrained of a recent release writes these",
			WeightsFile, IndexFile)
	}
	return checkpoint.OpenSharded(checkpoint.OS, index)
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
