package profile

import (
	"fmt"
	"maps"
	"slices"

	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/tuner"
)

// measurement is what the runs of a target say, on the way to its profile.
type measurement struct {
	profile   *tuner.Profile
	guess     *tuner.Profile // by floating-point operations
	batch     int            // samples
	middle    int            // samples of a micro-batch
	homes     []stage.Range  // by device: the layers of layered runs
	shares    []stage.Range  // by device: the layers of the others
	layers    *measured      // by layer
	stages    *measured      // by device
	contended *measured      // by device
}

// slowdown of the device that measured a layer by itself.
func (m *measurement) slowdown(layer int) float64 {
	for d, run := range m.homes {
		if layer < run.To {
			return m.profile.Devices[d].Slowdown
		}
	}
	return 1
}

// alone is what one pass of a layer takes by itself, on a device of speed 1: of a size that was not measured, as at the middle one;
// where that was not either, in proportion to its floating-point operations.
func (m *measurement) alone(w schedule.Kind, layer, samples int) float64 {
	times := m.layers.passes[w][layer][samples]
	if len(times) == 0 {
		times = m.layers.passes[w][layer][m.middle]
	}
	if len(times) > 0 {
		return median(times) / m.slowdown(layer)
	}
	l := &m.guess.Layers[layer]
	return map[schedule.Kind]tuner.Curve{
		schedule.Forward: l.Forward, schedule.Backward: l.Backward, schedule.BackwardInput: l.BackwardInput, schedule.BackwardWeight: l.BackwardWeight,
	}[w].At(samples)
}

// cut is the partition by what layers take by themselves.
func (m *measurement) cut() ([]stage.Range, error) {
	sums := []float64{0}
	for i := range m.profile.Layers {
		sums = append(sums, sums[i]+max(0, m.alone(schedule.Forward, i, m.middle)+m.alone(schedule.Backward, i, m.middle)))
	}
	ranges, err := tuner.Partition(tuner.Chain{
		Layers: len(m.profile.Layers), Stages: len(m.homes),
		Cost: func(s, from, to int) float64 { return (sums[to] - sums[from]) * m.profile.Devices[s].Slowdown },
	})
	var shares []stage.Range
	for _, r := range ranges {
		shares = append(shares, stage.Range{From: r[0], To: r[1]})
	}
	return shares, err
}

// fit fills the profile.
func (m *measurement) fit() error {
	p := m.profile
	for d := range m.shares {
		if err := m.fitDevice(d); err != nil {
			return fmt.Errorf("device %d: %w", d, err)
		}
		if d < len(p.Links) {
			p.Links[d] = fitLink(m.stages.messages[d])
		}
	}
	p.DispatchLatency = median(m.stages.dispatch)
	p.Contention, p.OptimizerContention = contention(m.stages, m.contended)
	return nil
}

// fitDevice gives the layers of one device their parts of its time, size by size.
func (m *measurement) fitDevice(d int) error {
	p, share := m.profile, m.shares[d]
	slow := p.Devices[d].Slowdown
	for _, w := range []schedule.Kind{schedule.Forward, schedule.Backward} {
		whole, err := tuner.FitCurve(m.stages.passes[w][d])
		if err != nil {
			return err
		}
		for i := share.From; i < share.To; i++ {
			curve := tuner.Curve{Samples: whole.Samples}
			for j, samples := range whole.Samples {
				sum := 0.0
				for other := share.From; other < share.To; other++ {
					sum += m.alone(w, other, samples)
				}
				curve.Values = append(curve.Values, whole.Values[j]*part(m.alone(w, i, samples), sum)/slow)
			}
			if w == schedule.Forward {
				p.Layers[i].Forward = curve
			} else {
				p.Layers[i].Backward = curve
			}
		}
	}
	average := tuner.TrimmedMean(m.contended.average[d])
	if average == 0 { // measured with several pipelines all along; or not at all: like the optimizer it reads and writes a few vectors
		average = max(tuner.TrimmedMean(m.stages.average[d]), tuner.TrimmedMean(m.stages.optimizer[d]))
	}
	steps, parameters := 0.0, 0.0
	for i := share.From; i < share.To; i++ {
		steps += median(m.layers.optimizer[i])
		parameters += float64(p.Layers[i].Parameters)
	}
	step := func(i int) float64 { return part(median(m.layers.optimizer[i]), steps) }
	if steps == 0 { // layers were not measured
		step = func(i int) float64 { return part(float64(p.Layers[i].Parameters), parameters) }
	}
	for i := share.From; i < share.To; i++ {
		l, backward := &p.Layers[i], m.alone(schedule.Backward, i, m.middle)
		l.BackwardInput = scale(l.Backward, part(m.alone(schedule.BackwardInput, i, m.middle), backward))
		l.BackwardWeight = scale(l.Backward, part(m.alone(schedule.BackwardWeight, i, m.middle), backward))
		l.Optimizer = tuner.TrimmedMean(m.stages.optimizer[d]) * step(i) / slow
		l.Average = average * part(float64(l.Parameters), parameters) / slow
	}
	return nil
}

// part is a/b; 0 of nothing.
func part(a, b float64) float64 {
	if b <= 0 {
		return 0
	}
	return a / b
}

// contention is how many times as long passes take, by samples, and optimizer steps, when pipelines share the devices: of all
// stages together, trimmed means over trimmed means. 1 where it was not measured.
func contention(alone, together *measured) (passes tuner.Curve, optimizer float64) {
	var steps, contendedSteps float64
	one, several := map[int]float64{}, map[int]float64{}
	for i := range alone.optimizer {
		steps += tuner.TrimmedMean(alone.optimizer[i])
		contendedSteps += tuner.TrimmedMean(together.optimizer[i])
		for _, w := range []schedule.Kind{schedule.Forward, schedule.Backward} {
			for samples, times := range together.passes[w][i] {
				one[samples] += tuner.TrimmedMean(alone.passes[w][i][samples])
				several[samples] += tuner.TrimmedMean(times)
			}
		}
	}
	for _, samples := range slices.Sorted(maps.Keys(several)) {
		if one[samples] > 0 {
			passes.Samples = append(passes.Samples, samples)
			passes.Values = append(passes.Values, several[samples]/one[samples])
		}
	}
	optimizer = 1
	if steps > 0 && contendedSteps > 0 {
		optimizer = contendedSteps / steps
	}
	return passes, optimizer
}

func scale(c tuner.Curve, by float64) tuner.Curve {
	out := tuner.Curve{Samples: c.Samples}
	for _, v := range c.Values {
		out.Values = append(out.Values, v*by)
	}
	return out
}

// fitLink is the line through the fastest quarter of messages of each length: the others waited for something else as well.
func fitLink(messages map[int][]float64) tuner.Link {
	c := tuner.Curve{}
	for bytes := range messages {
		c.Samples = append(c.Samples, bytes)
	}
	slices.Sort(c.Samples)
	for _, bytes := range c.Samples {
		c.Values = append(c.Values, quantile(messages[bytes], waitingQuantile))
	}
	if len(c.Samples) == 0 {
		return tuner.Link{}
	}
	if len(c.Samples) == 1 {
		return tuner.Link{LatencySeconds: c.Values[0]}
	}
	t0, t1 := c.Line()
	return tuner.Link{LatencySeconds: t0, SecondsPerByte: t1}
}

// median of values; 0 of none.
func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile is the value that a part q of the values do not exceed; 0 of none. The values keep their order.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}
