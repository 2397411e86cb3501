package stagetest

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
)

// LayerPass is one forward and backward of a layer with one F32 port in and one out.
type LayerPass struct {
	In, DOut []float32            // given
	Params   map[string][]float32 // given
	Out, DIn []float32
	Grads    map[string][]float32
}

// Run computes Out, DIn and Grads on a device whose memory is the host's.
func (l *LayerPass) Run(t testing.TB, dev device.Device, of layer.Layer, size layer.Size) {
	t.Helper()
	r, err := NewRunner(dev, of, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	copy(r.In[0].F32(), l.In)
	copy(r.DOut[0].F32(), l.DOut)
	for i, param := range of.Params() {
		copy(r.Params[i].F32(), l.Params[param.Name])
	}
	r.Forward()
	l.Out = slices.Clone(r.Out[0].F32())
	r.Backward()
	l.DIn, l.Grads = r.DIn[0].F32(), map[string][]float32{}
	for i, param := range of.Params() {
		l.Grads[param.Name] = r.Grads[i].F32()
	}
}
