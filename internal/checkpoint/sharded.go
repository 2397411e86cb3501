package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// maxIndexBytes bounds an index. One of a hundred thousand tensors takes some ten megabytes.
const maxIndexBytes = 1 << 28

// Sharded is a model's tensors in several safetensors files, with an index of which one holds which. Its reading methods may
// be called concurrently.
type Sharded struct {
	files []*Safetensors
	of    map[string]*Safetensors // the file of a tensor
}

// shardIndex is the index's JSON.
type shardIndex struct {
	Metadata  map[string]any    `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"`
}

// OpenSharded opens an index and all files that it names, which lie beside it. It checks each file as OpenSafetensors does,
// and that together they hold exactly the tensors that the index lists, each once. Nothing stays open after an error. The
// caller closes what it returns.
func OpenSharded(fsys FS, path string) (*Sharded, error) {
	return openSharded(fsys, path, OpenSafetensors)
}

// OpenHeaders is OpenSharded with OpenHeader for each file.
func OpenHeaders(fsys FS, path string) (*Sharded, error) { return openSharded(fsys, path, OpenHeader) }

func openSharded(fsys FS, path string, open func(FS, string) (*Safetensors, error)) (_ *Sharded, err error) {
	index, err := readIndex(fsys, path)
	if err != nil {
		return nil, fmt.Errorf("%s was not loaded: %w", path, err)
	}
	s := &Sharded{of: map[string]*Safetensors{}}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("%s was not loaded: %w", path, err), s.Close())
		}
	}()
	for _, name := range slices.Compact(slices.Sorted(maps.Values(index))) {
		f, err := open(fsys, filepath.Join(filepath.Dir(path), name))
		if err != nil {
			return nil, err
		}
		s.files = append(s.files, f)
		for _, t := range f.Tensors() {
			if at, ok := index[t.Name]; !ok {
				return nil, fmt.Errorf("%s holds tensor %q %v, which the index does not list", name, t.Name, t.Shape)
			} else if at != name {
				return nil, fmt.Errorf("%s holds tensor %q %v; the index says that it is in %s", name, t.Name, t.Shape, at)
			}
			s.of[t.Name] = f
		}
	}
	for _, name := range slices.Sorted(maps.Keys(index)) {
		if s.of[name] == nil {
			return nil, fmt.Errorf("tensor %q is not in %s, where the index says it is", name, index[name])
		}
	}
	return s, nil
}

// readIndex reads which file holds which tensor.
func readIndex(fsys FS, path string) (map[string]string, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxIndexBytes+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if len(text) > maxIndexBytes {
		return nil, fmt.Errorf("it is longer than %d bytes", maxIndexBytes)
	}
	var index shardIndex
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("an index of tensors is expected: %w", err)
	}
	if len(index.WeightMap) == 0 {
		return nil, errors.New(`it has no "weight_map", or an empty one`)
	}
	for _, tensor := range slices.Sorted(maps.Keys(index.WeightMap)) {
		name := index.WeightMap[tensor]
		if filepath.Base(name) != name || strings.ContainsAny(name, `/\`) || !strings.HasSuffix(name, ".safetensors") {
			return nil, fmt.Errorf("tensor %q is said to be in %q, expected the name of a .safetensors file beside the index", tensor, name)
		}
	}
	return index.WeightMap, nil
}

// EncodeIndex is the index of files, given the tensors of each by its name.
func EncodeIndex(files map[string][]Tensor) ([]byte, error) {
	index, total := shardIndex{WeightMap: map[string]string{}}, int64(0)
	for name, tensors := range files {
		for _, t := range tensors {
			index.WeightMap[t.Name] = name
			total += 4 * int64(t.Elements())
		}
	}
	index.Metadata = map[string]any{"total_size": total}
	text, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode an index of tensors: %w", err)
	}
	return append(text, '\n'), nil
}

// Tensors are those of all files, by name.
func (s *Sharded) Tensors() []Tensor {
	var all []Tensor
	for _, f := range s.files {
		all = append(all, f.Tensors()...)
	}
	slices.SortFunc(all, func(a, b Tensor) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// File is the one that holds a tensor; nil when none does.
func (s *Sharded) File(name string) *Safetensors { return s.of[name] }

// Tensor returns one by name.
func (s *Sharded) Tensor(name string) (Tensor, bool) {
	f, ok := s.of[name]
	if !ok {
		return Tensor{}, false
	}
	return f.Tensor(name)
}

// ReadF32 is that of the file which holds the tensor.
func (s *Sharded) ReadF32(name string, dst []float32, offset int) error {
	f, ok := s.of[name]
	if !ok {
		return fmt.Errorf("no tensor %q among the %d of %d files", name, len(s.of), len(s.files))
	}
	return f.ReadF32(name, dst, offset)
}

// Close closes all files.
func (s *Sharded) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	s.files = nil
	return errors.Join(errs...)
}
