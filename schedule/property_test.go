package schedule

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// forSmall calls do for every K <= 8 and M <= 16.
func forSmall(do func(stages, microBatches int)) {
	for stages := 1; stages <= 8; stages++ {
		for microBatches := 1; microBatches <= 16; microBatches++ {
			do(stages, microBatches)
		}
	}
}

func mustGenerate(t *testing.T, name string, r Request) Plan {
	t.Helper()
	plan, _, err := Generate(name, r)
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

func mustSimulate(t *testing.T, plan Plan, costs Costs) Result {
	t.Helper()
	result, err := Simulate(plan, costs)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(1, math.Abs(a), math.Abs(b)) }

// randomCosts are those of stages that differ, with about half the links free.
func randomCosts(r *rand.Rand, stages int) Costs {
	c := Uniform(stages, 0, 0, 0)
	for k := range stages {
		c.Forward[k], c.Backward[k] = 0.1+3*r.Float64(), 0.1+6*r.Float64()
	}
	for k := range c.Link {
		c.Link[k] = max(0, 8*r.Float64()-4)
	}
	return c
}

func TestGeneratedPlansPassCheck(t *testing.T) {
	for _, name := range Names() {
		for chunks := 0; chunks <= 4; chunks++ {
			if _, err := Chunks(name, chunks); err != nil {
				continue
			}
			forSmall(func(stages, microBatches int) {
				plan := mustGenerate(t, name, Request{Devices: stages, MicroBatches: microBatches, Chunks: chunks})
				if err := Check(plan, microBatches); err != nil {
					t.Errorf("%s of %d chunks, K=%d, M=%d: %v", name, chunks, stages, microBatches, err)
				}
			})
		}
	}
}

// TestBatchTimeWithEnoughWarmup: T = M (F+B) + (K-1)(F+B+2c) for gpipe and the sized afp, and for the published grid while 2c <= F+B.
func TestBatchTimeWithEnoughWarmup(t *testing.T) {
	forSmall(func(stages, microBatches int) {
		for _, link := range []float64{0, 0.5, 1.5, 4, 40} {
			costs := Uniform(stages, 1, 2, link)
			want := float64(microBatches)*3 + float64(stages-1)*(3+2*link)
			for _, c := range []struct {
				name  string
				known *Costs
			}{{"gpipe", nil}, {"afp", &costs}, {"afp", nil}} {
				if c.name == "afp" && c.known == nil && 2*link > 3 {
					continue
				}
				plan := mustGenerate(t, c.name, Request{Devices: stages, MicroBatches: microBatches, Costs: c.known})
				if got := mustSimulate(t, plan, costs).Makespan; !near(got, want) {
					t.Errorf("%s, K=%d, M=%d, c=%v: batch time %v; want %v", c.name, stages, microBatches, link, got, want)
				}
			}
		}
	})
}

// TestCheckValue: K=2, M=8, F=1, B=1.31, c=1 takes 22.79 by gpipe and afp, 28.79 by 1f1b.
func TestCheckValue(t *testing.T) {
	costs := Uniform(2, 1, 1.31, 1)
	for name, want := range map[string]float64{"gpipe": 22.79, "afp": 22.79, "1f1b": 28.79} {
		for _, known := range []*Costs{nil, &costs} {
			plan := mustGenerate(t, name, Request{Devices: 2, MicroBatches: 8, Costs: known})
			if got := mustSimulate(t, plan, costs).Makespan; !near(got, want) {
				t.Errorf("%s: %v; want %v", name, got, want)
			}
		}
	}
}

func TestAFPIsNeverSlowerThanGPipeNorPinsMore(t *testing.T) {
	r := rand.New(rand.NewPCG(2023, 1))
	forSmall(func(stages, microBatches int) {
		for range 20 {
			costs := randomCosts(r, stages)
			request := Request{Devices: stages, MicroBatches: microBatches, Costs: &costs}
			gpipe := mustSimulate(t, mustGenerate(t, "gpipe", request), costs)
			afp := mustSimulate(t, mustGenerate(t, "afp", request), costs)
			if afp.Makespan > gpipe.Makespan*(1+1e-9) {
				t.Errorf("K=%d, M=%d, %+v: afp takes %v, gpipe %v", stages, microBatches, costs, afp.Makespan, gpipe.Makespan)
			}
			for k := range afp.InFlight {
				if afp.InFlight[k] > gpipe.InFlight[k] {
					t.Errorf("K=%d, M=%d: stage %d has %d in flight by afp, %d by gpipe", stages, microBatches, k, afp.InFlight[k], gpipe.InFlight[k])
				}
			}
		}
	})
}

// TestSizedAFPKeepsThePaceOfTheSlowestStage: no link shows in the steady state.
func TestSizedAFPKeepsThePaceOfTheSlowestStage(t *testing.T) {
	r := rand.New(rand.NewPCG(2023, 2))
	for range 500 {
		stages := 1 + r.IntN(8)
		costs := randomCosts(r, stages)
		warmups := Warmup(mustGenerate(t, "afp", Request{Devices: stages, MicroBatches: 200, Costs: &costs}))
		slowest := 0.0
		for k := range stages {
			slowest = max(slowest, costs.Forward[k]+costs.Backward[k])
		}
		if got := SteadyPeriod(warmups, costs); !near(got, slowest) {
			t.Errorf("%+v, warm-up %v: %v a micro-batch; want %v", costs, warmups, got, slowest)
		}
	}
}

// TestLimitedAFPStaysBetween1F1BAndItsLimit, and says which limit lowered it.
func TestLimitedAFPStaysBetween1F1BAndItsLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(2023, 3))
	lowered := 0
	for range 1000 {
		stages, microBatches := 1+r.IntN(8), 1+r.IntN(24)
		costs := randomCosts(r, stages)
		request := Request{Devices: stages, MicroBatches: microBatches, Costs: &costs}
		request.InFlightLimit = make([]int, stages)
		for k := range stages {
			if r.IntN(3) > 0 {
				request.InFlightLimit[k] = min(microBatches, stages-k) + r.IntN(6)
			}
		}
		plan, reason, err := Generate("afp", request)
		if err != nil {
			t.Fatalf("%+v: %v", request, err)
		}
		warmups := Warmup(plan)
		for k, w := range warmups {
			limit := request.InFlightLimit[k]
			if w < min(microBatches, stages-k) || w > microBatches || limit > 0 && w > limit {
				t.Errorf("K=%d, M=%d, limits %v: warm-up %v", stages, microBatches, request.InFlightLimit, warmups)
			}
		}
		if law := warmupsOf(sizedSteps(costs, stages, microBatches), microBatches); exceeds(law, request.InFlightLimit) {
			lowered++
			if want := "lowered from " + joinInts(law); !strings.Contains(reason, want) {
				t.Errorf("reason %q; want %q in it", reason, want)
			}
		}
	}
	if lowered < 100 {
		t.Errorf("only %d of 1000 cases lowered anything", lowered)
	}
}

// TestSteadyPeriodIsWhatTheSimulatorMeasures within 1%, for any warm-up that does not grow from stage to stage.
func TestSteadyPeriodIsWhatTheSimulatorMeasures(t *testing.T) {
	r := rand.New(rand.NewPCG(2023, 4))
	worst := 0.0
	for range 200 {
		stages := 1 + r.IntN(6)
		costs := randomCosts(r, stages)
		warmups := make([]int, stages)
		for k := stages - 1; k >= 0; k-- {
			warmups[k] = 1
			if k+1 < stages {
				warmups[k] = warmups[k+1] + r.IntN(4)
			}
		}
		makespan := func(microBatches int) float64 {
			return mustSimulate(t, forwardsAhead(warmups, microBatches), costs).Makespan
		}
		const short, long = 200, 600
		measured := (makespan(long) - makespan(short)) / (long - short)
		want := SteadyPeriod(warmups, costs)
		difference := math.Abs(measured/want - 1)
		worst = max(worst, difference)
		if difference > 0.01 {
			t.Errorf("warm-up %v, %+v: %v a micro-batch simulated, %v by the law", warmups, costs, measured, want)
		}
	}
	t.Logf("largest difference %.3g, allowed 0.01", worst)
}

// TestGrowingWarmupDeadlocks, and the law says that it takes for ever.
func TestGrowingWarmupDeadlocks(t *testing.T) {
	warmups := []int{2, 1, 2}
	if got := SteadyPeriod(warmups, Uniform(3, 1, 1, 0)); !math.IsInf(got, 1) {
		t.Errorf("SteadyPeriod(%v) = %v; want +Inf", warmups, got)
	}
	var fault *PlanError
	if err := Check(forwardsAhead(warmups, 4), 4); !errors.As(err, &fault) || fault.Problem != Deadlock {
		t.Errorf("Check: %v; want a deadlock", err)
	}
}

// TestHalvesTakeTheirOwnTimes where they are given, and half of the backward each where not.
func TestHalvesTakeTheirOwnTimes(t *testing.T) {
	plan := mustParse(t, "F0 I0 W0\nF0 I0 W0")
	costs := Costs{Forward: []float64{1, 1}, Backward: []float64{4, 4}} // no links: they take no time
	if got := mustSimulate(t, plan, costs).Makespan; got != 1+1+2+2+2 {
		t.Errorf("halves of a backward of 4: %v; want 8", got)
	}
	costs.BackwardInput, costs.BackwardWeight = []float64{3, 3}, []float64{0.5, 0.5}
	if got := mustSimulate(t, plan, costs).Makespan; got != 1+1+3+3+0.5 {
		t.Errorf("input half of 3, weight half of 0.5: %v; want 8.5", got)
	}
}

// TestSimulationKeepsEveryDependency checks start times against their definition, op by op.
func TestSimulationKeepsEveryDependency(t *testing.T) {
	r := rand.New(rand.NewPCG(2023, 5))
	for range 200 {
		plan := randomPlan(r, 1+r.IntN(4), 1+r.IntN(5))
		costs := randomCosts(r, len(plan))
		result, err := Simulate(plan, costs)
		if err != nil {
			continue // a deadlock
		}
		end := make([]map[Op]float64, len(plan))
		for k, ops := range plan {
			end[k] = make(map[Op]float64)
			for i, op := range ops {
				end[k][op] = spansOf(result, k)[i].End
			}
		}
		for k, ops := range plan {
			free := 0.0
			for i, op := range ops {
				want := free
				if op.Kind == Forward && k > 0 {
					want = max(want, end[k-1][Op{Kind: op.Kind, Stage: k - 1, Micro: op.Micro}]+costs.Link[k-1])
				}
				if op.Kind == Backward && k+1 < len(plan) {
					want = max(want, end[k+1][Op{Kind: op.Kind, Stage: k + 1, Micro: op.Micro}]+costs.Link[k])
				}
				free = spansOf(result, k)[i].End
				if got := spansOf(result, k)[i].Start; got != want || free != got+costs.of(k, op.Kind) {
					t.Fatalf("%v\nstage %d, %v starts at %v; want %v", plan, k, op, got, want)
				}
			}
		}
	}
}

// exceeds reports whether a warm-up has more in flight than some stage may.
func exceeds(warmups, limits []int) bool {
	for k, w := range warmups {
		if limits[k] > 0 && w > limits[k] {
			return true
		}
	}
	return false
}

// spansOf is when device d works for the first pipeline.
func spansOf(r Result, d int) (spans []Span) {
	for _, e := range r.Events {
		if e.Device == d && e.Pipeline == 0 {
			spans = append(spans, e.Span)
		}
	}
	return spans
}

// SteadyPeriod is the time per micro-batch in the middle of a long batch: of the slowest stage, or of the slowest loop over
// stages k..l, which the warm-up lets w_k - w_l + 1 micro-batches share (docs/schedules.md derives it). It is +Inf for a
// warm-up that grows from one stage to a later one, since that plan deadlocks. The costs must be valid. Messages that
// wait for each other are not part of it.
//
//	P(w) = max( max_k (F_k + B_k),
//	            max_{k<l} [ sum_{j=k..l} (F_j + B_j) + 2 sum_{j=k..l-1} c_j ] / (w_k - w_l + 1) )
func SteadyPeriod(warmups []int, c Costs) float64 {
	period := 0.0
	for k := range warmups {
		loop := 0.0
		for l := k; l < len(warmups); l++ {
			loop += c.Forward[l] + c.Backward[l]
			if l > k {
				loop += 2 * c.link(l-1)
			}
			share := warmups[k] - warmups[l] + 1
			if share < 1 {
				return math.Inf(1)
			}
			period = max(period, loop/float64(share))
		}
	}
	return period
}
