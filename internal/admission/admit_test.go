package admission

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

const jobFile = "version: 1\nname: x\ndata: {files: [x]}\noptimizer: {name: sgd, lr: 1}\ntrain: {steps: 1, batch: 1}\n"

// TestAWrongModelFromSaysWhatIsThere, what is expected, and how to get a model of the hub.
func TestAWrongModelFromSaysWhatIsThere(t *testing.T) {
	base := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(base, "model"), 0o700), os.WriteFile(filepath.Join(base, "model/weights.bin"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	const expected = "expected a directory with config.json and *.safetensors"
	for from, want := range map[string][]string{
		"gpt2":                    {"open " + base + "/gpt2: no such file", expected, "is gpt2 a model of the Hugging Face hub? download it first: `hf download gpt2 --local-dir " + base + "/gpt2`"},
		"org/name":                {"`hf download org/name --local-dir " + base + "/org/name`"},
		"modelx":                  {"nearest: " + base + "/model"},
		"model":                   {"open " + base + "/model/config.json: no such file", expected + ", this one holds weights.bin"},
		"model/weights.bin":       {base + "/model/weights.bin is a file; " + expected + ", such as the one that it lies in"},
		"/nowhere/models/my-gpt2": {"no such file", expected},
	} {
		source := jobFile + "model: {from: " + from + "}\n"
		q := Request{Submit: api.SubmitRequest{File: "job.yaml", Source: source, Base: base}, User: access.User{UID: uint32(os.Geteuid())}}
		_, err := Admit(t.Context(), q, func(string) {})
		for _, text := range want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v\nwant %q", from, err, text)
			}
		}
		if filepath.IsAbs(from) && strings.Contains(err.Error(), "hub") {
			t.Errorf("%s is taken for a model of the hub: %v", from, err)
		}
	}
}

// TestAPlanFileThatIsMissingHasANearest, as the job file would name it.
func TestAPlanFileThatIsMissingHasANearest(t *testing.T) {
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "plan.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	source := jobFile + "model: {family: mlp, config: {num_features: 4, hidden_sizes: [4], num_labels: 2}}\nschedule: file:plans.txt\n"
	q := Request{Submit: api.SubmitRequest{File: "job.yaml", Source: source, Base: base}, User: access.User{UID: uint32(os.Geteuid())}}
	_, err := Admit(t.Context(), q, func(string) {})
	if want := "nearest: file:" + base + "/plan.txt"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// TestAnOutputDirOfTheDaemonOrOfAnotherJobIsRefused, under whatever name, and those that lie in each other.
func TestAnOutputDirOfTheDaemonOrOfAnotherJobIsRefused(t *testing.T) {
	base := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(base, "raft"), 0o700), os.Symlink(filepath.Join(base, "raft"), filepath.Join(base, "link"))); err != nil {
		t.Fatal(err)
	}
	host := Host{Cores: 2, Reserved: []string{filepath.Join(base, "raft")}, Pending: map[string]string{filepath.Join(base, "model"): "7"}}
	for dir, want := range map[string]string{
		"raft": "is in " + base + "/raft, which is the daemon's own", "raft/wal/x": "the daemon's own", "link/x": "the daemon's own",
		"model": "is that of job 7", "./model/": "is that of job 7", "model/sub": "lies in the other", ".": "lies in the other",
		"rafts": "", "models": "",
	} {
		source := jobFile + "model: {from: x}\noutput: {dir: " + dir + "}\n"
		q := Request{Submit: api.SubmitRequest{File: "job.yaml", Source: source, Base: base}, User: access.User{UID: uint32(os.Geteuid())}, Host: host}
		_, err := Admit(t.Context(), q, func(string) {})
		if err == nil || !strings.Contains(err.Error(), want) || want == "" && strings.Contains(err.Error(), "output.dir") {
			t.Errorf("%s: %v\nwant %q", dir, err, want)
		}
		if want != "" && !strings.Contains(err.Error(), "job.yaml:7:") {
			t.Errorf("%s: no line in %v", dir, err)
		}
	}
}

// TestAnOutputDirThatCannotWorkIsRefused.
func TestAnOutputDirThatCannotWorkIsRefused(t *testing.T) {
	base := t.TempDir()
	if err := os.WriteFile(filepath.Join(base, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"file": "output.dir: " + base + "/file exists and is not a directory", "/proc/x": "output.dir: /proc/x is on proc"} {
		source := jobFile + "model: {from: x}\noutput: {dir: " + dir + "}\n"
		q := Request{Submit: api.SubmitRequest{File: "job.yaml", Source: source, Base: base}, User: access.User{UID: uint32(os.Geteuid())}}
		if _, err := Admit(t.Context(), q, func(string) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %q", dir, err, want)
		}
	}
}

// TestAnOperationThatADeviceLacksIsRefused, with the layer that needs it and the devices that have it.
func TestAnOperationThatADeviceLacksIsRefused(t *testing.T) {
	const convolution = "devices.kind: layer stem needs the operation Convolution, which the device ref (plain Go, 1 thread) without Convolution lacks; "
	for _, c := range []struct {
		kind, family string
		able         []string
		want         string // "": accepted
	}{
		{"cpu", "resnet", []string{"ref"}, convolution + "ref has all that the model needs"},
		{"auto", "resnet", []string{"cpu", "ref"}, convolution + "cpu or ref has all that the model needs"},
		{"cpu", "resnet", nil, convolution + "no other kind of device has all that the model needs"},
		{"cpu", "mlp", nil, ""},
		{"ref", "resnet", []string{"ref"}, ""},
	} {
		source := jobFile + "model: {family: " + c.family + ", config: {image_size: 32}}\ndevices: {kind: " + c.kind + "}\n"
		j, m, at := jobfile.Parse("job.yaml", []byte(source), nil, func(string) (string, bool) { return "", false })
		a := &admission{job: j, at: at, model: m, open: func(kind string) (device.Device, error) {
			if slices.Contains(c.able, kind) {
				return ref.New(), nil
			}
			return &stagetest.Without{Device: ref.New(), Prefix: "Convolution"}, nil
		}}
		a.resolve(spec.Facts{Cores: 2, Model: m})
		if err := at.Err(); c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s on %s: %v\nwant %q", c.family, c.kind, err, c.want)
		}
	}
}

// beginsWith makes a directory with a model, its tokenizer and a file x of data, and a request for a job that reads them.
func beginsWith(t *testing.T) (base string, q Request, model, tokenizer []byte) {
	t.Helper()
	base = t.TempDir()
	m, weights := small(t)
	for name, text := range map[string]string{"config.json": string(m), "model.safetensors": string(weights), "tokenizer.json": tokens, "x": "a b a b a b a b a b"} {
		if err := os.WriteFile(filepath.Join(base, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	q = Request{Submit: api.SubmitRequest{File: "job.yaml", Source: jobFile + "model: {from: .}\n", Base: base}, User: access.User{UID: uint32(os.Geteuid())}, Host: Host{Cores: 2}}
	return base, q, weights, []byte(tokens)
}

const tokens = `{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2, "\n": 3, "</s>": 4}, "merges": []}}`

// small is the config of a small model, and its weights.
func small(t *testing.T) (config, weights []byte) {
	t.Helper()
	m, err := model.Build("gpt2", map[string]any{"vocab_size": 16, "n_positions": 4, "n_embd": 8, "n_layer": 1, "n_head": 2})
	if err != nil {
		t.Fatal(err)
	}
	var all []checkpoint.Tensor
	for _, p := range m.Params() {
		if p.TiedTo == "" {
			all = append(all, checkpoint.Tensor{Name: p.Name, DType: checkpoint.F32, Shape: p.Shape})
		}
	}
	_, write, err := checkpoint.EncodeSafetensors(all, nil, func(_ checkpoint.Tensor, dst []float32, _ int) error { clear(dst); return nil })
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	config, err = json.Marshal(m.Config())
	if err = errors.Join(err, write(&text)); err != nil {
		t.Fatal(err)
	}
	return config, text.Bytes()
}

// TestWhatAJobBeginsWithIsPartOfItsSpec: the config by value, and a digest of what is too large for that.
func TestWhatAJobBeginsWithIsPartOfItsSpec(t *testing.T) {
	_, q, weights, tokenizer := beginsWith(t)
	s, err := Admit(t.Context(), q, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(weights)
	if want := hex.EncodeToString(sum[:]); len(s.Weights) != 1 || s.Weights["model.safetensors"] != want || s.Tokenizer != checkpoint.ObjectDigest(tokenizer) {
		t.Errorf("weights %v, want %s; tokenizer %s", s.Weights, want, s.Tokenizer)
	}
	if built, err := s.BuildModel(); err != nil || built.Sequence() != 4 {
		t.Errorf("the model of the spec is %+v (%v)", built, err)
	}
}
