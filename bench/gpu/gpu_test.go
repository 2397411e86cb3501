//go:build cuda && cgo && linux && amd64

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/cudatest"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/model"
)

// TestMain is the program where a step starts it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "step" {
		main()
		return
	}
	os.Exit(m.Run())
}

// toys are options for the driver of cudatest.
func toys(t *testing.T) options {
	library := cudatest.Library(t)
	return options{
		driver: library.Path(), libraries: library.Directory(), seconds: 0.001, limit: time.Minute, toy: true, out: filepath.Join(t.TempDir(), "report.json"),
	}
}

func readReport(t *testing.T, path string) (r record) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every step runs on the driver of cudatest, and finds what the report is read for.
func TestEveryStepPasses(t *testing.T) {
	o := toys(t)
	t.Setenv("FAKE_CUDA_DEVICES", "2")
	if err := smoke(t.Context(), o); err != nil {
		t.Error(err)
	}
	r := readReport(t, o.out)
	if !r.Passed || !r.Toy || len(r.Steps) != len(steps()) {
		t.Errorf("the report has %d steps of %d, passed: %t", len(r.Steps), len(steps()), r.Passed)
	}
	wants := map[string][]string{
		"driver": {"gpus"}, "kernels": {"device", "open_s"}, "libraries": {"device"}, "gradients": {"gpt2 f32", "resnet bf16"},
		"training": {"curves", "gpu bf16 apart"}, "pipelines": {"N=2, K=2, last loss"},
		"links": {"0 -> 1, peer copies, 4 KiB, GB/s", "1 -> 0, NCCL 2.19.3, 4 KiB, GB/s", "stage 0 -> 1 by", "stage 1 -> 0 by"}, "peak": {"bf16_tflops", "f32_tflops"}, "bandwidth": {"add_gb_per_s", "copy_gb_per_s"},
		"operations": {"kinds", "of_roofline"}, "launches": {"operations_a_step", "graphs_step_ms"}, "transfers": {"locked_to_device_gb_per_s", "plain_to_host_gb_per_s"},
	}
	for _, s := range r.Steps {
		t.Logf("%s: %.1f s: %v", s.Step, s.Seconds, s.Values["headline"])
		if !s.Passed {
			t.Errorf("%s: %s\n%s", s.Step, s.Error, s.Output)
		}
		for _, name := range wants[s.Step] {
			if v, there := s.Values[name]; !there || v == 0.0 {
				t.Errorf("%s: %s is %v", s.Step, name, v)
			}
		}
		if s.Step == "conformance" && strings.Count(s.Output, "--- PASS: ") < 6 {
			t.Errorf("the conformance suite printed\n%s", s.Output)
		}
	}
}

// Without a driver each step says so, later ones run all the same, and the run fails.
func TestWithoutADriverTheRunFailsAndSaysWhatIsMissing(t *testing.T) {
	o := options{driver: "no/libcuda.so.1", limit: time.Minute, toy: true, out: filepath.Join(t.TempDir(), "report.json"), parts: "driver,conformance,training,peak"}
	err := smoke(t.Context(), o)
	for _, want := range []string{"driver, conformance, training failed", "no CUDA device: no/libcuda.so.1: not found"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, expected it to say %q", err, want)
		}
	}
	r := readReport(t, o.out)
	if r.Passed || len(r.Steps) != 4 {
		t.Errorf("the report has %d steps, passed: %t", len(r.Steps), r.Passed)
	}
	for _, s := range r.Steps {
		if s.Passed || !strings.Contains(s.Error+s.Output, "no/libcuda.so.1") {
			t.Errorf("%s passed, or does not name the driver: %s", s.Step, s.Error)
		}
	}
}

// crooked is a device whose weight gradients are too long by one in a hundred.
type crooked struct{ device.Device }

func (c crooked) Do(op device.Op) {
	c.Device.Do(op)
	if m, ok := op.(*device.MatMul); ok && m.TransA {
		c.Device.Do(&device.Scale{X: m.C, A: 1.01})
	}
}

func TestAWrongGradientIsFound(t *testing.T) {
	m, err := model.Build("gpt2", families["gpt2"])
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		dev   device.Device
		wrong bool
	}{{crooked{ref.New()}, true}, {ref.New(), false}} {
		if off, err := gradientOff(c.dev, m, device.F32); err != nil || off > tolerance[device.F32] != c.wrong {
			t.Errorf("the gradient is off by %v, wrong: %t: %v", off, c.wrong, err)
		}
	}
}

func TestAStepOnAGPUThatFailsSaysWhich(t *testing.T) {
	o := toys(t)
	driver := cudatest.Library(t)
	driver.Trap("adam_step", cudatest.IllegalAddress)
	if found, err := compareTraining(o); err == nil || !strings.Contains(err.Error(), "gpu f32: ") || !strings.Contains(err.Error(), "AdamStep") {
		t.Errorf("found %v, %v", found, err)
	}
}

func TestAStepThatIsNotThereIsRefused(t *testing.T) {
	err := smoke(t.Context(), options{parts: "driver,conformity"})
	if err == nil || !strings.Contains(err.Error(), `names "conformity"; the steps are driver, kernels`) {
		t.Errorf("%v", err)
	}
}

func TestEachFamilyHasASmallModel(t *testing.T) {
	for _, family := range model.Families() {
		if _, there := families[family]; !there {
			t.Errorf("no small %s", family)
		}
	}
}

// The benchmark's parts run without a peer, and its figures are there.
func TestTheBenchmarkMeasures(t *testing.T) {
	o := toys(t)
	o.bench = bench{rounds: 1, own: true, csvTo: filepath.Join(t.TempDir(), "losses.csv")}
	figures, err := o.compare(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(figures) != 4 {
		t.Errorf("%d figures, want 4", len(figures))
	}
	for _, f := range figures {
		if f.Value <= 0 || f.Bar <= 0 || f.Conditions == nil {
			t.Errorf("figure %+v", f)
		}
	}
	text, err := os.ReadFile(o.bench.csvTo)
	if err != nil {
		t.Fatal(err)
	}
	if lines := slices.Collect(strings.Lines(string(text))); len(lines) != 16 || lines[0] != "step,cpu,gpu f32,gpu bf16\n" || strings.Count(lines[15], ",") != 3 {
		t.Errorf("the losses are\n%s", text)
	}
}
