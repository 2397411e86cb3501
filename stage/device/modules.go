package device

import "slices"

// ModulesForward runs consecutive modules of a user's framework, which another process computes (package foreign).
type ModulesForward struct {
	Out      []Mem // what the last module gives; absent: not wanted
	UserLoss Mem   // F32, one number, with a Loss: what the user's function gives of the outputs and Targets
	// Sums are of each of Params where what the forward makes of a running statistic goes; absent of parameters, and where none is wanted.
	Sums []Mem
	// Keep is I32, and nobody writes to it: its place names what the other process keeps for the backward, its length is the memory that this takes
	// there. Absent: no backward follows.
	Keep Mem
	In   []Mem
	// Targets are what the user's function is given beside the outputs.
	Targets []Mem
	// Params are the parameters and the running statistics of each module, in the order in which the process listed them.
	Params []Mem
	Grads  []Mem // of Params, that the backward will add to; absent of what is not trained. The forward does not touch them
	Modules
	Training bool // as in training: with dropout and statistics of the micro-batch
	Counts   bool // running statistics change
	By       ModuleArgs
}

// ModulesBackward runs the backward of a ModulesForward, of which it has the Keep: it adds to the gradients.
type ModulesBackward struct {
	DIn    []Mem // absent where no gradient is wanted
	Grads  []Mem // of Params; absent of those that are not trained, and of running statistics
	Keep   Mem
	DOut   []Mem // absent where none flows; with a Loss all are
	Params []Mem
	Modules
	Weight float32 // Args.Weight, which gradients of a Loss are multiplied by
}

// Modules are consecutive modules of the process, and what they take and give for a micro-batch.
type Modules struct {
	First   int      // the number of the first
	Streams []uint64 // of each module, of its random numbers: see StreamOf
	Inputs  []ModuleTensor
	Outputs []ModuleTensor
	Targets []ModuleTensor // with a Loss
	Loss    bool           // behind the last module is the loss of the user's program
	Work    float64        // what a run takes, in floating-point operations
}

// ModuleTensor is the shape of a tensor that crosses from or to a module.
type ModuleTensor struct {
	Shape          []int
	Type           Type
	Differentiable bool // a gradient flows to it
}

// Len is the number of elements.
func (t ModuleTensor) Len() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// ModuleArgs are what changes from one run of a ModulesForward to the next.
type ModuleArgs struct {
	Key    uint64
	First  int  // the index of the micro-batch's first sample in its batch
	Begins bool // it is the first forward of a batch: running statistics are those of Params, else those of Sums
}

// Seed is the seed of the random numbers of a module, by its number.
func (o *ModulesForward) Seed(module int) uint64 {
	return Mix(Mix(o.By.Key^o.Streams[module-o.First]) + uint64(o.By.First)) //nolint:gosec // not negative
}

func (o *ModulesForward) flops() float64  { return o.Work }
func (o *ModulesBackward) flops() float64 { return o.Work }

func (o *ModulesForward) operands(visit func(*Mem)) {
	visitAll(visit, o.Out, o.Sums)
	visit(&o.UserLoss)
	visit(&o.Keep)
	visitAll(visit, o.In, o.Targets, o.Params, o.Grads)
}

func (o *ModulesBackward) operands(visit func(*Mem)) {
	visitAll(visit, o.DIn, o.Grads)
	visit(&o.Keep)
	visitAll(visit, o.DOut, o.Params)
}

func visitAll(visit func(*Mem), lists ...[]Mem) {
	for _, list := range lists {
		for i := range list {
			visit(&list[i])
		}
	}
}

func (o *ModulesForward) results() int  { return len(o.Out) + len(o.Sums) + 2 }
func (o *ModulesBackward) results() int { return len(o.DIn) + len(o.Grads) }

func (o *ModulesForward) clone() Op {
	c := *o
	c.Out, c.Sums, c.In, c.Targets = slices.Clone(o.Out), slices.Clone(o.Sums), slices.Clone(o.In), slices.Clone(o.Targets)
	c.Params, c.Grads = slices.Clone(o.Params), slices.Clone(o.Grads)
	return &c
}

func (o *ModulesBackward) clone() Op {
	c := *o
	c.DIn, c.Grads, c.DOut, c.Params = slices.Clone(o.DIn), slices.Clone(o.Grads), slices.Clone(o.DOut), slices.Clone(o.Params)
	return &c
}

func (o *ModulesForward) check(c checks) {
	if !o.Keep.Absent() {
		c.atLeast(I32, 1, &o.Keep)
	}
	if len(o.Sums) != len(o.Params) || len(o.Grads) != len(o.Params) {
		c.fail("%d sums and %d gradients of %d parameters", len(o.Sums), len(o.Grads), len(o.Params))
	}
	if o.Loss == o.UserLoss.Absent() || !o.Loss && len(o.Targets) > 0 {
		c.fail("a loss: %t, with %d numbers and %d targets", o.Loss, o.UserLoss.Len(), len(o.Targets))
	}
	if o.Loss {
		c.need(F32, 1, &o.UserLoss)
		o.fit(c, "targets", o.Targets, o.Modules.Targets, false)
	}
	o.fit(c, "inputs", o.In, o.Inputs, false)
	o.fit(c, "outputs", o.Out, o.Outputs, true)
}

func (o *ModulesBackward) check(c checks) {
	c.atLeast(I32, 1, &o.Keep)
	if len(o.Grads) != len(o.Params) {
		c.fail("%d gradients of %d parameters", len(o.Grads), len(o.Params))
	}
	o.fit(c, "gradients of inputs", o.DIn, o.Inputs, true)
	o.fit(c, "gradients of outputs", o.DOut, o.Outputs, true)
}

// fit panics unless tensors have the types and lengths of those that the modules take or give.
func (m *Modules) fit(c checks, what string, found []Mem, expected []ModuleTensor, optional bool) {
	if len(found) != len(expected) {
		c.fail("%d %s, expected %d", len(found), what, len(expected))
	}
	for i, x := range found {
		if optional && x.Absent() {
			continue
		}
		if want := expected[i]; x.n != want.Len() || x.typ != want.Type {
			c.fail("%s: number %d has %d %v, expected %d %v", what, i, x.n, x.typ, want.Len(), want.Type)
		}
	}
}
