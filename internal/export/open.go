package export

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/avgpipe/avgpipe/internal/access"
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

// MaxConfigBytes bounds a config.json. The largest known have some kilobytes, and a list of 10,000 labels takes 500.
const MaxConfigBytes = 16 << 20

// Weights are the tensors of an open model directory.
type Weights struct{ file tensors }

// Open opens a model directory in Hugging Face's form and checks that its tensors, in one file or in several with an index, are
// those of its config. Nil opens with the rights of this process. The caller closes the Weights.
func Open(opener *access.Opener, dir string) (*model.Model, *Weights, error) {
	fail := func(err error) (*model.Model, *Weights, error) { return nil, nil, fmt.Errorf("model %s: %w", dir, err) }
	config, err := opener.ReadFile(filepath.Join(dir, ConfigFile), MaxConfigBytes)
	if err != nil {
		return fail(err)
	}
	m, err := model.FromHuggingFace(config)
	if err != nil {
		return fail(err)
	}
	file, err := openTensors(opener, dir)
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
func openTensors(opener *access.Opener, dir string) (tensors, error) {
	one, index := filepath.Join(dir, WeightsFile), filepath.Join(dir, IndexFile)
	_, err := opener.Stat(one)
	if err == nil {
		return checkpoint.OpenSafetensors(checked{checkpoint.OS, opener}, one)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if _, err := opener.Stat(index); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("neither %s nor %s is there: files of other formats are not read, save_pretrained of a recent release writes these",
			WeightsFile, IndexFile)
	}
	return checkpoint.OpenSharded(checked{checkpoint.OS, opener}, index)
}

// checked is the file system, files opened with a user's rights.
type checked struct {
	checkpoint.FS
	access *access.Opener
}

func (c checked) Open(name string) (checkpoint.File, error) {
	f, err := c.access.Open(name, 0)
	if err != nil {
		return nil, err // not f: a nil *os.File in a File is not nil
	}
	return f, nil
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
