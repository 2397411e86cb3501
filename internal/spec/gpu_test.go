package spec_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

var gpuJob = strings.NewReplacer("name: emulated", "name: small", "{kind: emulated, emulated: {forward: 0.1ms}}", "{kind: gpu}").Replace(emulatedJob)

// aGPU is one with so many bytes.
func aGPU(bytes int64, health gpu.Level) gpu.GPU {
	return gpu.GPU{Name: "H100", UUID: "GPU-1", MemoryBytes: bytes, Health: gpu.Health{Level: health, Reasons: []gpu.Reason{}}}
}

// TestWhatAJobMayNotHaveOfGPUsIsRefused, with what is there and the nearest fix.
func TestWhatAJobMayNotHaveOfGPUsIsRefused(t *testing.T) {
	two := []gpu.GPU{aGPU(4<<30, gpu.Healthy), aGPU(4<<30, gpu.Degraded)}
	whole := []gpu.GPU{aGPU(4<<30, gpu.Healthy), aGPU(4<<30, gpu.Healthy), {Index: 3, Name: "H100 MIG 1g.10gb", UUID: "MIG-1", Parent: "GPU-2", MemoryBytes: 4 << 30}}
	whole[1].Index = 2
	divided := []gpu.GPU{aGPU(4<<30, gpu.Healthy), {Name: "H100 MIG 1g.10gb", UUID: "MIG-1", Parent: "GPU-2", MemoryBytes: 4 << 30}}
	for _, c := range []struct {
		gpus       []gpu.GPU
		none       string
		set        []string
		want, near string // near "?": whatever
	}{
		{two, "", nil, "", ""},
		{nil, cuda.ErrAbsent.Error(), nil, "devices.kind is gpu: this program is built without CUDA", "cpu"},
		{nil, "", nil, "this node has no GPU that jobs may use", "cpu"},
		{[]gpu.GPU{aGPU(4<<30, gpu.Sick)}, "", nil, "no GPU that jobs may use; GPU 0 (H100, GPU-1) is sick", "cpu"},
		{two, "", []string{"devices.gpu.count=3"}, "devices.gpu.count is 3; jobs may use 2 GPUs, GPU 0 (H100, GPU-1), GPU 0", "2"},
		{divided, "", []string{"devices.gpu.count=2"}, "devices.gpu.count is 2; some of the GPUs of this node are instances of a divided one (MIG)", "1"},
		{divided, "", []string{"devices.gpu.count=2"}, "; 1 of them are whole, so no configuration of the daemon gives a job 2", "1"},
		{whole, "", []string{"devices.gpu.count=2"}, "; jobs get several where `gpus` of avgpiped.yaml names whole ones only: gpus: [0, 2]", "1"},
		{divided, "", nil, "", ""},
		{two, "", []string{"devices.gpu.memory=8e9"}, "devices.gpu.memory is 8 GB; a job may be given any GPU of this node, and GPU 0 (H100, GPU-1) has 4.29 GB", "4294967296"},
		{two, "", []string{"devices.gpu.memory=1.5"}, "devices.gpu.memory is 1 B (1.5, and what is above 1 is bytes); the CUDA context", "auto"},
		{two, "", []string{"devices.gpu.memory=0.1"}, "the CUDA context of a worker takes", "auto"},
		{two, "", []string{"devices.gpu.memory=537000000"}, "stages 0, 1 on one device need ", "?"},
	} {
		j, facts := parsed(t, gpuJob, 1<<36, c.set...)
		facts.GPUs, facts.NoGPU = c.gpus, c.none
		_, problems := spec.Resolve(j, facts, nil)
		switch {
		case c.want == "" && len(problems) > 0:
			t.Errorf("%v: %v", c.set, problems)
		case c.want != "" && (len(problems) != 1 || !strings.Contains(problems[0].Message, c.want) || c.near != "?" && problems[0].Nearest != c.near):
			t.Errorf("%v: %+v\nwant %q, nearest %q", c.set, problems, c.want, c.near)
		}
	}
}

// TestAutoTakesGPUsWhereAJobCanRunOnThem, and says why it did or did not.
func TestAutoTakesGPUsWhereAJobCanRunOnThem(t *testing.T) {
	for _, c := range []struct {
		gpus []gpu.GPU
		set  []string
		kind string
		why  string
	}{
		{[]gpu.GPU{aGPU(4<<30, gpu.Healthy)}, nil, job.KindGPU, "devices.kind auto took gpu: this node has 1 GPU, GPU 0 (H100, GPU-1)"},
		{[]gpu.GPU{aGPU(4<<30, gpu.Healthy)}, []string{"devices.cpu.threads=1"}, job.KindAuto, "devices.kind auto took cpu: devices.cpu is given"},
		{[]gpu.GPU{aGPU(538<<20, gpu.Healthy)}, nil, job.KindAuto, "devices.kind auto took cpu: not gpu: devices.gpu.memory is"},
		{nil, nil, job.KindAuto, "devices.kind auto took cpu: this node has no GPU that jobs may use"},
	} {
		j, facts := parsed(t, gpuJob, 1<<36, append([]string{"devices.kind=auto"}, c.set...)...)
		facts.GPUs = c.gpus
		found, problems := spec.Resolve(j, facts, nil)
		if len(problems) > 0 || found.Job.Devices.Kind != c.kind || !strings.HasPrefix(found.Why[0], c.why) {
			t.Errorf("%v: %v; took %s: %v\nwant %s: %s", c.set, problems, found.Job.Devices.Kind, found.Why, c.kind, c.why)
		}
	}
}

// TestStagesShareGPUs, neighbours with each other, where there are fewer; and their memory is one.
func TestStagesShareGPUs(t *testing.T) {
	j, facts := parsed(t, gpuJob, 1<<36, "devices.gpu.memory=1e9")
	facts.GPUs = []gpu.GPU{aGPU(4<<30, gpu.Healthy), aGPU(2<<30, gpu.Healthy)}
	found, problems := spec.Resolve(j, facts, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	bytes, of := spec.Memories(&found.Job, 4)
	if len(bytes) != 2 || bytes[0] != 1e9-512<<20 || of[0] != 0 || of[1] != 0 || of[2] != 1 || of[3] != 1 {
		t.Errorf("memories %v of rows %v", bytes, of)
	}
	if d := found.Job.Devices; d.GPU.Count != 2 || d.CPU.Threads != 1 || d.CPU.Count != 4 {
		t.Errorf("devices are %+v", d)
	}
}

// TestInterpretersHaveGPUsOfTheirOwn: several on one have a context each, instances of a divided one serve several, and this program needs no kernels. What stages allocate is the host's, and what modules
// keep between passes is not a part of it.
func TestInterpretersHaveGPUsOfTheirOwn(t *testing.T) {
	config := &model.ModulesConfig{ModelType: model.Python, Task: model.Language, Sequence: 8, Vocabulary: 256}
	crosses := model.ModulePort{Shape: []int{8, 16}, Type: "f32", Differentiable: true}
	const kept = 1 << 20
	for i := range 4 {
		one := model.Module{
			Name: strconv.Itoa(i), Inputs: []model.ModulePort{crosses}, Outputs: []model.ModulePort{crosses}, Forward: 1e6, Backward: 2e6, Kept: kept,
			Parameters: []model.ModuleParam{{Name: strconv.Itoa(i) + ".weight", Shape: []int{64, 64}}},
		}
		if i == 0 {
			one.Inputs = []model.ModulePort{{Shape: []int{8}, Type: "i32"}}
		}
		config.Modules = append(config.Modules, one)
	}
	config.Modules[3].Outputs = []model.ModulePort{{Shape: []int{8, 256}, Type: "f32", Differentiable: true}}
	m, err := config.Build()
	if err != nil {
		t.Fatal(err)
	}
	divided := []gpu.GPU{{Name: "H100 MIG 1g.10gb", UUID: "MIG-1", Parent: "GPU-1", MemoryBytes: 4 << 30}, {Name: "H100 MIG 1g.10gb", UUID: "MIG-2", Parent: "GPU-1", MemoryBytes: 4 << 30}}
	memory := map[string][]tuner.Memory{}
	for _, kind := range []string{"gpu", "cpu"} {
		j, facts := parsed(t, gpuJob, 1<<36, "stages=4", "devices={kind: "+kind+"}")
		j.Model = job.Model{Family: model.Python, Python: "/x.py:build"}
		facts.Model, facts.GPUs, facts.NoGPU = m, divided, cuda.ErrAbsent.Error()
		found, problems := spec.Resolve(j, facts, nil)
		if len(problems) > 0 || found.Job.Stages != 4 {
			t.Fatalf("%s: %v", kind, problems)
		}
		memory[kind] = found.Memory
		if kind == "cpu" {
			continue
		}
		bytes, of := spec.Memories(&found.Job, 4)
		const context = 512 << 20
		if all := int64(found.Job.Devices.GPU.Memory); found.Job.Devices.GPU.Count != 2 || !slices.Equal(bytes, []int64{all - 2*context, all - 2*context}) || !slices.Equal(of, []int{0, 0, 1, 1}) {
			t.Errorf("%d GPUs, of which rows %v have %v, of %v bytes", found.Job.Devices.GPU.Count, of, bytes, all)
		}
		for memory, want := range map[job.Factor]string{
			2 * context:       "on a GPU of 2 stages each interpreter has a CUDA context, which take 1.07 GB of it, and stages the rest",
			2*context + 1<<20: " bytes short (GPU 0; devices.gpu.memory is 1.07 GB, of which the CUDA context takes 1.07 GB)",
		} {
			j.Devices.GPU.Memory = memory
			if _, problems := spec.Resolve(j, facts, nil); len(problems) != 1 || problems[0].Key != "devices.gpu.memory" || !strings.Contains(problems[0].Message, want) {
				t.Errorf("a GPU of %v bytes: %v\nwant %q", memory, problems, want)
			}
		}
	}
	for k, on := range memory["gpu"] {
		in := memory["cpu"][k]
		if on.OnDevice() != on.Copies || in.Copies != 0 || on.Weights != in.Weights || on.State != in.State || on.Center != in.Center {
			t.Errorf("stage %d takes %+v with a GPU, %+v on cores", k, on, in)
		}
		if less := in.Activations - on.Activations; less < kept || on.Copies < less+on.Weights+on.Gradients || on.Host <= in.Host {
			t.Errorf("stage %d has %d bytes fewer of activations in the host's memory, and %d on the GPU: %+v", k, less, on.Copies, on)
		}
	}
}

// TestOpenJobsThatNoPlanFitsAreRefusedAtAdmission, with the key, what comes nearest and what would fit; auto takes the CPU for them.
func TestOpenJobsThatNoPlanFitsAreRefusedAtAdmission(t *testing.T) {
	for _, c := range []struct {
		width, advice string
		host          int64
		open          []string
	}{
		{"192", "pipelines: 1 would fit", 60e6, []string{"stages=auto"}},
		{"192", "use a smaller model", 60e6, []string{"micro_batches=auto"}},
		{"512", "use a smaller model", 330e6, []string{"recompute=auto"}},
		{"512", "use a smaller model", 330e6, []string{"stages=auto", "pipelines=auto", "micro_batches=auto", "schedule=auto"}},
	} {
		wide, open := strings.Replace(gpuJob, "n_embd: 32", "n_embd: "+c.width, 1), c.open
		j, facts := parsed(t, wide, 1<<36, open...)
		facts.GPUs = []gpu.GPU{aGPU(700<<20, gpu.Healthy)}
		_, problems := spec.Resolve(j, facts, nil)
		if len(problems) != 1 || problems[0].Key != "devices.gpu.memory" {
			t.Fatalf("%v: %+v", open, problems)
		}
		for _, part := range []string{"no plan fits the memory; the nearest has ", " bytes short (GPU 0; devices.gpu.memory is ", c.advice} {
			if !strings.Contains(problems[0].Message, part) {
				t.Errorf("%v: %q does not say %q", open, problems[0].Message, part)
			}
		}
		j, facts = parsed(t, wide, 1<<36, append(open, "devices.kind=auto")...)
		facts.GPUs = []gpu.GPU{aGPU(700<<20, gpu.Healthy)}
		found, problems := spec.Resolve(j, facts, nil)
		if len(problems) > 0 || found.Job.Devices.Kind != job.KindAuto || !strings.HasPrefix(found.Why[0], "devices.kind auto took cpu: not gpu: no plan fits the memory") {
			t.Errorf("%v: auto took %s: %v, %v", open, found.Job.Devices.Kind, found.Why, problems)
		}
		j, facts = parsed(t, wide, c.host, append(open, "devices.kind=cpu")...)
		if _, problems := spec.Resolve(j, facts, nil); len(problems) != 1 || problems[0].Key != "model" || !strings.Contains(problems[0].Message, "no plan fits the memory") {
			t.Errorf("%v: on the CPU %+v", open, problems)
		}
		facts.MemoryBytes = 1 << 36
		if _, problems := spec.Resolve(j, facts, nil); len(problems) > 0 {
			t.Errorf("%v: on the CPU, with memory: %v", open, problems)
		}
	}
}

// TestWhatOfGPUsHasNoEffectIsSaid: more GPUs than stages; and that products round is.
func TestWhatOfGPUsHasNoEffectIsSaid(t *testing.T) {
	j, facts := parsed(t, gpuJob, 1<<36, "stages=1", "devices.gpu.count=2", "devices.gpu.tf32=true")
	facts.GPUs = []gpu.GPU{aGPU(4<<30, gpu.Healthy), aGPU(4<<30, gpu.Healthy)}
	found, problems := spec.Resolve(j, facts, nil)
	const want = "devices.gpu.count is 2 and the job has 1 stage: it takes 1 GPU; stages: 2 would use them all"
	if len(problems) > 0 || !slices.Contains(found.Warnings, want) {
		t.Errorf("%v, warnings %v; want %q", problems, found.Warnings, want)
	}
	if said := "devices.gpu.tf32: products and convolutions round what they multiply to TF32"; !slices.Contains(found.Why, said) {
		t.Errorf("%v does not say %q", found.Why, said)
	}
}
