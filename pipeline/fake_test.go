package pipeline

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/flat"
)

// width is how many float32 cross a boundary of a fake stage for one micro-batch.
const width = 6

// fake is a stage of simple arithmetic that is sensitive to order, routing and repetition: every output depends on all inputs,
// the parameters and the micro-batch, and gradients are sums of float32 whose bits depend on their order.
type fake struct {
	index, stages int
	tied          int // of the first and last stage's parameters: the first so many are tied
	slots         int // micro-batches that may be in flight; 0 for no limit
	params, grads flat.Host
	momentum      flat.Host
	steps         []uint64          // of the run, the last one of each element
	predicted     flat.Host         // what passes read; nil: the parameters
	newest        int               // what the weights are called
	stash         map[int]flat.Host // older versions
	inFlight      map[microKey]fakeInFlight
	loss          float64
	squares       float64       // as the micro-batch with Micro.Squares left the gradients, without tied ones
	jitter        time.Duration // the longest sleep in an op, to shake the order of events
	delay         time.Duration // of every op
	faults        func(op string, m stage.Micro) error
	busy          *atomic.Int32 // of the device: at most one caller at a time
	closed        bool
}

// microKey names a micro-batch.
type microKey struct {
	step  uint64
	index int
}

func keyOf(m stage.Micro) microKey { return microKey{m.Step, m.Index} }

type fakeInFlight struct {
	in, out []float32
	din     []float32 // of the input half, for the weight half
	input   []byte    // the caller's buffer, which must not change
	sum     uint64    // of its bytes
}

// newFake makes stage index of stages; all pipelines start equal. Stages have different numbers of parameters.
func newFake(index, stages int) *fake {
	n := 5 + 2*index
	f := &fake{
		index: index, stages: stages, params: flat.NewHost(n), grads: flat.NewHost(n), momentum: flat.NewHost(n), steps: make([]uint64, n),
		stash: map[int]flat.Host{}, inFlight: map[microKey]fakeInFlight{}, busy: new(atomic.Int32),
	}
	rng := rand.New(rand.NewPCG(uint64(index), 7))
	for i := range f.params {
		f.params[i] = rng.Float32() - 0.5
	}
	return f
}

func (f *fake) first() bool { return f.index == 0 }
func (f *fake) last() bool  { return f.index == f.stages-1 }

func (f *fake) Shape() stage.Shape {
	s := stage.Shape{
		First: f.first(), Last: f.last(), Samples: 1, InputBytes: 4 * width, OutputBytes: 4 * width,
		Parameters: len(f.params), StateVectors: 1,
	}
	if s.Last {
		s.LabelBytes = 4 * width
	}
	return s
}

// enter checks that the device has one caller, and takes the time that the fake was told to.
func (f *fake) enter(op string, m stage.Micro) (leave func(), err error) {
	if f.busy.Add(1) != 1 {
		panic("two callers on one device")
	}
	if f.closed {
		panic(op + " after Close")
	}
	if f.jitter > 0 {
		time.Sleep(rand.N(f.jitter))
	}
	time.Sleep(f.delay)
	if f.faults != nil {
		err = f.faults(op, m)
	}
	return func() { f.busy.Add(-1) }, err
}

// mix is what the layer computes: y = tanh-like of a parameter-dependent sum over x.
func mix(p flat.Host, x []float32, m int) []float32 {
	y := make([]float32, len(x))
	acc := float32(m) * 0.01
	for i, v := range x {
		acc += float32(v*p[i%len(p)]) + p[(i+1)%len(p)]
		y[i] = acc / (1 + float32(math.Abs(float64(acc))))
	}
	return y
}

func (f *fake) Forward(m stage.Micro, input stage.Boundary, labels []byte, output stage.Boundary) error {
	leave, err := f.enter("forward", m)
	defer leave()
	if err != nil {
		return err
	}
	if _, ok := f.inFlight[keyOf(m)]; ok || f.slots > 0 && len(f.inFlight) == f.slots {
		return fmt.Errorf("micro-batch %d on stage %d: in flight already, or %d slots are taken", m.Index, f.index, len(f.inFlight))
	}
	params, err := f.version(m.Version)
	if err != nil {
		return err
	}
	in := decode(input.Host)
	out := mix(params, in, m.Index)
	if f.last() {
		for i, l := range decode(labels) {
			d := float64(out[i] - l)
			f.loss += d * d * float64(m.Weight) / width
			out[i] -= l
		}
	} else {
		encode(output.Host, out)
	}
	f.inFlight[keyOf(m)] = fakeInFlight{in: in, out: out, input: input.Host, sum: digest(input.Host)}
	return nil
}

// version finds the weights that a micro-batch reads.
func (f *fake) version(name int) (flat.Host, error) {
	if name == f.newest && f.predicted != nil {
		return f.predicted, nil
	}
	if name == f.newest {
		return f.params, nil
	}
	if old := f.stash[name]; old != nil {
		return old, nil
	}
	return nil, fmt.Errorf("version %d of the weights of stage %d is not kept", name, f.index)
}

func (f *fake) Backward(m stage.Micro, part stage.Part, doutput, dinput stage.Boundary) error {
	leave, err := f.enter("backward", m)
	defer leave()
	if err != nil {
		return err
	}
	p, ok := f.inFlight[keyOf(m)]
	if !ok {
		return fmt.Errorf("micro-batch %d on stage %d is not in flight", m.Index, f.index)
	}
	if digest(p.input) != p.sum {
		return fmt.Errorf("the input of micro-batch %d on stage %d changed before its backward", m.Index, f.index)
	}
	params, err := f.version(m.Version)
	if err != nil {
		return err
	}
	dout := p.out
	if !f.last() {
		dout = decode(doutput.Host)
	}
	if part != stage.Weight {
		p.din = make([]float32, width)
		for i, d := range dout {
			p.din[i] = float32(d*params[(i+2)%len(params)]) + p.in[i]*0.1
		}
		f.inFlight[keyOf(m)] = p
		if !f.first() {
			encode(dinput.Host, p.din)
		}
	}
	if part != stage.Input {
		for i, d := range dout {
			f.grads[i%len(f.grads)] += float32(m.Weight*d) * (p.in[i] + p.din[i])
		}
		if m.Squares {
			f.squares = 0
			for _, g := range f.grads[f.tied:] {
				f.squares += float64(g) * float64(g)
			}
		}
		delete(f.inFlight, keyOf(m))
	}
	return nil
}

func (f *fake) Ready() stage.Event { return nil }

func (f *fake) Buffers() stage.Buffers { return stage.Buffers{} }

func (f *fake) Loss() (float64, error) { return f.loss, nil }

func (f *fake) SumTies() {}

func (f *fake) SquaredNorm(sum float64) (float64, error) {
	from := 0
	if f.last() && !f.first() {
		from = f.tied
	}
	for _, g := range f.grads[from:] {
		sum += float64(g) * float64(g)
	}
	return sum, nil
}

func (f *fake) Squares() (first, now float64, err error) {
	now, err = f.SquaredNorm(0)
	return f.squares, now, err
}

func (f *fake) Step(h stage.Hyper, delta flat.Vector) error {
	leave, err := f.enter("step", stage.Micro{Step: h.Step})
	defer leave()
	if err != nil {
		return err
	}
	if sum, _ := f.SquaredNorm(0); math.IsInf(sum, 0) {
		return &stage.NonFiniteError{What: "gradient norm", Stage: f.index, Step: h.Step, Value: sum}
	}
	for name := range f.stash {
		if !slices.Contains(h.Stash, name) {
			delete(f.stash, name)
		}
	}
	if slices.Contains(h.Stash, f.newest) {
		f.stash[f.newest] = slices.Clone(f.params)
	}
	if f.newest = h.Version; h.Version == 0 && len(f.inFlight)+len(f.stash) > 0 {
		return fmt.Errorf("step %d on stage %d with %d micro-batches in flight", h.Step, f.index, len(f.inFlight))
	}
	elements := h.Elements
	if elements == (flat.Range{}) {
		elements.To = len(f.params)
	}
	for i := elements.From; i < elements.To; i++ {
		f.steps[i] = h.Before + h.Step
		f.momentum[i] = 0.9*f.momentum[i] + h.GradScale*f.grads[i]
		update := -h.LearningRate * correction(h) * f.momentum[i]
		before := f.params[i]
		f.params[i] += update
		if delta != nil {
			delta.(flat.Host)[i] += f.params[i] - before
		}
	}
	return nil
}

func (f *fake) Predict(h stage.Hyper, gradient flat.Vector, elements ...flat.Range) error {
	copy(f.predicted, f.params)
	for _, r := range elements {
		for i := r.From; i < r.To; i++ {
			f.predicted[i] += -h.LearningRate * correction(h) * (0.9*f.momentum[i] + h.GradScale*gradient.(flat.Host)[i])
		}
	}
	return nil
}

func (f *fake) Predicted() flat.Vector { return f.predicted }

// correction makes the state's age matter, as in Adam.
func correction(h stage.Hyper) float32 { return float32(1 / (1 + math.Exp(-float64(h.Step)))) }

func (f *fake) ZeroGradients() { f.grads.Zero(); f.loss = 0 }

func (f *fake) Evaluate(parameters flat.Vector, input, labels, output []byte) (stage.Score, error) {
	leave, err := f.enter("evaluate", stage.Micro{})
	defer leave()
	if err != nil {
		return stage.Score{}, err
	}
	p := f.params
	if parameters != nil {
		p = parameters.(flat.Host)
	}
	out := mix(p, decode(input), 0)
	if !f.last() {
		encode(output, out)
		return stage.Score{}, nil
	}
	score := stage.Score{Targets: width, Predicted: width, Classes: make([]stage.ClassCount, 2)}
	for i, l := range decode(labels) {
		score.Loss += math.Abs(float64(out[i] - l))
		class := &score.Classes[i%2]
		class.Targets++
		if out[i] > l {
			score.Correct++
			class.Correct++
		}
	}
	return score, nil
}

func (f *fake) Parameters() flat.Vector         { return f.params }
func (f *fake) Gradients() flat.Vector          { return f.grads }
func (f *fake) State() []flat.Vector            { return []flat.Vector{f.momentum} }
func (f *fake) NewVector() (flat.Vector, error) { return flat.NewHost(len(f.params)), nil }
func (f *fake) Close() error                    { f.closed = true; return nil }

func (f *fake) Ties() []stage.Tie {
	if f.tied == 0 || f.stages == 1 || !f.first() && !f.last() {
		return nil
	}
	return []stage.Tie{{Name: "tied", Gradient: f.grads[:f.tied]}}
}

// data is a Source whose numbers depend on the pipeline, the step and the micro-batch.
type data struct{ pipeline int }

func (d data) Fill(step uint64, micro int, input, labels []byte) error {
	fill(input, "input", d.pipeline, step, micro, -0.5)
	fill(labels, "labels", d.pipeline, step, micro, 0) // not below 0: as targets, all of them count
	return nil
}

// fill writes values from low to low+1.
func fill(b []byte, what string, pipeline int, step uint64, micro int, low float32) {
	h := fnv.New64a()
	h.Write(fmt.Append(nil, what, pipeline, step, micro))
	rng := rand.New(rand.NewPCG(h.Sum64(), 1))
	for i := 0; i+4 <= len(b); i += 4 {
		binary.NativeEndian.PutUint32(b[i:], math.Float32bits(rng.Float32()+low))
	}
}

func decode(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.NativeEndian.Uint32(b[4*i:]))
	}
	return x
}

func encode(b []byte, x []float32) {
	for i, v := range x {
		binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(v))
	}
}

func digest(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b)
	return h.Sum64()
}
