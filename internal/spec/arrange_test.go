package spec_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// With tuning: rules, recompute: auto is the least that the emulated devices' memory allows, device by device; and it runs there.
func TestRulesRecomputeAsLittleAsTheMemoryAllows(t *testing.T) {
	pins := []string{"train.batch=64", "micro_batches=64"} // enough of them for full to gain
	rules := append([]string{"tuning=rules", "recompute=auto"}, pins...)
	none, block, full := most(t, pins...), most(t, append(pins, "recompute=block")...), most(t, append(pins, "recompute=full")...)
	if none <= block || block <= full {
		t.Fatalf("stages take %d, %d and %d bytes; a test needs them to fall", none, block, full)
	}
	for _, c := range []struct {
		memory  int64
		allowed []string
		why     string
	}{
		{0, []string{"none"}, "recompute none: what the devices hold is not known"},
		{none, []string{"none"}, "recompute none: the devices hold everything"},
		{none - 1, []string{"none", "block"}, ": the least that the memory of the devices allows"},
		{full, []string{"none", "block", "full"}, ": the least that the memory of the devices allows"},
	} {
		s, err := emulatedSpec(t, append(rules, fmt.Sprintf("devices.emulated.memory=%d", c.memory))...)
		if err != nil {
			t.Fatalf("%d bytes: %v", c.memory, err)
		}
		all := s.Job.Recompute
		for _, word := range c.allowed {
			if !slices.Contains(all, word) && len(all) > 1 && word == c.allowed[len(c.allowed)-1] {
				t.Errorf("%d bytes: recompute %v, want %s somewhere", c.memory, all, word)
			}
		}
		if i := slices.IndexFunc(all, func(word string) bool { return !slices.Contains(c.allowed, word) }); i >= 0 {
			t.Errorf("%d bytes: recompute %v, want of %v only", c.memory, all, c.allowed)
		}
		if !slices.ContainsFunc(s.Why, func(why string) bool { return strings.Contains(why, c.why) }) {
			t.Errorf("%d bytes: %q does not say %q", c.memory, s.Why, c.why)
		}
		plan, _, err := s.Plan()
		if err != nil {
			t.Fatal(err)
		}
		if err := tryOut(t, &s.Job, plan); err != nil {
			t.Errorf("%d bytes: %v", c.memory, err)
		}
	}
	_, err := emulatedSpec(t, append(rules, fmt.Sprintf("devices.emulated.memory=%d", full-1))...)
	if err == nil || !strings.Contains(err.Error(), "1 bytes short") || strings.Contains(err.Error(), "recompute: ") {
		t.Errorf("less than full recomputation takes: %v", err)
	}
}

// afp knows the times of devices that are told them, so its warm-up is that which hides their links.
func TestFixedTimesSizeTheWarmUp(t *testing.T) {
	base := []string{"schedule=afp", "train.batch=32", "micro_batches=32", "devices.emulated.forward=2ms", "devices.emulated.backward=4ms"}
	warmup := func(set ...string) ([]int, string) {
		s, err := emulatedSpec(t, append(slices.Clone(base), set...)...)
		if err != nil {
			t.Fatalf("%v: %v", set, err)
		}
		plan, why, err := s.Plan()
		if err != nil {
			t.Fatalf("%v: %v", set, err)
		}
		return schedule.Warmup(plan), why
	}
	for _, c := range []struct {
		set  []string
		want string
		why  string
	}{
		{nil, "[4 3 2 1]", "sized to hide each link"},
		{[]string{"devices.emulated.link.latency=3ms"}, "[7 5 3 1]", "sized to hide each link"},
		{[]string{"devices.emulated.link.latency=9ms"}, "[13 9 5 1]", "sized to hide each link"},
		// A message is 4 bytes of 32 positions of 32 values: 4096 bytes, of which this link sends one in 3 ms.
		{[]string{"devices.emulated.link.bandwidth=1365334"}, "[7 5 3 1]", "sized to hide each link"},
		{[]string{"devices.emulated.link.bandwidth=682667", "boundary_precision=bf16"}, "[7 5 3 1]", "sized to hide each link"}, // half the bytes
		{[]string{"devices.emulated.link.bandwidth=682667"}, "[10 7 4 1]", "sized to hide each link"},
		{[]string{"devices.emulated.link.latency=9ms", "recompute=full"}, "[13 9 5 1]", "sized to hide each link"}, // 18 ms in 8 are 3, too
		{[]string{"devices.emulated.link.latency=9ms", "devices.emulated.flops=1e9", "devices.emulated.forward=0", "devices.emulated.backward=0"}, "[7 5 3 1]", "no costs known"},
	} {
		found, why := warmup(c.set...)
		if fmt.Sprint(found) != c.want || !strings.Contains(why, c.why) {
			t.Errorf("%v: warm-up %v (%s), want %s (%s)", c.set, found, why, c.want, c.why)
		}
	}
}

// A memory that is too small for the warm-up that hides the links is not a reason to refuse the job.
func TestMemoryShortensTheWarmUp(t *testing.T) {
	slow := []string{"schedule=afp", "micro_batches=16", "devices.emulated.link.latency=1ms"}
	roomy, tight := most(t, slow...), most(t, "schedule=1f1b", "micro_batches=16")
	if tight >= roomy {
		t.Fatalf("1f1b takes %d bytes, afp %d", tight, roomy)
	}
	s, err := emulatedSpec(t, append(slow, fmt.Sprintf("devices.emulated.memory=%d", (tight+roomy)/2))...)
	if err != nil {
		t.Fatal(err)
	}
	plan, why, err := s.Plan()
	if err != nil || !strings.Contains(why, "lowered from") {
		t.Fatalf("%s, %v", why, err)
	}
	if err := tryOut(t, &s.Job, plan); err != nil {
		t.Error(err)
	}
	if !slices.ContainsFunc(s.Why, func(line string) bool { return strings.Contains(line, why) }) {
		t.Errorf("%q does not say why: %s", s.Why, why)
	}
	_, err = emulatedSpec(t, append(slow, fmt.Sprintf("devices.emulated.memory=%d", tight-1))...)
	if err == nil || !strings.Contains(err.Error(), ": 1 bytes short; ") {
		t.Errorf("less than 1f1b takes: %v", err)
	}
}

// Counts by rule fit, or the refusal names a change that does.
func TestCountsByRuleThatDoNotFitAreRefusedWithWhatWould(t *testing.T) {
	rules := []string{"tuning=rules", "pipelines=auto", "micro_batches=auto"}
	two, one := most(t, rules...), most(t, append(rules, "pipelines=1")...)
	memory := fmt.Sprintf("devices.emulated.memory=%d", (one+two)/2)
	if _, err := emulatedSpec(t, append(rules, memory)...); err == nil || !strings.Contains(err.Error(), "pipelines: 1 ") {
		t.Errorf("what two pipelines do not fit: %v", err)
	}
	if _, err := emulatedSpec(t, append(rules, memory, "pipelines=1")...); err != nil {
		t.Errorf("what was proposed is refused: %v", err)
	}
	least := most(t, "pipelines=1", "micro_batches=16", "recompute=full", "schedule=gpipe")
	_, err := emulatedSpec(t, "train.batch=16", "micro_batches=2", fmt.Sprintf("devices.emulated.memory=%d", least))
	if err == nil || !strings.Contains(err.Error(), "would fit") {
		t.Errorf("what several changes make fit: %v", err)
	}
}

func TestListsOfOpenJobsAreChecked(t *testing.T) {
	for _, c := range []struct {
		set  []string
		want string // "": accepted
	}{
		{[]string{"stages=auto", "devices.emulated.forward=[1ms, 2ms]"}, "devices.emulated.forward has entries for 2 stages, and how many there are is to be measured (stages: auto)"},
		{[]string{"stages=auto", "recompute=[none, full]"}, "recompute has entries for 2 stages"},
		{[]string{"schedule=auto", "devices.emulated.step=[1ms, 2ms, 3ms, 4ms]"}, "devices.emulated.step has entries for 4 stages, and how many there are is to be measured (schedule: auto"},
		{[]string{"pipelines=auto", "micro_batches=auto", "devices.emulated.forward=[1ms, 2ms]"}, "devices.emulated.forward has entries for 2 stages, and there are 4"},
		{[]string{"pipelines=auto", "devices.emulated.forward=[1ms, 2ms, 3ms, 4ms]"}, ""},
		{[]string{"schedule=auto", "recompute=[none, full, none, none]"}, ""},
		{[]string{"stages=auto", "devices.emulated.flops=[1e9, 2e9]", "devices.emulated.memory=[1, 2, 3]"}, "devices.emulated.memory has entries for 3 devices, and there are 2"},
		{[]string{"stages=auto", "devices.emulated.flops=[1e9, 2e9]"}, ""},
		{[]string{"devices.emulated.count=3"}, "devices.emulated.count is 3 for 4 stages"},
		{[]string{"devices.emulated.count=3", "pipelines=auto"}, "devices.emulated.count is 3 for 4 stages"},
		{[]string{"devices.emulated.count=6", "devices.emulated.memory=[1e9, 1e9, 1e9, 1e9, 1e9, 1e9]"}, ""},
	} {
		_, err := emulatedSpec(t, c.set...)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: error %v, want %q", c.set, err, c.want)
		}
	}
}

// What a tuning chose is held to the devices' memory once more, whoever counted it.
func TestChosenCountsThatDoNotFitAreNotResolved(t *testing.T) {
	set := []string{"pipelines=auto", "recompute=auto"}
	chosen := func(recompute string) *tuner.Report {
		c := tuner.Candidate{
			Devices: 4, Chunks: 1, Pipelines: 2, MicroBatches: 4, Schedule: "gpipe", Recompute: slices.Repeat([]string{recompute}, 4),
			Split: [][2]int{{0, 2}, {2, 4}, {4, 6}, {6, 8}}, Costs: schedule.Uniform(4, 1, 2, 0),
		}
		return &tuner.Report{Version: tuner.ReportVersion, Chosen: c}
	}
	s, err := emulatedSpec(t, set...)
	if err != nil || !s.Job.Open() {
		t.Fatalf("open: %v, %v", err == nil && s.Job.Open(), err)
	}
	roomy, err := s.Tuned(chosen("full"), 2)
	if err != nil || fmt.Sprint(roomy.Job.Recompute) != "[full]" || roomy.Job.Open() {
		t.Fatalf("%v", err)
	}
	if !slices.ContainsFunc(roomy.Why, func(why string) bool { return strings.HasPrefix(why, "recompute full: ") }) {
		t.Errorf("%q does not say what is computed again", roomy.Why)
	}
	tight := func(bytes int64) *spec.Spec {
		out := *s
		out.Job.Devices.Emulated.Memory = []float64{float64(bytes)}
		return &out
	}
	_, facts := parsed(t, emulatedJob, 0, set...)
	found, problems := spec.Resolve(&tight(1e15).Job, facts, chosen("full"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	most := int64(0)
	for _, m := range found.Memory {
		most = max(most, m.OnDevice())
	}
	if _, err := tight(most).Tuned(chosen("full"), 2); err != nil {
		t.Errorf("with exactly what it takes: %v", err)
	}
	if _, err := tight(most).Tuned(chosen("none"), 2); err == nil || !strings.Contains(err.Error(), "bytes short") {
		t.Errorf("without recomputation: %v", err)
	}
}

// Other devices do not say what they hold: nothing is computed again until somebody measures.
func TestRulesRecomputeNothingOnRealDevices(t *testing.T) {
	s, err := emulatedSpec(t, "devices={kind: ref}", "tuning=rules", "recompute=auto")
	if err != nil || fmt.Sprint(s.Job.Recompute) != "[none]" || s.Layout.Costs.Forward != nil {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err := emulatedSpec(t, "devices={kind: ref}", "recompute=auto"); err != nil || !s.Job.Open() || s.Job.Recompute[0] != job.AutoRecompute {
		t.Errorf("%+v, %v", s, err)
	}
}
