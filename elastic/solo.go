package elastic

import "github.com/avgpipe/avgpipe/stage/flat"

// solo is what every method becomes with one pipeline: plain training, and the center is the pipeline's weights to the bit.
//
// The general rules are not plain training at N = 1. With pull: old and alpha = 1 a pipeline is set to x~_{r-1}, the weights without
// the update of round r, and gets that update a round later: every gradient would be one step stale. pull: elastic with alpha = 1
// swaps pipeline and center, with the same effect. pull: predicted with a horizon above 1 computes gradients ahead of the center. pipesgd
// applies a gradient a step late although nothing has to be waited for. pull: new, and pull: predicted with a horizon of 1, are plain training
// in exact arithmetic, but x~ + D rounds otherwise than x + D, so a run would depend on the averaging.
type solo struct{ avgpipe }

func (solo) Needs() Needs { return Needs{Timing: Before, Identity: true} }

func (solo) Pull(x, message, _ flat.Vector) { message.Copy(x) }

func (solo) Merge(s Shard, message flat.Vector, _ bool) { s.Sum.Copy(message) }

func (solo) Advance(s Shard, _ int) { s.Center.Copy(s.Sum) }
