package elastic

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// even is a step of so many layers that take 1 forward and 2 backward each, in a batch of two micro-batches, whose exchanges take so long each.
func even(layers int, exchange float64) Step {
	s := Step{Links: []LinkStep{{SecondsPerByte: exchange}}, Compute: float64(6 * layers)}
	for range layers {
		s.Layers = append(s.Layers, LayerStep{Forward: 1, Backward: 2, Bytes: 1})
	}
	return s
}

// TestStaleLayersByHand. Four layers; the last backward ends at 2, 4, 6 and 8 with each of them, and the step with it. Half of an exchange goes there, half comes back.
func TestStaleLayersByHand(t *testing.T) {
	for _, c := range []struct {
		exchange float64
		want     int
		seconds  map[int]float64 // by late layers
	}{
		{0, 0, map[int]float64{0: 24, 1: 24, 4: 24}},
		// What the last two send is taken up at 4 and 6, when the next backward has ended, and their sums go behind the messages of that layer. So those of the third layer are back at 8,
		// and those of the second and the first at 10 and 11: these have to be late.
		{2, 2, map[int]float64{0: 27, 1: 26, 2: 24, 4: 24}},
		// As long as computing: with three late layers what those send goes before what the fourth gets back.
		{6, 4, map[int]float64{4: 24}},
		// The link takes 4,000 for all; 4,018 where nothing goes beside computing.
		{1000, 0, map[int]float64{0: 4018, 4: 4000}},
	} {
		s := even(4, c.exchange)
		for late, want := range c.seconds {
			if got := s.Seconds(late); math.Abs(got-want) > 1e-9*want {
				t.Errorf("exchanges of %v, %d late layers: a step of %v, want %v", c.exchange, late, got, want)
			}
		}
		if got, _ := StaleLayers(s); got != c.want {
			t.Errorf("exchanges of %v: %d late layers, want %d: %v, %v, %v, %v, %v", c.exchange, got, c.want, s.Seconds(0), s.Seconds(1), s.Seconds(2), s.Seconds(3), s.Seconds(4))
		}
	}
}

// TestTimesOfNothing: a dictated time may be 0, and a forward far shorter than the rest of a step.
func TestTimesOfNothing(t *testing.T) {
	for _, forward := range []float64{0, 1e-12} {
		s := even(4, 1)
		for l := range s.Layers {
			s.Layers[l].Forward = forward
		}
		if got := s.Seconds(4); math.Abs(got-s.Compute) > 1e-9 {
			t.Errorf("with forwards of %v a step without waits takes %v, want %v", forward, got, s.Compute)
		}
	}
	s := even(4, 0)
	s.Compute = 0
	for l := range s.Layers {
		s.Layers[l].Forward, s.Layers[l].Backward = 0, 0
	}
	if k, seconds := StaleLayers(s); k != 0 || seconds != 0 {
		t.Errorf("where nothing takes time %d layers are late, and a step takes %v", k, seconds)
	}
}

// TestStagesHaveLinksOfTheirOwn: what the others send does not hold up a stage, unless they share a node.
func TestStagesHaveLinksOfTheirOwn(t *testing.T) {
	shared, own := even(4, 2), even(4, 2)
	own.Links = append(own.Links, own.Links[0])
	for l := range 2 {
		own.Layers[l].Link = 1
		own.Layers[l+2].Bytes, shared.Layers[l+2].Bytes = 2, 2
	}
	if a, b := shared.Seconds(0), own.Seconds(0); a <= b || b != 27 {
		t.Errorf("a step takes %v where the stages share a link, and %v where they do not", a, b)
	}
}

// TestAStepIsThatOfASmallerSimulation holds Seconds to one that lets time pass in ticks.
func TestAStepIsThatOfASmallerSimulation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	worst, chosen := 0.0, map[int]int{}
	for range 40 {
		s := randomStep(r)
		for late := range len(s.Layers) + 1 {
			seconds, ticked := s.Seconds(late), tickedStep(&s, late)
			if off := math.Abs(seconds/ticked - 1); off > 0.005 {
				t.Errorf("%+v, %d late layers: a step of %v, in ticks of %v", s, late, seconds, ticked)
			} else {
				worst = max(worst, off)
			}
		}
		k, _ := StaleLayers(s)
		chosen[k]++
	}
	t.Logf("largest relative difference %.5f, tolerance 0.005; chosen %v", worst, chosen)
	if len(chosen) < 4 {
		t.Errorf("chosen were %v", chosen)
	}
}

func randomStep(r *rand.Rand) Step {
	s := Step{Links: make([]LinkStep, 1+r.IntN(2))}
	for i := range s.Links {
		s.Links[i] = LinkStep{SecondsPerByte: math.Exp(3*r.Float64() - 2), Latency: 0.05 * r.Float64()}
	}
	layers := 3 + r.IntN(6)
	for l := range layers {
		one := LayerStep{Forward: 0.5 + r.Float64(), Bytes: 4 * r.Float64(), Link: l * len(s.Links) / layers}
		one.Backward = one.Forward * (1.5 + r.Float64())
		s.Layers = append(s.Layers, one)
		s.Compute += one.Forward + one.Backward
	}
	s.Compute *= float64(1 + r.IntN(4))
	return s
}

// tickedStep is how long a step takes where, in each tick, a pipeline computes or waits and each link carries some bytes of the first message or sum in its queue.
func tickedStep(s *Step, late int) float64 {
	const tick, steps, warm, parts = 0.005, 14, 6, 8
	type piece struct {
		step, layer int
		bytes, at   float64
		sum         bool
	}
	queues, flying, came := make([][]piece, len(s.Links)), []piece{}, map[[2]int]int{}
	plan, forward := []float64{s.Compute}, 0.0 // when each backward of a step ends, from the output
	for _, l := range s.Layers {
		plan[0] -= l.Backward
		forward += l.Forward
	}
	pass := plan[0] / math.Round(plan[0]/forward)
	for _, l := range slices.Backward(s.Layers) {
		plan = append(plan, plan[len(plan)-1]+l.Backward)
	}
	now, began, from := 0.0, 0.0, 0.0
	for step, next := 0, 1; step < steps; now += tick {
		for next < len(plan) && now-began >= plan[next] {
			l := len(s.Layers) - next
			one := s.Layers[l]
			for range parts {
				queues[one.Link] = append(queues[one.Link], piece{step, l, one.Bytes / 2 / parts, 0, false})
			}
			next++
		}
		for i := range queues {
			for budget := tick / s.Links[i].SecondsPerByte; budget > 0 && len(queues[i]) > 0; {
				p := &queues[i][0]
				part := min(budget, p.bytes)
				budget -= part
				if p.bytes -= part; p.bytes <= 0 {
					p.at = now + s.Links[i].Latency
					flying = append(flying, *p)
					queues[i] = queues[i][1:]
				}
			}
		}
		since := now - began // a boundary between operations is passed in this tick, or nothing is computed
		between := next == len(plan) || math.Mod(since+1e-9, pass) < tick && since < plan[0] || slices.ContainsFunc(plan, func(end float64) bool { return since >= end && since-tick < end })
		flying = slices.DeleteFunc(flying, func(p piece) bool {
			if p.at > now || !between {
				return false
			}
			if p.sum {
				came[[2]int{p.step, p.layer}]++
			} else {
				one := s.Layers[p.layer]
				queues[one.Link] = append(queues[one.Link], piece{p.step, p.layer, one.Bytes / 2 / parts, 0, true})
			}
			return true
		})
		over := next == len(plan)
		for l := range s.Layers {
			of := step
			if l < late {
				of--
			}
			over = over && (of < 0 || came[[2]int{of, l}] == parts)
		}
		if over {
			step, next, began = step+1, 1, now
			if step == warm {
				from = now
			}
		}
	}
	return (now - from) / (steps - warm)
}

// TestTau: the least behind which the exchange and the averaging are hidden, or that waits for a twentieth of a round at most, within its bounds.
func TestTau(t *testing.T) {
	for _, c := range []struct {
		exchange, average float64 // of each of 4 layers that compute for 24 together; of a round
		least, most       int
		before, after     int
	}{
		{0, 0, 1, 64, 1, 1},
		{6, 0, 1, 64, 1, 19},      // 24: as long as a batch, and 19/20 of 20 batches
		{6, 0.5, 1, 64, 2, 19},    // 24.5 to hide; a twentieth of 480.5
		{6.25, 0, 1, 64, 2, 20},   // 25
		{0.25, 0, 1, 64, 1, 1},    // 1 of 25: 4%
		{0.5, 0, 1, 64, 1, 2},     // 2 of 26: 7.7%; of 50: 4%
		{1000, 0, 1, 64, 64, 64},  // 4,000 of 1,536
		{96, 0, 1, 64, 16, 64},    // 384
		{6.25, 0, 32, 64, 32, 32}, // no fewer than the least
		{96, 0, 32, 8, 32, 32},    // which is above the most
		{96, 0, 1, 1e9, 16, 304},  // 384: a twentieth of 7,680
		{1e300, 0, 1, 1e9, 1e9, 1e9},
	} {
		s := even(4, c.exchange)
		s.Average = c.average
		before, seconds := Tau(&s, Needs{Timing: Before}, c.least, c.most)
		after, waited := Tau(&s, Needs{Timing: After}, c.least, c.most)
		if before != c.before || after != c.after {
			t.Errorf("%+v: tau %d where nobody waits, %d where all do", c, before, after)
		}
		exchange := 4 * c.exchange
		if want := max(24*float64(before)+c.average, exchange) / float64(before); math.Abs(seconds/want-1) > 1e-12 {
			t.Errorf("%+v: a batch takes %v where nobody waits, want %v", c, seconds, want)
		}
		if want := (24*float64(after) + c.average + exchange) / float64(after); math.Abs(waited/want-1) > 1e-12 {
			t.Errorf("%+v: a batch takes %v where all wait, want %v", c, waited, want)
		}
	}
}

// TestLeastTau: no method begins with fewer than it may be configured to, and diloco with those of its paper.
func TestLeastTau(t *testing.T) {
	for _, name := range Methods() {
		want := map[string]int{"diloco": 32, "streaming-diloco": 8}[name]
		if got := LeastTau(name); got != max(1, want) || got > DefaultTau(name) {
			t.Errorf("%s: %d", name, got)
		}
	}
}

// TestSends: 2 (G-1)/G vectors of a pipeline a group, in the precision of messages and of sums.
func TestSends(t *testing.T) {
	for _, c := range []struct {
		p                 Precision
		pipelines, groups int
		want              float64
	}{
		{Float32, 1, 2, 4096}, {"", 1, 2, 4096}, {Float32, 1, 4, 6144}, {Float32, 3, 2, 8192}, {BFloat16, 1, 2, 2048}, {Int8, 1, 2, 0.5 * (1024 + 16 + 2048)}, {Float32, 2, 1, 0},
	} {
		if got := Sends(c.p, 1024, c.pipelines, c.groups); got != c.want {
			t.Errorf("%s, %d pipelines in each of %d groups: %v bytes, want %v", c.p, c.pipelines, c.groups, got, c.want)
		}
	}
}
