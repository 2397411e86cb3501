package flat

import "math"

// A BF16 element is the upper half of a float32: its sign, its exponent and 7 bits of its fraction.

// RoundBF16 rounds to the nearest BF16 element, of two equally near ones to the even one. A NaN stays one.
func RoundBF16(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 0x40 // quiet: the payload in the lower half alone would leave an infinity
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// WidenBF16 is the value of a BF16 element.
func WidenBF16(v uint16) float32 { return math.Float32frombits(uint32(v) << 16) }
