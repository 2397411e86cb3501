package layer_test

import (
	"math"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// imageLayers is every layer of convolutional networks, on images of 5 by 4 with 6 channels. What has kinks is tried
// with inputs far from them.
func imageLayers() map[string]layer.Layer {
	of := layer.Image{Height: 5, Width: 4, Channels: 6}
	convolution := layer.Convolution{Path: "conv", Of: of, Out: 6, Kernel: 3, Stride: 1, Padding: 1}
	strided := layer.Convolution{Path: "conv", Of: of, Out: 4, Kernel: 3, Stride: 2, Padding: 1, Bias: true}
	norm := layer.ImageNorm{Path: "norm", Of: of, Epsilon: 1e-5, Momentum: 0.1}
	grouped := norm
	grouped.Groups = 3
	second := convolution
	second.Path = "second"
	last := norm
	last.Path = "last"
	pool, _ := layer.NewMaxPool("pool", of, 3, 2, 1)
	return map[string]layer.Layer{
		"convolution":       convolution,
		"convolution, bias": strided,
		"batch norm":        norm,
		"group norm":        grouped,
		"max pool":          pool,
		"average pool":      layer.NewAveragePool("pool", of),
		"relu":              layer.NewActivation("relu", device.ReLU, of.Elements()),
		"flatten":           layer.NewFlatten("flatten", of),
		"from pixels": layer.NewChain("chain", layer.NewFromPixels("pixels", of), layer.Data{Layer: convolution}, norm,
			layer.NewFlatten("flatten", of)),
		"data":  layer.Data{Layer: strided},
		"block": layer.NewImageBlock("block", layer.NewChain("branch", convolution, norm, second), last, nil),
	}
}

// apart fills a port with numbers of both signs, at least 1/32 apart from each other, the smallest as large as `least`: no
// step of a difference quotient, at most 0.01 an element, changes which of two is larger, or the sign of one.
func apart(dev device.Device, least float64) stagetest.Fill {
	return func(_ layer.Port, in device.Mem) bool {
		values := make([]float32, in.Len())
		for i := range values {
			at := i * 7919 % len(values) // a permutation: the length is no multiple of this prime
			values[i] = float32((least + float64(at)/32) * float64(1-at%2*2))
		}
		dev.Upload(in, device.FloatBytes(values))
		return true
	}
}

// kinks says which layers have them, and how far from 0 their inputs must be: in the block it is the sum of the input and of
// a norm's output, below 5, whose sign must not change.
var kinks = map[string]float64{"max pool": 0.25, "relu": 0.25, "block": 5}

func TestGradientsOfEveryImageLayer(t *testing.T) {
	stagetest.EachDevice(t, func(t *testing.T, dev device.Device) {
		for name, l := range imageLayers() {
			t.Run(name, func(t *testing.T) {
				var fill stagetest.Fill
				if least, ok := kinks[name]; ok {
					fill = apart(dev, least)
				}
				stagetest.Gradient(t, dev, l, layer.Size{B: 3, T: 1}, fill)
			})
		}
	})
}

func TestShapesOfImages(t *testing.T) {
	of := layer.Image{Height: 224, Width: 112, Channels: 3}
	convolution := layer.Convolution{Of: of, Out: 64, Kernel: 7, Stride: 2, Padding: 3}
	if got, want := convolution.Output(), (layer.Image{Height: 112, Width: 56, Channels: 64}); got != want {
		t.Errorf("the convolution gives %+v, want %+v", got, want)
	}
	want := layer.Image{Height: 56, Width: 28, Channels: 64}
	if _, got := layer.NewMaxPool("pool", convolution.Output(), 3, 2, 1); got != want {
		t.Errorf("the pool gives %+v, want %+v", got, want)
	}
}

// normRunner is a batch norm on 2 samples of 2 pixels and 1 channel: 1, 3, 5, 11 with mean 5 and squared differences 56.
func normRunner(t *testing.T) *stagetest.Runner {
	t.Helper()
	l := layer.ImageNorm{Path: "norm", Of: layer.Image{Height: 2, Width: 1, Channels: 1}, Epsilon: 1e-5, Momentum: 0.1}
	r, err := stagetest.NewRunner(ref.New(), l, layer.Size{B: 2, T: 1})
	if err != nil {
		t.Fatal(err)
	}
	r.Args.Weight = 0.25
	copy(r.In[0].F32(), []float32{1, 3, 5, 11})
	for i, v := range []float32{1, 0, 3, 4} {
		r.Params[i].F32()[0] = v
	}
	r.Grads[2].F32()[0], r.Grads[3].F32()[0] = 1, 1
	return r
}

func TestBatchNormCountsItsStatistics(t *testing.T) {
	r := normRunner(t)
	r.Forward()
	mean, variance := r.Grads[2].F32()[0], r.Grads[3].F32()[0]
	if wantVariance := 1 + 0.25*56.0/3; mean != 1+0.25*5 || math.Abs(float64(variance)-wantVariance) > 1e-5 {
		t.Errorf("a quarter of mean 5 and variance 56/3 added to 1 gives %v and %v", mean, variance)
	}
	r.Backward()
	if r.Grads[2].F32()[0] != mean || r.Grads[3].F32()[0] != variance {
		t.Error("the backward counts again")
	}
}

func TestBatchNormEvaluatesWithRunningStatistics(t *testing.T) {
	r := normRunner(t)
	r.Evaluate()
	for i, x := range r.In[0].F32() {
		if want := (float64(x) - 3) / math.Sqrt(4+1e-5); math.Abs(float64(r.Out[0].F32()[i])-want) > 1e-6 {
			t.Errorf("element %d is %v, want %v", i, r.Out[0].F32()[i], want)
		}
	}
}
