package layer_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// An adapted layer computes x W + b + scale (x A^T) B^T, and leaves dropping out of evaluations.
func TestAdaptersComputeTheEquationOfLoRA(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for _, outIn := range []bool{false, true} {
			const in, out, rank, rows = 12, 7, 3, 10
			l := layer.Linear{Path: "l", In: in, Out: out, Bias: true, OutIn: outIn, Adapter: &layer.Adapter{Rank: rank, Scale: 1.5, Rate: 0.4}}
			r, err := stagetest.NewRunner(dev, l, layer.Size{B: 2, T: rows / 2})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			rng := rand.New(rand.NewPCG(1, 2))
			fill := func(m device.Mem) []float32 {
				v := make([]float32, m.Len())
				for i := range v {
					v[i] = float32(rng.NormFloat64())
				}
				dev.Upload(m, device.FloatBytes(v))
				return v
			}
			x, w, bias, a, b := fill(r.In[0]), fill(r.Params[0]), fill(r.Params[1]), fill(r.Params[2]), fill(r.Params[3])
			r.Evaluate()
			got := make([]float32, rows*out)
			dev.Download(device.FloatBytes(got), r.Out[0])
			if err := dev.Synchronize(); err != nil {
				t.Fatal(err)
			}
			worst := 0.0
			for n := range rows {
				for o := range out {
					want := float64(bias[o])
					for i := range in {
						weight := float64(w[i*out+o])
						if outIn {
							weight = float64(w[o*in+i])
						}
						for k := range rank {
							weight += 1.5 * float64(a[k*in+i]) * float64(b[o*rank+k])
						}
						want += float64(x[n*in+i]) * weight
					}
					worst = max(worst, math.Abs(want-float64(got[n*out+o])))
				}
			}
			if worst > 1e-4 {
				t.Errorf("weights stored (Out,In) %t: an output differs by %.2g, at most 1e-4 is rounding", outIn, worst)
			}
		}
	})
}
