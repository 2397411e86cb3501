package elastic

import "github.com/avgpipe/avgpipe/stage/flat"

// DefaultFragments is how many fragments a model has with streaming-diloco: a round carries a quarter of it, and little is older than the others.
const DefaultFragments = 4

// streaming is Streaming DiLoCo (Douillard et al. 2025, algorithm 2): DiLoCo whose model is exchanged in fragments, one after the other, while training goes on. With P fragments, each is
// exchanged in every P-th round, so after every P tau steps of the inner optimizer. With D = x~ - mean_i(x_i) of the fragment's elements in that round r,
//
//	m <- mu m + D;   x~_r = x~ - lr (D + mu m)
//
// and a round later, after tau more steps, in which the exchange has had time, a pipeline mixes what it has by then with the result:
//
//	x_i <- a x_i + (1 - a) x~_r
//
// The message is x_i - x~, whose mean is -D, and the state is -m, as with diloco. x~ is as the fragment's last exchange left it, so it is no part of the message that a pipeline has to remember.
//
// Fragments are the paper's strided pattern: a layer of the model belongs to the fragment that is its number modulo P. So it does not matter how the model is split into stages, and each stage
// has about as much to send in every round.
//
// With a = 0 the steps of the round in which an exchange is under way are lost; with a = 1 pipelines would never learn of each other.
type streaming struct {
	diloco
	period, phase uint64
	keeps         float32 // a
}

func newStreaming(c Config) Method {
	return streaming{dilocoOf(c), uint64(c.Fragments), 0, float32(c.Mix)}
}

// checkStreaming refuses a single fragment, whose exchange would have no time before the next one.
func checkStreaming(c Config) error {
	switch {
	case c.Fragments == 1:
		return refuse("fragments", "2", "1: at least 2, which are exchanged in turn; for the whole model at once remove it and write method: diloco")
	case c.Fragments < 2:
		return refuse("fragments", "2", "%d: at least 2", c.Fragments)
	case !(c.Mix >= 0 && c.Mix < 1): // also refuses NaN
		return refuse("mix", "", "%v: 0 or more, and below 1, with which pipelines would never take anything from each other", c.Mix)
	}
	return nil
}

func (s streaming) Needs() Needs {
	return Needs{Timing: Before, State: 1, Period: s.period, Phase: s.phase}
}

// Pull writes the message, and leaves the weights.
func (s streaming) Pull(x, message, center flat.Vector) {
	message.Copy(x)
	message.Axpy(-1, center)
}

// Mix implements Mixer.
func (s streaming) Mix(x, center flat.Vector) { x.Lerp(1-s.keeps, center) }

// cut splits the vector by the fragments of layers.
func (s streaming) cut(l Layout) []Slice {
	var all []Slice
	for _, run := range l {
		own := s
		own.phase = uint64(run.Trained) % s.period //nolint:gosec // not negative
		if last := len(all) - 1; last >= 0 && all[last].Rules == Method(own) {
			all[last].To = run.To
			continue
		}
		all = append(all, Slice{Range: run.Range, Rules: own})
	}
	return all
}
