package layer

import "github.com/avgpipe/avgpipe/stage/device"

// Heads of large vocabularies run in parts, so that the logits of a micro-batch never lie in memory as a whole. A part has logits of partBytes at
// most, unless that were fewer than partRows rows, of which products are slow.
const (
	partRows  = 256
	partBytes = 64 << 20
)

// byRow reports whether a layer computes each row of its input by itself, whatever sample and position it is of.
func byRow(l Layer) bool {
	switch l := l.(type) {
	case Linear, LayerNorm:
		return true
	case *Chain:
		for _, f := range l.layers {
			if !byRow(f) {
				return false
			}
		}
		return true
	}
	return false
}

// part is consecutive rows of a micro-batch of so many.
type part struct{ from, rows, of int }

// cut is the part's rows of a tensor.
func (p part) cut(m device.Mem) device.Mem {
	columns := m.Len() / p.of
	return m.Slice(p.from*columns, p.rows*columns)
}

// parts cuts the rows of a micro-batch for the head; nil where it runs on all at once.
func (e *emission) parts() (parts []part) {
	rows := e.Run.Size.Rows()
	each := max(partRows, partBytes/device.F32.Bytes()/e.Loss.Classes/Align*Align)
	if e.Loss.PerSample || each >= rows || !byRow(e.Layers[len(e.Layers)-1]) {
		return nil
	}
	for from := 0; from < rows; from += each {
		parts = append(parts, part{from, min(each, rows-from), rows})
	}
	return parts
}

// head writes the head and the loss, from the inputs of the head; in a training the backward of both too. dx are the gradients of the inputs.
func (e *emission) head(x []device.Mem) (dx []device.Mem) {
	if m, ok := e.Layers[len(e.Layers)-1].(*Modules); ok && m.loss != nil {
		return e.userHead(m, x)
	}
	losses, targets := e.lossOperands()
	parts := e.parts()
	if parts == nil {
		return e.lossOf(&e.Builder, x, losses, targets)
	}
	// The weight half would need the gradients of all logits, so the input half makes the gradient of the weights too.
	e.Unsplit(true)
	return e.headInParts(parts, x[0], losses, targets)
}

// lossOperands are the losses and the targets of a micro-batch.
func (e *emission) lossOperands() (losses, targets device.Mem) {
	n := e.Loss.Targets(e.Run.Size)
	e.losses, e.share = e.Output(Losses, device.F32, n), device.LossScale
	return e.losses, e.External(Targets, device.I32, n)
}

// userHead writes modules that the user's loss follows.
func (e *emission) userHead(m *Modules, x []device.Mem) (dx []device.Mem) {
	out, back := m.Emit(&e.Builder, e.tensors[len(e.Layers)-1], x)
	if e.Evaluating {
		e.Do(&device.Copy{Y: e.Output(Losses, device.F32, e.Loss.Targets(e.Run.Size)).Slice(0, 1), X: out[0]})
		return nil
	}
	e.losses, e.share = out[0], device.Weight
	return back(nil)
}

// loss writes the loss of what modules gave in the forward, and its gradient; nil where they have the user's loss.
func (e *emission) loss(out []device.Mem) (dout []device.Mem) {
	if e.Loss.User {
		e.losses, e.share = out[0], device.Weight
		return nil
	}
	losses, targets := e.lossOperands()
	dlogits := e.Like(out[0])
	e.Loss.emit(&e.Builder, losses, dlogits, out[0], targets)
	return []device.Mem{dlogits}
}

// countLosses adds the losses to those of the batch, behind all else: what runs elsewhere need not be waited for in between.
func (e *emission) countLosses() {
	e.Unsplit(true)
	sum := e.External(LossSum, device.F32, e.Loss.Targets(e.Run.Size))
	e.Do(&device.Axpy{Y: sum.Slice(0, e.losses.Len()), A: 1, X: e.losses, By: e.share})
	e.Unsplit(false)
}

func (e *emission) headInParts(parts []part, x, losses, targets device.Mem) []device.Mem {
	dx := e.Like(x)
	for _, p := range parts {
		b := e.Builder
		b.Size = Size{B: 1, T: p.rows, Compute: e.Run.Size.Compute}
		if d := e.lossOf(&b, []device.Mem{p.cut(x)}, p.cut(losses), p.cut(targets)); d != nil {
			e.Do(&device.Copy{Y: p.cut(dx), X: d[0]})
		}
	}
	return []device.Mem{dx}
}

// lossOf writes the head and the loss of some rows, and in a training their backward.
func (e *emission) lossOf(b *Builder, x []device.Mem, losses, targets device.Mem) (dx []device.Mem) {
	last := len(e.Layers) - 1
	logits, back := e.Layers[last].Emit(b, e.tensors[last], x)
	if b.Evaluating {
		e.Loss.emit(b, losses, device.Mem{}, logits[0], targets)
		return nil
	}
	dlogits := b.Like(logits[0])
	e.Loss.emit(b, losses, dlogits, logits[0], targets)
	return back([]device.Mem{dlogits})
}
