package stagetest

import (
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

// Run computes Out, DIn and Grads.
func (l *LayerPass) Run(t testing.TB, dev device.Device, of layer.Layer, size layer.Size) {
	t.Helper()
	r, err := NewRunner(dev, of, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	Put(t, dev, r.In[0], l.In)
	Put(t, dev, r.DOut[0], l.DOut)
	for i, param := range layer.Params(of) {
		Put(t, dev, r.Params[i], l.Params[param.Name])
	}
	r.Forward()
	l.Out = Get(t, dev, r.Out[0])
	r.Backward()
	l.DIn, l.Grads = Get(t, dev, r.DIn[0]), map[string][]float32{}
	for i, param := range layer.Params(of) {
		l.Grads[param.Name] = Get(t, dev, r.Grads[i])
	}
}

// Put writes floats to memory of a device.
func Put(t testing.TB, dev device.Device, m device.Mem, values []float32) {
	t.Helper()
	if err := device.Write(dev, m, device.FloatBytes(values)); err != nil {
		t.Fatal(err)
	}
}

// Get reads the floats in memory of a device.
func Get(t testing.TB, dev device.Device, m device.Mem) []float32 {
	t.Helper()
	values := make([]float32, m.Len())
	if err := device.Read(dev, device.FloatBytes(values), m); err != nil {
		t.Fatal(err)
	}
	return values
}
