package foreigntest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage/device"
)

// The places of parameters of all modules in a set.
const (
	weight = iota
	bias
	statistic
	square
	scale
)

func checkBuild(t *testing.T, b *bench) {
	t.Helper()
	var found []string
	for _, m := range b.built.Modules {
		for _, p := range m.Parameters {
			found = append(found, fmt.Sprint(p.Shape, p.TiedTo != "", p.Trained))
		}
		for _, r := range m.Buffers {
			found = append(found, fmt.Sprint(r.Shape))
		}
	}
	if found, expected := strings.Join(found, " | "), "[3 2] false true | [3] false true | [3] | [3 3] false true | [1] false false | [3 3] true true"; found != expected {
		t.Fatalf("tensors are %s, expected %s", found, expected)
	}
	values := func(seed uint64) []float32 {
		built, err := b.process.Build(b.program, seed)
		if err != nil {
			t.Fatal(err)
		}
		x, err := b.process.Read(built.Modules[0].Parameters[0].Name, 6)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	first := values(1)
	b.same("built of another seed", values(2), first, false)
	b.same("built of the same seed", values(1), first, true)
	if _, err := b.process.Read("no such", 1); err == nil {
		t.Error("a parameter was read that nobody has")
	}
}

// multiply is W x of each sample. w: (3, columns), x: (samples, columns).
func multiply(w, x []float32) (y []float32) {
	const rows = 3
	columns := len(w) / rows
	for s := range len(x) / columns {
		for r := range rows {
			var sum float32
			for c := range columns {
				sum += w[r*columns+c] * x[s*columns+c]
			}
			y = append(y, sum)
		}
	}
	return y
}

func checkEvaluation(t *testing.T, b *bench) {
	t.Helper()
	one, other := b.set(0, 4), b.set(0, 4)
	b.device.Upload(other.params[weight], device.FloatBytes(b.numbers(6)))
	x := b.tensor(b.numbers(2 * samples)...)
	check := func(what string, s *set) {
		found := b.values(b.forward(s, x, pass{evaluates: true, begins: true}))
		y := multiply(s.params[weight].F32(), x.F32())
		for i := range y {
			y[i] += s.params[bias].F32()[i%3]
		}
		y = multiply(s.params[square].F32(), y)
		for i := range y {
			y[i] *= s.params[scale].F32()[0]
		}
		b.near(what, found, multiply(s.params[square].F32(), y))
	}
	check("as built", one)
	check("other parameters", other)
	b.device.Upload(one.params[square], device.FloatBytes(b.numbers(9)))
	check("parameters that have changed", one)
	b.device.Upload(x, device.FloatBytes(b.numbers(2*samples)))
	check("inputs that have changed", one)
}

func checkRandomness(_ *testing.T, b *bench) {
	s, x := b.set(1, 2), b.tensor(b.numbers(3*samples)...)
	first := b.values(b.forward(s, x, pass{key: 1, begins: true}))
	b.same("another seed", b.values(b.forward(s, x, pass{key: 2, begins: true})), first, false)
	b.same("the same seed", b.values(b.forward(s, x, pass{key: 1, begins: true})), first, true)
	for i, y := range first {
		if x := x.F32()[i]; y != 0 && y != 2*x {
			b.Errorf("%v became %v, expected 0 or twice as much", x, y)
		}
	}
	b.same("evaluation", b.values(b.forward(s, x, pass{key: 1, begins: true, evaluates: true})), x.F32(), true)
}

func checkSplit(_ *testing.T, b *bench) {
	whole, x, keep := b.set(0, 4), b.tensor(b.numbers(2*samples)...), b.keep()
	dy := b.tensor(b.numbers(3 * samples)...)
	expected := b.values(b.forward(whole, x, pass{key: 3, begins: true, keep: keep}))
	b.backward(whole, keep, dy)
	var stages []*set
	var keeps []device.Mem
	for _, r := range [][2]int{{0, 1}, {1, 3}, {3, 4}} {
		s := b.set(r[0], r[1])
		stages, keeps = append(stages, s), append(keeps, b.keep())
		x = b.forward(s, x, pass{key: 3, begins: true, keep: keeps[len(keeps)-1]})
	}
	b.near("one by one", b.values(x), expected)
	for i, s := range slices.Backward(stages) {
		dy = b.backward(s, keeps[i], dy)
	}
	b.near("the gradient of a weight", b.values(stages[0].grads[0]), b.values(whole.grads[weight]))
	both := b.values(stages[1].grads[1])
	for i, g := range b.values(stages[2].grads[0]) {
		both[i] += g
	}
	b.near("the gradient of a tied weight", both, b.values(whole.grads[square]))
}

// checkGradients compares gradients with differences of the loss, which is dy y: quadratic in each parameter, so that they are exact.
func checkGradients(t *testing.T, b *bench) {
	t.Helper()
	s, x, keep, dy := b.set(0, 4), b.tensor(b.numbers(2*samples)...), b.keep(), b.numbers(3*samples)
	loss := func() (sum float64) {
		for i, y := range b.values(b.forward(s, x, pass{key: 4, begins: true})) {
			sum += float64(y) * float64(dy[i])
		}
		return sum
	}
	for times := 1; times <= 2; times++ {
		b.forward(s, x, pass{key: 4, begins: true, keep: keep})
		b.backward(s, keep, b.tensor(dy...))
		for _, number := range []int{weight, bias, square} {
			found := b.values(s.grads[number])
			expected := make([]float32, len(found))
			for i := range expected {
				p := s.params[number].Slice(i, 1)
				was := p.F32()[0]
				lossAt := func(x float32) float64 {
					b.device.Upload(p, device.FloatBytes([]float32{x}))
					return loss()
				}
				expected[i] = float32((lossAt(was+0.5) - lossAt(was-0.5)) * float64(times))
				b.device.Upload(p, device.FloatBytes([]float32{was}))
			}
			b.near(fmt.Sprintf("the gradient of parameter %d after %d backwards", number, times), found, expected)
		}
	}
	last := b.set(3, 4)
	h := b.tensor(b.numbers(3 * samples)...)
	b.forward(last, h, pass{begins: true, keep: keep})
	dx := b.backward(last, keep, b.tensor(dy...))
	v, transposed := last.params[0].F32(), make([]float32, 9)
	for i := range v {
		transposed[i%3*3+i/3] = v[i]
	}
	b.near("the gradient of an input", b.values(dx), multiply(transposed, dy))
	before := b.values(last.grads[0])
	b.forward(last, h, pass{begins: true, keep: keep})
	b.same("the gradient of an input, where none comes", b.values(b.backward(last, keep, device.Mem{})), make([]float32, 3*samples), true)
	b.same("the gradient of a parameter, where none comes", b.values(last.grads[0]), before, true)
}

func checkKept(t *testing.T, b *bench) {
	t.Helper()
	dy := b.numbers(3 * samples)
	inputs := [][]float32{b.numbers(2 * samples), b.numbers(2 * samples)}
	run := func(order ...int) []float32 {
		s, keeps := b.set(0, 4), []device.Mem{b.keep(), b.keep()}
		for i, x := range inputs {
			b.forward(s, b.tensor(x...), pass{key: uint64(i), begins: true, keep: keeps[i]}) //nolint:gosec // small
		}
		for _, i := range order {
			b.backward(s, keeps[i], b.tensor(dy...))
		}
		return b.values(s.grads[weight])
	}
	b.near("the other order", run(1, 0), run(0, 1))
	s, keep := b.set(0, 4), b.keep()
	b.forward(s, b.tensor(inputs[0]...), pass{begins: true, keep: keep})
	b.values(keep.As(device.F32, 1))
	b.backward(s, keep, b.tensor(dy...))
	b.values(s.grads[weight])
	b.backward(s, keep, b.tensor(dy...))
	b.refused("a second backward of one forward")
	b.forward(s, b.tensor(inputs[0]...), pass{begins: true, keep: keep})
	b.device.Free(keep)
	b.backward(s, keep, b.tensor(dy...))
	b.refused("a backward of a forward that was dropped")
}

func checkAgain(_ *testing.T, b *bench) {
	s, x, keep := b.set(0, 4), b.tensor(b.numbers(2*samples)...), b.keep()
	forward := b.forwardOf(s, x, pass{begins: true, counts: true, keep: keep})
	backward := &device.ModulesBackward{
		DIn: make([]device.Mem, 1), Grads: s.grads, Keep: keep, DOut: []device.Mem{b.tensor(b.numbers(3 * samples)...)}, Params: s.params, Modules: b.modules(s),
	}
	run := func(key uint64, begins bool) (y, statistics, gradient []float32) {
		b.device.Upload(s.grads[weight], device.FloatBytes(make([]float32, 6)))
		forward.By = device.ModuleArgs{Key: key, Begins: begins}
		b.device.Do(forward)
		y, statistics = b.values(forward.Out[0]), b.values(s.sums[statistic])
		b.device.Do(backward)
		return y, statistics, b.values(s.grads[weight])
	}
	one, sum, gradient := run(1, true)
	two, further, _ := run(2, false)
	b.same("the output with another seed", two, one, false)
	b.same("a statistic that goes on", further, sum, false)
	again, first, same := run(1, true)
	b.same("the output with the same seed", again, one, true)
	b.same("a statistic that begins again", first, sum, true)
	b.same("the gradient with the same seed", same, gradient, true)
	b.device.Upload(x, device.FloatBytes(b.numbers(2*samples)))
	other, _, _ := run(1, true)
	b.same("the output of other inputs", other, one, false)
}

func checkStatistics(_ *testing.T, b *bench) {
	s, x := b.set(0, 2), b.tensor(b.numbers(2*samples)...)
	start := b.numbers(3)
	b.device.Upload(s.params[statistic], device.FloatBytes(start))
	h := multiply(s.params[weight].F32(), x.F32())
	after := func(before []float32) (out []float32) {
		for i, v := range before {
			sum := float32(0)
			for at := i; at < len(h); at += 3 {
				sum += h[at] + s.params[bias].F32()[i]
			}
			out = append(out, v/2+sum/samples/2)
		}
		return out
	}
	sum := func() []float32 { return b.values(s.sums[statistic]) }
	b.forward(s, x, pass{begins: true, counts: true})
	one := sum()
	b.near("the first forward of a batch", one, after(start))
	b.forward(s, x, pass{counts: true})
	two := sum()
	b.near("the second forward of a batch", two, after(one))
	b.forward(s, x, pass{})
	b.same("a forward that does not count", sum(), two, true)
	b.forward(s, x, pass{evaluates: true, begins: true})
	b.same("an evaluation", sum(), two, true)
	b.forward(s, x, pass{begins: true, counts: true})
	b.same("the first forward of another batch", sum(), one, true)
	b.same("the statistic itself", b.values(s.params[statistic]), start, true)
}

func checkLoss(t *testing.T, b *bench) {
	t.Helper()
	const share = 0.25
	s, x, targets := b.set(3, 4), b.tensor(b.numbers(3*samples)...), []int32{2, 0, 1, 2}
	logits := b.values(b.forward(s, x, pass{begins: true}))
	dy := make([]float32, len(logits))
	var loss float32
	for i, target := range targets {
		dy[3*i+int(target)] = -share / samples
		loss -= logits[3*i+int(target)] / samples
	}
	keep := b.keep()
	b.forward(s, x, pass{begins: true, keep: keep})
	expected := b.values(b.backward(s, keep, b.tensor(dy...)))
	gradient := b.values(s.grads[0])

	at, err := b.device.Alloc(device.I32, samples)
	if err != nil {
		t.Fatal(err)
	}
	b.device.Upload(at, device.IntBytes(targets))
	of := b.modules(s)
	of.Loss, of.Targets = true, []device.ModuleTensor{{Shape: []int{samples}, Type: device.I32}}
	for _, evaluates := range []bool{true, false} {
		found, s := b.tensor(7), b.set(3, 4)
		f := &device.ModulesForward{
			Out: make([]device.Mem, 1), UserLoss: found, Sums: s.sums, Keep: keep, In: []device.Mem{x}, Targets: []device.Mem{at}, Params: s.params, Grads: s.grads, Modules: of, Training: true,
		}
		if evaluates {
			f.Keep, f.Training = device.Mem{}, false
		}
		b.device.Do(f)
		b.near("the loss", b.values(found), []float32{loss})
		if evaluates {
			continue
		}
		dx := b.tensor(slices.Repeat([]float32{7}, 3*samples)...)
		b.device.Do(&device.ModulesBackward{DIn: []device.Mem{dx}, Grads: s.grads, Keep: keep, DOut: make([]device.Mem, 1), Params: s.params, Modules: of, Weight: share})
		b.near("the gradient of the inputs of the loss", b.values(dx), expected)
		b.near("the gradient of the loss", b.values(s.grads[0]), gradient)
	}
}

func checkErrors(t *testing.T, b *bench) {
	t.Helper()
	s, keep := b.set(3, 4), b.keep()
	x, dy := b.tensor(b.numbers(3*samples)...), b.tensor(b.numbers(3*samples)...)
	before := b.values(b.forward(s, x, pass{begins: true}))
	large := b.tensor(slices.Repeat([]float32{1e9}, 3*samples)...)
	b.forward(s, large, pass{begins: true, keep: keep})
	if err := b.failure("an error of the program"); err.Type == "" || err.File == "" || err.Line == 0 {
		t.Errorf("found %#v, expected a type, a file and a line", err)
	}
	b.backward(s, keep, dy)
	b.refused("a backward of a forward that failed")
	short := b.modules(s)
	short.Outputs = []device.ModuleTensor{{Shape: []int{samples, 2}, Type: device.F32}}
	b.device.Do(&device.ModulesForward{
		Out: []device.Mem{b.tensor(make([]float32, 2*samples)...)}, Sums: s.sums, In: []device.Mem{x}, Params: s.params, Grads: s.grads, Modules: short, Training: true,
	})
	b.refused("outputs of another shape than the modules give")
	if _, err := b.process.Build(b.program, 1); err != nil {
		t.Errorf("another build: %v", err)
	}
	b.same("after errors", b.values(b.forward(b.set(3, 4), x, pass{begins: true})), before, true)
}
