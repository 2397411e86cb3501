package foreign_test

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/foreign/foreigntest"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

const onGPUs = "testdata/gpu.py"

// gpuBench is modules of testdata/gpu.py, one set of them, which a pretended GPU computes.
type gpuBench struct {
	*foreign.Device
	process *foreign.Process
	shape   []int
	modules int
}

// pretended starts an interpreter with a pretended GPU, and builds modules that take samples of so many numbers.
func pretended(t *testing.T, function string, numbers int, c foreign.Config) *gpuBench {
	t.Helper()
	c.Interpreter, c.Device, c.GPU = foreigntest.PretendGPU(t), "cuda", "GPU-0"
	p := start(t, c)
	b := &gpuBench{foreign.Over(p, ref.New()), p, []int{4, numbers}, 0}
	built, err := p.Build(foreign.Program{Path: onGPUs, Function: function}, seed)
	if err == nil {
		_, err = p.Probe(foreign.Probe{Inputs: []foreign.ProbeInput{{Shape: b.shape, Type: "f32"}}, Seed: seed})
	}
	if err != nil {
		t.Fatal(err)
	}
	b.modules = len(built.Modules)
	return b
}

// tensor is memory for what crosses.
func (b *gpuBench) tensor(t *testing.T) device.Mem {
	t.Helper()
	m, err := b.Alloc(device.F32, b.shape[0]*b.shape[1])
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// run evaluates the modules, and returns the first number that comes out.
func (b *gpuBench) run(in, out device.Mem) (float32, error) {
	of := []device.ModuleTensor{{Shape: b.shape, Type: device.F32}}
	b.Do(&device.ModulesForward{
		Out: []device.Mem{out}, In: []device.Mem{in}, Modules: device.Modules{Inputs: of, Outputs: of, Streams: make([]uint64, b.modules)},
	})
	found := make([]float32, out.Len())
	b.Download(device.FloatBytes(found), out)
	return found[0], b.Synchronize()
}

// TestAnInterpreterSeesItsGPUAlone, and none where it has none, whatever this process sees.
func TestAnInterpreterSeesItsGPUAlone(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
	for gpu, want := range map[string]string{"": "''", "GPU-8932f937": "'GPU-8932f937'"} {
		for _, env := range [][]string{nil, {"PATH=/usr/bin:/bin"}, append(os.Environ(), "CUDA_VISIBLE_DEVICES=7")} {
			p := start(t, foreign.Config{Interpreter: stagetest.Python(t), GPU: gpu, Env: env})
			if err := try(p, onGPUs, "visible"); err == nil || !strings.HasSuffix(err.Error(), "ValueError: "+want) {
				t.Errorf("GPU %q: the interpreter sees %v, expected %s", gpu, err, want)
			}
		}
	}
}

// TestADryRunWantsPyTorchWithCUDAAndNoGPU: the GPUs of the host may be other jobs'.
func TestADryRunWantsPyTorchWithCUDAAndNoGPU(t *testing.T) {
	p := start(t, foreign.Config{Interpreter: foreigntest.PretendGPU(t), Device: "cuda"})
	if err := try(p, onGPUs, "sees"); err == nil || !strings.HasSuffix(err.Error(), "(False, 0)") {
		t.Errorf("it sees %v, expected no GPU", err)
	}
	if err := try(p, "testdata/refused.py", "fine"); err != nil {
		t.Error(err)
	}
	p = start(t, foreign.Config{Interpreter: foreigntest.PretendGPU(t), Device: "cuda", GPU: "GPU-gone"})
	if err := try(p, "testdata/refused.py", "fine"); err == nil || !strings.Contains(err.Error(), "which is built with CUDA 11.8, finds no GPU; expected one, so see to the driver") {
		t.Errorf("a GPU that is not there: %v", err)
	}
}

// TestMemoryThatCrossesIsPageLockedUntilItIsFreed: freed memory that is still locked would be copied from and to, whoever has its place then.
func TestMemoryThatCrossesIsPageLockedUntilItIsFreed(t *testing.T) {
	const large, small = 1 << 12, 8 // 64 KiB of 4 samples, and less
	b := pretended(t, "locked", large, foreign.Config{})
	in, other, out := b.tensor(t), b.tensor(t), b.tensor(t)
	expect := func(in device.Mem, want float32) {
		t.Helper()
		if n, err := b.run(in, out); n != want || err != nil {
			t.Fatalf("%v allocations are locked, expected %v; %v", n, want, err)
		}
	}
	expect(in, 2)
	expect(other, 3)
	b.Free(in)
	expect(other, 2)
	again := b.tensor(t)
	expect(again, 3) // where the first one lay
	b.Free(other)
	b.Free(out)
	out = b.tensor(t)
	expect(again, 2)
	b = pretended(t, "locked", small, foreign.Config{})
	if n, err := b.run(b.tensor(t), b.tensor(t)); n != 0 || err != nil {
		t.Errorf("%v small allocations are locked, expected none: they share pages; %v", n, err)
	}
}

// TestWhereMemoryCannotBeLockedTheLogSaysSo, once, and modules compute.
func TestWhereMemoryCannotBeLockedTheLogSaysSo(t *testing.T) {
	t.Setenv("PRETENDED_GPU_LOCKS", "no")
	var mu sync.Mutex
	said := 0
	b := pretended(t, "locked", 1<<12, foreign.Config{Log: func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(line, "memory is not page-locked, so copies to and from the GPU take longer: cudaHostRegister of 65536 bytes gave error 801") {
			said++
		}
	}})
	for range 2 {
		in, out := b.tensor(t), b.tensor(t)
		if n, err := b.run(in, out); n != 0 || err != nil {
			t.Errorf("%v allocations are locked, expected none; %v", n, err)
		}
		b.Free(in)
		b.Free(out)
	}
	if err := errors.Join(b.Synchronize(), b.process.Close()); err != nil { // then all was logged
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if said != 1 {
		t.Errorf("the log says it %d times, expected once", said)
	}
}

// TestAGPURoundsToTF32WhereTheJobSaysSo, products and convolutions.
func TestAGPURoundsToTF32WhereTheJobSaysSo(t *testing.T) {
	for rounds, want := range map[bool]float32{false: 0, true: 3} {
		b := pretended(t, "rounds", 2, foreign.Config{TF32: rounds})
		if found, err := b.run(b.tensor(t), b.tensor(t)); found != want || err != nil {
			t.Errorf("TF32 %t: found %v, expected %v; %v", rounds, found, want, err)
		}
	}
}

// TestErrorsOfAGPUSayWhatToDo: those of the program are its own, and the process goes on.
func TestErrorsOfAGPUSayWhatToDo(t *testing.T) {
	for function, want := range map[string]string{
		"fills":   "a forward does not fit into the memory of the GPU, at module 1 (Of): CUDA out of memory. Tried to allocate 2.00 GiB; expected a smaller micro-batch, fewer pipelines, more stages or recompute",
		"asserts": "device-side assert triggered; a kernel was given what it cannot use, such as an index out of range; with devices.kind: cpu the error names the line",
		"forgets": "found at least two devices, cuda:0 and cpu!; on a GPU a module computes with what is there: make tensors where the inputs are, as in torch.zeros(n, device=x.device)",
	} {
		b := pretended(t, function, 2, foreign.Config{})
		in, out := b.tensor(t), b.tensor(t)
		for range 2 {
			_, err := b.run(in, out)
			found, ok := errors.AsType[*foreign.ProgramError](err)
			if !ok || !strings.Contains(found.Message, want) {
				t.Errorf("%s: found %v, expected %s", function, err, want)
			}
			if line := lineOf(t, onGPUs, function); ok && line > 0 && found.Line != line {
				t.Errorf("%s: found line %d, expected %d", function, found.Line, line)
			}
		}
	}
}

// TestAGPUThatFailsIsNoErrorOfTheProgram: the process is ended, and whoever has the job starts another one.
func TestAGPUThatFailsIsNoErrorOfTheProgram(t *testing.T) {
	for function, want := range map[string]string{
		"fails":      "RuntimeError: module 0 (Of), which was given torch.float32 of shape (4, 2): CUDA error: an illegal memory access was encountered",
		"fails_late": "RuntimeError: the GPU, at module 0 (Of) or in front of it: CUDA error: unspecified launch failure",
	} {
		b := pretended(t, function, 2, foreign.Config{})
		in, out := b.tensor(t), b.tensor(t)
		for range 2 {
			_, err := b.run(in, out)
			lost, ok := errors.AsType[*foreign.DeviceError](err)
			if _, program := errors.AsType[*foreign.ProgramError](err); !ok || program || !strings.Contains(lost.Said, want) {
				t.Errorf("%s: found %v, expected that the GPU failed: %s", function, err, want)
			}
		}
	}
}

// TestLargeModulesTrainToTheSameBitsFromPageLockedMemory, and where it cannot be locked: copies that come late are waited for.
func TestLargeModulesTrainToTheSameBitsFromPageLockedMemory(t *testing.T) {
	of := images()
	c := twice{name: "wide", of: of, program: foreign.Program{Path: onGPUs, Function: "wide", Loss: "loss"}, pipeline: stagetest.PipelineConfig{Stages: 2}, exact: true}
	want := plain(t, plainTorch, plainRequest{
		Path: onGPUs, Function: "wide", Seed: seed, Optimizer: "Rounded", Options: map[string]any{"lr": 0.1}, Micros: micros, Samples: samples, Batches: of.data, Loss: "loss",
	})[0]
	for _, locks := range []string{"yes", "no"} {
		t.Setenv("PRETENDED_GPU_LOCKS", locks)
		found, _ := c.train(t, newInterpreterOn(t, "cuda", nil), want, 0.1)
		if !slices.ContainsFunc(slices.Collect(maps.Values(found)), func(all []float32) bool { return len(all)*4 >= 1<<16 }) {
			t.Error("no parameter is large enough to have pages of its own")
		}
	}
}
