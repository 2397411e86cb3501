package elastic

import (
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// newElastic makes AvgPipe's elastic averaging (Chen, Xu, Qian, Zhou, PPoPP 2023, section 3) or, with PullElastic, EASGD (Zhang,
// Choromanska, LeCun, NIPS 2015), which it is derived from.
func newElastic(c Config) Method {
	switch c.Pull {
	case PullElastic:
		return easgd{avgpipe{c, float32(c.Alpha), 0, Before}}
	case PullNew:
		return avgpipe{c, float32(c.Alpha), 0, After}
	case PullOld:
		return avgpipe{c, float32(c.Alpha), 0, Before}
	case PullPredicted:
	}
	return avgpipe{c, float32(c.Alpha), float32(c.Alpha * c.Horizon), Before}
}

// checkElastic refuses forces that grow.
//
// EASGD's stability bound is 0 <= alpha <= (4 - 2 eta h)/(4 - eta h) for learning rate eta and curvature h, for pipelines that
// visit the center in turn (Zhang et al. 2015, section 4); it is never above 1, whence the bound on every pull. Here all N
// pipelines of a round meet the same center. Then the distance of the center to the pipelines' mean is multiplied by 1 - alpha -
// beta, beta = N alpha, in each round, even where the loss is flat (h = 0), and grows without bound when alpha (N + 1) > 2;
// so PullElastic also requires alpha <= 2/(N + 1).
func checkElastic(c Config) error {
	if limit := 2 / float64(c.Pipelines+1); c.Pull == PullElastic && c.Pipelines > 1 && c.Alpha > limit {
		return refuse("alpha", fmt.Sprintf("%.4g", math.Floor(1e4*limit)/1e4), "%v: with pull: elastic and %d pipelines at most 2/(%d+1) = %.4g, "+
			"beyond which center and pipelines oscillate with growing distance", c.Alpha, c.Pipelines, c.Pipelines, limit)
	}
	if c.Pull == PullElastic && c.MaxDrift > 0 {
		return refuse("max_drift", "0", "%v: with pull: elastic pipelines move the center by what pulls them, and a synchronous round would have no pull; remove it, or write pull: predicted, old or new", c.MaxDrift)
	}
	return nil
}

// avgpipe is elastic averaging. For a round, with D_i the updates that pipeline i's optimizer applied since the last one, and the
// prediction horizon h:
//
//	x_i <- (1 - alpha) x_i + alpha (x~ + h D_i)     pull
//	x~  <- x~ + (sum_i D_i) / N
//
// timing says which x~ the pull sees: x~_{r-1} (Before; pull: old with h = 0, pull: predicted) or x~_r (After; pull: new, h = 0). Only
// applied updates cross over, so any optimizer will do and its state stays private.
//
// After keeps mean_i(x_i) = x~: the pull multiplies their distance, at most a rounding error, by 1 - alpha. Before gives
// g_r = (1 - alpha) g_{r-1} + alpha (h - 1) mean(D) for the distance g = mean_i(x_i) - x~, which converges to h - 1 updates:
//
//   - h = 0, AvgPipe's rule: the pipelines trail the center by an update.
//   - h = 1: weights before the update are compared with the center before it. This is EASGD's order (Zhang et al. 2015, equation
//     5), and with alpha = 1 the local weight prediction of SAPipe (Chen et al. 2022), x_i <- x~_{r-1} + D_i.
//   - h > 1: gradients are taken ahead of the center, about where it will be when they arrive there. For a pipeline of delayed
//     gradients this is Linear Weight Prediction with a horizon (Kosson et al. 2021).
type avgpipe struct {
	config Config
	alpha  float32
	reach  float32 // alpha h
	timing Timing
}

func (a avgpipe) Config() Config { return a.config }
func (a avgpipe) Needs() Needs {
	return Needs{Timing: a.timing, Delta: true, MaxDrift: a.config.MaxDrift}
}

func (a avgpipe) RateScale(adaptive bool) float64 { return rateOfUpdates(adaptive, a.config.Pipelines) }

func (a avgpipe) Pull(x, message, center flat.Vector) {
	x.Lerp(a.alpha, center)
	if a.reach != 0 {
		x.Axpy(a.reach, message)
	}
}

func (a avgpipe) Merge(s Shard, message flat.Vector, first bool) { mergeSum(s, message, first) }

// mergeSum adds a message to the sum. The first one becomes the sum: not zeroing that saves a pass over memory.
func mergeSum(s Shard, message flat.Vector, first bool) {
	if first {
		s.Sum.Copy(message)
		return
	}
	s.Sum.Axpy(1, message)
}

func (a avgpipe) Advance(s Shard, count int) { s.Center.Axpy(1/float32(count), s.Sum) }

// easgd is synchronous elastic averaging SGD (Zhang et al. 2015, equations 5 and 6, with eta rho = alpha):
//
//	e_i = alpha (x_i - x~);   x_i <- x_i - e_i;   x~ <- x~ + sum_i e_i
//
// The message is the force e_i. Each force is taken from one side and given to the other, so sum_i(x_i) + x~ changes by the
// local updates alone; the fixed point is x_i = x~. The paper's beta is N alpha. Deviation: the paper computes the force before the
// local gradient step of the same iteration; here it is computed after it, as with pull: old.
type easgd struct{ avgpipe }

func (easgd) Needs() Needs { return Needs{Timing: Before} }

func (e easgd) Pull(x, message, center flat.Vector) {
	message.Copy(x)
	message.Axpy(-1, center)
	message.Scale(e.alpha)
	x.Axpy(-1, message)
}

func (easgd) Advance(s Shard, _ int) { s.Center.Axpy(1, s.Sum) }
