package elastic

import "github.com/avgpipe/avgpipe/stage/flat"

// gradients is data parallelism: every pipeline applies the mean of the gradients of all, G = mean_i(g_i), at the weights that all share.
//
// With timing After it is that of the same step, synchronous data parallelism: N pipelines of batch b take the steps of one with a batch of N b, as far as f32 rounds
// alike and as many targets count in every pipeline's batch. With timing Before it is that of the step before, x_{t+1} = OPT(x_t, mean_i(g_{i,t-1})), and nobody waits for an
// exchange: Pipe-SGD (Li et al., NeurIPS 2018, with a pipeline width of 2). Its first step has no gradient to apply, nor has the one after a warm-up.
type gradients struct {
	config Config
	needs  Needs
}

// newAllReduce makes synchronous data parallelism.
func newAllReduce(c Config) Method {
	return gradients{c, Needs{Timing: After, Gradients: true}}
}

// newPipeSGD makes Pipe-SGD.
func newPipeSGD(c Config) Method {
	return gradients{c, Needs{Timing: Before, Gradients: true, StaleLayers: AllLayers, Synchronous: c.Warmup}}
}

// checkGradients refuses rounds of several batches: a gradient is of one.
func checkGradients(c Config) error {
	if c.Tau != 1 {
		return refuse("tau", "1", "%d: gradients are exchanged in every step; write tau: 1, or use a method that exchanges updates, such as localsgd, diloco or elastic", c.Tau)
	}
	return nil
}

func (g gradients) Config() Config { return g.config }
func (g gradients) Needs() Needs   { return g.needs }

// RateScale is 1: the optimizer sees the gradient of one large batch.
func (g gradients) RateScale(bool) float64 { return 1 }

func (g gradients) Pull(gradient, _, mean flat.Vector) { gradient.Copy(mean) }

func (g gradients) Merge(s Shard, message flat.Vector, first bool) { mergeSum(s, message, first) }

func (g gradients) Advance(s Shard, count int) {
	s.Center.Copy(s.Sum)
	s.Center.Scale(1 / float32(count))
}
