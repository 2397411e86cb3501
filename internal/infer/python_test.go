package infer

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/stage/model"
)

// TestModulesInPythonAreRefused, since no interpreter runs them here.
func TestModulesInPythonAreRefused(t *testing.T) {
	dir := t.TempDir()
	port := func(n int) []model.ModulePort {
		return []model.ModulePort{{Shape: []int{n}, Type: "f32", Differentiable: true}}
	}
	config, err := json.Marshal(model.ModulesConfig{
		ModelType: model.Python, Task: model.Images, Sequence: 1, Image: model.Image{Channels: 1, Height: 1, Width: 3},
		Modules: []model.Module{{Name: "0", Parameters: []model.ModuleParam{{Name: "0.weight", Shape: []int{2, 3}}}, Inputs: port(3), Outputs: port(2)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	header := `{"0.weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}`
	weights := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	weights = append(append(weights, header...), make([]byte, 24)...)
	for name, text := range map[string][]byte{"config.json": config, "model.safetensors": weights} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Open(api.InferRequest{Model: dir}); err == nil || !strings.Contains(err.Error(), "is of modules in Python") {
		t.Errorf("error %v", err)
	}
}
