package elastic

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// methods is every averaging method: name -> constructor. The constructor gets a validated Config.
var methods = map[string]func(Config) Method{
	"elastic": newElastic,
}

// Methods lists the names that NewMethod takes, sorted.
func Methods() []string { return slices.Sorted(maps.Keys(methods)) }

// PullRule says when a pipeline is pulled toward the center, and by which rule (algorithms of Chen et al. 2023, section 3, and
// Zhang et al. 2015, equations 5 and 6).
type PullRule string

// The values of averaging.pull.
const (
	// PullPredicted pulls toward the center before this round plus Horizon times the pipeline's own update: the center as the
	// pipeline predicts it. No pipeline waits for another. The default.
	PullPredicted PullRule = "predicted"
	// PullOld pulls the weights after this round's update toward the center before it: no pipeline waits for another, and
	// the pipelines stay one update behind the center.
	PullOld PullRule = "old"
	// PullNew pulls toward the center after it took this round's updates: waits for the slowest pipeline, and keeps the
	// mean of the pipelines on the center.
	PullNew PullRule = "new"
	// PullElastic is EASGD: an elastic force moves pipeline and center toward each other.
	PullElastic PullRule = "elastic"
)

// Config configures an averaging method.
type Config struct {
	// Pull is what is pulled toward what, and when. Default PullPredicted, which waits for nobody.
	Pull PullRule
	// Alpha is how far a pipeline moves toward the center in a round, 0 < Alpha <= 1. 0 means DefaultAlpha(Pull, Pipelines).
	Alpha float64
	// Horizon is how many of its own updates a pipeline adds to the center to predict where that will be, with PullPredicted. 0 means
	// DefaultHorizon(Tau). Other pulls do not use it.
	Horizon float64
	// Tau is the batches between rounds; the update is accumulated in between. Default 1.
	Tau int
	// Pipelines is N >= 1, at the start. It may drop when a pipeline leaves; Alpha stays what it was.
	Pipelines int
}

// DefaultAlpha is how far a pull moves pipelines by default: all the way with PullPredicted and PullNew, which do not brake a step
// (docs/decisions/0024-predicted-pull.md), else 1/N, and 1/4 for fewer than four pipelines
// (docs/decisions/0010-weaker-pull-by-default.md).
func DefaultAlpha(pull PullRule, pipelines int) float64 {
	switch pull {
	case PullPredicted, PullNew:
		return 1
	case PullOld, PullElastic:
	}
	return 1 / float64(max(pipelines, 4))
}

// DefaultHorizon is the prediction horizon by default. With 1 a pipeline computes gradients where its own update takes the center. Half an
// update further was measured to be better with a round in every step, and worse with fewer, when an update is long
// (docs/decisions/0039-prediction-horizon.md).
func DefaultHorizon(tau int) float64 {
	if tau > 1 {
		return 1
	}
	return 1.5
}

// DefaultRateScale is the factor of the learning rate by default. An adaptive optimizer divides an update by the noise of its
// pipeline's own batch, so the mean of N updates is smaller than the update of one batch of the total size by up to sqrt(N). The
// mean of N updates of SGD is that update.
func DefaultRateScale(adaptive bool, pipelines int) float64 {
	if adaptive {
		return math.Sqrt(float64(pipelines))
	}
	return 1
}

// withDefaults fills what is unset.
func (c Config) withDefaults() Config {
	if c.Pull == "" {
		c.Pull = PullPredicted
	}
	if c.Alpha == 0 && c.Pipelines > 0 {
		c.Alpha = DefaultAlpha(c.Pull, c.Pipelines)
	}
	if c.Tau == 0 {
		c.Tau = 1
	}
	if c.Horizon == 0 {
		c.Horizon = DefaultHorizon(c.Tau)
	}
	return c
}

// Validate reports the first setting that no run should start with. It takes the defaults for what is unset.
//
// EASGD's stability bound is 0 <= alpha <= (4 - 2 eta h)/(4 - eta h) for learning rate eta and curvature h, for pipelines that
// visit the center in turn (Zhang et al. 2015, section 4); it is never above 1, whence the bound on every pull. Here all N
// pipelines of a round meet the same center. Then the distance of the center to the pipelines' mean is multiplied by 1 - alpha -
// beta, beta = N alpha, in each round, even where the loss is flat (h = 0), and grows without bound when alpha (N + 1) > 2;
// so PullElastic also requires alpha <= 2/(N + 1).
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.Pipelines < 1 {
		return fmt.Errorf("averaging: pipelines is %d: at least 1", c.Pipelines)
	}
	if c.Tau < 1 {
		return fmt.Errorf("averaging.tau is %d: at least 1 batch between rounds", c.Tau)
	}
	pulls := []PullRule{PullPredicted, PullNew, PullOld, PullElastic}
	if !slices.Contains(pulls, c.Pull) {
		return fmt.Errorf("averaging.pull is %q: one of predicted, new, old, elastic", string(c.Pull))
	}
	if !(c.Alpha >= 0 && c.Alpha <= 1) { // also refuses NaN
		return fmt.Errorf("averaging.alpha is %v: between 0 and 1 (0 for the default)", c.Alpha)
	}
	if !(c.Horizon > 0 && c.Horizon <= 4) {
		return fmt.Errorf("averaging.horizon is %v: above 0 and at most 4 updates", c.Horizon)
	}
	if limit := 2 / float64(c.Pipelines+1); c.Pull == PullElastic && c.Pipelines > 1 && c.Alpha > limit {
		return fmt.Errorf("averaging.alpha is %v: with pull: elastic and %d pipelines at most 2/(%d+1) = %.4g, "+
			"beyond which center and pipelines oscillate with growing distance", c.Alpha, c.Pipelines, c.Pipelines, limit)
	}
	return nil
}

// Timing says which center the pipeline-side rule of round r sees. x~_r is the center after round r, x~_0 the initial one.
type Timing uint8

// The timings.
const (
	// Before: x~_{r-1}, before the pipeline's own message of round r is merged. A pipeline waits only when the center has
	// not completed round r-1, so it is never more than one round ahead, and in steady state it does not wait.
	Before Timing = iota
	// After: x~_r, so a pipeline waits for the slowest.
	After
)

// Buffers is the number of messages a pipeline needs so that it never waits for one. With Before it fills the message of
// round r+1 while that of round r may still wait for its turn; that of r has been merged before the pipeline is released from
// round r+1, so message r%2 is always free. With After the message is merged before the release.
func (t Timing) Buffers() int {
	if t == Before {
		return 2
	}
	return 1
}

// Shard is the center's part of one stage: its vectors, all of the stage's length.
type Shard struct {
	Center flat.Vector // x~
	Sum    flat.Vector // of the messages of the round in progress; its content is meaningless between rounds
}

// Needs says what a method asks of whoever runs it.
type Needs struct {
	Timing Timing
	// Delta: the message must come to Pull holding the sum of the optimizer updates that were applied since the last
	// round (stage.Stage.Step adds them). Otherwise Pull writes the message, whatever it held.
	Delta bool
	// Identity: the center has the bits of the only pipeline's weights. The owner may use one vector for both,
	// allocate no messages and run no rule, as long as it releases the pipeline last.
	Identity bool
}

// Vectors is how many vectors of a stage's length the center and the messages take beside so many pipelines.
func (n Needs) Vectors(pipelines int) int {
	if n.Identity {
		return 0
	}
	return 2 + pipelines*n.Timing.Buffers() // center, sum; messages
}

// Method is an averaging method: a rule of the pipeline (Pull) and a rule of the center (Merge, Advance), both pure functions of
// their vectors. Vectors of one call have one length and lie on one device. A Method has no state of its own; the vectors
// are its state. Center decides when the rules run.
type Method interface {
	// Config is what the method was made from, defaults filled in.
	Config() Config
	Needs() Needs
	// Pull is the pipeline side of a round: it moves the weights x by the center, and may write the message. With
	// Timing Before it runs before the message is merged, with After when the round is complete.
	Pull(x, message, center flat.Vector)
	// Merge takes one pipeline's message into the round's sum. First says that it is the round's first.
	Merge(s Shard, message flat.Vector, first bool)
	// Advance moves the center when the messages of all count pipelines of the round are merged, count >= 1.
	Advance(s Shard, count int)
}

// NewMethod makes the named method. The error names the setting, what it is and what it may be.
func NewMethod(name string, c Config) (Method, error) {
	build, ok := methods[name]
	if !ok {
		return nil, fmt.Errorf("averaging.method is %q: one of %s", name, strings.Join(Methods(), ", "))
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	return build(c.withDefaults()), nil
}
