package device_test

import (
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Operations share the largest scratch memory; each shape of a recurrence has its own.
func TestScratchIsTheLargestAndThatOfRecurrences(t *testing.T) {
	weight := func(n int) device.Mem { return device.NewSymbol(device.F32, n) }
	lstm := func(cells int) *device.LSTM {
		return &device.LSTM{Weight: weight(4 * cells * cells), LSTMShape: device.LSTMShape{H: cells}}
	}
	var s device.Scratch
	for _, op := range []device.Op{
		&device.MatMul{}, &device.Convolution{Weight: weight(900)}, &device.ConvolutionBackward{Weight: weight(1000)},
		&device.ConvolutionBackwardWeight{DWeight: weight(100)},
		&device.Attention{AttentionShape: device.AttentionShape{T: 4, H: 4, KV: 2, S: 8}},
		lstm(8), lstm(8), lstm(16),
	} {
		s.Add(op)
	}
	const largest, own = 4 * 1000, 2 * 4 * 4 * (8*8 + 16*16)
	if got := s.Bytes(); got != largest+own {
		t.Errorf("%d bytes, want %d that are shared and %d of recurrences", got, largest, own)
	}
}
