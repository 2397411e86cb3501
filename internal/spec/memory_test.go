package spec_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
	workers "github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/device/cuda"
	"github.com/avgpipe/avgpipe/stage/model"
)

// What admission finds is what the worker's devices are asked for: with exactly so much a job runs, with a byte less it does
// not, and is refused beforehand.
func TestMemoryIsWhatTheStagesTake(t *testing.T) {
	for _, set := range [][]string{
		nil,
		{"pipelines=1", "schedule=afp"},
		{"recompute=full", "optimizer.name=sgd", "averaging.pull=new"},
		{"schedule=zb-h1", "recompute=block", "precision=bf16"},
		{"schedule=interleaved", "averaging.pull=elastic"},
	} {
		t.Run(strings.Join(set, " "), func(t *testing.T) {
			found, err := emulated(t, set...)
			if err != nil {
				t.Fatal(err)
			}
			j, plan := &found.Job, found.Plan
			need := make([]float64, len(plan))
			bytes := onDevices(t, set...)
			for k, d := range plan.Placement() {
				need[d] += float64(bytes[k])
			}
			j.Devices.Emulated.Memory = need
			if err := tryOut(t, j, plan); err != nil {
				t.Errorf("with as much as is needed: %v", err)
			}
			j.Devices.Emulated.Memory = slices.Clone(need)
			j.Devices.Emulated.Memory[1]--
			if err := tryOut(t, j, plan); err == nil || !strings.Contains(err.Error(), "available on the emulated device") {
				t.Errorf("with a byte less on device 1: %v", err)
			}
			_, facts := parsed(t, emulatedJob, 0, set...)
			_, problems := spec.Resolve(j, facts, nil)
			if len(problems) != 1 || !strings.Contains(problems.Error(), "1 bytes short") ||
				!strings.Contains(problems.Error(), "stage 1 needs") && !strings.Contains(problems.Error(), "stages 1, ") {
				t.Errorf("with a byte less on device 1: %v", problems)
			}
		})
	}
}

// tryOut trains a batch.
func tryOut(t *testing.T, j *job.Job, plan schedule.Plan) error {
	t.Helper()
	m, err := model.Build(j.Model.Family, j.Model.Config)
	if err != nil {
		t.Fatal(err)
	}
	s, err := spec.New(&spec.Resolution{Job: *j}, m, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	trials, err := workers.OpenTrials(t.Context(), s, cuda.Config{}, "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := trials.Close(); err != nil {
			t.Error(err)
		}
	}()
	_, err = trials.Run(t.Context(), workers.TrialConfig{Job: *j, Plan: plan, WarmUp: 1, Batches: 1})
	return err
}

func TestStagesThatDoNotFitAreRefusedWithWhatWouldFit(t *testing.T) {
	bytes := onDevices(t)
	most := slices.Max(bytes)
	worst := slices.Index(bytes, most)
	_, err := emulated(t, fmt.Sprintf("devices.emulated.memory=%d", most-100))
	for _, part := range []string{
		fmt.Sprintf("stage %d needs %d bytes, and the memory of its device is %d: 100 bytes short", worst, most, most-100),
		"recompute: ", "micro_batches: 8", "stages: ", "would fit",
	} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
	if _, err := emulated(t, fmt.Sprintf("devices.emulated.memory=%d", most)); err != nil {
		t.Errorf("what fits exactly is refused: %v", err)
	}
	if _, err := emulated(t, "devices.emulated.memory=1000"); err == nil || !strings.Contains(err.Error(), "use a smaller model") {
		t.Errorf("what never fits: %v", err)
	}
	if _, err := emulated(t, "devices.emulated.flops=[1, 2, 3]"); err == nil || !strings.Contains(err.Error(), "entries for 3 devices, and there are 4") {
		t.Errorf("flops of three devices for four: %v", err)
	}
}

// Each change that a refusal names makes the job fit, whether of one key or of several, and of devices' own memory or the host's.
func TestWhatIsSaidToFitFits(t *testing.T) {
	base := []string{"tuning=rules", "pipelines=3", "micro_batches=2", "schedule=gpipe", "stages=2"}
	several, batches := 0, 0
	for _, source := range []string{emulatedJob, refJob} {
		refused := func(memory int64, set ...string) error {
			all := slices.Concat(base, set)
			if source == emulatedJob {
				all, memory = append(all, fmt.Sprintf("devices.emulated.memory=%d", memory)), 0
			}
			_, err := resolve(t, source, memory, all...)
			return err
		}
		memory := int64(1 << 40)
		for refused(memory) == nil {
			memory = memory * 9 / 10
		}
		for ; ; memory = memory * 9 / 10 {
			said := refused(memory).Error()
			if most := "; of its 2 stages, stage "; source == refJob && !strings.Contains(said, most) {
				t.Errorf("%d bytes: %q does not say %q", memory, said, most)
			}
			fits, _, would := strings.Cut(said[strings.LastIndex(said, "; ")+2:], " would fit")
			if !would {
				break
			}
			for change := range strings.SplitSeq(fits, " or ") {
				keys := strings.NewReplacer(" with ", "\n", " and ", "\n", ", ", "\n", ": ", "=").Replace(change)
				if strings.Contains(keys, "\n") {
					several++
				}
				if strings.Contains(keys, "train.batch") {
					batches++
				}
				if err := refused(memory, strings.Split(keys, "\n")...); err != nil {
					t.Errorf("%d bytes: %q: %v", memory, change, err)
				}
			}
		}
	}
	if several < 2 || batches < 2 {
		t.Errorf("changes of several keys are named %d times, and smaller batches %d times", several, batches)
	}
}
