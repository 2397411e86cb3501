package ref

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Has implements device.Device: the oracle has all.
func (d *Device) Has(device.Op) bool { return true }

// Do implements device.Device.
func (d *Device) Do(op device.Op) {
	device.Check(op)
	device.CheckIDs(op)
	switch o := op.(type) {
	case *device.Zero:
		clear(device.HostBytes(o.X))
	case *device.Copy:
		d.copy(o.Y, o.X)
	case *device.Scale:
		d.scale(o.X, o.A)
	case *device.Axpy:
		axpy(o.Y.F32(), o.A, o.X.F32())
	case *device.Lerp:
		d.lerp(o.Y, o.A, o.X)
	case *device.Mul:
		d.mul(o.Y, o.X)
	case *device.Add:
		d.add(o.Out, o.A, o.B)
	case *device.MatMul:
		d.matMul(o.C, o.A, o.B, o.Product)
	case *device.SumRows:
		d.sumRows(o)
	case *device.Unary:
		d.unary(o.Y, o.X, functions[o.Function])
	case *device.UnaryBackward:
		d.unaryBackward(o.DX, o.DY, o.X, functions[o.Function])
	case *device.Norm:
		d.norm(o)
	case *device.NormBackward:
		d.normBackward(o)
	case *device.NormBackwardWeight:
		d.normBackwardWeight(o)
	case *device.Dropout:
		d.dropout(o)
	case *device.CrossEntropy:
		d.crossEntropy(o)
	case *device.SquaredNorm:
		o.Sum.F64()[0] += inner(o.X, o.X)
	case *device.AdamStep:
		d.adamStep(o.P, o.G, o.M, o.V, o.Delta, o.Adam)
		d.stepped(o.P, o.G, o.Copy16, o.Sum)
	case *device.SGDStep:
		d.sgdStep(o.P, o.G, o.M, o.Delta, o.SGD)
		d.stepped(o.P, o.G, o.Copy16, o.Sum)
	case *device.ASGDStep:
		d.asgdStep(o.P, o.G, o.S, o.Delta, o.ASGD)
		d.stepped(o.P, o.G, device.Mem{}, o.Sum)
	default:
		d.doMore(op)
	}
}

// doMore runs the operations that some families of models alone have.
func (d *Device) doMore(op device.Op) {
	switch o := op.(type) {
	case *device.Embed:
		d.embed(o)
	case *device.EmbedBackward:
		d.embedBackward(o)
	case *device.Attention:
		d.attention(o.Out, o.Saved, o.Q, o.K, o.V, o.AttentionShape)
	case *device.AttentionBackward:
		d.attentionBackward(o.DQ, o.DK, o.DV, o.DOut, o.Q, o.K, o.V, o.Out, o.Saved, o.AttentionShape)
	case *device.CacheAppend:
		d.cacheAppend(o)
	case *device.CachedAttention:
		d.cachedAttention(o)
	case *device.Rotate:
		d.rotate(o.Y, o.X, o.Rotation)
	case *device.SwiGLU:
		d.swiGLU(o.Y, o.Gate, o.Up)
	case *device.SwiGLUBackward:
		d.swiGLUBackward(o.DGate, o.DUp, o.DY, o.Gate, o.Up)
	case *device.Convolution:
		d.convolution(o.Y, o.X, o.Weight, o.ConvolutionShape)
	case *device.ConvolutionBackward:
		d.convolutionBackward(o.DX, o.DY, o.Weight, o.ConvolutionShape)
	case *device.ConvolutionBackwardWeight:
		d.convolutionBackwardWeight(o.DWeight, o.DY, o.X, o.ConvolutionShape)
	case *device.MaxPool:
		d.maxPool(o)
	case *device.MaxPoolBackward:
		d.maxPoolBackward(o)
	case *device.AveragePool:
		d.averagePool(o.Y, o.X, o.P, o.C)
	case *device.AveragePoolBackward:
		d.averagePoolBackward(o.DX, o.DY, o.P, o.C)
	case *device.GroupMoments:
		d.groupMoments(o.Mean, o.Variance, o.X, o.GroupShape)
	case *device.GroupNorm:
		d.groupNorm(o.Y, o.X, o.Skip, o.Mean, o.Variance, o.Weight, o.Bias, o.GroupShape)
	case *device.GroupNormBackward:
		d.groupNormBackward(o.DX, o.DZ, o.Sums, o.DY, o.X, o.Skip, o.Mean, o.Variance, o.Weight, o.Bias, o.GroupShape)
	case *device.Transpose:
		d.transpose(o.Y, o.X, o.N, o.Rows, o.Columns)
	case *device.LSTM:
		d.lstm(o)
	case *device.LSTMBackward:
		d.lstmBackward(o.DGates, o.Carry, o.DOut, o.Gates, o.Cells, o.Weight, o.LSTMShape)
	case *device.AdditiveAttention:
		d.additiveAttention(o.Probabilities, o.Q, o.K, o.V, o.Additive)
	case *device.AdditiveAttentionBackward:
		d.additiveAttentionBackward(o.DQ, o.DK, o.DV, o.DProbabilities, o.Probabilities, o.Q, o.K, o.V, o.Additive)
	case *device.WeightNorm:
		d.weightNorm(o.V, o.Direction, o.Length)
	case *device.WeightNormBackward:
		d.weightNormBackward(o.DDirection, o.DLength, o.DV, o.Direction, o.Length)
	case *device.CopyColumns:
		d.copyColumns(o.Y, o.X, o.Columns)
	default:
		panic(fmt.Sprintf("ref device: no operation %T", op))
	}
}
