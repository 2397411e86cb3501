//go:build cuda && cgo && linux && amd64

package cuda

import (
	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device"
)

func (d *Device) zero(o *device.Zero) {
	if bytes := o.X.Bytes(); bytes > 0 {
		d.check("zero", cu.MemsetD8Async(address(o.X), 0, int64(bytes), d.stream))
	}
}

func (d *Device) copy(o *device.Copy) { d.copyTo(o.Y, o.X) }

func (d *Device) copyTo(y, x device.Mem) {
	switch {
	case y.Type() != x.Type():
		d.launch("convert").typed(y).typed(x).int(y.Len()).eachPack(y.Len())
	case y.Bytes() > 0 && y != x:
		d.check("copy", cu.MemcpyDtoDAsync(address(y), address(x), int64(y.Bytes()), d.stream))
	}
}

func (d *Device) scale(o *device.Scale) {
	d.launch("scale").mem(o.X).now(word(o.A)).int(o.X.Len()).eachPack(o.X.Len())
}

func (d *Device) axpy(o *device.Axpy) {
	d.launch("axpy").mem(o.Y).now(word(o.A)).mem(o.X).int(o.Y.Len()).eachPack(o.Y.Len())
}

func (d *Device) lerp(o *device.Lerp) {
	if o.A == 1 {
		d.copyTo(o.Y, o.X)
		return
	}
	d.launch("lerp").mem(o.Y).float(o.A).mem(o.X).int(o.Y.Len()).eachPack(o.Y.Len())
}

func (d *Device) mul(o *device.Mul) {
	d.launch("mul").mem(o.Y).mem(o.X).int(o.Y.Len()).eachPack(o.Y.Len())
}

func (d *Device) add(o *device.Add) {
	d.launch("add").typed(o.Out).typed(o.A).typed(o.B).int(o.Out.Len()).eachPack(o.Out.Len())
}

func (d *Device) unary(o *device.Unary) {
	d.launch("unary").typed(o.Y).typed(o.X).int(int(o.Function)).int(o.Y.Len()).eachPack(o.Y.Len())
}

func (d *Device) unaryBackward(o *device.UnaryBackward) {
	d.launch("unary_backward").typed(o.DX).typed(o.DY).typed(o.X).int(int(o.Function)).int(o.DX.Len()).eachPack(o.DX.Len())
}

func (d *Device) swiGLU(o *device.SwiGLU) {
	d.launch("swiglu").mem(o.Y).mem(o.Gate).typed(o.Up).int(o.Y.Len()).eachPack(o.Y.Len())
}

func (d *Device) swiGLUBackward(o *device.SwiGLUBackward) {
	d.launch("swiglu_backward").mem(o.DGate).mem(o.DUp).mem(o.DY).mem(o.Gate).typed(o.Up).int(o.DY.Len()).eachPack(o.DY.Len())
}

func (d *Device) dropout(o *device.Dropout) {
	threshold, scale := o.Derived()
	n := o.Y.Len()
	if !o.IDs.Absent() {
		d.launch("drop_rows").mem(o.Y).mem(o.X).mem(o.IDs).now(o.Key).bits(uint64(threshold)).float(scale).int(o.Columns).int(n).
			refusing(dropoutIDs).each(n)
		return
	}
	d.launch("dropout").mem(o.Y).typed(o.X).now(o.Key, uint64(o.First)).bits(uint64(threshold)).float(scale).int(o.Share).int(o.Columns).int(n).eachPack(n)
}
