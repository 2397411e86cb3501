package schedule

import (
	"math"
	"strings"
	"testing"
)

// TestPipelinesThatAreNotAlikeFallOutOfStep: with ops that take exactly as long as others, two pipelines of one micro-batch that begin
// together use one device at a time for ever. A little jitter, which no real device is without, and each fills the other's bubble.
func TestPipelinesThatAreNotAlikeFallOutOfStep(t *testing.T) {
	plan := mustGenerate(t, "gpipe", Request{Devices: 2, MicroBatches: 1})
	costs := Costs{Forward: []float64{14, 14.2}, Backward: []float64{28.1, 28}, Update: []float64{0.2, 1.1}, Link: []float64{0.05}}
	const busiest = 2 * (14.2 + 28 + 1.1)
	load := Load{Pipelines: 2, Batches: 60}
	if locked := mustSimulateMany(t, plan, costs, load).Period; locked < 1.3*busiest {
		t.Errorf("in step: %v a batch; want far more than the %v of the busier device", locked, busiest)
	}
	for _, jitter := range []float64{0.02, 0.05, 0.1} {
		load.Jitter = jitter
		one, again := mustSimulateMany(t, plan, costs, load), mustSimulateMany(t, plan, costs, load)
		if one.Period < 0.99*busiest || one.Period > 1.05*busiest {
			t.Errorf("jitter %v: %v a batch; the busier device works for %v", jitter, one.Period, busiest)
		}
		if one.Makespan != again.Makespan || one.Period != again.Period {
			t.Errorf("jitter %v: %v and then %v", jitter, one.Makespan, again.Makespan)
		}
	}
}

// TestScatterLiesEvenlyAroundCosts: no op leaves its bounds, they are used, and the mean stays.
func TestScatterLiesEvenlyAroundCosts(t *testing.T) {
	plan := mustParse(t, "F0 B0 F1 B1")
	const jitter, batches = 0.2, 2000
	r := mustSimulateMany(t, plan, Costs{Forward: []float64{10}, Backward: []float64{20}}, Load{Batches: batches, Jitter: jitter, Record: true})
	least, most := math.Inf(1), 0.0
	for i, span := range spansOf(r, 0) {
		relative := (span.End - span.Start) / []float64{10, 20}[i%2]
		least, most = min(least, relative), max(most, relative)
	}
	if least < 1-jitter-1e-9 || least > 1-0.95*jitter || most > 1+jitter+1e-9 || most < 1+0.95*jitter {
		t.Errorf("ops take %v to %v of their cost; want nearly all of 0.8 to 1.2", least, most)
	}
	if mean := r.Makespan / (60 * batches); math.Abs(mean-1) > 0.01 {
		t.Errorf("the mean is %v of the cost", mean)
	}
}

func TestScatterOutOfBoundsIsRefused(t *testing.T) {
	plan := mustParse(t, "F0 B0")
	for _, bad := range []float64{-0.1, 1, math.NaN(), math.Inf(1)} {
		_, err := SimulateMany(plan, Uniform(1, 1, 2, 0), Load{Jitter: bad})
		if err == nil || !strings.Contains(err.Error(), "jitter") {
			t.Errorf("jitter %v: error is %v", bad, err)
		}
	}
}
