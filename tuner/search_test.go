package tuner

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
)

// layers prices memory by the layer: every one has the same parameters and activations.
type layers struct {
	parameters, inFlight int64 // bytes of one layer; of one layer and sample
}

func (l layers) Stage(s StageSpec) (Memory, error) {
	n := int64(s.To - s.From)
	inFlight := n * l.inFlight * int64(s.Samples)
	m := Memory{Weights: n * l.parameters, Gradients: n * l.parameters, State: 2 * n * l.parameters}
	switch s.Recompute {
	case "none":
		m.Activations = int64(s.Slots) * inFlight
	case "block": // an eighth stays, and one layer's own
		m.Activations = int64(s.Slots)*inFlight/8 + l.inFlight*int64(s.Samples)
	case "full":
		m.Activations = inFlight
	}
	of := int64(s.Pipelines)
	m = Memory{Weights: of * m.Weights, Gradients: of * m.Gradients, State: of * m.State, Activations: of * m.Activations}
	if of > 1 {
		m.Center = (2 + 2*of) * n * l.parameters
	}
	return m, nil
}

// profileOf has so many equal layers: a forward takes 1 ms for a sample and 0.5 ms beside that, a backward twice as much.
func profileOf(n, devices int) *Profile {
	line := func(fixed, each float64) Curve {
		return Curve{Samples: []int{1, 8}, Values: []float64{fixed + each, fixed + 8*each}}
	}
	p := &Profile{Samples: []int{1, 8}, Sizer: layers{parameters: 1e6, inFlight: 1e5}}
	for i := range n {
		p.Layers = append(p.Layers, Layer{
			Name: fmt.Sprint("layer ", i), Forward: line(0.5e-3, 1e-3), Backward: line(1e-3, 2e-3),
			BackwardInput: line(0.5e-3, 1e-3), BackwardWeight: line(0.5e-3, 1e-3),
			Optimizer: 0.2e-3, Average: 0.1e-3, OutputBytes: 4096, ActivationBytes: 1e5, Parameters: 250000,
		})
	}
	for range devices {
		p.Devices = append(p.Devices, Device{Name: "test", Slowdown: 1})
	}
	for range devices - 1 {
		p.Links = append(p.Links, Link{LatencySeconds: 1e-5})
	}
	return p
}

func spaceOf(p *Profile) Space {
	return Space{
		Batch: 16, Targets: []Target{{Devices: len(p.Devices), Threads: 1, Profile: p}}, MicroBatches: divisors(16),
		Schedules: []string{"gpipe", "1f1b", "afp"}, Recompute: []string{"none"}, AverageEvery: 1,
	}
}

func TestTheChosenCandidateHasTheHighestPredictedThroughput(t *testing.T) {
	p := profileOf(8, 4)
	out, err := Search(spaceOf(p))
	if err != nil {
		t.Fatal(err)
	}
	best := out.Ranked[0]
	if best.Verdict != Won || best.Pipelines < 2 {
		t.Errorf("won: %+v, want several pipelines that fill the bubble", best)
	}
	for _, c := range out.Ranked[1:] {
		if c.Verdict == Won || c.Reason == "" {
			t.Errorf("%+v has no reason", c)
		}
		of := func(c *Candidate) float64 {
			return c.Predicted.SamplesPerSecond / (1 + 0.05*float64(c.Pipelines-1)) // nobody says how many more samples they need
		}
		if of(&c) > of(&best)*(1+2*Tie) {
			t.Errorf("%s M=%d N=%d is faster than what won, by more than its pipelines must gain", c.Schedule, c.MicroBatches, c.Pipelines)
		}
	}
	if out.Considered != len(out.Ranked)+len(out.Refused) {
		t.Errorf("considered %d, ranked %d, refused %d", out.Considered, len(out.Ranked), len(out.Refused))
	}
}

// What a candidate predicts is what the simulator says of the plan that can be made again from it.
func TestACandidateHasAllThatItsPlanNeeds(t *testing.T) {
	p := profileOf(9, 3)
	p.Links[1].LatencySeconds = 4e-3
	out, err := Search(spaceOf(p))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range out.Ranked {
		text, err := json.Marshal(c)
		if err != nil {
			t.Fatal(err)
		}
		var read Candidate
		if err := json.Unmarshal(text, &read); err != nil {
			t.Fatal(err)
		}
		plan, _, err := Plan(&read)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(schedule.Warmup(plan), c.Warmup) {
			t.Fatalf("%s: the plan has warm-up %v, the candidate says %v", c.Schedule, schedule.Warmup(plan), c.Warmup)
		}
		const batches = 40 // filling and draining count little
		r, err := schedule.SimulateMany(plan, read.Costs, schedule.Load{Pipelines: c.Pipelines, Batches: batches, AverageEvery: 1})
		if err != nil {
			t.Fatal(err)
		}
		if d := r.Makespan/batches/c.Predicted.BatchSeconds - 1; d > 0.03 || d < -0.03 {
			t.Errorf("%s M=%d N=%d: simulated %v s a batch, predicted %v", c.Schedule, c.MicroBatches, c.Pipelines,
				r.Makespan/batches, c.Predicted.BatchSeconds)
		}
	}
}

// One stage has no bubble, so that a second pipeline gains nothing: of equals the smaller N wins.
func TestOfEqualsTheSmallerNumberOfPipelinesWins(t *testing.T) {
	p := profileOf(4, 1)
	for i := range p.Layers {
		p.Layers[i].Average = 0
	}
	out, err := Search(spaceOf(p))
	if err != nil {
		t.Fatal(err)
	}
	if n := out.Ranked[0].Pipelines; n != 1 {
		t.Errorf("%d pipelines won on a single stage", n)
	}
	for _, c := range out.Ranked {
		if c.Pipelines == 2 && c.MicroBatches == out.Ranked[0].MicroBatches && c.Verdict == Slower {
			t.Errorf("two pipelines: %s %s", c.Verdict, c.Reason)
		}
	}
}

func TestTermsAddUpToTheBatch(t *testing.T) {
	out, err := Search(spaceOf(profileOf(8, 4)))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range out.Ranked {
		for s, terms := range c.Predicted.Stages {
			sum := float64(c.Pipelines)*(terms.ComputeSeconds+terms.OptimizerSeconds+terms.AverageSeconds) + terms.WaitSeconds
			if sum < c.Predicted.BatchSeconds*(1-1e-9) || sum > c.Predicted.BatchSeconds*(1+1e-9) {
				t.Errorf("%s M=%d N=%d stage %d: terms add up to %v of %v s", c.Schedule, c.MicroBatches, c.Pipelines, s, sum, c.Predicted.BatchSeconds)
			}
		}
	}
}

func TestSearchDependsOnItsArgumentOnly(t *testing.T) {
	first, err := Search(spaceOf(profileOf(7, 3)))
	if err != nil {
		t.Fatal(err)
	}
	second, err := Search(spaceOf(profileOf(7, 3)))
	if err != nil || !reflect.DeepEqual(first, second) {
		t.Errorf("two searches differ: %v", err)
	}
}

// Memory for one pipeline alone: more are refused, and the reason names stage and bytes.
func TestWhatDoesNotFitIsRefusedWithTheBytesThatLack(t *testing.T) {
	p := profileOf(8, 2)
	for d := range p.Devices {
		p.Devices[d].CapacityBytes = 30e6 // weights, gradients and state of 4 layers are 16e6
	}
	out, err := Search(spaceOf(p))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range out.Ranked {
		if c.Pipelines != 1 {
			t.Errorf("%d pipelines were taken", c.Pipelines)
		}
		for s, terms := range c.Predicted.Stages {
			if n := terms.Memory.Total(); n > p.Devices[terms.Device].CapacityBytes {
				t.Errorf("stage %d holds %d bytes", s, n)
			}
		}
	}
	i := slices.IndexFunc(out.Refused, func(c Candidate) bool { return c.Verdict == NoMemory })
	if i < 0 || !strings.Contains(out.Refused[i].Reason, "lacks") || !strings.Contains(out.Refused[i].Reason, "stage ") {
		t.Errorf("refused: %+v", out.Refused)
	}
}

// afp lowers its warm-up where memory is short, instead of being refused.
func TestAShortMemoryShortensTheWarmup(t *testing.T) {
	p := profileOf(8, 2)
	p.Links[0].LatencySeconds = 30e-3
	s := spaceOf(p)
	s.Pipelines, s.MicroBatches, s.Schedules = []int{1}, []int{16}, []string{"afp"}
	free, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	wanted := free.Ranked[0]
	p.Devices[0].CapacityBytes = wanted.Predicted.Stages[0].Memory.Total() - 1
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	got := out.Ranked[0]
	if got.Warmup[0] >= wanted.Warmup[0] || got.InFlightLimit == nil {
		t.Errorf("warm-up is %v, without the limit %v", got.Warmup, wanted.Warmup)
	}
	if got.Predicted.BatchSeconds < wanted.Predicted.BatchSeconds {
		t.Errorf("the shorter warm-up is predicted to be faster")
	}
}

func TestRecomputationMakesRoomWhereItIsOpen(t *testing.T) {
	p := profileOf(8, 2)
	for d := range p.Devices {
		p.Devices[d].CapacityBytes = 18e6
	}
	s := spaceOf(p)
	s.Pipelines, s.MicroBatches, s.Schedules = []int{1}, []int{2}, []string{"gpipe"}
	_, err := Search(s)
	short, is := errors.AsType[*NoFitError](err)
	if !is {
		t.Fatalf("error is %v", err)
	}
	if short.Bytes() <= 0 || !strings.Contains(err.Error(), "stage ") || !strings.Contains(err.Error(), strconv.FormatInt(short.Bytes(), 10)) {
		t.Errorf("error is %v, want stage and bytes", err)
	}
	s.Recompute = []string{"none", "block", "full"}
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(out.Ranked[0].Recompute, func(r string) bool { return r != "none" }) {
		t.Errorf("recompute is %v", out.Ranked[0].Recompute)
	}
}

func TestDevicesThatShareTheHostAreCountedTogether(t *testing.T) {
	p := profileOf(8, 2)
	p.HostBytes = 40e6 // one pipeline: 32e6 and activations
	out, err := Search(spaceOf(p))
	if err != nil {
		t.Fatal(err)
	}
	if n := out.Ranked[0].Pipelines; n != 1 {
		t.Errorf("%d pipelines", n)
	}
	p.HostBytes = 10e6
	_, err = Search(spaceOf(p))
	short, is := errors.AsType[*NoFitError](err)
	if !is || short.Device != -1 || !strings.Contains(err.Error(), "the host") {
		t.Errorf("error is %v", err)
	}
}

func TestASlowDeviceGetsFewerLayersAndSaysSo(t *testing.T) {
	p := profileOf(12, 2)
	p.Devices[0].Slowdown = 3
	s := spaceOf(p)
	s.Pipelines = []int{1}
	out, err := Search(s)
	if err != nil {
		t.Fatal(err)
	}
	if split := out.Ranked[0].Split; !reflect.DeepEqual(split, [][2]int{{0, 3}, {3, 12}}) {
		t.Errorf("split is %v", split)
	}
}

func TestMoreStagesThanLayersNameTheMostThatFit(t *testing.T) {
	_, err := Search(spaceOf(profileOf(3, 5)))
	if short, is := errors.AsType[*StagesError](err); !is || short.Layers != 3 {
		t.Errorf("error is %v", err)
	}
}

func TestSpacesThatCannotBeSearchedAreRefused(t *testing.T) {
	good := spaceOf(profileOf(4, 2))
	for want, change := range map[string]func(s *Space){
		"a divisor":     func(s *Space) { s.MicroBatches = []int{3} },
		"0 schedules":   func(s *Space) { s.Schedules = nil },
		"recomputation": func(s *Space) { s.Recompute = nil },
		"does not have": func(s *Space) { s.Targets = []Target{{Devices: 9, Profile: s.Targets[0].Profile}} },
		"0 pipelines":   func(s *Space) { s.Pipelines = []int{0} },
		"0 links":       func(s *Space) { p := *s.Targets[0].Profile; p.Links = nil; s.Targets = []Target{{2, 1, &p}} },
		"slowdown, its inverse, capacity: [0 ": func(s *Space) {
			p := *s.Targets[0].Profile
			p.Devices = make([]Device, 2)
			s.Targets = []Target{{2, 1, &p}}
		},
		"unknown_schedule": func(s *Space) { s.Schedules = []string{"unknown_schedule"} },
	} {
		s := good
		change(&s)
		if _, err := Search(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error is %v, want %q", err, want)
		}
	}
}

// Random profiles: whatever Search takes fits, and every candidate has a verdict.
func TestWhateverIsTakenFits(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 60 {
		p := profileOf(2+r.IntN(9), 1+r.IntN(2))
		for d := range p.Devices {
			p.Devices[d].CapacityBytes = int64(4e6 + r.IntN(60e6))
			p.Devices[d].Slowdown = 1 + r.Float64()
		}
		s := spaceOf(p)
		s.Recompute = []string{"none", "block", "full"}
		out, err := Search(s)
		if _, short := errors.AsType[*NoFitError](err); short {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range out.Ranked {
			held := make([]int64, c.Devices)
			for _, terms := range c.Predicted.Stages {
				held[terms.Device] += terms.Memory.Total()
			}
			for d, n := range held {
				if n > p.Devices[d].CapacityBytes {
					t.Fatalf("device %d holds %d of %d bytes", d, n, p.Devices[d].CapacityBytes)
				}
			}
		}
		for _, c := range out.Refused {
			if c.Verdict == "" || c.Reason == "" {
				t.Fatalf("refused without a reason: %+v", c)
			}
		}
	}
}

func BenchmarkSearch(b *testing.B) {
	s := spaceOf(profileOf(26, 8))
	s.Batch, s.MicroBatches = 64, divisors(64)
	for b.Loop() {
		if _, err := Search(s); err != nil {
			b.Fatal(err)
		}
	}
}

// divisors of n, ascending.
func divisors(n int) (all []int) {
	for d := 1; d <= n; d++ {
		if n%d == 0 {
			all = append(all, d)
		}
	}
	return all
}
