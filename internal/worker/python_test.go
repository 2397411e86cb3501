package worker

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/dryrun"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/foreign/foreigntest"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// modules makes a job one of modules in Python, of a function of testdata/modules.py.
func modules(t *testing.T, function string, args map[string]any) func(j *job.Job) {
	t.Helper()
	path, err := filepath.Abs("testdata/modules.py")
	if err != nil {
		t.Fatal(err)
	}
	interpreter := stagetest.Python(t)
	return func(j *job.Job) {
		j.Model = job.Model{Family: model.Python, Python: path + ":" + function, Args: args, Interpreter: interpreter}
		j.Data.Sequence, j.Train.EvalEvery = 16, 4
	}
}

// inPython is setup for such a job, after its dry run.
func inPython(t *testing.T, stages, pipelines int, program func(*job.Job), change func(*job.Job)) control.Assignment {
	t.Helper()
	a := setup(t, stages, pipelines, func(j *job.Job) {
		program(j)
		if change != nil {
			change(j)
		}
	})
	path, _ := a.Spec.Job.Model.Program()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a.Spec.Program = checkpoint.ObjectDigest(text)
	return a
}

// TestModulesInPythonTrainTheSameHoweverTheyAreLaidOut: to the bit, dropout and recurrent layers included, on several stages, by other schedules, and
// with what recomputation repeats.
func TestModulesInPythonTrainTheSameHoweverTheyAreLaidOut(t *testing.T) {
	program := modules(t, "build", map[string]any{"width": 16})
	var want []byte
	for _, c := range []struct {
		name   string
		stages int
		change func(*job.Job)
	}{
		{"one stage", 1, nil},
		{"three stages", 3, nil},
		{"three stages, recomputed by layer", 3, func(j *job.Job) { j.Recompute = []string{"block"} }},
		{"gpipe, recomputed in full", 2, func(j *job.Job) { j.Schedule, j.Recompute = "gpipe", []string{"full"} }},
		{"split backwards", 2, func(j *job.Job) { j.Schedule = "zb-h1" }},
	} {
		a := inPython(t, c.stages, 2, program, c.change)
		o := train(t, a, nil)
		if !errors.Is(o.err, errAborted) {
			t.Fatalf("%s: %v", c.name, o.err)
		}
		weights := exported(t, a, o)
		if want == nil {
			want = weights
		}
		if !bytes.Equal(weights, want) {
			t.Errorf("%s: the weights are others than those of one stage", c.name)
		}
	}
}

// TestSamplesOfAProgramTrainTheSameHoweverTheyAreLaidOut: both ends draw the same, evaluations are the user's loss, and a run that goes on from a round has the same samples.
func TestSamplesOfAProgramTrainTheSameHoweverTheyAreLaidOut(t *testing.T) {
	program := modules(t, "classes", nil)
	samples := func(args map[string]any) func(*job.Job) {
		return func(j *job.Job) {
			program(j)
			j.Model.Loss, j.Data = "class_loss", job.Data{Samples: "pairs", Args: args, Holdout: 0.1}
			j.Optimizer.LearningRate, j.Train.Steps = 0.05, 24
		}
	}
	var want []byte
	var loss float64
	for _, stages := range []int{1, 3} {
		a := inPython(t, stages, 2, samples(nil), nil)
		o := train(t, a, nil)
		s := o.status.Progress
		if !errors.Is(o.err, errAborted) || s.InitialLoss == nil || s.EvalLoss == nil || !(*s.EvalLoss < 0.8**s.InitialLoss) || s.Accuracy != nil || s.Perplexity != nil {
			t.Fatalf("%d stages: %v, evaluations from %v to %v", stages, o.err, s.InitialLoss, s.EvalLoss)
		}
		weights := exported(t, a, o)
		if want == nil {
			want, loss = weights, *s.EvalLoss
		}
		if !bytes.Equal(weights, want) || *s.EvalLoss != loss {
			t.Errorf("%d stages: other weights, or a loss of %v, than of one stage, %v", stages, *s.EvalLoss, loss)
		}
	}
	fewer := inPython(t, 1, 1, samples(nil), nil)
	fewer.Spec.Job.Data.Args = map[string]any{"count": 39}
	if o := train(t, fewer, nil); !Permanent(o.err) || !strings.Contains(o.err.Error(), "data.samples: pairs has 39 samples to train on and 7 to evaluate on; expected 40 and 7, as when the job was submitted") {
		t.Errorf("fewer samples than in the dry run: %v", o.err)
	}
	o := train(t, inPython(t, 2, 1, samples(map[string]any{"count": 30, "held": 0}), nil), nil)
	problem, ok := errors.AsType[*foreign.ProgramError](o.err)
	if !ok || !Permanent(o.err) || problem.Message != "sample 29: the last one" || !strings.HasSuffix(problem.File, "modules.py") {
		t.Errorf("a sample that cannot be made: %v", o.err)
	}
}

// TestModulesOfOtherFrameworksTrainInAJob: of JAX and TensorFlow, on the stand-ins of both, with dropout. They train to the same bits on one stage and on two.
func TestModulesOfOtherFrameworksTrainInAJob(t *testing.T) {
	for _, framework := range []string{"jax", "tensorflow"} {
		t.Run(framework, func(t *testing.T) {
			dir := t.TempDir() // the program's own directory is where the stand-in is found
			if err := os.CopyFS(dir, os.DirFS("../../stage/foreign/foreigntest/standins")); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile("testdata/" + framework + "_words.py")
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "words.py"), text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			program := func(j *job.Job) {
				j.Model = job.Model{Family: model.Python, Python: filepath.Join(dir, "words.py:build"), Interpreter: stagetest.Python(t)}
				j.Data.Sequence, j.Train.EvalEvery, j.Train.Steps, j.Optimizer.LearningRate = 16, 4, 24, 0.02
			}
			var want []byte
			for stages := 1; stages <= 2; stages++ {
				a := inPython(t, stages, 2, program, nil)
				o := train(t, a, nil)
				s := o.status.Progress
				if !errors.Is(o.err, errAborted) || s.InitialLoss == nil || s.EvalLoss == nil || !(*s.EvalLoss < 0.9**s.InitialLoss) {
					t.Fatalf("%d stages: %v, evaluations from %v to %v", stages, o.err, s.InitialLoss, s.EvalLoss)
				}
				weights := exported(t, a, o)
				if want == nil {
					want = weights
				}
				if !bytes.Equal(weights, want) {
					t.Errorf("%d stages: the weights are others than those of one stage", stages)
				}
			}
		})
	}
}

// onGPUs has a job compute its modules on GPUs, which are pretended: each stage has one, or as many of them as there are share one.
func onGPUs(t *testing.T, a *control.Assignment, gpus int) {
	t.Helper()
	j := &a.Spec.Job
	j.Model.Interpreter = foreigntest.PretendGPU(t)
	j.Devices = job.Devices{Kind: job.KindGPU, CPU: j.Devices.CPU, GPU: job.GPU{Count: job.Count(gpus), Memory: 8e9}}
	for k := range a.Stages {
		a.Stages[k].GPU = fmt.Sprintf("GPU-%d", j.Devices.GPU.Of(k, len(a.Stages)))
	}
}

// TestModulesInPythonTrainOnGPUsAsOnCores: to the bit, on GPUs that are pretended, with dropout; the status says on which, and what stages allocate is what was predicted, without what is on
// a GPU.
func TestModulesInPythonTrainOnGPUsAsOnCores(t *testing.T) {
	program := modules(t, "build", map[string]any{"width": 16})
	for _, c := range []struct{ stages, pipelines, gpus int }{{1, 1, 1}, {1, 2, 1}, {2, 1, 2}, {2, 2, 1}, {4, 2, 4}, {4, 1, 2}} {
		name := fmt.Sprintf("%d stages, %d pipelines, %d GPUs", c.stages, c.pipelines, c.gpus)
		one := func(j *job.Job) { j.Devices.Kind, j.Devices.CPU.Threads = "cpu", 1 }
		cores := inPython(t, c.stages, c.pipelines, program, one)
		want := exported(t, cores, train(t, cores, nil))
		a := inPython(t, c.stages, c.pipelines, program, one)
		onGPUs(t, &a, c.gpus)
		o := train(t, a, nil)
		if !errors.Is(o.err, errAborted) {
			t.Fatalf("%s: %v", name, o.err)
		}
		if !bytes.Equal(exported(t, a, o), want) {
			t.Errorf("%s: the weights are others than on cores", name)
		}
		predicted := a.Spec.Memory()
		if len(predicted) != c.stages || len(o.status.Progress.StageStatus) != c.stages {
			t.Fatalf("%s: the memory of %d stages is predicted, %d have a status", name, len(predicted), len(o.status.Progress.StageStatus))
		}
		for k, on := range o.status.Progress.StageStatus {
			if gpu := a.Stages[k].GPU; on.GPU != gpu || !strings.HasSuffix(on.Device, " on "+gpu) {
				t.Errorf("%s: stage %d is on %s of %q, expected %s", name, k, on.Device, on.GPU, gpu)
			}
			if m := predicted[k]; m.Counted() != on.MemoryBytes || m.OnDevice() != m.Copies || m.Copies <= m.Weights+m.Gradients {
				t.Errorf("%s: stage %d takes %d bytes, predicted are %+v", name, k, on.MemoryBytes, m)
			}
		}
	}
}

// TestAGPUThatFailsIsNoErrorOfTheJob, which names the stage; what a program does wrong there is one.
func TestAGPUThatFailsIsNoErrorOfTheJob(t *testing.T) {
	for how, permanent := range map[string]bool{"lost": false, "full": true, "mixed": true} {
		a := inPython(t, 2, 1, modules(t, "on_gpu", map[string]any{"how": how}), nil)
		onGPUs(t, &a, 2)
		o := train(t, a, nil)
		_, lost := errors.AsType[*foreign.DeviceError](o.err)
		if lost == permanent || Permanent(o.err) != permanent || !strings.Contains(o.err.Error(), "stage ") {
			t.Errorf("%s: %v, permanent: %t", how, o.err, Permanent(o.err))
		}
	}
}

// TestTiedModulesInPythonStayEqual, on one stage and at the ends of a pipeline, and files have both. PyTorch adds the gradients of both uses for each micro-batch
// where one graph has them, and the two stages once for a batch: that rounds differently.
func TestTiedModulesInPythonStayEqual(t *testing.T) {
	program := modules(t, "tied", nil)
	var want map[string][]float32
	for stages := 1; stages <= 2; stages++ {
		a := inPython(t, stages, 2, program, nil)
		weights := values(t, exported(t, a, train(t, a, nil)))
		if one, other := weights["0.weight"], weights["3.weight"]; len(one) == 0 || !slices.Equal(one, other) {
			t.Errorf("%d stages: the tied weights are not equal, or not there", stages)
		}
		if want == nil {
			want = weights
		}
		for name, of := range want {
			for i, x := range of {
				if away := math.Abs(float64(weights[name][i] - x)); away > 1e-5 {
					t.Fatalf("%d stages: element %d of %s is %v away from that of one stage", stages, i, name, away)
				}
			}
		}
	}
}

// TestACutModuleIsExportedUnderItsOwnNames, also what two of its parts have.
func TestACutModuleIsExportedUnderItsOwnNames(t *testing.T) {
	program := modules(t, "shared", nil)
	a := inPython(t, 2, 2, func(j *job.Job) { program(j); j.Model.Cut = []string{"two"} }, nil)
	weights := exported(t, a, train(t, a, nil))
	for _, name := range []string{"gain", "tokens.weight", "one.mix.weight_hh_l0", "two.norm.bias", "head.weight"} {
		if n := bytes.Count(weights, []byte(strconv.Quote(name))); n != 1 {
			t.Errorf("the file has %d tensors %s", n, name)
		}
	}
	if bytes.Contains(weights, []byte("gain@")) {
		t.Error("the file has the parameter of another part")
	}
}

// TestAnErrorOfAUsersProgramNamesItsLine.
func TestAnErrorOfAUsersProgramNamesItsLine(t *testing.T) {
	a := inPython(t, 2, 1, modules(t, "fails", map[string]any{"how": "raise"}), nil)
	o := train(t, a, nil)
	program, ok := errors.AsType[*foreign.ProgramError](o.err)
	if !ok || !Permanent(o.err) || program.Type != "ValueError" || !strings.HasSuffix(program.Message, ": five are enough") || !strings.HasSuffix(program.File, "modules.py") || program.Line != 26 {
		t.Errorf("error %v", o.err)
	}
}

// TestAnInterpreterThatEndsWhileItIsAskedForWeightsIsNoErrorOfTheJob.
func TestAnInterpreterThatEndsWhileItIsAskedForWeightsIsNoErrorOfTheJob(t *testing.T) {
	file := filepath.Join(t.TempDir(), "now")
	a := inPython(t, 2, 1, modules(t, "gone", map[string]any{"file": file}), nil)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o := train(t, a, nil)
	if ended, ok := errors.AsType[*foreign.EndedError](o.err); !ok || Permanent(o.err) || !strings.Contains(o.err.Error(), "write") {
		t.Errorf("%v, %v, permanent: %t", ended, o.err, Permanent(o.err))
	}
}

// TestAnInterpreterThatEndsIsStartedAgain: its end is no error of the job.
func TestAnInterpreterThatEndsIsStartedAgain(t *testing.T) {
	a := inPython(t, 2, 1, modules(t, "fails", map[string]any{"how": "exit"}), nil)
	o := train(t, a, nil)
	ended, ok := errors.AsType[*foreign.EndedError](o.err)
	if !ok || Permanent(o.err) || ended.How != "exit status 3" {
		t.Errorf("error %v", o.err)
	}
}

// TestAProgramThatHasChangedIsRefused.
func TestAProgramThatHasChangedIsRefused(t *testing.T) {
	a := inPython(t, 1, 1, modules(t, "build", map[string]any{"width": 16}), nil)
	a.Spec.Program = checkpoint.ObjectDigest([]byte("another"))
	if o := train(t, a, nil); !Permanent(o.err) || !strings.Contains(o.err.Error(), "modules.py") {
		t.Errorf("error %v", o.err)
	}
}

// tried are the configs of modules that a dry run has found, by all that it depends on.
var tried = map[string]*model.ModulesConfig{}

// dry is the config of a job's modules.
func dry(t testing.TB, j *job.Job) *model.ModulesConfig {
	t.Helper()
	by := fmt.Sprint(j.Model, j.Data, j.Train.Batch, j.Seed)
	if tried[by] == nil {
		front, err := dryrun.Front(nil, j)
		if err != nil {
			t.Fatal(err)
		}
		c, err := dryrun.Run(t.Context(), j, front, dryrun.Config(j, uint32(os.Getuid()))) //nolint:gosec // a user id fits
		if err != nil {
			t.Fatal(err)
		}
		tried[by] = c
	}
	return tried[by]
}
