// Package stage turns a model into the stages of a pipeline.
//
// A model is a list of layers (package stage/model makes it from a config); Split cuts the list into K runs of
// consecutive layers by their cost; New gives a run one flat buffer each for parameters, gradients and optimizer state, on a
// device. The caller, one goroutine a device, then drives a batch of M micro-batches in the order of a plan:
//
//	s.ZeroGradients()
//	for each op of the plan {
//		case F: s.Forward(m, input, labels, output) // output is there when s.Ready() has passed
//		case B: s.Backward(m, stage.Whole, doutput, dinput)
//	}
//	sum, _ := s.SquaredNorm(fromUpstream) // along the pipeline; the total comes back
//	s.Step(stage.Hyper{...}, delta)
package stage
