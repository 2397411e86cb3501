package checkpoint_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// writeSharded puts the tensors of shapes() into two files with an index, and returns the index's path.
func writeSharded(t *testing.T, dir string) string {
	t.Helper()
	all := shapes()
	files := map[string][]checkpoint.Tensor{"model-1.safetensors": all[:1], "model-2.safetensors": all[1:]}
	for name, tensors := range files {
		if err := writeTensors(filepath.Join(dir, name), tensors, nil, readValues); err != nil {
			t.Fatal(err)
		}
	}
	index, err := checkpoint.EncodeIndex(files)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "model.safetensors.index.json")
	if err := os.WriteFile(path, index, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestShardedTensorsAreReadFromTheirFiles(t *testing.T) {
	path := writeSharded(t, t.TempDir())
	s, err := checkpoint.OpenSafetensors(path, os.Open)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tensor := range s.Tensors() {
		names = append(names, tensor.Name)
		got := make([]float32, tensor.Elements())
		if err := s.ReadF32(tensor.Name, got, 0); err != nil || !slices.Equal(got, values[tensor.Name]) {
			t.Errorf("%s is %v (%v), expected %v", tensor.Name, got, err, values[tensor.Name])
		}
	}
	slices.Sort(names)
	if want := slices.Sorted(maps.Keys(values)); !slices.Equal(names, want) {
		t.Errorf("tensors %v, expected %v", names, want)
	}
	if _, ok := s.Tensor("wte"); ok {
		t.Error("a tensor that is not there was found")
	}
	if err := s.ReadF32("wte", nil, 0); err == nil || !strings.Contains(err.Error(), `no tensor "wte" among the 4 of 2 files`) {
		t.Errorf("wte: %v", err)
	}
	if text := read(t, path); !strings.Contains(text, `"total_size": 36`) {
		t.Errorf("the index is %s, expected 36 bytes in all", text)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestShardedModelsThatDoNotFitAreRefused(t *testing.T) {
	replace := func(name, from, to string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			text := read(t, filepath.Join(dir, name))
			changed := strings.Replace(text, from, to, 1)
			if changed == text {
				t.Fatalf("%s holds no %q", name, from)
			}
			if err := os.WriteFile(filepath.Join(dir, name), []byte(changed), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	const index = "model.safetensors.index.json"
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		want   string
	}{
		"no JSON":             {replace(index, "{", ""), "an index of tensors is expected"},
		"no map":              {replace(index, "weight_map", "weights"), `no "weight_map"`},
		"a path":              {replace(index, "model-1", "../model-1"), `in "../model-1.safetensors", expected the name`},
		"another format":      {replace(index, "model-1.safetensors", "model-1.bin"), `in "model-1.bin", expected the name`},
		"a tensor too many":   {replace(index, `"bias"`, `"bia"`), `model-2.safetensors holds tensor "bias" [2], which the index does not list`},
		"a tensor elsewhere":  {replace(index, `"scalar": "model-1`, `"scalar": "model-2`), `tensor "scalar" is not in model-2.safetensors`},
		"a tensor not there":  {replace(index, `"weight_map": {`, `"weight_map": {"c":"model-1.safetensors",`), `tensor "c" is not in model-1.safetensors`},
		"a damaged file":      {replace("model-2.safetensors", "h.0.weight", "h.1.weight"), "damaged"},
		"a file that is gone": {func(_ *testing.T, dir string) { _ = os.Remove(filepath.Join(dir, "model-1.safetensors")) }, "no such file"},
		"no index":            {func(_ *testing.T, dir string) { _ = os.Remove(filepath.Join(dir, index)) }, "no such file"},
		"a tensor in both": {func(t *testing.T, dir string) {
			if err := writeTensors(filepath.Join(dir, "model-1.safetensors"), shapes()[:2], nil, readValues); err != nil {
				t.Fatal(err)
			}
		}, `model-1.safetensors holds tensor "h.0.weight" [2 3]; the index says that it is in model-2.safetensors`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := writeSharded(t, dir)
			c.change(t, dir)
			s, err := checkpoint.OpenSafetensors(path, os.Open)
			if err == nil || s != nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, expected one of %s with %q", err, path, c.want)
			}
		})
	}
}

// FuzzOpenSharded: no index may crash the reader, and what opens can be read.
func FuzzOpenSharded(f *testing.F) {
	f.Add([]byte(`{"weight_map":{"a":"x.safetensors"}}`))
	f.Add([]byte(`{"metadata":{"total_size":4},"weight_map":{"a":"x.safetensors","b":"y.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x.safetensors"}}`))
	f.Add([]byte(`{}`))
	tensors := []byte(tensorFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, floats(1)))
	f.Fuzz(func(t *testing.T, index []byte) {
		dir := t.TempDir()
		path, part := filepath.Join(dir, "index.json"), filepath.Join(dir, "part")
		if err := errors.Join(os.WriteFile(path, index, 0o600), os.WriteFile(part, tensors, 0o600)); err != nil {
			t.Fatal(err)
		}
		s, err := checkpoint.OpenSafetensors(path, func(name string) (*os.File, error) {
			if name == path {
				return os.Open(path)
			}
			return os.Open(part) // under every other name
		})
		if err != nil {
			return
		}
		for _, tensor := range s.Tensors() {
			if err := s.ReadF32(tensor.Name, make([]float32, tensor.Elements()), 0); err != nil {
				t.Errorf("tensor %q: %v", tensor.Name, err)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestDigestsTellFilesApart: by every byte of files that are not large, else by their headers and by where each tensor begins.
func TestDigestsTellFilesApart(t *testing.T) {
	dir := t.TempDir()
	path := writeSharded(t, dir)
	digests := func(most int64) map[string]string {
		s, err := checkpoint.OpenSafetensors(path, os.Open)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		all, err := s.Digests(most)
		if err != nil || len(all) != 2 || len(all["model-1.safetensors"]) != 64 {
			t.Fatalf("digests %v (%v)", all, err)
		}
		return all
	}
	whole, part, header := digests(1<<20), digests(16), digests(0)
	for name, last := range map[string]bool{"model-1.safetensors": false, "model-2.safetensors": true} {
		text := []byte(read(t, filepath.Join(dir, name)))
		if last {
			text[len(text)-1] ^= 1
		} else {
			text[len(text)-4*len(values[shapes()[0].Name])] ^= 1 // where its only tensor begins
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, last := range map[string]bool{"model-1.safetensors": false, "model-2.safetensors": true} {
		if digests(1 << 20)[name] == whole[name] || digests(16)[name] == part[name] != last || digests(0)[name] != header[name] {
			t.Errorf("%s: %s and %s and %s; before: %s, %s, %s", name, digests(1 << 20)[name], digests(16)[name], digests(0)[name], whole[name], part[name], header[name])
		}
	}
}
