package device

import (
	"fmt"
	"math"
)

// need panics unless m holds exactly n elements of type t. op and operand name what was called, for the message.
func need(op, operand string, m Mem, t Type, n int) {
	if m.n != n || m.typ != t || m.base == nil {
		badOperand(op, operand, m, t, n, "")
	}
}

// needAtLeast is need for an operand that may be longer than what the operation touches.
func needAtLeast(op, operand string, m Mem, t Type, n int) {
	if m.n < n || m.typ != t || m.base == nil {
		badOperand(op, operand, m, t, n, "at least ")
	}
}

// needOptional is need for an F32 operand that may be absent.
func needOptional(op, operand string, m Mem, n int) {
	needOptionalType(op, operand, m, F32, n)
}

// needOptionalType is need for an operand that may be absent.
func needOptionalType(op, operand string, m Mem, t Type, n int) {
	if !m.Absent() {
		need(op, operand, m, t, n)
	}
}

// needFloating is need for an operand that may be F32 or BF16.
func needFloating(op, operand string, m Mem, n int) {
	need(op, operand, m, floating(op, operand, m.typ), n)
}

// needF32 is need for operands of one length.
func needF32(op string, n int, operands ...Mem) {
	for _, m := range operands {
		need(op, "operand", m, F32, n)
	}
}

// needSame panics unless all operands are of one type, F32 or BF16, and of one length.
func needSame(op string, operands ...Mem) {
	first := operands[0]
	needFloating(op, "operand", first, first.n)
	for _, m := range operands[1:] {
		need(op, "operand", m, first.typ, first.n)
	}
}

func needPositive(op string, first, second, third int) {
	if first < 1 || second < 1 || third < 1 {
		panic(fmt.Sprintf("device: %s: dimensions %d, %d and %d, expected all positive", op, first, second, third))
	}
}

func badOperand(op, operand string, m Mem, t Type, n int, bound string) {
	if m.base == nil {
		panic(fmt.Sprintf("device: %s: %s is absent, expected %s%d %v", op, operand, bound, n, t))
	}
	panic(fmt.Sprintf("device: %s: %s has %d %v, expected %s%d %v", op, operand, m.n, m.typ, bound, n, t))
}

// floating is t, unless operand is of a type that the operation does not compute with.
func floating(op, operand string, t Type) Type {
	if t != F32 && t != BF16 {
		panic(fmt.Sprintf("device: %s: %s is %v, expected f32 or bf16", op, operand, t))
	}
	return t
}

// CheckIDs panics where an id or a target of op lies outside of its table: it would read or write beyond it. Devices whose memory is the
// host's call it before they run an operation.
func CheckIDs(op Op) {
	switch o := op.(type) {
	case *Embed:
		checkIDs("Embed", "ids", o.IDs.I32(), 0, o.Tokens.n/o.Width())
	case *EmbedBackward:
		checkIDs("EmbedBackward", "ids", o.IDs.I32(), 0, o.DTokens.n/o.Width())
	case *CrossEntropy:
		_, vocabulary := o.Size()
		checkIDs("CrossEntropy", "targets", o.Targets.I32(), -1, vocabulary)
	case *Dropout:
		if !o.IDs.Absent() {
			checkIDs("Dropout", "ids", o.IDs.I32(), 0, math.MaxInt32)
		}
	}
}

func checkIDs(op, operand string, ids []int32, low, count int) {
	for i, id := range ids {
		if int(id) < low || int(id) >= count {
			panic(fmt.Sprintf("device: %s: %s[%d] is %d, expected %d to %d", op, operand, i, id, low, count-1))
		}
	}
}
