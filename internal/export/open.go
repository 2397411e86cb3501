package export

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/stage/model"
)

// MaxConfigBytes bounds a config.json. The largest known have some kilobytes, and a list of 10,000 labels takes 500.
const MaxConfigBytes = 16 << 20

// Weights are the tensors of an open model directory.
type Weights struct{ file *checkpoint.Safetensors }

// Open opens a model directory in Hugging Face's form and checks that its tensors, in one file or in several with an index, are
// those of its config. Nil opens with the rights of this process. The caller closes the Weights.
func Open(opener *access.Opener, dir string) (*model.Model, *Weights, error) {
	fail := func(err error) (*model.Model, *Weights, error) { return nil, nil, fmt.Errorf("model %s: %w", dir, err) }
	m, err := ReadModel(opener, dir)
	if err != nil {
		return fail(err)
	}
	w, err := OpenWeights(opener, dir, m, nil)
	if err != nil {
		return fail(err)
	}
	return m, w, nil
}

// OpenWeights opens the weights in dir, which have to be those of a model and, unless submitted is nil, have the digests that Check found.
// The caller closes them.
func OpenWeights(opener *access.Opener, dir string, m *model.Model, submitted map[string]string) (*Weights, error) {
	w, err := openWeights(opener, dir, m)
	if err != nil {
		return nil, err
	}
	if err = w.compare(dir, submitted); err == nil {
		err = w.file.Verify()
	}
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Present finds out whether OpenWeights would find weights of a model in dir that are those with which a job was submitted, by the heads of the files.
// Of tensors it reads as much as digests are of.
func Present(opener *access.Opener, dir string, m *model.Model, submitted map[string]string) error {
	w, err := openWeights(opener, dir, m)
	if err != nil {
		return err
	}
	return errors.Join(w.compare(dir, submitted), w.Close())
}

// compare holds the files against the digests that they had; nil: nobody knows these.
func (w *Weights) compare(dir string, submitted map[string]string) error {
	if submitted == nil {
		return nil
	}
	found, err := w.file.Digests(checkedBytes)
	if err != nil {
		return err
	}
	names := slices.AppendSeq(slices.Collect(maps.Keys(submitted)), maps.Keys(found))
	slices.Sort(names)
	for _, name := range names {
		if found[name] != submitted[name] {
			return Changed(filepath.Join(dir, name), found[name], submitted[name])
		}
	}
	return nil
}

// Changed is the error about a file of a model directory that is not as it was when the job was submitted.
func Changed(path, found, expected string) error {
	return fmt.Errorf("%s has changed since the job was submitted: its digest is %s, expected %s; put it back as it was, or submit the job anew",
		path, cmp.Or(found, "none"), cmp.Or(expected, "none"))
}

// ReadModel builds the model of the config.json in a directory. An error says what is there instead.
func ReadModel(opener *access.Opener, dir string) (*model.Model, error) {
	const expected = "expected a directory with " + ConfigFile + " and *.safetensors"
	path := filepath.Join(dir, ConfigFile)
	config, err := opener.ReadFile(path, MaxConfigBytes)
	if err == nil {
		m, err := model.FromHuggingFace(config)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		return m, nil
	}
	info, absent := opener.Stat(dir)
	switch {
	case absent != nil:
		return nil, fmt.Errorf("%w; %s", absent, expected)
	case info.Mode.IsRegular():
		return nil, fmt.Errorf("%s is a file; %s, such as the one that it lies in", dir, expected)
	case !info.IsDir():
		return nil, fmt.Errorf("%s is %s; %s", dir, access.Describe(info.Mode), expected)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w; %s, this one holds %s", err, expected, contents(opener, dir))
	}
	return nil, err
}

func contents(opener *access.Opener, dir string) string {
	const most = 5
	entries, err := opener.ReadDir(dir)
	if err != nil || len(entries) == 0 {
		return "no files"
	}
	var names []string
	for _, e := range entries[:min(most, len(entries))] {
		names = append(names, e.Name())
	}
	if more := len(entries) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(names, ", ")
}

// checkedBytes bounds the weights of which Check looks at every value, and Digests of which every byte counts: on a core about half a
// second.
const checkedBytes = 256 << 20

// Check holds the weights in dir against the model of its config.json: the headers, the names, types and shapes of all tensors, and
// where they are not large, the digests and every value. Open, and Lookup, find the rest. It returns a digest of each file, by name
// (checkpoint.Safetensors.Digests).
func Check(opener *access.Opener, dir string, m *model.Model) (digests map[string]string, err error) {
	w, err := openWeights(opener, dir, m)
	if err != nil {
		return nil, err
	}
	digests, err = w.check(m)
	return digests, errors.Join(err, w.Close())
}

func (w *Weights) check(m *model.Model) (map[string]string, error) {
	total := int64(0)
	for _, t := range w.file.Tensors() {
		total += t.Bytes()
	}
	digests, err := w.file.Digests(checkedBytes)
	if err != nil || total > checkedBytes {
		return digests, err
	}
	if err := w.file.Verify(); err != nil {
		return nil, err
	}
	for _, p := range m.Params() {
		for _, name := range m.TensorNames(p) {
			if _, _, _, err := w.Lookup(name); err != nil {
				return nil, err
			}
		}
	}
	return digests, nil
}

// openWeights opens the weights in dir, which have to be those of a model, by their headers. The error names the file.
func openWeights(opener *access.Opener, dir string, m *model.Model) (*Weights, error) {
	path, err := weightsPath(opener, dir)
	if err != nil {
		return nil, err
	}
	file, err := checkpoint.OpenSafetensors(path, func(path string) (*os.File, error) { return opener.Open(path, 0) })
	if err != nil {
		return nil, err
	}
	shapes := map[string][]int{}
	for _, t := range file.Tensors() {
		shapes[t.Name] = t.Shape
	}
	if err := errors.Join(m.CheckTensors(shapes), checkTypes(m, file)); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, err), file.Close())
	}
	return &Weights{file}, nil
}

// checkTypes refuses parameters of types that cannot be read, before any is loaded.
func checkTypes(m *model.Model, file *checkpoint.Safetensors) error {
	for _, p := range m.Params() {
		for _, name := range m.TensorNames(p) {
			if t, ok := file.Tensor(name); ok && !t.DType.Float32() {
				return fmt.Errorf("tensor %q is %s, expected F32, F16 or BF16", name, t.DType)
			}
		}
	}
	return nil
}

func weightsPath(opener *access.Opener, dir string) (string, error) {
	path, index := filepath.Join(dir, WeightsFile), filepath.Join(dir, IndexFile)
	_, err := opener.Stat(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if _, other := opener.Stat(index); !errors.Is(other, fs.ErrNotExist) {
		return index, other
	}
	return "", fmt.Errorf("neither %s nor %s is there: %w; files of other formats are not read, save_pretrained of a recent release writes these",
		WeightsFile, IndexFile, err)
}

// Lookup reads a tensor, whose values have to be finite; it is a stage.Lookup.
func (w *Weights) Lookup(name string) (shape []int, values []float32, ok bool, err error) {
	t, ok := w.file.Tensor(name)
	if !ok {
		return nil, nil, false, nil
	}
	values = make([]float32, t.Elements())
	if err := w.file.ReadF32(name, values, 0); err != nil {
		return nil, nil, true, err
	}
	for i, v := range values {
		if math.Float32bits(v)&infinite == infinite {
			return nil, nil, true, fmt.Errorf("%s: tensor %q of shape %v: its element %d is %v, expected finite values: the model was damaged "+
				"before it was saved", w.file.Path(name), name, t.Shape, i, v)
		}
	}
	return t.Shape, values, true, nil
}

// infinite are the bits of a float32's exponent: all of them are set in what is not finite.
const infinite = 0x7f800000

// Close closes the file.
func (w *Weights) Close() error { return w.file.Close() }
