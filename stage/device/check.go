package device

import "fmt"

// Need panics unless m holds exactly n elements of type t: operand shapes that disagree are a broken invariant of the
// caller. op and operand name what was called, for the message. Devices call it first in every operation.
func Need(op, operand string, m Mem, t Type, n int) {
	if m.n != n || m.typ != t || m.ptr == nil {
		badOperand(op, operand, m, t, n, "")
	}
}

// NeedAtLeast is Need for an operand that may be longer than what the operation touches.
func NeedAtLeast(op, operand string, m Mem, t Type, n int) {
	if m.n < n || m.typ != t || m.ptr == nil {
		badOperand(op, operand, m, t, n, "at least ")
	}
}

func badOperand(op, operand string, m Mem, t Type, n int, bound string) {
	if m.ptr == nil {
		panic(fmt.Sprintf("device: %s: %s is absent, expected %s%d %v", op, operand, bound, n, t))
	}
	panic(fmt.Sprintf("device: %s: %s has %d %v, expected %s%d %v", op, operand, m.n, m.typ, bound, n, t))
}

// Check panics unless the operands of a product have the shapes that m describes.
func (m MatMul) Check(c, a, b Mem) {
	if m.M < 1 || m.N < 1 || m.K < 1 {
		panic(fmt.Sprintf("device: MatMul: dimensions M=%d N=%d K=%d, expected all positive", m.M, m.N, m.K))
	}
	Need("MatMul", "c", c, F32, m.M*m.N)
	Need("MatMul", "a", a, F32, m.M*m.K)
	Need("MatMul", "b", b, F32, m.K*m.N)
	if m.Bias.Absent() {
		return
	}
	Need("MatMul", "bias", m.Bias, F32, m.N)
	if m.Accumulate {
		panic("device: MatMul: Bias with Accumulate; add the bias in the product that overwrites C")
	}
}

// Check panics unless the shape of a is positive in every dimension.
func (a Attention) Check() {
	if a.B < 1 || a.T < 1 || a.H < 1 || a.S < 1 {
		panic(fmt.Sprintf("device: Attention: shape B=%d T=%d H=%d S=%d, expected all positive", a.B, a.T, a.H, a.S))
	}
}

// NeedIDs panics unless every id lies in [low, count): an id outside would read or write beyond a table.
func NeedIDs(op, operand string, ids []int32, low, count int) {
	for i, id := range ids {
		if int(id) < low || int(id) >= count {
			panic(fmt.Sprintf("device: %s: %s[%d] is %d, expected %d to %d", op, operand, i, id, low, count-1))
		}
	}
}
