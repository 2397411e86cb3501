package stage

import (
	"errors"
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Config says what a computed stage holds and where.
type Config struct {
	Device device.Device // not closed with the stage: the stages of several pipelines share it
	Model  *model.Model
	// Range is the run of the model's layers that the stage computes; the zero Range is all of them. Split gives the
	// ranges.
	Range Range
	// Index (0-based) and Count say which stage of how many this is, for messages; Count 0 means 1.
	Index, Count int
	// Samples is the number of samples in a micro-batch.
	Samples int
	// Sequence is the number of positions of a sample, at most Model.Sequence(), which 0 stands for.
	Sequence int
	// Compute is the type in which products take their operands: F32, or BF16 with sums in F32. Parameters, their gradients,
	// optimizer state and losses are F32 whatever it is.
	Compute device.Type
	// Boundary is the type in which activations and their gradients cross to other stages: F32, or BF16, rounded. What they are made of
	// and what is made of them is F32.
	Boundary device.Type
	// Slots is how many micro-batches may be in flight at once: the plan's peak for this stage.
	Slots int
	// WeightSlots is how many micro-batches may be between Backward(Input) and Backward(Weight) at once. 0 for plans
	// that run backward passes whole: the gradients that wait for Weight take memory of their own.
	WeightSlots int
	// HandedInputs and HandedOutputs are how many micro-batches may at once have an input from, or an output for, a stage on a device that
	// shares memory with this one (schedule.Handed): the stage makes so many Buffers for the gradients of inputs, and for outputs. 0: these go
	// through host memory, as they do where the device's memory is the host's, whatever is said here.
	HandedInputs, HandedOutputs int
	// LandedInputs and LandedGradients are how many inputs, and gradients of outputs, are here as copies of another device's (schedule.Landed).
	LandedInputs, LandedGradients int
	// Versions is how many versions of the weights passes may read at once, the newest included: the plan's peak for this
	// stage. 0 means 1, for plans that step at the end of a batch. Each beyond the first takes the memory of the weights.
	Versions int
	// Predicts gives the stage a second vector, of the weights that its passes read, which Predict makes ahead of the parameters. Not with asgd,
	// whose passes read iterates, nor with several Versions.
	Predicts bool
	// Recompute says what is computed again in the backward instead of being kept; empty: nothing.
	Recompute Recompute
	Optimizer Optimizer
	// Seed determines the initial parameters, together with their names and nothing else: not the split, not the device.
	// With Pipeline, the step and a layer's name it determines what that layer drops out.
	Seed uint64
	// Pipeline is which one this is a stage of, 0-based: each drops out something else.
	Pipeline int
	// KeptApart says that what a user's modules keep between passes is in memory of another device, which has a price of its own.
	KeptApart bool
	// Frozen are the parameters that are not trained, which the caller closes after the last stage that reads them. Nil: the stage has its
	// own, with what they start with.
	Frozen *Frozen
	// ForwardOnly leaves out gradients, optimizer state and slots: Evaluate is the only work. For generation.
	ForwardOnly bool
}

func (c Config) withDefaults() Config {
	if c.Model != nil {
		if c.Range == (Range{}) {
			c.Range.To = len(c.Model.Layers)
		}
		if c.Sequence == 0 {
			c.Sequence = c.Model.Sequence()
		}
	}
	if c.Count == 0 {
		c.Count = 1
	}
	if c.Versions == 0 || c.ForwardOnly {
		c.Versions = 1
	}
	if c.ForwardOnly {
		c.Slots, c.WeightSlots, c.Predicts = 0, 0, false
	}
	if c.ForwardOnly || c.Device != nil && c.Device.Host() {
		c.HandedInputs, c.HandedOutputs, c.LandedInputs, c.LandedGradients = 0, 0, 0, 0
	}
	if c.Recompute == "" || c.ForwardOnly {
		c.Recompute = RecomputeNone
	}
	c.Optimizer = c.Optimizer.withDefaults()
	return c
}

// Validate reports the first field that is missing or out of range.
func (c Config) Validate() error {
	c = c.withDefaults()
	if c.Device == nil || c.Model == nil {
		return errors.New("stage: Config needs a Device and a Model")
	}
	n := len(c.Model.Layers)
	switch {
	case c.Index < 0 || c.Index >= c.Count:
		return fmt.Errorf("stage: index %d of %d stages", c.Index, c.Count)
	case c.Range.From < 0 || c.Range.To > n || c.Range.Len() < 1:
		return fmt.Errorf("%s: layers %d to %d of %d; a stage has at least one layer", c.what(), c.Range.From, c.Range.To, n)
	case c.Samples < 1:
		return fmt.Errorf("%s: %d samples in a micro-batch; at least 1 is needed", c.what(), c.Samples)
	case c.Sequence < 1 || c.Sequence > c.Model.Sequence():
		return fmt.Errorf("%s: samples of %d positions; the model takes 1 to %d", c.what(), c.Sequence, c.Model.Sequence())
	case c.Slots < 1 && !c.ForwardOnly:
		return fmt.Errorf("%s: %d slots for micro-batches in flight; at least 1 is needed", c.what(), c.Slots)
	case c.Versions < 1:
		return fmt.Errorf("%s: %d versions of the weights; at least 1 is needed", c.what(), c.Versions)
	case c.WeightSlots < 0 || c.WeightSlots > c.Slots:
		return fmt.Errorf("%s: %d weight slots; 0 to %d (slots) are possible", c.what(), c.WeightSlots, c.Slots)
	case c.HandedInputs < 0 || c.HandedInputs > 0 && c.first() || c.HandedOutputs < 0 || c.HandedOutputs > 0 && c.last():
		return fmt.Errorf("%s: %d inputs and %d outputs are handed over in device memory; at least 0 are possible, and none at the ends of a pipeline",
			c.what(), c.HandedInputs, c.HandedOutputs)
	case c.LandedInputs < 0 || c.LandedInputs > 0 && c.HandedInputs == 0 || c.LandedGradients < 0 || c.LandedGradients > 0 && c.HandedOutputs == 0:
		return fmt.Errorf("%s: %d inputs and %d gradients are copies; at least 0 are possible, and none of what is not handed over", c.what(), c.LandedInputs, c.LandedGradients)
	case c.Compute != device.F32 && c.Compute != device.BF16:
		return fmt.Errorf("%s: products cannot compute in %v; f32 and bf16 are possible", c.what(), c.Compute)
	case c.Boundary != device.F32 && c.Boundary != device.BF16:
		return fmt.Errorf("%s: activations cannot cross boundaries in %v; f32 and bf16 are possible", c.what(), c.Boundary)
	}
	for _, check := range []func() error{c.checkTies, c.checkTypes, c.Recompute.validate, c.Optimizer.Validate, c.checkPrediction} {
		if err := check(); err != nil {
			return fmt.Errorf("%s: %w", c.what(), err)
		}
	}
	return nil
}

func (c Config) what() string { return fmt.Sprintf("stage %d of %d", c.Index, c.Count) }

func (c Config) size() layer.Size {
	return layer.Size{B: c.Samples, T: c.Sequence, Compute: c.Compute, Apart: c.KeptApart}
}

func (c Config) layers() []layer.Layer { return c.Model.Layers[c.Range.From:c.Range.To] }

func (c Config) first() bool { return c.Range.From == 0 }

func (c Config) last() bool { return c.Range.To == len(c.Model.Layers) }

// keepsLogits reports whether evaluations on the last stage need memory for all logits: for predictions, not for losses.
func (c Config) keepsLogits() bool { return c.ForwardOnly || c.Model.Task != model.Language }

// stagesOutput reports whether the stage has memory for its output boundary. Of samples that a user's program makes, only that says anything of what the last module gives.
func (c Config) stagesOutput() bool {
	if c.last() && c.Model.Loss.Samples {
		return false
	}
	return !c.Device.Host() || c.last() && c.keepsLogits()
}

// Shape is the shape of the stage that New would make. It allocates nothing on the device, so a plan can be priced
// before it is placed.
func (c Config) Shape() (Shape, error) {
	s, err := c.plan()
	if err != nil {
		return Shape{}, err
	}
	return s.shape, nil
}

// shape is the shape of a stage with these passes and so many parameters.
func (p *passes) shape(c Config, parameters int) Shape {
	s := Shape{
		First: c.first(), Last: c.last(), Samples: c.Samples,
		InputBytes:  layer.Words(p.in) * device.F32.Bytes(),
		OutputBytes: layer.Words(p.out) * device.F32.Bytes(),
		Parameters:  parameters,
	}
	if c.ForwardOnly {
		s.ForwardFLOPs, _ = p.output.Forward.Cost()
	} else {
		s.ForwardFLOPs, _ = p.training.Forward.Cost()
		s.BackwardFLOPs, _ = p.training.Whole.Cost()
		s.StateVectors = c.Optimizer.StateVectors()
	}
	if c.last() {
		s.LabelBytes = c.Model.Loss.Targets(c.size()) * device.I32.Bytes()
	}
	return s
}

// checkTies refuses a parameter of this stage that is tied to one elsewhere, unless the two lie on the first and the last stage: only these two exchange
// gradients.
func (c Config) checkTies() error {
	here := map[string]bool{}
	for _, p := range layer.Params(c.layers()...) {
		here[p.Name] = true
	}
	for _, p := range c.Model.Params() {
		original, copied := here[p.TiedTo], here[p.Name]
		if p.TiedTo == "" || original == copied || original && c.first() || copied && c.last() {
			continue
		}
		return fmt.Errorf("parameters %s and %s are tied and lie on different stages, which must be the first and the last; use fewer stages, or cut elsewhere", p.TiedTo, p.Name)
	}
	return nil
}
