package ref

import "github.com/avgpipe/avgpipe/stage/device"

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

// Has implements device.Device: the oracle has all.
func (d *Device) Has(op device.Op) bool { return operations.Has(op) }

// Do implements device.Device.
func (d *Device) Do(op device.Op) { operations.Do(d, op) }
