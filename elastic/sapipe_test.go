package elastic

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// TestLateLayersAreCutFromTheOthers: slices cover the vector, and those with rules of late layers have the tensors of the first layers, wherever they lie.
func TestLateLayersAreCutFromTheOthers(t *testing.T) {
	run := func(from, to, layer int) Run {
		return Run{Range: flat.Range{From: from, To: to}, Layer: layer, Trained: 0}
	}
	layout := Layout{run(0, 4, 3), run(4, 10, 3), run(10, 11, 4), run(11, 20, 5), run(20, 30, 0)} // the last is tied to the first layer
	for stale, want := range map[int][]flat.Range{
		0: nil, 1: {{From: 20, To: 30}}, 3: {{From: 20, To: 30}}, 4: {{To: 10}, {From: 20, To: 30}}, 5: {{To: 11}, {From: 20, To: 30}}, 6: {{To: 30}}, 99: {{To: 30}},
	} {
		m := newMethodOf(t, "sapipe", Config{Pipelines: 2, StaleLayers: stale})
		var late []flat.Range
		end := 0
		for _, s := range Cut(m, layout) {
			if s.From != end || s.To <= s.From {
				t.Errorf("%d late layers: slices %v", stale, Cut(m, layout))
			}
			if end = s.To; s.Rules.Needs().Timing == Before {
				late = append(late, s.Range)
			}
		}
		if end != 30 || !slices.Equal(late, want) {
			t.Errorf("%d late layers: %v are late, want %v; the slices end at %d", stale, late, want, end)
		}
	}
}

// TestExpectedGradientsAgainstTheirEquations, in float64, for every prediction with every compensation, tensor by tensor.
func TestExpectedGradientsAgainstTheirEquations(t *testing.T) {
	const n, lambda, pipelines, tolerance = 3*compensated + 7, 0.3, 3, 1e-5
	tensors := []flat.Range{{To: 5}, {From: 5, To: 2*compensated + 1}, {From: 2*compensated + 1, To: n}}
	random := rand.New(rand.NewPCG(3, 4))
	draw := func() flat.Host {
		v := flat.NewHost(n)
		for i := range v {
			v[i] = float32(random.NormFloat64()) / 64
		}
		return v
	}
	for _, prediction := range predictions {
		for _, by := range compensations {
			c := Config{Pipelines: pipelines, StaleLayers: 9, Prediction: prediction, Compensation: by, Lambda: lambda}
			m, err := NewMethod("sapipe", c)
			together := by == CompensateNothing || prediction == PredictPrevSync || prediction == PredictLocalPrevSync
			if (err == nil) != together {
				t.Errorf("%s with %s: %v", prediction, by, err)
			}
			if err != nil || prediction == PredictNothing {
				continue
			}
			var layout Layout
			for _, r := range tensors {
				layout = append(layout, Run{Range: r})
			}
			rules := Cut(m, layout)[0].Rules.(Predictor)
			mean, own, earlier, moved := draw(), draw(), draw(), draw()
			want := widen(mean)
			for _, r := range tensors {
				expectTensor(by, lambda, want[r.From:r.To], moved[r.From:r.To])
			}
			for i := range want {
				switch prediction {
				case PredictLocal:
					want[i] = float64(own[i])
				case PredictLocalPrevSync:
					want[i] += (float64(own[i]) - float64(earlier[i])) / pipelines
				case PredictPrevSync, PredictNothing:
				}
			}
			given := flat.Vector(moved)
			if !rules.Needs().Moved {
				given = nil
			}
			if !rules.Expect(mean, true, own, earlier, given) {
				t.Errorf("%s expects nothing", prediction)
			}
			for i, w := range want {
				if d := math.Abs(float64(mean[i]) - w); d > tolerance*max(1, math.Abs(w)) {
					t.Fatalf("%s with %s: element %d is %v, want %v", prediction, by, i, mean[i], w)
				}
			}
			if got := rules.Expect(draw(), false, own, earlier, given); got != (prediction == PredictLocal) {
				t.Errorf("%s without a gradient that was applied: %v", prediction, got)
			}
		}
	}
}

// expectTensor is the compensation of a gradient in float64.
func expectTensor(by Compensation, lambda float64, g []float64, d flat.Host) {
	product, square := 0.0, 0.0
	for i, x := range g {
		product += x * float64(d[i])
		square += x * x
	}
	for i, x := range g {
		switch moved := float64(d[i]); by {
		case CompensateDiag:
			g[i] += lambda * x * x * moved
		case CompensateDiagAdaptive:
			g[i] += lambda * x * x * moved / math.Sqrt(x*x+1e-7)
		case CompensateOuter:
			g[i] += lambda * product * x
		case CompensateOuterAdaptive:
			g[i] += lambda * product * x / math.Sqrt(square+1e-7)
		case CompensateNothing:
		}
	}
}

// TestSettingsOfSAPipeAreRefusedByName.
func TestSettingsOfSAPipeAreRefusedByName(t *testing.T) {
	for want, c := range map[string]Config{
		"averaging.stale_layers is -1: 0 or more":                                 {StaleLayers: -1},
		`averaging.prediction is "global": one of local, prev_sync`:               {Prediction: "global"},
		`averaging.compensation is "full": one of none, diag`:                     {Compensation: "full"},
		"averaging.compensation is diag: with prediction: local":                  {Compensation: CompensateDiag},
		"averaging.lambda is -1: above 0":                                         {Lambda: -1},
		"averaging.lambda is NaN: above 0":                                        {Lambda: math.NaN()},
		"averaging.tau is 4: gradients are exchanged in every step; write tau: 1": {Tau: 4},
	} {
		c.Pipelines = 2
		if _, err := NewMethod("sapipe", c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, expected %q", c, err, want)
		}
	}
}
