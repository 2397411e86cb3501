package admission

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/foreign/foreigntest"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

const program = `
import torch
from torch import nn

class Two(nn.Module):
    def forward(self, x):
        return x, "text"

def build(width=8, classes=256):
    return nn.Sequential(nn.Embedding(256, width), nn.Linear(width, classes))

def text():
    return nn.Sequential(nn.Embedding(256, 8), Two())

def images():
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))

def alone():
    return Alone()

def pooled():
    return nn.Sequential(nn.Embedding(256, 8), nn.Flatten(), nn.Linear(128, 4))

def few():
    return nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 100))

class Alone(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(256, 8), nn.Linear(8, 256)

    def forward(self, x):
        return self.head(self.embed(x))

class Head(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.out = nn.Linear(16, classes)

    def forward(self, hidden):
        return self.out(hidden)

def head(classes=256):
    return [Head(classes)]

class Same(Head):
    def __init__(self):
        super().__init__(256)
        self.transformer = nn.Module()
        self.transformer.wte = nn.Embedding(256, 16)

def same():
    return Same()

def pairs(train=30, held=5):
    some = lambda count: [(torch.rand(2), i % 2) for i in range(count)]
    return (some(train), some(held)) if held else some(train)

def classes():
    return nn.Sequential(nn.Linear(2, 4), nn.Linear(4, 2))

def cross(logits, labels):
    return nn.functional.cross_entropy(logits, labels)

def wrong(logits):
    return logits.sum()
`

// early fails before there are modules, for which it needs no framework.
const early = `
def build(width=8, classes=256):
    return None

def fails():
    raise ValueError("not today")

def given(**args):
    raise ValueError(repr(args))
`

// python is a request for a job of modules of a program, whose model section and other keys are given.
func python(t *testing.T, section, rest string) (base string, q Request) {
	t.Helper()
	base = t.TempDir()
	for name, text := range map[string]string{"train.py": program, "early.py": early, "corpus.txt": strings.Repeat("a few words of text\n", 200)} {
		if err := os.WriteFile(filepath.Join(base, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source := "version: 1\nmodel: {interpreter: " + stagetest.Python(t) + ", " + section + "}\ndata: {files: [corpus.txt], sequence: 16}\n" +
		"optimizer: {name: sgd, lr: 1}\ntrain: {steps: 4, batch: 4}\nstages: 2\npipelines: 2\nmicro_batches: 2\nschedule: afp\n" + rest
	return base, Request{
		Submit: api.SubmitRequest{File: "job.yaml", Source: source, Base: base}, User: access.User{UID: uint32(os.Geteuid())}, Host: Host{Cores: 2, MemoryBytes: 1 << 33},
	}
}

// TestModulesInPythonAreWhatTheirDryRunFinds: the job's model needs no interpreter any more.
func TestModulesInPythonAreWhatTheirDryRunFinds(t *testing.T) {
	base, q := python(t, "python: train.py:build, args: {width: 12}", "")
	s, err := Admit(t.Context(), q, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, s); err != nil {
		t.Fatal(err)
	}
	m, err := s.BuildModel()
	if err != nil {
		t.Fatal(err)
	}
	if weights := 256*12 + 256*12 + 256; m.Family != model.Python || m.Task != model.Language || len(m.Layers) != 2 || m.Weights() != weights || m.Loss.Classes != 256 {
		t.Errorf("%s of task %s, %d layers, %d weights, %d classes", m.Family, m.Task, len(m.Layers), m.Weights(), m.Loss.Classes)
	}
	if s.Version != 13 || s.Program != checkpoint.ObjectDigest([]byte(program)) || s.Job.Model.Python != base+"/train.py:build" {
		t.Errorf("version %d, program %s, of %s", s.Version, s.Program, s.Job.Model.Python)
	}
}

// TestModulesInPythonThatCannotTrainAreRefused, with what is expected.
func TestModulesInPythonThatCannotTrainAreRefused(t *testing.T) {
	for section, want := range map[string]string{
		"python: early.py:nothing":                 "early.py has no function nothing; expected one, which returns the modules",
		"python: train.py":                         "it wants a file of Python and, behind a colon, a function in it",
		"python: trains.py:build":                  "nearest: ",
		"python: train.py:alone, cut: [nowhere]":   "model.cut names 'nowhere', and the Alone has no such module; nearest: embed, head",
		"python: train.py:alone":                   "so at most 1 fit; model.cut says where one module is cut",
		"python: train.py:build, loss: wrong":      "TypeError",
		"python: train.py:few":                     "gives logits of 100 classes; expected at least the 256 tokens of model.vocabulary",
		"python: early.py:fails":                   "early.py:6: ValueError: not today",
		"python: train.py:text":                    "output 1 of module 1 (Two) is of str; expected a tensor",
		"python: early.py:build, args: {widht: 8}": "early.py:2: build: got an unexpected keyword argument 'widht'; its arguments are: width, classes",
		"python: train.py:build, vocabulary: 512":  "IndexError",
		"python: early.py:given, args: {a: 1, b: 1.0, c: 1e3, d: [~, 12345678901234567890, -0.0]}": "{'a': 1, 'b': 1.0, 'c': 1000.0, 'd': [None, 12345678901234567890, -0.0]}",
		"python: train.py:pooled":                         "expected logits of shape (samples, 16 positions, classes)",
		"python: train.py:build, task: images":            `missing key "model.image"`,
		"python: train.py:build, image: [1, 28, 28]":      "model.image is of the task images, and the task is language",
		"python: train.py:build, family: gpt2":            "model.family stands beside model.python without model.config",
		"python: train.py:build, config: {n: 1}":          "model.config stands beside model.python without model.family",
		"python: train.py:images, task: classification":   "a dry run on 4 samples of [16]",
		"python: train.py:build, from: nowhere":           "nowhere",
		"python: train.py:build, interpreter: /no/python": "/no/python",
	} {
		if strings.Contains(section, "interpreter:") {
			section = strings.TrimSuffix(section, ", interpreter: /no/python")
			_, q := python(t, section, "")
			q.Submit.Source = strings.Replace(q.Submit.Source, stagetest.Python(t), "/no/python", 1)
			if _, err := Admit(t.Context(), q, func(string) {}); err == nil || !strings.Contains(err.Error(), "start /no/python") {
				t.Errorf("an interpreter that is not there: %v", err)
			}
			continue
		}
		_, q := python(t, section, "")
		if _, err := Admit(t.Context(), q, func(string) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %q", section, err, want)
		}
	}
}

// front is a family in front of modules.
const front = "family: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 16, n_positions: 16, vocab_size: 256}, "

// TestModulesBehindAFamilyAreAdmitted: the model is both, and each stage has the memory that it takes.
func TestModulesBehindAFamilyAreAdmitted(t *testing.T) {
	_, q := python(t, front+"python: train.py:head", "")
	s, err := Admit(t.Context(), q, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.BuildModel()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range m.Params() {
		names = append(names, p.Name)
	}
	if m.Family != model.Python || m.Front().Family != "gpt2" || len(m.Layers) != 4 || m.Task != model.Language || names[0] != "transformer.wte.weight" || names[len(names)-1] != "0.out.bias" {
		t.Errorf("%s behind %v, %d layers, task %s, parameters %v", m.Family, m.Front(), len(m.Layers), m.Task, names)
	}
	if why := strings.Join(s.Why, "\n"); !strings.Contains(why, "model.python: 1 module of torch") || !strings.Contains(why, "behind 3 layers of gpt2") {
		t.Errorf("reasons %s", why)
	}
}

// TestModulesThatDoNotGoBehindAFamilyAreRefused, with what is expected.
func TestModulesThatDoNotGoBehindAFamilyAreRefused(t *testing.T) {
	for section, want := range map[string]string{
		front + "python: train.py:same":                            "train.py",
		front + "python: train.py:head, args: {classes: 4}":        "gives logits of 4 classes; expected at least the 256 tokens",
		front + "python: train.py:head, task: classification":      "task is classification; allowed is language",
		front + "python: train.py:head, vocabulary: 300":           "model.vocabulary is 300, and the gpt2 in front of the modules has 256 ids of tokens",
		front + "python: train.py:build":                           "embedding",
		"family: mlp, config: {}, python: train.py:head":           "model.family is mlp beside model.python; allowed is a family whose hidden states modules can be given: bert, gpt2, llama, mistral, qwen2",
		"family: gpt2, config: {n_lay: 2}, python: train.py:head":  "n_layer",
		"family: gpt2, config: {n_head: 5}, python: train.py:head": "n_embd",
	} {
		_, q := python(t, section, "")
		if _, err := Admit(t.Context(), q, func(string) {}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v\nwant %q", section, err, want)
		}
	}
	_, q := python(t, front+"python: train.py:head", "devices: {kind: gpu}\n")
	q.Submit.Source = strings.Replace(q.Submit.Source, stagetest.Python(t), foreigntest.PretendGPU(t), 1)
	q.Host.GPUs = []gpu.GPU{{Name: "H100", UUID: "GPU-1", MemoryBytes: 4 << 30}, {Index: 1, Name: "H100", UUID: "GPU-2", MemoryBytes: 4 << 30}}
	if _, err := Admit(t.Context(), q, func(string) {}); err == nil || !strings.Contains(err.Error(), "modules behind the layers of a gpt2 compute on cores alone") {
		t.Errorf("on GPUs: %v", err)
	}
}

// TestModulesInPythonAreAdmittedToGPUs where the interpreter's PyTorch has CUDA and the node has GPUs, whether or not this program has kernels for them; auto takes cores, and says so.
func TestModulesInPythonAreAdmittedToGPUs(t *testing.T) {
	two := []gpu.GPU{{Name: "H100", UUID: "GPU-1", MemoryBytes: 4 << 30}, {Index: 1, Name: "H100", UUID: "GPU-2", MemoryBytes: 2 << 30}}
	plain, pretended := stagetest.Python(t), foreigntest.PretendGPU(t)
	for _, c := range []struct {
		interpreter, devices string
		gpus                 []gpu.GPU
		want                 string // of the reasons; or of the error
		refused              bool
	}{
		{pretended, "kind: gpu", two, "devices.kind gpu: the modules compute on GPUs, and all else on cores", false},
		{pretended, "kind: gpu", two, "memory, as predicted: GPU 0 ", false},
		{plain, "kind: gpu", two, "torch 1.", true},
		{plain, "kind: gpu", two, " is built without CUDA, so it computes on no GPU; expected a build with CUDA: model.interpreter names another interpreter, and with devices.kind: cpu", true},
		{pretended, "kind: gpu", nil, "devices.kind is gpu, and this node has no GPU that jobs may use: this program is built without CUDA", true},
		{pretended, "kind: gpu, gpu: {memory: 5.5e8}", two, "bytes short (GPU 0; devices.gpu.memory is 550 MB, of which the CUDA context takes 537 MB)", true},
		{pretended, "kind: gpu, gpu: {count: 1, memory: 9e8}", two, "devices.gpu.memory is 900 MB; on a GPU of 2 stages each interpreter has a CUDA context, which take 1.07 GB of it", true},
		{pretended, "kind: auto", two, "devices.kind auto took cpu: modules in Python compute on GPUs only where devices.kind is gpu", false},
		{plain, "kind: auto", nil, "", false},
	} {
		_, q := python(t, "python: train.py:build", "devices: {"+c.devices+"}\n")
		q.Submit.Source = strings.Replace(q.Submit.Source, plain, c.interpreter, 1)
		q.Host.GPUs, q.Host.NoGPU = c.gpus, cuda.ErrAbsent.Error()
		s, err := Admit(t.Context(), q, func(string) {})
		found := fmt.Sprint(err)
		if err == nil {
			found = strings.Join(s.Why, "\n")
		}
		if (err != nil) != c.refused || !strings.Contains(found, c.want) {
			t.Errorf("%s of %s with %d GPUs: %s\nwant %q", c.devices, c.interpreter, len(c.gpus), found, c.want)
		}
		if err == nil && strings.HasPrefix(c.devices, "kind: gpu") {
			if s.GPUs() != 2 || s.Job.Devices.CPU.Threads != 1 || s.HostBytes() < 1<<30 { // the libraries of two interpreters, and the stages
				t.Errorf("it takes %d GPUs, %d threads a stage and %d bytes of the host", s.GPUs(), s.Job.Devices.CPU.Threads, s.HostBytes())
			}
		}
	}
}

// TestAProgramThatIsNotThereAsItWasIsSeen on the host that is to run it.
func TestAProgramThatIsNotThereAsItWasIsSeen(t *testing.T) {
	base, q := python(t, "python: train.py:build", "")
	s, err := Admit(t.Context(), q, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	text, err := spec.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(base, "train.py")
	for _, c := range []struct {
		change func() error
		want   string
	}{
		{func() error { return nil }, ""},
		{func() error { return os.WriteFile(path, []byte(program+"\n"), 0o600) }, "model.python: " + path + " is not what it was"},
		{func() error { return os.Remove(path) }, "no such file"},
	} {
		if err := c.change(); err != nil {
			t.Fatal(err)
		}
		if got, err := look(t.Context(), &Request{Spec: text}, func(string) {}); err != nil || !strings.Contains(got.Data, c.want) || (got.Data == "") != (c.want == "") {
			t.Errorf("found %+v (%v), expected %q", got, err, c.want)
		}
	}
}

// TestSamplesOfAProgramAreCountedOnce: how many there are is part of the job, which nothing but an interpreter of the same file can find otherwise.
func TestSamplesOfAProgramAreCountedOnce(t *testing.T) {
	ask := func(section, from string) (*spec.Spec, error) {
		_, q := python(t, section, "")
		q.Submit.Source = strings.Replace(q.Submit.Source, "data: {files: [corpus.txt], sequence: 16}", "data: {"+from+"}", 1)
		return Admit(t.Context(), q, func(string) {})
	}
	const classes = "python: train.py:classes, loss: cross"
	s, err := ask(classes, "samples: pairs, args: {train: 31}")
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.BuildModel()
	if err != nil {
		t.Fatal(err)
	}
	if want := (model.SampleCounts{Train: 31, HeldOut: 5}); m.Task != model.Samples || m.Samples != want || s.Files == "" {
		t.Errorf("task %s, %+v samples, files %q", m.Task, m.Samples, s.Files)
	}
	if s, err = ask(classes, "samples: pairs, args: {held: 0}, holdout: 0.2"); err != nil || s.Job.Data.Samples != "pairs" {
		t.Errorf("one set, of which a fifth is held out: %v", err)
	}
	for _, c := range []struct{ section, data, want string }{
		{classes, "samples: pair", "has no function pair; expected one, which returns samples"},
		{classes, "samples: pairs, args: {trian: 31}", "pairs: got an unexpected keyword argument 'trian'; its arguments are: train, held"},
		{classes, "samples: pairs, args: {train: 1, held: 0}", "the program has 1 sample, too few to train on some and hold out others"},
		{classes, "samples: pairs, collate: nothing", "has no function nothing; expected one, which makes inputs and targets of a list of samples"},
		{classes, "samples: pairs, files: [corpus.txt]", "data.files stands beside data.samples, whose function says what samples are; remove one of them"},
		{classes, "samples: pairs, holdout: 0.2", "data.holdout: is not read in the task samples from the format program; remove it, or have data.samples return no samples to evaluate on"},
		{classes, "samples: pairs, sequence: 16", "data.sequence: is not read in the task samples"},
		{classes + ", task: images", "samples: pairs", "model.task stands beside data.samples"},
		{"python: train.py:classes", "samples: pairs", `missing key "model.loss"`},
		{classes, "args: {train: 31}", `missing key "data.files" (or "data.samples"`},
		{classes, "files: [corpus.txt], sequence: 16, args: {train: 31}", "data.args is read by data.samples alone, which is missing"},
		{"family: gpt2, config: {n_layer: 1}", "samples: pairs", "data.samples is a function of the file of model.python, which is missing"},
	} {
		if _, err := ask(c.section, c.data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, data: {%s}: %v\nwant %q", c.section, c.data, err, c.want)
		}
	}
}
