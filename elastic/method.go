package elastic

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// entry is a row of the table of methods.
type entry struct {
	build func(Config) Method         // gets a validated Config, defaults filled in, of several pipelines
	check func(Config) error          // what the method refuses beyond what all do; nil: nothing
	reads []string                    // the settings of the section averaging that are its own
	tau   int                         // Config.Tau by default
	least int                         // the least that Tau chooses
	alpha func(pipelines int) float64 // Config.Alpha by default; nil: that of the pull
}

// methods is every averaging method, by name.
var methods = map[string]entry{
	"elastic":          {newElastic, checkElastic, []string{"pull", "alpha", "horizon", "max_drift"}, 1, 1, nil},
	"easgd-async":      {newInTurn, checkInTurn, []string{"alpha"}, 1, 1, alphaInTurn},
	"localsgd":         {newLocalSGD, nil, nil, 8, 1, nil},
	"diloco":           {newDiLoCo, nil, []string{"outer_lr", "outer_momentum"}, 32, 32, nil},
	"streaming-diloco": {newStreaming, checkStreaming, []string{"outer_lr", "outer_momentum", "fragments", "mix"}, 8, 8, nil},
	"allreduce":        {newAllReduce, checkGradients, nil, 1, 1, nil},
	"pipesgd":          {newPipeSGD, checkGradients, []string{"warmup"}, 1, 1, nil},
	"sapipe":           {newSAPipe, checkSAPipe, []string{"warmup", "stale_layers", "prediction", "compensation", "lambda"}, 1, 1, nil},
}

// Methods lists the names that NewMethod takes, sorted.
func Methods() []string { return slices.Sorted(maps.Keys(methods)) }

// Settings are those of the section averaging that some methods read and others do not, by method.
func Settings() map[string][]string {
	all := map[string][]string{}
	for name, e := range methods {
		all[name] = e.reads
	}
	return all
}

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
	// MaxDrift is how far pipelines may move away from the center of a stage, as a share of its length, until rounds are synchronous (Drift). 0: there is no bound.
	MaxDrift float64
	// OuterRate and OuterMomentum are those of the step that the center takes by the mean update, with diloco and streaming-diloco. The rate is DefaultOuterRate by default; a momentum of 0 is none.
	OuterRate, OuterMomentum float64
	// Fragments is into how many fragments layers are divided that are exchanged in turn, with streaming-diloco. Default DefaultFragments. Mix is the part of its own weights that a pipeline
	// keeps when it takes what an exchange has come to; 0 is nothing.
	Fragments int
	Mix       float64
	// Warmup is how many of the first rounds nobody's gradient is late in, with pipesgd and sapipe. Default 0.
	Warmup uint64
	// StaleLayers is how many layers of the model, from the input, take gradients late, with sapipe.
	StaleLayers int
	// Prediction is what late layers predict their weights by, and Compensation how the gradients of others in it are corrected, by Lambda, with sapipe.
	// By default PredictLocal, CompensateNothing and DefaultLambda.
	Prediction   Prediction
	Compensation Compensation
	Lambda       float64
	// Precision is what messages between groups of pipelines are rounded to. Default Float32. In one group nothing is sent, and nothing rounded.
	Precision Precision
	// Tau is the batches between rounds; the update is accumulated in between. Default DefaultTau of the method.
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

// DefaultTau is the batches between rounds of a method by default; 1 of one that there is not.
func DefaultTau(method string) int { return max(1, methods[method].tau) }

// LeastTau is the least batches between rounds that Tau chooses for a method; 1 of one that there is not. The step that the center of diloco takes has the rate and momentum of its paper, which are for long
// rounds: that of a short one was not measured.
func LeastTau(method string) int { return max(1, methods[method].least) }

// DefaultOuterRate is the rate of the center's step with diloco, that of its paper.
const DefaultOuterRate = 0.7

// DefaultLambda weighs compensation for delay with sapipe.
const DefaultLambda = 0.04

// rateOfUpdates is the factor of the learning rate where updates are averaged. An adaptive optimizer divides an update by the noise of its
// pipeline's own batch, so the mean of N updates is smaller than the update of one batch of the total size by up to sqrt(N). The
// mean of N updates of SGD is that update.
func rateOfUpdates(adaptive bool, pipelines int) float64 {
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
	if c.Fragments == 0 {
		c.Fragments = DefaultFragments
	}
	if c.Horizon == 0 {
		c.Horizon = DefaultHorizon(c.Tau)
	}
	if c.OuterRate == 0 {
		c.OuterRate = DefaultOuterRate
	}
	if c.Prediction == "" {
		c.Prediction = PredictLocal
	}
	if c.Compensation == "" {
		c.Compensation = CompensateNothing
	}
	if c.Lambda == 0 {
		c.Lambda = DefaultLambda
	}
	if c.Precision == "" {
		c.Precision = Float32
	}
	return c
}

// Validate reports the first setting that no run should start with, whatever the method. It takes the defaults for what is unset.
func (c Config) Validate() error {
	c = c.withDefaults()
	switch {
	case c.Pipelines < 1:
		return &SettingError{Key: "pipelines", Nearest: "1", Problem: fmt.Sprintf("pipelines is %d: at least 1", c.Pipelines)}
	case c.Tau < 1:
		return refuse("tau", "1", "%d: at least 1 batch between rounds", c.Tau)
	case !slices.Contains([]PullRule{PullPredicted, PullNew, PullOld, PullElastic}, c.Pull):
		return refuse("pull", "", "%q: one of predicted, new, old, elastic", string(c.Pull))
	case !(c.Alpha >= 0 && c.Alpha <= 1): // also refuses NaN
		return refuse("alpha", "", "%v: between 0 and 1 (0 for the default)", c.Alpha)
	case !(c.Horizon > 0 && c.Horizon <= 4):
		return refuse("horizon", "", "%v: above 0 and at most 4 updates", c.Horizon)
	case !(c.MaxDrift >= 0 && c.MaxDrift <= 1):
		return refuse("max_drift", "", "%v: between 0 and 1, a share of the center's length (0: no bound)", c.MaxDrift)
	case !(c.OuterRate > 0 && c.OuterRate <= 2):
		return refuse("outer_lr", "", "%v: above 0 and at most 2", c.OuterRate)
	case !(c.OuterMomentum >= 0 && c.OuterMomentum < 1):
		return refuse("outer_momentum", "", "%v: 0 or more, and below 1", c.OuterMomentum)
	}
	return checkPrecision(c.Precision)
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

// Shard is the center's part of one stage: its vectors, all of the stage's length.
type Shard struct {
	// Center is x~, or the mean of the gradients of the last round where those are exchanged.
	Center flat.Vector
	Sum    flat.Vector   // of the messages of the round in progress; its content is meaningless between rounds
	State  []flat.Vector // Needs.State of them, which go on from round to round; zero at the start
}

// Needs says what a method asks of whoever runs it.
type Needs struct {
	Timing Timing
	// Synchronous is how many rounds, from the first, have timing After whatever Timing is.
	Synchronous uint64
	// Gradients: pipelines exchange the gradient of each batch, before its norm and its update, and not what the optimizer did with it. The message is
	// the gradient, complete when it is handed over; Pull replaces the gradient. All pipelines take the same updates, so that their weights and the
	// states of their optimizers have the same bits, and each one's weights are the center of the model.
	Gradients bool
	// StaleLayers is, with Gradients and timing Before, how many layers of the model, from the input, have that: those after them have timing After. Else 0.
	StaleLayers int
	// Delta: the message must come to Pull holding the sum of the optimizer updates that were applied since the last
	// round (stage.Stage.Step adds them). Otherwise, unless it is the gradient, Pull writes the message, whatever it held.
	Delta bool
	// Identity: the center has the bits of the only pipeline's weights. The owner may use one vector for both,
	// allocate no messages and run no rule, as long as it releases the pipeline last.
	Identity bool
	// State is how many vectors Shard.State has.
	State int
	// Predicts: the method is a Predictor, and passes compute with weights that it predicts after each step.
	Predicts bool
	// Earlier: Predictor.Expect reads the pipeline's message of the round before.
	Earlier bool
	// Moved: Predictor.Expect reads the update that was applied.
	Moved bool
	// MaxDrift: rounds in which pipelines are farther from the center than this share of its length are followed by synchronous ones, in which pipelines are set to the center in the place of Pull (Drift). 0: none are.
	MaxDrift float64
	// Period: where it is above 1, elements are exchanged in every Period-th round alone, those whose number modulo Period is Phase. Another round carries no message of them, and
	// no rule runs, but for that of a Mixer. Slices with each Phase below Period make up the vector. Rounds have timing Before.
	Period, Phase uint64
	// Turns: where it is above 1, one pipeline alone exchanges in a round, that whose number is the round modulo Turns. The others send no message, and no rule of theirs runs. Rounds have timing Before.
	Turns uint64
}

// Mixer is a method with a Needs.Period, whose pipelines take what an exchange has come to in the round after it.
type Mixer interface {
	Method
	// Mix moves the weights x by the center as the round before left it. It runs in the place of Pull.
	Mix(x, center flat.Vector)
}

// Exchanges reports whether messages are exchanged in a round.
func (n Needs) Exchanges(round uint64) bool { return n.Period < 2 || round%n.Period == n.Phase }

// Visits reports whether a pipeline exchanges in a round.
func (n Needs) Visits(pipeline int, round uint64) bool {
	return n.Exchanges(round) && (n.Turns < 2 || round%n.Turns == uint64(pipeline)) //nolint:gosec // not negative
}

// Mixes reports whether pipelines mix their weights with the center in a round.
func (n Needs) Mixes(round uint64) bool { return n.Period > 1 && round > 1 && n.Exchanges(round-1) }

// Every is how many rounds it takes until every pipeline has exchanged everything once.
func (n Needs) Every() int { return int(max(1, n.Period, n.Turns)) } //nolint:gosec // not more than layers, or pipelines

// Buffers is the number of messages a pipeline needs so that it never waits for one. With Before it fills the message of
// round r+1 while that of round r may still wait for its turn; that of r has been merged before the pipeline is released from
// round r+1, so message r%2 is always free. With After the message is merged before the release. With a Period round r+1 has no message.
func (n Needs) Buffers() int {
	if n.Timing == Before && n.Period < 2 {
		return 2
	}
	return 1
}

// Predictor is a method whose pipelines compute with predicted weights.
type Predictor interface {
	Method
	// Expect makes, of the mean gradient that a pipeline has just applied, the gradient that its next update is expected to have. applied is false where it had none to
	// apply, and gradient means nothing. own is the pipeline's message of this round, earlier that of the round before (with Needs.Earlier), and moved the update that was applied (with
	// Needs.Moved), which it may write to. False: nothing is expected, and passes compute with the weights as they are.
	Expect(gradient flat.Vector, applied bool, own, earlier, moved flat.Vector) bool
}

// TimingOf is the timing of a round.
func (n Needs) TimingOf(round uint64) Timing {
	if round <= n.Synchronous {
		return After
	}
	return n.Timing
}

// Idle reports whether a pipeline has no gradient to apply in a round: the first that it pulls late was applied in time in the round before, or there is none.
func (n Needs) Idle(round uint64) bool {
	return n.Gradients && n.Timing == Before && round == n.Synchronous+1
}

// AllLayers is as many as any model has.
const AllLayers = math.MaxInt32

// InFlight is of how many layers, from the input, a round leaves a mean gradient that is not applied yet.
func (n Needs) InFlight(round uint64) int {
	if n.TimingOf(round) == After {
		return 0
	}
	return n.StaleLayers
}

// Begin is what a method needs that begins after a round of another, or of a single pipeline: no gradient was late in it.
func (n Needs) Begin(round uint64) Needs {
	if n.Gradients && n.Timing == Before {
		n.Synchronous = max(n.Synchronous, round)
	}
	return n
}

// Borrows reports whether the message of a pipeline may be the gradient itself: it is merged before anything else is done with it.
func (n Needs) Borrows() bool { return n.Gradients && n.Timing == After }

// Keeps is how many vectors Kept returns.
func (n Needs) Keeps() int {
	if n.Gradients && n.Timing == Before {
		return 1
	}
	return n.State
}

// Kept are the vectors of a shard that a snapshot of a round holds beside the weights.
func (n Needs) Kept(s Shard) []flat.Vector {
	if n.Gradients && n.Timing == Before {
		return []flat.Vector{s.Center} // what the next round applies
	}
	return s.State
}

// Restores is how many of those are read of a round that has gradients of so many layers in flight: they are also where nothing is late now, and applied.
func (n Needs) Restores(inFlight int) int {
	if inFlight > 0 {
		return max(1, n.Keeps())
	}
	return n.Keeps()
}

// PipelineKeeps is how many vectors a snapshot holds of each pipeline for the method: its predicted weights, and its message of the round.
func (n Needs) PipelineKeeps() int {
	keeps := 0
	if n.Predicts {
		keeps++
	}
	if n.Earlier {
		keeps++
	}
	return keeps
}

// Vectors is how many vectors of a stage's length the center and the messages take beside so many pipelines in so many groups, of which some train here.
func (n Needs) Vectors(pipelines, groups, here int) int {
	if n.Identity {
		return 0
	}
	own := 2 + n.State // center, sum
	if n.Moved {
		own++
	}
	messages, others := here, pipelines-here
	if n.Borrows() {
		messages = 0
	}
	if others > 0 { // of a segment one message of another group, the sum or the first; of those that are summed here also the rest
		messages += 1 + (others-1+groups-1)/groups
	}
	return own + messages*n.Buffers()
}

// Method is an averaging method: a rule of the pipeline (Pull) and a rule of the center (Merge, Advance), both pure functions of
// their vectors. Vectors of one call have one length and lie on one device. A Method has no state of its own; the vectors
// are its state. Center decides when the rules run.
type Method interface {
	// Config is what the method was made from, defaults filled in.
	Config() Config
	Needs() Needs
	// RateScale is what the learning rate is multiplied by unless the user says otherwise, for an optimizer that divides updates by their noise or not.
	RateScale(adaptive bool) float64
	// Pull is the pipeline side of a round: it moves the weights x, or the gradient x, by the center, and may write the message. With
	// timing Before it runs before the message is merged, with After when the round is complete.
	Pull(x, message, center flat.Vector)
	// Merge takes one pipeline's message into the round's sum. First says that it is the round's first.
	Merge(s Shard, message flat.Vector, first bool)
	// Advance moves the center when the messages of all count pipelines of the round are merged, count >= 1.
	Advance(s Shard, count int)
}

// NewMethod makes the named method. The error names the setting, what it is and what it may be. One pipeline has nobody to average with: it trains as
// without averaging, whatever the method.
func NewMethod(name string, c Config) (Method, error) {
	of, ok := methods[name]
	if !ok {
		return nil, refuse("method", "", "%q: one of %s", name, strings.Join(Methods(), ", "))
	}
	if c.Tau == 0 {
		c.Tau = DefaultTau(name)
	}
	if c.Alpha == 0 && of.alpha != nil && c.Pipelines > 0 {
		c.Alpha = of.alpha(c.Pipelines)
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	if of.check != nil {
		if err := of.check(c); err != nil {
			if wrong, is := errors.AsType[*SettingError](err); is {
				wrong.method = name
			}
			return nil, err
		}
	}
	if c.Pipelines == 1 {
		return solo{avgpipe{config: c}}, nil
	}
	return of.build(c), nil
}
