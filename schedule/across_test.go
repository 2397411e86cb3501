package schedule

import (
	"strings"
	"testing"
)

// forSpans calls do for small pipelines and numbers of batches that a plan runs on across.
func forSpans(do func(name string, r Request, batches int)) {
	for _, name := range []string{"pipedream", "pipedream-2bw"} {
		for stages := 1; stages <= 5; stages++ {
			for microBatches := 1; microBatches <= 6; microBatches++ {
				for batches := 2; batches <= 5; batches++ {
					do(name, Request{Devices: stages, MicroBatches: microBatches, RoundBatches: batches}, batches)
				}
			}
		}
	}
}

// TestVersionsAreThoseOfThePapersAcrossBatches: PipeDream's micro-batch m, counted over all batches, reads on stage k of K the weights after m-(K-1-k)
// updates (Narayanan et al. 2019, section 3.3); group g of PipeDream-2BW those after g-1 on every stage (Narayanan et al. 2021, section 3.1).
func TestVersionsAreThoseOfThePapersAcrossBatches(t *testing.T) {
	forSpans(func(name string, r Request, batches int) {
		plan := mustGenerate(t, name, r)
		if err := Check(plan, r.MicroBatches); err != nil {
			t.Fatalf("%s %+v: %v", name, r, err)
		}
		if got := plan.Batches(r.MicroBatches); got != batches {
			t.Errorf("%s %+v: %d batches; want %d", name, r, got, batches)
		}
		group := 1
		if name == "pipedream-2bw" {
			group = updateGroup(r)
		}
		all := batches * r.MicroBatches
		if got := plan.Updates(); got != all/group {
			t.Errorf("%s %+v: %d updates; want %d", name, r, got, all/group)
		}
		for k, row := range plan {
			for _, op := range row {
				want := 0
				switch {
				case op.Kind != Forward:
				case name == "pipedream":
					want = max(0, op.Micro-(min(all, r.Devices-k)-1))
				default:
					want = max(0, op.Micro/group-1)
				}
				if op.Version != want {
					t.Errorf("%s %+v: stage %d: %v reads version %d; want %d", name, r, k, op, op.Version, want)
				}
			}
		}
		for k, versions := range VersionsByStage(plan) {
			w, most := min(all, r.Devices-k), 2
			if name == "pipedream" {
				most = min(w, all-w+2)
			}
			if versions > most || name == "pipedream" && versions != most {
				t.Errorf("%s %+v: stage %d keeps %d versions; want %d", name, r, k, versions, most)
			}
		}
	})
}

// TestBubbleIsOneDrainForAllBatches: (K-1)/(S*M+K-1) over S batches, with the links free, in which pipelines fill and drain once. So
// the time of a batch tends to M(F+B), that of a pipeline which never flushes.
func TestBubbleIsOneDrainForAllBatches(t *testing.T) {
	costs := func(stages int) Costs { return Uniform(stages, 1, 2, 0) }
	forSpans(func(name string, r Request, batches int) {
		if name == "pipedream-2bw" && r.MicroBatches < r.Devices {
			return // fewer in flight than stages
		}
		got := mustSimulateMany(t, mustGenerate(t, name, r), costs(r.Devices), Load{MicroBatches: r.MicroBatches})
		all := float64(batches * r.MicroBatches)
		wait := float64(r.Devices - 1)
		if want := wait / (all + wait); !near(got.Bubble, want) {
			t.Errorf("%s %+v: bubble %v; want %v", name, r, got.Bubble, want)
		}
		if want := 3 * (all + wait) / float64(batches); !near(got.Period, want) {
			t.Errorf("%s %+v: a batch takes %v; want %v", name, r, got.Period, want)
		}
	})
	long := Request{Devices: 8, MicroBatches: 8, RoundBatches: 128}
	for _, name := range []string{"pipedream", "pipedream-2bw"} {
		got := mustSimulateMany(t, mustGenerate(t, name, long), costs(8), Load{MicroBatches: 8, Batches: 256, AverageEvery: 128})
		if want := 3.0 * 8; got.Period < want || got.Period > 1.008*want {
			t.Errorf("%s: a batch takes %v; want that of a pipeline that never drains, %v", name, got.Period, want)
		}
	}
}

// TestAPlanRunsOnAcrossADivisorOfARound, the largest that does not make it too long, and only where steps stand in the plan.
func TestAPlanRunsOnAcrossADivisorOfARound(t *testing.T) {
	for _, c := range []struct {
		name                                        string
		stages, microBatches, roundBatches, batches int
	}{
		{"pipedream", 8, 8, 0, 1},
		{"pipedream", 8, 8, 1, 1},
		{"pipedream", 8, 8, 170, 170},
		{"pipedream", 8, 8, 1000, 125},
		{"pipedream-2bw", 8, 8, 1_000_000_000, 160},
		{"pipedream", 64, 1024, 10, 1},
		{"1f1b", 4, 4, 10, 1},
		{"zb-v", 4, 4, 10, 1},
	} {
		plan, reason, err := Generate(c.name, Request{Devices: c.stages, MicroBatches: c.microBatches, RoundBatches: c.roundBatches})
		if err != nil {
			t.Fatal(err)
		}
		if got := plan.Batches(c.microBatches); got != c.batches || plan.MicroBatches() != c.batches*c.microBatches {
			t.Errorf("%+v: %d batches of all %d micro-batches", c, got, plan.MicroBatches())
		}
		if drains := c.batches < c.roundBatches; plan.Updates() > 0 && drains && c.batches > 1 && !strings.Contains(reason, "then drains") {
			t.Errorf("%+v: the reason is %q", c, reason)
		}
	}
	if _, _, err := Generate("pipedream", Request{Devices: 2, MicroBatches: 2, RoundBatches: -1}); err == nil {
		t.Error("a round of -1 batches is taken")
	}
}

func TestLoadsThatEndInsideOfAPlanAreRefused(t *testing.T) {
	plan := mustGenerate(t, "pipedream", Request{Devices: 2, MicroBatches: 3, RoundBatches: 4})
	for want, load := range map[string]Load{
		"batches is 6, and the plan runs on across 4":             {MicroBatches: 3, Batches: 6},
		"average every is 2 batches, and the plan runs on across": {MicroBatches: 3, Batches: 8, AverageEvery: 2},
		"micro-batches is -1":                                     {MicroBatches: -1},
		"the batch has 5 micro-batches":                           {MicroBatches: 5},
	} {
		_, err := SimulateMany(plan, Uniform(2, 1, 2, 0), load)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", load, err, want)
		}
	}
}

// TestAveragingIsChargedOnceARound, whichever way the plan is cut.
func TestAveragingIsChargedOnceARound(t *testing.T) {
	costs := Uniform(3, 1, 2, 0)
	costs.Average = []float64{5, 5, 5}
	load := Load{MicroBatches: 2, Batches: 8, AverageEvery: 4}
	for _, across := range []int{1, 2, 4} {
		plan := mustGenerate(t, "pipedream", Request{Devices: 3, MicroBatches: 2, RoundBatches: across})
		r := mustSimulateMany(t, plan, costs, load)
		for d, busy := range r.Busy {
			if want := 8*2*3 + 2*5.0; busy != want {
				t.Errorf("across %d: device %d is busy for %v; want %v", across, d, busy, want)
			}
		}
	}
}
