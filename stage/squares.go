package stage

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/program"
)

// noSquares is what sums of squares begin with. Nobody writes it.
var noSquares [1]float64

// writeFirst writes the programs that add up the squares of the gradients which a part of a backward has made: after a whole one all, after an input half those that the weight half does not
// touch, and after a weight half the rest. Between the halves of one micro-batch the input halves of others may run.
func (c *Computed) writeFirst() (all [Weight + 1]*program.Program) {
	if c.config.ForwardOnly {
		return all
	}
	elsewhere := map[string]bool{} // tied to a parameter of another stage
	for _, t := range c.ties {
		elsewhere[t.Name] = true
	}
	tied := map[int]int{} // copy on this stage, by original
	for _, p := range c.pairs {
		tied[p[0]] = p[1]
	}
	training := &c.passes.training
	for part := range all {
		in := func(t *tensor) bool {
			bound := layer.Parameters + len(c.tensors) + len(c.frozen.tensors) + t.index
			early := training.Input.FinalAfter(bound) >= 0 && training.Weight.FinalAfter(bound) < 0
			return counted(t) && !elsewhere[t.Name] && (Part(part) == Whole || (Part(part) == Input) == early)
		}
		var scratch device.Mem
		all[part] = c.write(in, func(d *draft, i int) {
			copied, is := tied[i]
			if !is {
				d.Do(&device.SquaredNorm{Sum: d.sum(), X: d.of(gradient, i)})
				return
			}
			chunk := min(c.memory.Arena.Len(), layer.Padded(c.tensors[i].param.Len())) &^ (tiedChunk - 1)
			if scratch.Absent() {
				scratch = d.New(device.F32, chunk)
			}
			d.squareTied(i, copied, scratch)
		})
	}
	return all
}

// tiedChunk is the least, and the unit, of how many elements of two tied gradients are added at a time.
const tiedChunk = 16

// tiedScratch is the least memory for that, in bytes. It lies where passes have their intermediate values, and more of them is used where they have more.
func (c *Computed) tiedScratch() int {
	for _, p := range c.config.Model.Params() {
		if p.TiedTo != "" {
			return tiedChunk * device.F32.Bytes()
		}
	}
	return 0
}

// squareTied adds up the squares of the sum of two gradients, which stay as they are.
func (d *draft) squareTied(original, copied int, scratch device.Mem) {
	for at, n := 0, d.tensors[original].param.Len(); at < n; at += scratch.Len() {
		to := min(n, at+scratch.Len())
		part := scratch.Slice(0, to-at)
		d.Do(&device.Add{Out: part, A: d.of(gradient, original).Slice(at, to-at), B: d.of(gradient, copied).Slice(at, to-at)})
		d.Do(&device.SquaredNorm{Sum: d.sum(), X: part})
	}
}

// addFirst adds up the squares of what a part of the first backward of a batch has made.
func (c *Computed) addFirst(part Part) {
	if c.config.ForwardOnly {
		return
	}
	first := c.squared.Slice(0, 1)
	if part != Weight {
		c.dev.Upload(first, device.DoubleBytes(noSquares[:]))
	}
	c.bindSum(first)
	c.run(c.between.first[part], device.Args{})
}

// Squares implements Stage.
func (c *Computed) Squares() (first, now float64, err error) {
	if c.config.ForwardOnly {
		return 0, 0, nil
	}
	c.SumTies()
	all := c.squared.Slice(1, 1)
	c.dev.Upload(all, device.DoubleBytes(noSquares[:]))
	c.bindSum(all)
	c.run(c.between.norm, device.Args{})
	c.dev.Download(device.DoubleBytes(c.foundSquares[:]), c.squared)
	if err := c.dev.Synchronize(); err != nil {
		return 0, 0, fmt.Errorf("%s: squares of gradients: %w", c.config.what(), err)
	}
	return c.foundSquares[0], c.foundSquares[1], nil
}
