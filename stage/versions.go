package stage

import (
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/program"
)

// version is an older version of the weights, stashed for the passes that still read it (PipeDream: Narayanan et al. 2019,
// section 3.3). It holds what passes read and no more: BF16 copies where products read those, parameters where they do not.
type version struct {
	name    int // as Hyper.Version called it
	kept    bool
	weights []device.Mem // of each tensor
}

func (c *Computed) allocateVersions() error {
	for range c.config.Versions - 1 {
		weights, err := c.store("a version of the weights", device.F32, device.BF16)
		if err != nil {
			return err
		}
		c.versions = append(c.versions, version{weights: weights})
	}
	return nil
}

// weightsOf is what passes read that compute with a version of the weights.
func (c *Computed) weightsOf(name int) ([]device.Mem, error) {
	if name == c.newest {
		return c.role(weight), nil
	}
	for i := range c.versions {
		if v := &c.versions[i]; v.kept && v.name == name {
			return v.weights, nil
		}
	}
	return nil, fmt.Errorf("version %d of the weights is not kept; the newest is %d", name, c.newest)
}

// stash prepares for a step: it forgets the versions that are not listed and keeps the newest, if it is, as it is now.
func (c *Computed) stash(names []int) error {
	var unused *version
	for i := range c.versions {
		v := &c.versions[i]
		v.kept = v.kept && slices.Contains(names, v.name)
		if !v.kept {
			unused = v
		}
	}
	for _, name := range names {
		if _, err := c.weightsOf(name); err != nil {
			return err
		}
	}
	if !slices.Contains(names, c.newest) {
		return nil
	}
	if unused == nil {
		return fmt.Errorf("%d versions of the weights are asked for beside the new one, the stage was made for %d",
			len(names), len(c.versions))
	}
	c.makeWeights()
	c.refresh()
	newest := c.role(weight)
	for i := range c.tensors {
		if c.copied(&c.tensors[i]) { // the newest gets the memory, and makes its copies anew
			unused.weights[i], newest[i] = newest[i], unused.weights[i]
		}
	}
	copy(c.role(older), unused.weights)
	c.run(c.between.keep, device.Args{})
	unused.name, unused.kept = c.newest, true
	return nil
}

// cutStatistics gives a slot gradients of its own for running statistics, where they cannot be counted at once: with several versions a forward
// may run before the step of an earlier micro-batch, which must not take them.
func (c *Computed) cutStatistics(s *slot, cut *cutter) {
	running := func(t tensor) bool { return t.param.Running > 0 }
	if c.config.Versions == 1 || !slices.ContainsFunc(c.tensors, running) {
		return
	}
	s.statistics = make([]device.Mem, len(c.tensors))
	for i, t := range c.tensors {
		if running(t) {
			s.statistics[i] = cut.take(t.param.Len())
		}
	}
}

// ownStatistics runs a program on a micro-batch's own statistics, where it has them: its forward begins by clearing them, its backward ends by
// adding them where the step takes them, with its other gradients.
func (c *Computed) ownStatistics(s *slot, p *program.Program) {
	if s.statistics != nil {
		copy(c.role(statistic), s.statistics)
		c.run(p, device.Args{})
	}
}
