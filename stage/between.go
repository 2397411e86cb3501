package stage

import (
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/program"
)

// between are the programs that a stage runs between the passes of its micro-batches.
type between struct {
	memory          program.Memory   // External: see role
	batch           *program.Program // sets to 0 what the passes of a batch add to
	fresh           *program.Program // sets the gradients to 0 that the first weight half of a batch would set
	ties            *program.Program // adds the gradients of copies that lie on this stage
	norm            *program.Program
	first           [Weight + 1]*program.Program // adds up the squares of what a part of a backward makes: see Squares
	updates         map[flat.Range]update        // those of all elements by the zero Range
	iterate         *program.Program             // makes asgd's iterates
	follow, predict *program.Program             // see prediction
	copies          *program.Program             // makes the BF16 copies of parameters
	keep            *program.Program             // keeps a version of the weights that are not copied
	clear, count    *program.Program             // of a micro-batch's own running statistics
}

// programs are all of them.
func (b *between) programs() []*program.Program {
	all := []*program.Program{b.batch, b.fresh, b.ties, b.norm, b.iterate, b.follow, b.predict, b.copies, b.keep, b.clear, b.count}
	all = append(all, b.first[:]...)
	for _, u := range b.updates {
		all = append(all, u.step, u.leave, u.back)
	}
	return all
}

// role is what a tensor is to these programs. Tensor i of n is bound in a role as role*n + i, and behind these the sum of squares.
type role int

const (
	parameter role = iota
	gradient
	firstState
	secondState
	delta
	weight    // what passes read
	older     // an older version of weight
	source    // what copies are made of
	statistic // of one micro-batch
	predicted // a prediction: see there
	expected  // the gradient that it is made with
	roles
)

// bound is the binding of a tensor in a role.
func (c *Computed) bound(r role, i int) int { return int(r)*len(c.tensors) + i }

// role are the tensors in a role.
func (c *Computed) role(r role) []device.Mem {
	return c.between.memory.External[c.bound(r, 0):c.bound(r+1, 0)]
}

// bindVector binds the tensors of a vector of the stage in a role; absent, as they are absent.
func (c *Computed) bindVector(r role, whole device.Mem) {
	for i, t := range c.tensors {
		var own device.Mem
		if !whole.Absent() {
			own = whole.Slice(t.Offset, t.param.Len())
		}
		c.role(r)[i] = own
	}
}

// bindSum binds the sum of squares. Absent: a step does not need it.
func (c *Computed) bindSum(sum device.Mem) { c.between.memory.External[c.bound(roles, 0)] = sum }

// run runs one of the programs.
func (c *Computed) run(p *program.Program, a device.Args) { p.Run(c.dev, &c.between.memory, a) }

// draft is a program that is being written.
type draft struct {
	*program.Builder
	*Computed
}

// of is a tensor in a role.
func (d *draft) of(r role, i int) device.Mem {
	t := device.F32
	if r == weight && d.copied(&d.tensors[i]) {
		t = device.BF16
	}
	return d.External(d.bound(r, i), t, d.tensors[i].param.Len())
}

func (d *draft) sum() device.Mem { return d.External(d.bound(roles, 0), device.F64, 1) }

// write writes a program that does something with each tensor of a kind, in order.
func (c *Computed) write(kind func(t *tensor) bool, do func(d *draft, i int)) *program.Program {
	d := draft{program.NewBuilder(), c}
	for i := range c.tensors {
		if kind(&c.tensors[i]) {
			do(&d, i)
		}
	}
	return d.Passes().Forward
}

// writeBetween writes the programs, once the memory is there. A stage that is only priced has none: ties are looked for in the whole model.
func (c *Computed) writeBetween() {
	c.findTies()
	all := func(*tensor) bool { return true }
	zero := func(d *draft, i int) { d.Do(&device.Zero{X: d.of(gradient, i)}) }
	c.between.memory.Arena = c.memory.Arena // no pass uses it now
	first := c.writeFirst()
	c.predicted.elements = []flat.Range{{To: c.shape.Parameters}}
	c.between = between{
		memory: c.between.memory,
		batch:  c.write(func(t *tensor) bool { return !t.param.Fresh }, zero),
		fresh:  c.write(func(t *tensor) bool { return t.param.Fresh }, zero),
		ties:   c.write(all, (*draft).sumTie),
		norm: c.write(counted, func(d *draft, i int) {
			d.Do(&device.SquaredNorm{Sum: d.sum(), X: d.of(gradient, i)})
		}),
		first:   first,
		updates: map[flat.Range]update{{}: c.writeUpdate(all)},
		iterate: c.write(all, func(d *draft, i int) {
			d.Do(&device.Add{Out: d.of(secondState, i), A: d.of(parameter, i), B: d.of(firstState, i)})
		}),
		copies: c.write(c.copied, func(d *draft, i int) { d.Do(&device.Copy{Y: d.of(weight, i), X: d.of(source, i)}) }),
		keep: c.write(func(t *tensor) bool { return !c.copied(t) }, func(d *draft, i int) {
			d.Do(&device.Copy{Y: d.of(older, i), X: d.of(weight, i)})
		}),
		follow:  c.writePrediction(nil),
		predict: c.writePrediction(c.predicted.elements),
		clear:   c.write(running, func(d *draft, i int) { d.Do(&device.Zero{X: d.of(statistic, i)}) }),
		count:   c.write(running, (*draft).count),
	}
}

// writeUpdate writes the programs that make a step of some tensors.
func (c *Computed) writeUpdate(of func(t *tensor) bool) update {
	statistics := func(t *tensor) bool { return of(t) && running(t) }
	return update{c.write(of, (*draft).step), c.write(statistics, axpy(delta, -1, parameter)), c.write(statistics, axpy(delta, 1, parameter))}
}

// running reports whether a tensor is a running statistic.
func running(t *tensor) bool { return t.param.Running > 0 }

// axpy writes y = y + a x.
func axpy(y role, a float32, x role) func(d *draft, i int) {
	return func(d *draft, i int) { d.Do(&device.Axpy{Y: d.of(y, i), A: a, X: d.of(x, i)}) }
}

// counted reports whether a tensor's gradient counts in the norm: a tied copy's is its original's.
func counted(t *tensor) bool { return t.TiedTo == "" && t.param.Running == 0 }

// iterates reports whether passes compute with iterates of asgd, which are not the parameters.
func (c *Computed) iterates() bool { return c.config.Optimizer.Name == "asgd" && !c.config.ForwardOnly }

// sumTie gives both copies of a parameter the sum of their gradients. The sum of two numbers does not depend on their order, so it has the
// bits that two stages get which add each other's.
func (d *draft) sumTie(i int) {
	for _, p := range d.pairs {
		if p[0] == i {
			original, copied := d.of(gradient, i), d.of(gradient, p[1])
			d.Do(&device.Add{Out: original, A: original, B: copied})
			d.Do(&device.Copy{Y: copied, X: original})
		}
	}
}

// count adds a micro-batch's own running statistic to those of its batch, or sets these where it is the statistic itself.
func (d *draft) count(i int) {
	total, own := d.of(gradient, i), d.of(statistic, i)
	if d.tensors[i].param.Running == 1 {
		d.Do(&device.Copy{Y: total, X: own})
		return
	}
	d.Do(&device.Axpy{Y: total, A: 1, X: own})
}

// step writes the optimizer's step of a tensor, or moves a running statistic toward the batch's: p = p + Running (g - p).
func (d *draft) step(i int) {
	t := &d.tensors[i]
	x := operands{p: d.of(parameter, i), g: d.of(gradient, i), delta: d.of(delta, i)}
	if t.param.Running == 1 { // to the bit
		d.Do(&device.Copy{Y: x.p, X: x.g})
		return
	}
	if t.param.Running > 0 {
		d.Do(&device.Lerp{Y: x.p, A: t.param.Running, X: x.g})
		return
	}
	for k := range d.config.Optimizer.StateVectors() {
		x.state[k] = d.of(firstState+role(k), i)
	}
	if d.copied(t) && d.reads == parameter {
		x.copied = d.of(weight, i)
	}
	if counted(t) {
		x.sum = d.sum()
	}
	d.Do(d.config.Optimizer.operation(t, &x))
}

// operands are those of a step of the optimizer on a tensor, or on a run of its elements.
type operands struct {
	p, g, delta, copied, sum device.Mem
	state                    [2]device.Mem
}

// operation is a step.
func (o Optimizer) operation(t *tensor, x *operands) device.Op {
	decay := float32(0)
	if t.param.Decay {
		decay = float32(o.WeightDecay)
	}
	switch o.Name {
	case "asgd":
		return &device.ASGDStep{P: x.p, G: x.g, S: x.state[0], Delta: x.delta, Sum: x.sum, ASGD: device.ASGD{WeightDecay: decay}}
	case "sgd":
		return &device.SGDStep{P: x.p, G: x.g, M: x.state[0], Delta: x.delta, Copy16: x.copied, Sum: x.sum, SGD: device.SGD{
			Momentum: float32(o.Momentum), Nesterov: o.Nesterov, WeightDecay: decay,
		}}
	}
	return &device.AdamStep{
		P: x.p, G: x.g, M: x.state[0], V: x.state[1], Delta: x.delta, Copy16: x.copied, Sum: x.sum, Adam: device.Adam{
			Beta1: float32(o.Betas[0]), Beta2: float32(o.Betas[1]), Epsilon: float32(o.Epsilon), WeightDecay: decay, Decoupled: o.Name == "adamw",
		},
	}
}
