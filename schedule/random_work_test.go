package schedule

import "math/rand/v2"

// randomWork is a plan that cannot deadlock: it lists ops in an order in which they could run one after the other. Stages lie
// on devices at random; micro-batches are split at random; updates, if there are any, come after random micro-batches.
func randomWork(r *rand.Rand) Plan {
	stages, micros := 1+r.IntN(6), 1+r.IntN(5)
	devices := 1 + r.IntN(stages)
	placement := make([]int, stages)
	for s := range placement {
		placement[s] = s % devices
	}
	r.Shuffle(stages, func(i, j int) { placement[i], placement[j] = placement[j], placement[i] })
	updates := make([]bool, micros) // after which micro-batches
	if r.IntN(3) == 0 {
		for m := range updates {
			updates[m] = m == micros-1 || r.IntN(2) == 0
		}
	}
	plan := make(Plan, devices)
	forwards, backwards, steps := make([]int, stages), make([]int, stages), make([]int, stages)
	weights := make([][]int, stages) // micro-batches whose weight half waits
	done := make([][]bool, stages)   // per stage and micro-batch: its backward is complete
	for s := range done {
		done[s] = make([]bool, micros)
	}
	for left := stages; left > 0; {
		s := r.IntN(stages)
		add := func(kind Kind, m, version int) {
			plan[placement[s]] = append(plan[placement[s]], Op{Kind: kind, Stage: s, Micro: m, Version: version})
		}
		version := 0
		for _, u := range updates[:steps[s]] {
			if u {
				version++
			}
		}
		switch step := steps[s]; {
		case step < micros && done[s][step]: // every micro-batch before is complete: an update may follow
			if updates[step] {
				add(Update, step, 0)
			}
			if steps[s]++; steps[s] == micros {
				left--
			}
		case len(weights[s]) > 0 && r.IntN(3) == 0:
			add(BackwardWeight, weights[s][0], 0)
			done[s][weights[s][0]] = true
			weights[s] = weights[s][1:]
		case forwards[s] < micros && (s == 0 || forwards[s-1] > forwards[s]) && r.IntN(2) == 0:
			add(Forward, forwards[s], max(0, version-r.IntN(2)))
			forwards[s]++
		case backwards[s] < forwards[s] && (s == stages-1 || backwards[s+1] > backwards[s]):
			if m := backwards[s]; r.IntN(2) == 0 {
				add(BackwardInput, m, 0)
				weights[s] = append(weights[s], m)
			} else {
				add(Backward, m, 0)
				done[s][m] = true
			}
			backwards[s]++
		}
	}
	return plan
}

func randomWholeCosts(r *rand.Rand, stages, devices int) Costs {
	times := func(least int) []float64 {
		values := make([]float64, stages)
		for i := range values {
			values[i] = float64(least + r.IntN(6))
		}
		return values
	}
	bytes := func() []int64 {
		values := make([]int64, stages)
		for i := range values {
			values[i] = int64(r.IntN(20))
		}
		return values
	}
	c := Costs{
		Forward: times(1), Backward: times(1), BackwardInput: times(1), BackwardWeight: times(1), Update: times(1), Average: times(0),
		Link: times(0)[1:], Bandwidth: make([]float64, stages-1), MessageBytes: make([]int64, stages-1),
		ActivationBytes: bytes(), HalfBytes: bytes(), WeightBytes: bytes(), GradientBytes: bytes(), CenterBytes: bytes(),
	}
	for b := range c.Bandwidth {
		c.Bandwidth[b] = float64(r.IntN(3)) // 0: without limit
		c.MessageBytes[b] = int64(2 * r.IntN(5))
	}
	if r.IntN(3) == 0 {
		c.Utilisation = repeat(0.5, devices)
	}
	return c
}
