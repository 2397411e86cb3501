package main

import (
	"context"
	"math/rand/v2"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/schedule"
)

// randomSets is over how many sets of costs afp may never be worse.
const randomSets = 1000

// holdAFP counts the sets in which afp is slower than gpipe or 1f1b or has more in flight than gpipe, and says what it gains on a slow link.
func holdAFP(context.Context) ([]report.Figure, error) {
	r := rand.New(rand.NewPCG(2023, 7))
	worse, slowest, fastest := 0, 0.0, 0.0
	for range randomSets {
		stages, microBatches := 2+r.IntN(15), 1+r.IntN(64)
		costs := randomCosts(r, stages)
		results, err := simulateAll(microBatches, costs, schedule.Load{}, "afp", "gpipe", "1f1b")
		if err != nil {
			return nil, err
		}
		afp, gpipe, least := results[0], results[1], results[2]
		const rounding = 1e-8
		bad := afp.Makespan > min(gpipe.Makespan, least.Makespan)*(1+rounding)
		for d := range afp.InFlight {
			bad = bad || afp.InFlight[d] > gpipe.InFlight[d]
		}
		if bad {
			worse++
		}
		slowest = max(slowest, afp.Makespan/min(gpipe.Makespan, least.Makespan))
		fastest = max(fastest, least.Makespan/afp.Makespan)
	}
	beside, err := twoPipelines(r)
	if err != nil {
		return nil, err
	}
	slow, err := simulateAll(16, schedule.Uniform(4, 1, 2, 1.5), schedule.Load{}, "1f1b", "afp") // 2c = F + B
	if err != nil {
		return nil, err
	}
	return []report.Figure{
		beside,
		{
			Metric: "sets in which afp is slower than gpipe or 1f1b, or has more in flight than gpipe", Value: float64(worse), Unit: "sets",
			Bar: 0, Aim: 0, AtMost: true,
			Conditions: map[string]any{
				"sets": randomSets, "stages": "2 to 16", "micro_batches": "1 to 64", "most_over_the_faster": slowest, "most_1f1b_takes_longer": fastest,
			},
		},
		{
			Metric: "simulated speed of afp over 1f1b on a slow link", Value: slow[0].Makespan / slow[1].Makespan, Unit: "x", Bar: 1.2, Aim: 1.2,
			Conditions: map[string]any{"stages": 4, "micro_batches": 16, "link": "2c = F + B"},
		},
	}, nil
}

// twoPipelines is by how much afp is slower than the better of gpipe and 1f1b where two pipelines share the devices. Its warm-up is
// sized for one.
func twoPipelines(r *rand.Rand) (report.Figure, error) {
	const sets = 200
	load := schedule.Load{Pipelines: 2, Batches: 12, Jitter: 0.05}
	slower, worst := 0, 0.0
	for range sets {
		microBatches, costs := 1+r.IntN(32), randomCosts(r, 2+r.IntN(7))
		results, err := simulateAll(microBatches, costs, load, "afp", "gpipe", "1f1b")
		if err != nil {
			return report.Figure{}, err
		}
		off := results[0].Period/min(results[1].Period, results[2].Period) - 1
		if off > 0.005 {
			slower++
		}
		worst = max(worst, off)
	}
	return report.Figure{
		Bench: "schedules", Metric: "most by which afp is slower than gpipe or 1f1b with two pipelines", Value: worst, Unit: "of 1", Bar: 0.15, Aim: 0, AtMost: true,
		Conditions: map[string]any{"sets": sets, "slower by more than half a percent": slower, "stages": "2 to 8", "micro_batches": "1 to 32"},
	}, nil
}

// randomCosts are those of stages and links that differ; about half of the links cost nothing, some are short of bandwidth.
func randomCosts(r *rand.Rand, stages int) schedule.Costs {
	c := schedule.Uniform(stages, 0, 0, 0)
	c.Bandwidth, c.MessageBytes = make([]float64, stages-1), make([]int64, stages-1)
	for s := range stages {
		c.Forward[s], c.Backward[s] = 0.1+3*r.Float64(), 0.1+6*r.Float64()
	}
	for b := range c.Link {
		c.Link[b] = max(0, 8*r.Float64()-4)
		c.Bandwidth[b], c.MessageBytes[b] = 1, max(0, r.Int64N(12)-6)
	}
	return c
}

// simulateAll times several schedules.
func simulateAll(microBatches int, costs schedule.Costs, load schedule.Load, names ...string) ([]schedule.Result, error) {
	results := make([]schedule.Result, len(names))
	for i, name := range names {
		var err error
		if results[i], err = simulateMany(name, microBatches, costs, load); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// simulate times one batch.
func simulate(name string, microBatches int, costs schedule.Costs) (schedule.Result, error) {
	return simulateMany(name, microBatches, costs, schedule.Load{})
}

func simulateMany(name string, microBatches int, costs schedule.Costs, load schedule.Load) (schedule.Result, error) {
	plan, _, err := schedule.Generate(name, schedule.Request{Devices: len(costs.Forward), MicroBatches: microBatches, Costs: &costs})
	if err != nil {
		return schedule.Result{}, err
	}
	return schedule.SimulateMany(plan, costs, load)
}
