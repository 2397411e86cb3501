package elastic

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// allPulls runs a test for each pull with several pipelines.
func allPulls(t *testing.T, test func(t *testing.T, c Config)) {
	t.Helper()
	for _, pull := range []PullRule{PullPredicted, PullNew, PullOld, PullElastic} {
		for _, n := range []int{1, 2, 3, 5} {
			for _, alpha := range []float64{0, 0.1, 0.3} {
				c := Config{Pull: pull, Alpha: alpha, Pipelines: n}
				t.Run(fmt.Sprintf("%s/n=%d/alpha=%g", pull, n, alpha), func(t *testing.T) { test(t, c) })
			}
		}
	}
}

// round lets every pipeline train one round, in the order given.
func (s *shell) round(order []int) {
	s.t.Helper()
	for _, i := range order {
		s.update(i)
	}
}

func ascending(n int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	return order
}

// mean is the mean of the pipelines' weights, in float64.
func (s *shell) mean() []float64 {
	mean := make([]float64, s.n)
	for _, x := range s.x {
		for i, v := range x {
			mean[i] += float64(v) / float64(len(s.x))
		}
	}
	return mean
}

// distance is the largest difference between x~ and v.
func (s *shell) distance(v []float64) float64 {
	largest := 0.0
	for i, c := range s.centerCopy() {
		largest = max(largest, math.Abs(float64(c)-v[i]))
	}
	return largest
}

// TestNewAndPredictedKeepTheMeanOnTheCenter: mean_i(x_i) == x~ after each round, for any optimizer, with a horizon of 1.
func TestNewAndPredictedKeepTheMeanOnTheCenter(t *testing.T) {
	allPulls(t, func(t *testing.T, c Config) {
		tolerance, keeps := map[PullRule]float64{PullNew: 2e-6, PullPredicted: 4e-6}[c.Pull] // a few roundings; it does not grow with the rounds
		if !keeps {
			return
		}
		c.Horizon = 1
		s := newShell(t, newMethod(t, c), c.Pipelines, 64)
		for r := range 300 {
			s.round(ascending(c.Pipelines))
			if d := s.distance(s.mean()); d > tolerance {
				t.Fatalf("round %d: the mean of the pipelines is %g from the center, tolerance %g", r+1, d, tolerance)
			}
		}
	})
}

// TestNewWithAlphaOneMakesAllPipelinesEqual, and equal to the center, to the bit.
func TestNewWithAlphaOneMakesAllPipelinesEqual(t *testing.T) {
	s := newShell(t, newMethod(t, Config{Pull: PullNew, Alpha: 1, Pipelines: 3}), 3, 64)
	for r := range 20 {
		s.round(ascending(3))
		for i, x := range s.x {
			if err := sameBits(x, s.centerCopy()); err != nil {
				t.Fatalf("round %d: pipeline %d: %v", r+1, i, err)
			}
		}
	}
}

// TestPredictedSetsTheDistanceOfMeanAndCenter: mean_i(x_i) - x~ is multiplied by 1 - alpha in each round, and alpha (horizon - 1) mean
// updates are added, for any optimizer.
func TestPredictedSetsTheDistanceOfMeanAndCenter(t *testing.T) {
	const tolerance = 4e-6
	for _, c := range []struct{ alpha, horizon float64 }{{0.1, 1}, {0.5, 1}, {1, 1}, {1, 1.5}, {0.5, 2}, {0.25, 0.5}} {
		alpha := c.alpha
		s := newShell(t, newMethod(t, Config{Pull: PullPredicted, Alpha: alpha, Horizon: c.horizon, Pipelines: 3}), 3, 64)
		for j := range s.x[1] {
			s.x[1][j] += float32(j) / 16 // so that the mean is off the center
		}
		for r := range 40 {
			expected := s.mean()
			before := s.centerCopy()
			for j, x := range before {
				expected[j] = (1 - alpha) * (expected[j] - float64(x))
			}
			s.round(ascending(3))
			mean := s.mean()
			for j, x := range s.centerCopy() {
				expected[j] += alpha * (c.horizon - 1) * float64(x-before[j]) // the center has moved by the mean update
				if got := mean[j] - float64(x); math.Abs(got-expected[j]) > tolerance {
					t.Fatalf("%+v, round %d: the mean is %g from the center, expected %g", c, r+1, got, expected[j])
				}
			}
		}
	}
}

// TestPredictedWithAlphaOneStartsEveryUpdateAtTheCenter: x_i = x~_{r-1} + D_i to the bit with a horizon of 1, SAPipe's
// local weight prediction.
func TestPredictedWithAlphaOneStartsEveryUpdateAtTheCenter(t *testing.T) {
	s := newShell(t, newMethod(t, Config{Pull: PullPredicted, Alpha: 1, Horizon: 1, Pipelines: 3}), 3, 64)
	for r := range 20 {
		center := s.centerCopy()
		for i := range 3 {
			expected := slices.Clone(center)
			for j, d := range localUpdate(i, uint64(r+1), s.x[i]) {
				expected[j] += (s.x[i][j] + d) - s.x[i][j] // what the rounded sum makes of d
			}
			s.update(i)
			if err := sameBits(s.x[i], expected); err != nil {
				t.Fatalf("round %d: pipeline %d: %v", r+1, i, err)
			}
		}
	}
}

// TestPredictedWaitsForNobody.
func TestPredictedWaitsForNobody(t *testing.T) {
	needs := newMethod(t, Config{Pull: PullPredicted, Pipelines: 3}).Needs()
	if needs.Timing != Before {
		t.Errorf("needs %+v, expected timing before and no state of the center", needs)
	}
}

// TestOnePipelinePredictedAtAlphaOneIsPlainTraining by the general rule too, which solo replaces.
func TestOnePipelinePredictedAtAlphaOneIsPlainTraining(t *testing.T) {
	const tolerance = 2e-6
	c := Config{Pull: PullPredicted, Alpha: 1, Horizon: 1, Pipelines: 1}
	s := newShell(t, avgpipe{c, 1, 1, Before}, 1, 64)
	plain := initial(64)
	for r := range uint64(50) {
		plain.Axpy(1, localUpdate(0, r+1, plain))
		s.update(0)
		if d := s.distance(widen(plain)); d > tolerance {
			t.Fatalf("round %d: the center is %g from plain training, tolerance %g", r+1, d, tolerance)
		}
		if d := s.distance(widen(s.x[0])); d > tolerance {
			t.Fatalf("round %d: the center is %g from the pipeline, tolerance %g", r+1, d, tolerance)
		}
	}
}

// TestDefaults: the alpha of each pull, the factor of the learning rate, and the horizon by the steps between rounds.
func TestDefaults(t *testing.T) {
	for pull, expected := range map[PullRule][2]float64{PullPredicted: {1, 1}, PullNew: {1, 1}, PullOld: {0.25, 0.125}, PullElastic: {0.25, 0.125}} {
		if two, eight := DefaultAlpha(pull, 2), DefaultAlpha(pull, 8); [2]float64{two, eight} != expected {
			t.Errorf("pull %s: alpha is %g and %g for 2 and 8 pipelines, expected %v", pull, two, eight, expected)
		}
	}
	for tau, expected := range map[int]float64{0: 1.5, 1: 1.5, 2: 1, 8: 1} {
		if got := newMethod(t, Config{Tau: tau, Pipelines: 2}).Config().Horizon; got != expected {
			t.Errorf("tau %d: a horizon of %v, expected %v", tau, got, expected)
		}
	}
	for n, root := range map[int]float64{1: 1, 2: math.Sqrt2, 4: 2} {
		for name, m := range everyMethod(t, n) {
			expected := 1.0
			if strings.HasPrefix(name, "elastic") || name == "localsgd" || name == "easgd-async" {
				expected = root
			}
			if got := m.RateScale(true); got != expected {
				t.Errorf("%s, %d pipelines, adaptive: %v, expected %v", name, n, got, expected)
			}
			if got := m.RateScale(false); got != 1 {
				t.Errorf("%s, %d pipelines, not adaptive: %v, expected 1", name, n, got)
			}
		}
	}
}

// TestOldMovesTheCenterByTheMeanUpdate in each round.
func TestOldMovesTheCenterByTheMeanUpdate(t *testing.T) {
	const tolerance = 1e-6
	s := newShell(t, newMethod(t, Config{Pull: PullOld, Pipelines: 3}), 3, 64)
	for r := range uint64(50) {
		expected := make([]float64, s.n)
		for j, v := range s.centerCopy() {
			expected[j] = float64(v)
		}
		for i := range 3 {
			for j, d := range localUpdate(i, r+1, s.x[i]) {
				expected[j] += float64(d) / 3
			}
		}
		s.round(ascending(3))
		if d := s.distance(expected); d > tolerance {
			t.Fatalf("round %d: the center is %g from where the mean update puts it, tolerance %g", r+1, d, tolerance)
		}
	}
}

// TestOldKeepsTheCenterWithinOneUpdateOfTheMean: |x~ - mean(x_i)| never exceeds the largest mean update so far.
func TestOldKeepsTheCenterWithinOneUpdateOfTheMean(t *testing.T) {
	for _, alpha := range []float64{0.1, 0.5, 1} {
		s := newShell(t, newMethod(t, Config{Pull: PullOld, Alpha: alpha, Pipelines: 4}), 4, 64)
		largest := 0.0
		for r := range uint64(200) {
			update := make([]float64, s.n)
			for i := range 4 {
				for j, d := range localUpdate(i, r+1, s.x[i]) {
					update[j] += float64(d) / 4
				}
			}
			for _, u := range update {
				largest = max(largest, math.Abs(u))
			}
			s.round(ascending(4))
			if d := s.distance(s.mean()); d > largest+1e-6 {
				t.Fatalf("alpha %g, round %d: the mean is %g from the center, the largest update is %g", alpha, r+1, d, largest)
			}
		}
	}
}

// TestElasticMovesTheCenterByBetaAndKeepsTheSum: x~ moves by beta = N alpha times its distance to the mean, and what the
// center gains the pipelines lose (Zhang et al. 2015, equations 5 and 6).
func TestElasticMovesTheCenterByBetaAndKeepsTheSum(t *testing.T) {
	const tolerance = 2e-6
	const n = 4
	for _, alpha := range []float64{0.05, 0.25, 0.4} {
		s := newShell(t, newMethod(t, Config{Pull: PullElastic, Alpha: alpha, Pipelines: n}), n, 64)
		for r := range uint64(50) {
			expected := make([]float64, s.n)
			sum := make([]float64, s.n)
			for j, c := range s.centerCopy() {
				local := 0.0
				for i := range n {
					local += float64(s.x[i][j]) + float64(localUpdate(i, r+1, s.x[i])[j])
				}
				expected[j] = float64(c) + n*alpha*(local/n-float64(c))
				sum[j] = float64(c) + local
			}
			s.round(ascending(n))
			if d := s.distance(expected); d > tolerance {
				t.Fatalf("alpha %g, round %d: the center is %g from where beta puts it", alpha, r+1, d)
			}
			for j, m := range s.mean() {
				if got := float64(s.centerCopy()[j]) + n*m; math.Abs(got-sum[j]) > 4*tolerance {
					t.Fatalf("alpha %g, round %d: sum is %g, expected %g", alpha, r+1, got, sum[j])
				}
			}
		}
	}
}

// TestElasticWithoutUpdatesMeetsAtItsFixedPoint: all x_i and x~ converge to their common mean, for any alpha that Validate
// accepts but the bound itself; and from alpha beyond the bound they would not.
func TestElasticWithoutUpdatesMeetsAtItsFixedPoint(t *testing.T) {
	const n = 3
	spread := func(alpha float64) float64 {
		s := newShell(t, easgd{avgpipe{Config{Pipelines: n}, float32(alpha), 0, Before}}, n, 8)
		for i := range n {
			s.updateWith(i, localUpdate(i, 1, s.x[i])) // away from each other, once
		}
		for range 400 {
			for i := range n {
				s.updateWith(i, flat.NewHost(s.n))
			}
		}
		return s.distance(s.mean())
	}
	for _, alpha := range []float64{0.02, 1.0 / n, 0.49} {
		if d := spread(alpha); d > 1e-5 {
			t.Errorf("alpha %g: after 400 rounds the center is %g from the mean", alpha, d)
		}
	}
	if d := spread(0.52); d < 1 {
		t.Errorf("alpha 0.52, beyond 2/(N+1): after 400 rounds the center is only %g from the mean: the bound is too strict", d)
	}
}

// TestOnePipelineIsPlainTraining: for every pull and alpha the weights are those of training alone, and the center equals
// them, to the bit.
func TestOnePipelineIsPlainTraining(t *testing.T) {
	allPulls(t, func(t *testing.T, c Config) {
		if c.Pipelines != 1 {
			return
		}
		s := newShell(t, newMethod(t, c), 1, 64)
		plain := initial(64)
		for r := range uint64(50) {
			plain.Axpy(1, localUpdate(0, r+1, plain))
			s.update(0)
			if err := sameBits(s.x[0], plain); err != nil {
				t.Fatalf("round %d: weights: %v", r+1, err)
			}
			if err := sameBits(s.centerCopy(), plain); err != nil {
				t.Fatalf("round %d: center: %v", r+1, err)
			}
		}
	})
}

// model is the equations in float64, for updates that are given.
type model struct {
	Config
	x      [][]float64
	center []float64
}

// round applies one round of updates, one for each pipeline.
func (m *model) round(updates []flat.Host) {
	n := float64(len(m.x))
	for j := range m.center {
		old, sum, force := m.center[j], 0.0, 0.0
		for i := range m.x {
			d := float64(updates[i][j])
			m.x[i][j] += d
			sum += d
			force += m.Alpha * (m.x[i][j] - old)
		}
		switch m.Pull {
		case PullElastic:
			m.center[j] = old + force
		default:
			m.center[j] = old + sum/n
		}
		toward := old
		if m.Pull == PullNew {
			toward = m.center[j]
		}
		for i := range m.x {
			if m.Pull == PullPredicted {
				toward = old + m.Horizon*float64(updates[i][j])
			}
			m.x[i][j] = (1-m.Alpha)*m.x[i][j] + m.Alpha*toward
		}
	}
}

// TestRulesAgainstTheirEquations compares every pull with its equation in float64.
func TestRulesAgainstTheirEquations(t *testing.T) {
	const tolerance = 5e-6
	allPulls(t, func(t *testing.T, c Config) {
		if c.Pipelines == 1 {
			return
		}
		method := newMethod(t, c)
		s := newShell(t, method, c.Pipelines, 32)
		m := model{Config: method.Config(), center: widen(initial(32))}
		for range c.Pipelines {
			m.x = append(m.x, widen(initial(32)))
		}
		largest := 0.0
		for r := range uint64(60) {
			var updates []flat.Host
			for i := range c.Pipelines {
				updates = append(updates, localUpdate(i, r+1, initial(32)))
			}
			m.round(updates)
			for i := range c.Pipelines {
				s.updateWith(i, updates[i])
			}
			largest = max(largest, s.distance(m.center))
			for i := range m.x {
				for j, v := range s.x[i] {
					largest = max(largest, math.Abs(float64(v)-m.x[i][j]))
				}
			}
		}
		if largest > tolerance {
			t.Errorf("largest difference %g, tolerance %g", largest, tolerance)
		}
	})
}

func widen(v flat.Host) []float64 {
	out := make([]float64, len(v))
	for i, x := range v {
		out[i] = float64(x)
	}
	return out
}

// TestConfigNamesTheSettingAndItsRange for everything that no run should start with.
func TestConfigNamesTheSettingAndItsRange(t *testing.T) {
	cases := []struct {
		config Config
		expect string // part of the error; empty: valid
	}{
		{Config{Pipelines: 2}, ""},
		{Config{Pipelines: 2, Alpha: 1, Pull: PullNew}, ""},
		{Config{Pipelines: 1, Alpha: 1, Pull: PullElastic}, ""},
		{Config{Pipelines: 3, Alpha: 0.5, Pull: PullElastic}, ""},
		{Config{Pipelines: 3, Alpha: 0.51, Pull: PullElastic}, "at most 2/(3+1) = 0.5"},
		{Config{}, "pipelines is 0: at least 1"},
		{Config{Pipelines: 2, Tau: -1}, "tau is -1: at least 1"},
		{Config{Pipelines: 2, Alpha: 1.01}, "alpha is 1.01: between 0 and 1"},
		{Config{Pipelines: 2, Alpha: -0.1}, "alpha is -0.1: between 0 and 1"},
		{Config{Pipelines: 2, Alpha: math.NaN()}, "alpha is NaN"},
		{Config{Pipelines: 2, Horizon: 4.5}, "horizon is 4.5: above 0 and at most 4"},
		{Config{Pipelines: 2, Horizon: math.NaN()}, "horizon is NaN"},
		{Config{Pipelines: 2, MaxDrift: 0.5}, ""},
		{Config{Pipelines: 2, MaxDrift: -0.5}, "max_drift is -0.5: between 0 and 1"},
		{Config{Pipelines: 2, MaxDrift: math.NaN()}, "max_drift is NaN"},
		{Config{Pipelines: 2, MaxDrift: 0.5, Pull: PullElastic}, "write pull: predicted, old or new"},
		{Config{Pipelines: 2, Pull: "newest"}, `pull is "newest": one of predicted, new, old, elastic`},
	}
	for _, c := range cases {
		_, err := NewMethod("elastic", c.config)
		if (err == nil) != (c.expect == "") || (err != nil && !strings.Contains(err.Error(), c.expect)) {
			t.Errorf("%+v: error %v, expected one with %q", c.config, err, c.expect)
		}
	}
	if _, err := NewMethod("elastc", Config{Pipelines: 2}); err == nil || !strings.Contains(err.Error(), `"elastc": one of allreduce, diloco, easgd-async, elastic`) {
		t.Errorf("unknown method: %v", err)
	}
}
