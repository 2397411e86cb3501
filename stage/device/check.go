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

// needOptional is Need for an F32 operand that may be absent.
func needOptional(op, operand string, m Mem, n int) {
	if !m.Absent() {
		Need(op, operand, m, F32, n)
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
	NeedFloating("MatMul", "c", c, m.M*m.N)
	NeedFloating("MatMul", "a", a, m.M*m.K)
	NeedFloating("MatMul", "b", b, m.K*m.N)
	if m.Accumulate {
		Need("MatMul", "c", c, F32, m.M*m.N)
	}
	if m.Bias.Absent() {
		return
	}
	Need("MatMul", "bias", m.Bias, F32, m.N)
	if m.Accumulate {
		panic("device: MatMul: Bias with Accumulate; add the bias in the product that overwrites C")
	}
}

// NeedFloating is Need for an operand that may be F32 or BF16.
func NeedFloating(op, operand string, m Mem, n int) {
	Need(op, operand, m, floating(op, operand, m.typ), n)
}

// floating is t, unless operand is of a type that the operation does not compute with.
func floating(op, operand string, t Type) Type {
	if t != F32 && t != BF16 {
		panic(fmt.Sprintf("device: %s: %s is %v, expected f32 or bf16", op, operand, t))
	}
	return t
}

// CheckLayerNorm panics unless the operands of LayerNorm fit.
func CheckLayerNorm(y, mean, rstd, x, weight, bias Mem, rows, columns int) {
	const op = "LayerNorm"
	NeedFloating(op, "y", y, rows*columns)
	Need(op, "x", x, F32, rows*columns)
	Need(op, "mean", mean, F32, rows)
	Need(op, "rstd", rstd, F32, rows)
	Need(op, "weight", weight, F32, columns)
	Need(op, "bias", bias, F32, columns)
}

// CheckLayerNormBackward panics unless the operands of LayerNormBackward fit.
func CheckLayerNormBackward(dx, dy, x, mean, rstd, weight, plus Mem, rows, columns int) {
	const op = "LayerNormBackward"
	Need(op, "dx", dx, F32, rows*columns)
	NeedFloating(op, "dy", dy, rows*columns)
	Need(op, "x", x, F32, rows*columns)
	Need(op, "mean", mean, F32, rows)
	Need(op, "rstd", rstd, F32, rows)
	Need(op, "weight", weight, F32, columns)
	needOptional(op, "plus", plus, rows*columns)
}

// CheckLayerNormBackwardWeight panics unless the operands of LayerNormBackwardWeight fit.
func CheckLayerNormBackwardWeight(dweight, dbias, dy, x, mean, rstd Mem, rows, columns int) {
	const op = "LayerNormBackwardWeight"
	Need(op, "dweight", dweight, F32, columns)
	Need(op, "dbias", dbias, F32, columns)
	NeedFloating(op, "dy", dy, rows*columns)
	Need(op, "x", x, F32, rows*columns)
	Need(op, "mean", mean, F32, rows)
	Need(op, "rstd", rstd, F32, rows)
}

// CheckEmbed panics unless the operands of an embedding fit and every id lies in the table: of Embed, or with the
// gradients in their places of EmbedBackward. It reads ids, so they must be in host memory.
func CheckEmbed(op string, out, tokens, positions, ids Mem, b, t, width int) {
	CheckEmbedShape(op, out, tokens, positions, ids, b, t, width)
	checkIDs(op, "ids", ids.I32(), 0, tokens.n/width)
}

// CheckEmbedShape is CheckEmbed without a look at the ids: for devices whose memory is not the host's.
func CheckEmbedShape(op string, out, tokens, positions, ids Mem, b, t, width int) {
	if width < 1 || tokens.n%width != 0 {
		panic(fmt.Sprintf("device: %s: tokens has %d f32, expected a multiple of the width %d", op, tokens.n, width))
	}
	Need(op, "out", out, F32, b*t*width)
	NeedAtLeast(op, "tokens", tokens, F32, width)
	if !positions.Absent() {
		NeedAtLeast(op, "positions", positions, F32, t*width)
	}
	Need(op, "ids", ids, I32, b*t)
}

// CheckCrossEntropy panics unless the operands of CrossEntropy fit and every target is -1 or a class. It reads targets, so
// they must be in host memory.
func CheckCrossEntropy(losses, dlogits, logits, targets Mem, rows, vocabulary int) {
	CheckCrossEntropyShape(losses, dlogits, logits, targets, rows, vocabulary)
	checkIDs("CrossEntropy", "targets", targets.I32(), -1, vocabulary)
}

// CheckCrossEntropyShape is CheckCrossEntropy without a look at the targets.
func CheckCrossEntropyShape(losses, dlogits, logits, targets Mem, rows, vocabulary int) {
	const op = "CrossEntropy"
	Need(op, "losses", losses, F32, rows)
	Need(op, "logits", logits, F32, rows*vocabulary)
	if !dlogits.Absent() {
		Need(op, "dlogits", dlogits, F32, rows*vocabulary)
	}
	Need(op, "targets", targets, I32, rows)
}

// checkIDs panics unless every id lies in [low, count): an id outside would read or write beyond a table.
func checkIDs(op, operand string, ids []int32, low, count int) {
	for i, id := range ids {
		if int(id) < low || int(id) >= count {
			panic(fmt.Sprintf("device: %s: %s[%d] is %d, expected %d to %d", op, operand, i, id, low, count-1))
		}
	}
}
