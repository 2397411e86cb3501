package checkpoint

import (
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

// shardIndex is the index's JSON.
type shardIndex struct {
	Metadata  map[string]any    `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"`
}

// openAll opens the files that an index names.
func (s *Safetensors) openAll(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s was not loaded: %w", path, err)
		}
	}()
	index, err := s.readIndex(path)
	if err != nil {
		return err
	}
	for _, name := range slices.Compact(slices.Sorted(maps.Values(index))) {
		f, err := s.openFile(filepath.Join(filepath.Dir(path), name))
		if err != nil {
			return err
		}
		for _, t := range f.tensors {
			if at, ok := index[t.Name]; !ok {
				return fmt.Errorf("%s holds tensor %q %v, which the index does not list", name, t.Name, t.Shape)
			} else if at != name {
				return fmt.Errorf("%s holds tensor %q %v; the index says that it is in %s", name, t.Name, t.Shape, at)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(index)) {
		if _, ok := s.of[name]; !ok {
			return fmt.Errorf("tensor %q is not in %s, where the index says it is", name, index[name])
		}
	}
	return nil
}

// readIndex reads which file holds which tensor.
func (s *Safetensors) readIndex(path string) (map[string]string, error) {
	f, err := s.open(path)
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
