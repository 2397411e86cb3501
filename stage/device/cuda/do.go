//go:build cuda && cgo && linux && amd64

package cuda

import (
	"fmt"
	"reflect"

	"github.com/avgpipe/avgpipe/stage/device"
)

// operations are those that the device has.
var operations = device.NewTable(
	on((*Device).zero), on((*Device).copy), on((*Device).scale), on((*Device).axpy), on((*Device).lerp), on((*Device).mul), on((*Device).add),
	on((*Device).unary), on((*Device).unaryBackward), on((*Device).swiGLU), on((*Device).swiGLUBackward),
	on((*Device).matMul), on((*Device).sumRows),
	on((*Device).norm), on((*Device).normBackward), on((*Device).normBackwardWeight),
	on((*Device).dropout), on((*Device).rotate), on((*Device).copyColumns), on((*Device).transpose),
	on((*Device).embed), on((*Device).embedBackward),
	on((*Device).attention), on((*Device).attentionBackward), on((*Device).cacheAppend), on((*Device).cachedAttention),
	on((*Device).convolution), on((*Device).convolutionBackward), on((*Device).convolutionBackwardWeight),
	on((*Device).maxPool), on((*Device).maxPoolBackward), on((*Device).averagePool), on((*Device).averagePoolBackward),
	on((*Device).groupMoments), on((*Device).groupNorm), on((*Device).groupNormBackward),
	on((*Device).lstm), on((*Device).lstmBackward), on((*Device).additiveAttention), on((*Device).additiveAttentionBackward),
	on((*Device).weightNorm), on((*Device).weightNormBackward),
	on((*Device).crossEntropy),
	on((*Device).squaredNorm), on((*Device).adamStep), on((*Device).sgdStep), on((*Device).asgdStep),
)

func on[O device.Op](run func(*Device, O)) device.Row[*Device] { return device.On(run) }

// Has implements device.Device.
func (d *Device) Has(op device.Op) bool {
	switch o := op.(type) {
	case *device.Attention:
		return narrow(o.S)
	case *device.AttentionBackward:
		return narrow(o.S)
	case *device.CachedAttention:
		return narrow(o.S)
	}
	return operations.Has(op)
}

// Do implements device.Device.
func (d *Device) Do(op device.Op) {
	device.Check(op)
	if !d.Has(op) {
		panic(fmt.Sprintf("cuda device: no operation %T: %+v", op, op))
	}
	kind := reflect.TypeOf(op)
	d.mu.Lock()
	d.history.add(kind)
	d.mu.Unlock()
	d.enter()
	defer d.leave()
	if d.launches == Synchronous {
		d.alone.Lock()
		defer d.alone.Unlock()
		defer d.finish(op)
	}
	operations[kind](d, op)
}

// finish waits for an operation, whose failure so has its name.
func (d *Device) finish(op device.Op) {
	now := d.now()
	err := d.stream.Synchronize()
	if err != nil {
		d.keep(d.lose(fmt.Errorf("run %s: %w", device.Describe(op), err)))
	}
	d.ended(now, err)
}
