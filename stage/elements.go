package stage

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/flat"
	"github.com/avgpipe/avgpipe/stage/program"
)

// checkElements refuses ranges that are not of whole tensors of the stage.
func (c *Computed) checkElements(elements ...flat.Range) error {
	for _, r := range elements {
		if r.From < 0 || r.From > r.To || r.To > c.shape.Parameters {
			return fmt.Errorf("elements %d to %d are asked for; the stage has 0 to %d", r.From, r.To, c.shape.Parameters)
		}
		for i := range c.tensors {
			t := &c.tensors[i]
			if end := t.Offset + t.Len(); t.Offset < r.To && r.From < end && !t.within(r) {
				return fmt.Errorf("elements %d to %d have a part of %s, which is elements %d to %d: a tensor is updated as a whole", r.From, r.To, t.Name, t.Offset, end)
			}
		}
	}
	return nil
}

// within reports whether all of a tensor lies in a range of elements.
func (t *tensor) within(r flat.Range) bool { return r.From <= t.Offset && t.Offset+t.Len() <= r.To }

// update are the programs that make a step of some elements: the optimizer's, and what running statistics, which it moves too, leave a delta before and come
// back to it after it.
type update struct{ step, leave, back *program.Program }

// updateOf are those of a range of elements; the zero Range: of all.
func (c *Computed) updateOf(elements flat.Range) (update, error) {
	if u, ok := c.between.updates[elements]; ok {
		return u, nil
	}
	if err := c.checkElements(elements); err != nil {
		return update{}, err
	}
	u := c.writeUpdate(func(t *tensor) bool { return t.within(elements) })
	c.between.updates[elements] = u
	return u, nil
}
