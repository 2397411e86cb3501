package elastic

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// Precision is what the elements of messages between groups of pipelines are rounded to.
type Precision string

// The values of averaging.precision.
const (
	Float32  Precision = "f32"  // nothing is rounded. The default
	BFloat16 Precision = "bf16" // 2 bytes an element
	// Int8 takes a byte for each element of a pipeline's message, and a scale for each block of them. What rounding left out of a message is added to the next one (error feedback: Seide et al. 2014;
	// Karimireddy et al. 2019). Sums, which several messages have been added up in and whose errors nobody keeps, are bf16.
	Int8 Precision = "int8"
)

var precisions = []Precision{Float32, BFloat16, Int8}

// block is how many elements of an int8 message share a scale.
const block = 256

// Sums is the precision of the sum of messages.
func (p Precision) Sums() Precision {
	if p == Int8 {
		return BFloat16
	}
	return p
}

// Feedback reports whether pipelines keep what rounding leaves out.
func (p Precision) Feedback() bool { return p == Int8 }

// Bytes is what so many elements take, a multiple of 4 where their number is.
func (p Precision) Bytes(elements int) int {
	switch p {
	case Float32:
	case BFloat16:
		return 2 * elements
	case Int8:
		return 4*((elements+block-1)/block) + elements
	}
	return 4 * elements
}

// Encode writes elements to Bytes(len(from)) bytes. A block of int8 with an element that is not finite is one of elements that are none.
func (p Precision) Encode(to []byte, from []float32) {
	switch p {
	case Float32:
		for i, v := range from {
			binary.NativeEndian.PutUint32(to[4*i:], math.Float32bits(v))
		}
	case BFloat16:
		for i, v := range from {
			binary.NativeEndian.PutUint16(to[2*i:], flat.RoundBF16(v))
		}
	case Int8:
		elements := to[p.Bytes(len(from))-len(from):]
		for b, at := 0, 0; at < len(from); b, at = b+1, at+block {
			end := min(at+block, len(from))
			scale := encodeBlock(elements[at:end], from[at:end])
			binary.NativeEndian.PutUint32(to[4*b:], math.Float32bits(scale))
		}
	}
}

// encodeBlock rounds elements to multiples of a scale, which it returns.
func encodeBlock(to []byte, from []float32) (scale float32) {
	largest := float32(0)
	for _, v := range from {
		largest = max(largest, max(v, -v)) // a NaN stays one
	}
	if scale = largest / 127; scale == 0 || !(scale <= math.MaxFloat32) {
		clear(to)
		if scale != 0 {
			scale = float32(math.NaN())
			for i := range to {
				to[i] = 1
			}
		}
		return scale
	}
	for i, v := range from {
		to[i] = byte(int8(min(max(math.RoundToEven(float64(v/scale)), -127), 127)))
	}
	return scale
}

// Decode reads len(to) elements that Encode wrote.
func (p Precision) Decode(to []float32, from []byte) {
	switch p {
	case Float32:
		for i := range to {
			to[i] = math.Float32frombits(binary.NativeEndian.Uint32(from[4*i:]))
		}
	case BFloat16:
		for i := range to {
			to[i] = flat.WidenBF16(binary.NativeEndian.Uint16(from[2*i:]))
		}
	case Int8:
		elements := from[p.Bytes(len(to))-len(to):]
		for i := range to {
			scale := math.Float32frombits(binary.NativeEndian.Uint32(from[4*(i/block):]))
			to[i] = float32(int8(elements[i])) * scale
		}
	}
}

// Round encodes a message to bytes and leaves in it what Decode reads from them. The residual, with Feedback, is added first, and is then what rounding left out.
func (p Precision) Round(to []byte, message, residual []float32) {
	if !p.Feedback() {
		p.Encode(to, message)
		p.Decode(message, to)
		return
	}
	for i, r := range residual {
		message[i] += r
		residual[i] = message[i]
	}
	p.Encode(to, message)
	p.Decode(message, to)
	for i, v := range message {
		residual[i] -= v
	}
}

// checkPrecision refuses one that there is not.
func checkPrecision(p Precision) error {
	if !slices.Contains(precisions, p) {
		return refuse("precision", "", "%q: one of %s", string(p), list(precisions))
	}
	return nil
}
