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

// Run computes Out, DIn and Grads on a device whose memory is the host's.
func (l *LayerPass) Run(t testing.TB, dev device.Device, of layer.Layer, size layer.Size) {
	t.Helper()
	memory := func(n int, values []float32) device.Mem {
		m, err := dev.Alloc(device.F32, n)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Free(m) })
		copy(m.F32(), values)
		return m
	}
	in, out := of.Ports(size)
	p := layer.Pass{
		Device: dev, Size: size, Weight: 1, Key: 7,
		In: memory(in[0].Elements, l.In), DIn: memory(in[0].Elements, nil),
		Out: memory(out[0].Elements, nil), DOut: memory(out[0].Elements, l.DOut),
		Saved: memory(of.Saved(size), nil), Kept: memory(of.Kept(size), nil),
	}
	for _, param := range of.Params() {
		p.Params = append(p.Params, memory(param.Len(), l.Params[param.Name]))
		p.Grads = append(p.Grads, memory(param.Len(), nil))
	}
	of.Forward(p)
	l.Out = append([]float32(nil), p.Out.F32()...)
	of.BackwardInput(p)
	of.BackwardWeight(p)
	l.DIn, l.Grads = p.DIn.F32(), map[string][]float32{}
	for i, param := range of.Params() {
		l.Grads[param.Name] = p.Grads[i].F32()
	}
}
