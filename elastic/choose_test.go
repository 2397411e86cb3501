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

// TestStaleLayersByHand. Four layers; the last backward ends at 8, the forwards begin at 8, 9, 10 and 11.
func TestStaleLayersByHand(t *testing.T) {
	for _, c := range []struct {
		exchange float64
		want     int
		stall    []float64 // of 0, 1, ... late layers
	}{
		{0, 0, []float64{0, 0, 0, 0, 0}},
		// Ready at 2, 4, 6 and 8, so the first one's is done at 10: it has to be late.
		{2, 1, []float64{2, 0, 0, 0, 0}},
		// Done at 5, 8, 11 and 14; with one late layer, the second one's is 2 after its forward would begin, at 9.
		{3, 2, []float64{6, 2, 0, 0, 0}},
		// The link takes 32 for all, computing 24: with two late layers the step takes 24 + 8, and with more the 32 of the link.
		{8, 2, []float64{26, 17, 8, 0, 0}},
		// A link that is far slower than computing takes 4,000; 4,018 without late layers.
		{1000, 0, []float64{3994, 2993, 1992, 991, 0}},
	} {
		s := even(4, c.exchange)
		for late, want := range c.stall {
			if got := s.Stall(late); got != want {
				t.Errorf("exchanges of %v, %d late layers: a stall of %v, want %v", c.exchange, late, got, want)
			}
		}
		if got, _ := StaleLayers(s); got != c.want {
			t.Errorf("exchanges of %v: %d late layers, want %d", c.exchange, got, c.want)
		}
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
	if a, b := shared.Stall(0), own.Stall(0); a <= b || b != 2 {
		t.Errorf("the stages wait %v where they share a link, and %v where they do not", a, b)
	}
}

// TestStaleLayersAreTheBestOfASimulation of the same exchange, segment by segment, over many steps.
func TestStaleLayersAreTheBestOfASimulation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 9))
	worst, chosen := 0.0, map[int]int{}
	for range 50 {
		s := randomStep(r)
		fastest := math.Inf(1)
		for late := range len(s.Layers) + 1 {
			simulated := simulateSteps(&s, late)
			fastest = min(fastest, simulated)
			worst = max(worst, math.Abs(s.Seconds(late)/simulated-1))
		}
		k, _ := StaleLayers(s)
		chosen[k]++
		if took := simulateSteps(&s, k); took > 1.04*fastest {
			t.Errorf("%+v: with %d late layers a step takes %v, the least is %v", s, k, took, fastest)
		}
		for fewer := range k {
			if took := simulateSteps(&s, fewer); took < fastest*(1-Tie) {
				t.Errorf("%+v: %d late layers where %d are as fast", s, k, fewer)
			}
		}
	}
	t.Logf("largest relative difference %.3f, tolerance 0.04; chosen %v", worst, chosen)
	if worst > 0.04 || len(chosen) < 4 {
		t.Errorf("the largest relative difference is %.3f; chosen were %v", worst, chosen)
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

// sent is a part of the exchange of a layer in a step.
type sent struct {
	step, layer int
	late        bool
	ready, left float64
}

// simulateSteps runs training steps in which links carry a small segment at a time, of what is ready that of layers which are not late first, and returns the time from a step to the next.
func simulateSteps(s *Step, late int) float64 {
	const steps, warm = 24, 12
	queues, free := make([][]*sent, len(s.Links)), make([]float64, len(s.Links))
	done := map[[2]int]float64{}
	carry := func(link int, step, layer int) float64 { // until the exchange of a layer is done
		for {
			if at, ok := done[[2]int{step, layer}]; ok {
				return at + 2*s.Links[link].Latency
			}
			var next *sent
			queues[link] = slices.DeleteFunc(queues[link], func(q *sent) bool { return q.left == 0 })
			at := max(free[link], queues[link][0].ready)
			for _, q := range queues[link] {
				if q.ready <= at && (next == nil || next.late && !q.late) {
					next = q
				}
			}
			part := min(next.left, s.Layers[next.layer].Bytes/20)
			free[link] = max(free[link], next.ready) + part*s.Links[link].SecondsPerByte
			if next.left -= part; next.left < 1e-12 {
				next.left = 0
				done[[2]int{next.step, next.layer}] = free[link]
			}
		}
	}
	now, rest, from := 0.0, s.Compute, 0.0
	for _, l := range s.Layers {
		rest -= l.Forward + l.Backward
	}
	for step := range steps {
		if step == warm {
			from = now
		}
		for l, one := range s.Layers {
			if step > 0 && l >= late {
				now = max(now, carry(one.Link, step-1, l))
			}
			now += one.Forward
		}
		now += rest
		for l, one := range slices.Backward(s.Layers) {
			now += one.Backward
			queues[one.Link] = append(queues[one.Link], &sent{step, l, l < late, now, one.Bytes})
		}
		for l := range late { // the mean of the step before is applied now
			if step > 0 {
				now = max(now, carry(s.Layers[l].Link, step-1, l))
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
