package schedule

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// TestSpreadOverKeepsTheWholeAndItsLinks: parts add up to their stage, and messages cross the links between the devices that
// the plan places them on.
func TestSpreadOverKeepsTheWholeAndItsLinks(t *testing.T) {
	costs := Costs{
		Forward: []float64{2, 4, 6}, Backward: []float64{4, 8, 12}, Update: []float64{1, 1, 1},
		Link: []float64{0.5, 3}, Bandwidth: []float64{10, 20}, MessageBytes: []int64{7, 8},
		ActivationBytes: []int64{10, 20, 30}, CapacityBytes: []int64{100, 100, 100},
	}
	if plain := mustGenerate(t, "1f1b", Request{Devices: 3, MicroBatches: 3}); !slices.Equal(costs.SpreadOver(plain).Forward, costs.Forward) {
		t.Error("one stage a device is changed")
	}
	rounds := costs.SpreadOver(mustGenerate(t, "interleaved", Request{Devices: 3, MicroBatches: 3, Chunks: 2}))
	if err := rounds.Validate(6); err != nil {
		t.Fatal(err)
	}
	if want := []float64{1, 1, 2, 2, 3, 3}; !slices.Equal(rounds.Forward, want) {
		t.Errorf("forwards %v; want %v", rounds.Forward, want)
	}
	if want := []int64{5, 5, 10, 10, 15, 15}; !slices.Equal(rounds.ActivationBytes, want) {
		t.Errorf("activations %v; want %v", rounds.ActivationBytes, want)
	}
	// From the last device back to the first, as slow as the slowest.
	if want := []float64{0.5, 3, 3, 0.5, 3}; !slices.Equal(rounds.Link, want) {
		t.Errorf("latencies %v; want %v", rounds.Link, want)
	}
	if want := []float64{10, 20, 10, 10, 20}; !slices.Equal(rounds.Bandwidth, want) {
		t.Errorf("bandwidths %v; want %v", rounds.Bandwidth, want)
	}
	costs.Bandwidth[0] = 0 // no limit
	if _, bandwidth := costs.between(2, 0); bandwidth != 20 {
		t.Errorf("bandwidth %v where one link has no limit; want that of the other, 20", bandwidth)
	}
	if want := []int64{7, 7, 8, 8, 8}; !slices.Equal(rounds.MessageBytes, want) {
		t.Errorf("messages %v; want %v", rounds.MessageBytes, want)
	}
	// Down and up again in a V, and nothing between the two stages of the last device.
	v := costs.SpreadOver(mustGenerate(t, "zb-v", Request{Devices: 3, MicroBatches: 3}))
	if want := []float64{0.5, 3, 0, 3, 0.5}; !slices.Equal(v.Link, want) {
		t.Errorf("latencies in the V %v; want %v", v.Link, want)
	}
	// One device: no links at all.
	alone := Uniform(1, 1, 2, 0).SpreadOver(mustParse(t, "0F0 1F0 1B0 0B0"))
	if err := alone.Validate(2); err != nil {
		t.Error(err)
	}
}

// TestTrySizesPlansToMemory where the schedule can, and says by how much the others are short.
func TestTrySizesPlansToMemory(t *testing.T) {
	costs := Uniform(4, 1, 2, 1.5)
	costs.ActivationBytes, costs.CapacityBytes = repeat[int64](100, 4), repeat[int64](550, 4)
	candidates := tryAll(t, Names(), 12, costs)
	short := make(map[string]int64)
	for _, c := range candidates {
		if c.Err != nil {
			t.Errorf("%s: %v", c.Schedule, c.Err)
			continue
		}
		_, memory := c.Result.Worst()
		short[c.Schedule] = memory.Short()
		if c.Schedule == "afp" && !strings.Contains(c.Reason, "lowered from 8,6,4,1") && !strings.Contains(c.Reason, "lowered from 7,5,3,1") {
			t.Errorf("afp: %s", c.Reason)
		}
	}
	for name, want := range map[string]int64{"gpipe": 1200 - 550, "1f1b": 0, "afp": 0, "zb-h2": 700 - 550} {
		if short[name] != want {
			t.Errorf("%s is short of %d bytes; want %d", name, short[name], want)
		}
	}
	best, err := Best(candidates)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range candidates {
		if short[c.Schedule] == 0 && c.Result.Period < candidates[best].Result.Period*(1-rounding) {
			t.Errorf("%s is best, %s fits and is faster", candidates[best].Schedule, c.Schedule)
		}
	}
	costs.CapacityBytes = repeat[int64](50, 4)
	if _, err := Best(tryAll(t, []string{"1f1b", "afp"}, 12, costs)); !errors.Is(err, ErrNoneFits) {
		t.Errorf("%v; want none to fit", err)
	}
}

func TestTryRefusesWhatNoScheduleCanRun(t *testing.T) {
	good := Uniform(2, 1, 2, 0)
	bad := Uniform(2, 1, -2, 0)
	for _, c := range []struct {
		costs  Costs
		micros int
		load   Load
		want   string
	}{
		{bad, 4, Load{}, "backward of stage 0 is -2"},
		{good, 0, Load{}, "0 micro-batches"},
		{good, 4, Load{Pipelines: -1}, "pipelines is -1"},
		{Costs{}, 4, Load{}, "0 stages"},
	} {
		if _, err := Try("1f1b", c.micros, 0, c.costs, c.load); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v; want %q in it", err, c.want)
		}
	}
	if c, err := Try("zbh1", 4, 0, good, Load{}); err != nil || c.Err == nil {
		t.Errorf("%+v, %v; want an unknown schedule to be that one's error", c, err)
	}
}

// TestTryKeepsNoPlan, so that a comparison of large ones holds one at a time, and says how far it is until it is told to stop.
func TestTryKeepsNoPlan(t *testing.T) {
	costs := Uniform(64, 1, 2, 0)
	ran, all := 0, 0
	load := Load{Pipelines: 2, Proceed: func(r, a int) error { ran, all = r, a; return nil }}
	c, err := Try("pipedream", 1024, 0, costs, load)
	if err != nil || c.Err != nil || c.Result.plan != nil || c.Result.Makespan == 0 {
		t.Errorf("a result with a plan of %d devices, %v, %v; want none", len(c.Result.plan), c.Err, err)
	}
	if want := 2 * 64 * 3 * 1024; all != want || ran <= want/2 || ran > want {
		t.Errorf("heard of %d ops of %d; want nearly all of %d", ran, all, want)
	}
	stop := errors.New("stop")
	load.Proceed = func(int, int) error { return stop }
	if _, err := Try("gpipe", 1024, 0, costs, load); !errors.Is(err, stop) {
		t.Errorf("%v; want what Proceed said", err)
	}
}

// tryAll simulates schedules one after the other.
func tryAll(t *testing.T, names []string, microBatches int, costs Costs) (candidates []Candidate) {
	t.Helper()
	for _, name := range names {
		c, err := Try(name, microBatches, 0, costs, Load{})
		if err != nil {
			t.Fatal(err)
		}
		candidates = append(candidates, c)
	}
	return candidates
}

// TestInFlightLimitsAreWhatIsLeftOfTheCapacity after weights, gradients and state of each pipeline, and the center.
func TestInFlightLimitsAreWhatIsLeftOfTheCapacity(t *testing.T) {
	costs := Costs{
		ActivationBytes: []int64{100, 100, 100, 0}, CapacityBytes: []int64{1000, 0, 10, 1000},
		WeightBytes: repeat[int64](50, 4), GradientBytes: repeat[int64](60, 4), StateBytes: repeat[int64](70, 4), CenterBytes: repeat[int64](41, 4),
	}
	for pipelines, want := range map[int][]int{1: {7, 0, 1, 0}, 2: {2, 0, 1, 0}} { // (1000 - 180 - 41) / 100, (1000 - 2*180 - 41) / 200
		if got := costs.inFlightLimits(pipelines); !slices.Equal(got, want) {
			t.Errorf("%d pipelines: limits %v; want %v", pipelines, got, want)
		}
	}
}

// TestWorstIsTheDeviceThatIsShortOfMost and, where none is, the one that reserves most.
func TestWorstIsTheDeviceThatIsShortOfMost(t *testing.T) {
	r := Result{Memory: []DeviceMemory{{Reserved: 90}, {Reserved: 50, Capacity: 45}, {Reserved: 60, Capacity: 58}}}
	if device, memory := r.Worst(); device != 1 || memory.Short() != 5 {
		t.Errorf("device %d, short of %d; want 1, 5", device, memory.Short())
	}
	r.Memory[1].Capacity, r.Memory[2].Capacity = 50, 0
	if device, memory := r.Worst(); device != 0 || memory.Short() != 0 {
		t.Errorf("device %d, short of %d; want 0, 0", device, memory.Short())
	}
}

// TestBestIsTheFastestThatFits, of equals the one that reserves least.
func TestBestIsTheFastestThatFits(t *testing.T) {
	of := func(period float64, reserved, capacity int64) Candidate {
		return Candidate{Result: Result{Period: period, Memory: []DeviceMemory{{Reserved: reserved, Capacity: capacity}}}}
	}
	failed := Candidate{Err: errors.New("cannot run here")}
	for _, c := range []struct {
		candidates []Candidate
		want       int
	}{
		{[]Candidate{of(3, 10, 0), of(2, 90, 0), of(4, 1, 0)}, 1},
		{[]Candidate{of(3, 10, 0), of(2, 90, 80), failed}, 0},
		{[]Candidate{failed, of(2, 90, 0), of(2, 80, 0), of(2*(1+1e-12), 85, 0)}, 2},
		{[]Candidate{of(2, 80, 0), of(2, 80, 0)}, 0},
	} {
		if got, err := Best(c.candidates); err != nil || got != c.want {
			t.Errorf("%+v: %d, %v; want %d", c.candidates, got, err, c.want)
		}
	}
}

// TestBusiestIsTheLinkThatCarriesForMostOfTheTime.
func TestBusiestIsTheLinkThatCarriesForMostOfTheTime(t *testing.T) {
	r := Result{Links: []LinkLoad{{From: 0, Busy: 0.2}, {From: 1, Busy: 0.5}, {From: 2}}}
	if got := r.Busiest(); got.From != 1 {
		t.Errorf("%+v; want that from device 1", got)
	}
}
