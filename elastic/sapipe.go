package elastic

import (
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/stage/flat"
)

// Prediction says what a pipeline takes for the gradient of the update that it has not got yet, with sapipe.
type Prediction string

// The values of averaging.prediction, for pipeline i in step t: g its own gradient, gbar the mean of all, which is known of step t-1.
const (
	PredictNothing       Prediction = "none"            // it computes with the weights as they are, as Pipe-SGD does
	PredictLocal         Prediction = "local"           // g_{i,t}. The default
	PredictPrevSync      Prediction = "prev_sync"       // gbar_{t-1}
	PredictLocalPrevSync Prediction = "local_prev_sync" // g_{i,t}/N + (gbar_{t-1} - g_{i,t-1}/N)
)

// Compensation says how gbar_{t-1}, which was computed at older weights, is corrected for what they moved by since.
type Compensation string

// The values of averaging.compensation.
const (
	CompensateNothing       Compensation = "none"
	CompensateDiag          Compensation = "diag"
	CompensateDiagAdaptive  Compensation = "diag_adaptive"
	CompensateOuter         Compensation = "outer"
	CompensateOuterAdaptive Compensation = "outer_adaptive"
)

var (
	predictions   = []Prediction{PredictLocal, PredictPrevSync, PredictLocalPrevSync, PredictNothing}
	compensations = []Compensation{CompensateNothing, CompensateDiag, CompensateDiagAdaptive, CompensateOuter, CompensateOuterAdaptive}
)

// sapipe is SAPipe (Chen et al., NeurIPS 2022): data parallelism whose first layers, on the side of the input, take the mean gradient of the step before, and the others that of
// this step. The backward makes the gradients of the first layers last, and the next forward needs their weights first: it is their exchange that nothing else hides.
//
// The first layers compute with predicted weights x^, which are x advanced by one more step of the job's optimizer:
//
//	x_{t+1}  = OPT(x_t, gbar_{t-1})
//	x^_{t+1} = x_{t+1} advanced by OPT with ghat_t, whose state is read and not changed; ghat_t as Prediction says
//
// The first late step has no gradient to apply: those of the steps before were applied in time (Needs.Idle).
type sapipe struct{ stale }

func newSAPipe(c Config) Method {
	if c.StaleLayers == 0 {
		return newAllReduce(c)
	}
	return sapipe{newStale(c)}
}

// checkSAPipe refuses predictions and compensations that do not go together.
func checkSAPipe(c Config) error {
	switch {
	case c.StaleLayers < 0:
		return refuse("stale_layers", "0", "%d: 0 or more layers, from the input", c.StaleLayers)
	case !slices.Contains(predictions, c.Prediction):
		return refuse("prediction", "", "%q: one of %s", string(c.Prediction), list(predictions))
	case !slices.Contains(compensations, c.Compensation):
		return refuse("compensation", "", "%q: one of %s", string(c.Compensation), list(compensations))
	case c.Compensation != CompensateNothing && c.Prediction != PredictPrevSync && c.Prediction != PredictLocalPrevSync:
		return refuse("compensation", string(CompensateNothing), "%s: with prediction: %s there is no gradient of others in the prediction that it could correct; write prediction: %s or %s, or compensation: %s",
			c.Compensation, c.Prediction, PredictPrevSync, PredictLocalPrevSync, CompensateNothing)
	case !(c.Lambda > 0 && c.Lambda <= 10):
		return refuse("lambda", "", "%v: above 0 and at most 10", c.Lambda)
	}
	return checkGradients(c)
}

// list names values for a message.
func list[T ~string](values []T) string {
	var names []string
	for _, v := range values {
		names = append(names, string(v))
	}
	return strings.Join(names, ", ")
}

// cut splits the vector where late layers begin and end.
func (s sapipe) cut(l Layout) []Slice {
	var all []Slice
	for from := 0; from < len(l); {
		late, to := l[from].Layer < s.needs.StaleLayers, from+1
		for to < len(l) && (l[to].Layer < s.needs.StaleLayers) == late {
			to++
		}
		rules := newAllReduce(s.config)
		if late {
			own := s.stale
			own.tensors = nil
			for _, r := range l[from:to] {
				own.tensors = append(own.tensors, flat.Range{From: r.From - l[from].From, To: r.To - l[from].From})
			}
			rules = own
		}
		all = append(all, Slice{Range: flat.Range{From: l[from].From, To: l[to-1].To}, Rules: rules})
		from = to
	}
	return all
}

// stale are the rules of late layers.
type stale struct {
	gradients
	tensors []flat.Range // in the slice; nil: it is one
}

func newStale(c Config) stale {
	return stale{gradients{c, Needs{
		Timing: Before, Gradients: true, StaleLayers: c.StaleLayers, Synchronous: c.Warmup, Predicts: c.Prediction != PredictNothing,
		Earlier: c.Prediction == PredictLocalPrevSync, Moved: c.Compensation != CompensateNothing,
	}}, nil}
}

// Expect implements Predictor.
//
// The gradient gbar_{t-1} was computed about where x_t is, by pipelines that predicted that, and gbar_t, in whose place it is taken, is computed about where x_{t+1} is. So
// d = x_now - x_then of the delay compensation is the update that has just been applied.
func (s stale) Expect(gradient flat.Vector, applied bool, own, earlier, moved flat.Vector) bool {
	if s.config.Prediction == PredictLocal {
		gradient.Copy(own)
		return true
	}
	if !applied {
		return false
	}
	if s.needs.Moved {
		s.compensate(gradient, moved)
	}
	if s.config.Prediction == PredictLocalPrevSync {
		share := 1 / float32(s.config.Pipelines)
		gradient.Axpy(share, own)
		gradient.Axpy(-share, earlier)
	}
	return true
}

// compensate corrects a gradient for its delay, tensor by tensor: so it does not depend on how the model is split, and copies of a tied tensor stay equal.
func (s stale) compensate(gradient, moved flat.Vector) {
	tensors := s.tensors
	if tensors == nil {
		tensors = []flat.Range{{To: gradient.Len()}}
	}
	for _, t := range tensors {
		compensate(s.config.Compensation, float32(s.config.Lambda), gradient.Slice(t.From, t.To), moved.Slice(t.From, t.To))
	}
}
