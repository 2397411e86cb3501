package stage_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

func TestInitialValuesAreGPT2sAndDependOnSeedAndNameAlone(t *testing.T) {
	values := func(name, tiedTo string, seed uint64) []float32 {
		out := make([]float32, 10000)
		stage.InitialValues(layer.Param{Name: name, TiedTo: tiedTo, Init: layer.Init{Mean: 1, Deviation: 0.02}}, seed, out)
		return out
	}
	a := values("a", "", 1)
	if !slices.Equal(a, values("a", "", 1)) || !slices.Equal(a, values("b", "a", 1)) {
		t.Error("the same name and seed, or a tied copy, give other values")
	}
	if slices.Equal(a, values("b", "", 1)) || slices.Equal(a, values("a", "", 2)) {
		t.Error("another name or seed gives the same values")
	}
	mean, square := 0.0, 0.0
	for _, x := range a {
		mean += float64(x) / float64(len(a))
		square += (float64(x) - 1) * (float64(x) - 1) / float64(len(a))
	}
	// Six standard errors of the mean and of the standard deviation.
	if math.Abs(mean-1) > 6*0.02/100 || math.Abs(math.Sqrt(square)-0.02) > 6*0.02/math.Sqrt(20000) {
		t.Errorf("mean %v and standard deviation %v, want 1 and 0.02", mean, math.Sqrt(square))
	}
	for _, p := range tiny(t, true).Params() {
		var want layer.Init
		switch {
		case strings.HasSuffix(p.Name, "c_proj.weight"):
			want.Deviation = 0.02 / math.Sqrt(4) // two layers, two residual branches each
		case strings.Contains(p.Name, "ln_") && strings.HasSuffix(p.Name, ".weight"):
			want.Mean = 1
		case strings.HasSuffix(p.Name, ".weight"):
			want.Deviation = 0.02
		}
		if p.Init != want || p.Decay != (len(p.Shape) == 2) {
			t.Errorf("%s %v: starts as %+v, want %+v; decays: %v", p.Name, p.Shape, p.Init, want, p.Decay)
		}
	}
}

func TestTensorsAreAlignedAndPaddingStaysZero(t *testing.T) {
	s := single(t, func(c *stage.Config) { c.Optimizer.WeightDecay = 0.1 })
	b := batch(2, 6, 1)
	micro := stage.Micro{Weight: 1}
	delta, err := s.NewVector()
	if err != nil {
		t.Fatal(err)
	}
	before := read(s.Parameters())
	if err := errors.Join(
		s.Forward(micro, stage.OnHost(stagetest.Int32Bytes(b.IDs)), stagetest.Int32Bytes(b.Targets), stage.Boundary{}),
		s.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}),
		s.Step(stage.Hyper{LearningRate: 0.01, GradScale: 1}, delta),
	); err != nil {
		t.Fatal(err)
	}
	after, applied := read(s.Parameters()), read(delta)
	inTensor := make([]bool, len(after))
	for _, x := range s.Tensors() {
		if x.Offset%16 != 0 {
			t.Errorf("%s begins at element %d, not at a multiple of 16", x.Name, x.Offset)
		}
		for i := range x.Len() {
			inTensor[x.Offset+i] = true
		}
	}
	for i := range after {
		if !inTensor[i] && (after[i] != 0 || applied[i] != 0) {
			t.Errorf("padding at element %d is %v, its update %v", i, after[i], applied[i])
		}
		if applied[i] != after[i]-before[i] {
			t.Errorf("element %d: update %v recorded, %v applied", i, applied[i], after[i]-before[i])
		}
	}
	if slices.Equal(before, after) {
		t.Error("the step changed nothing")
	}
}

func read(v interface {
	Len() int
	Read(dst []float32, offset int)
},
) []float32 {
	x := make([]float32, v.Len())
	v.Read(x, 0)
	return x
}

func TestLoadAcceptsNamesWithAndWithoutPrefix(t *testing.T) {
	source := single(t, func(c *stage.Config) { c.Seed = 8 })
	all := read(source.Parameters())
	for _, prefix := range []string{"transformer.", ""} {
		file := map[string]stage.Tensor{}
		for _, x := range source.Tensors() {
			if x.TiedTo == "" { // as an export holds it
				file[prefix+strings.TrimPrefix(x.Name, "transformer.")] = x
			}
		}
		lookup := func(name string) ([]int, []float32, bool, error) {
			x, ok := file[name]
			return x.Shape, all[x.Offset : x.Offset+x.Len()], ok, nil
		}
		s := single(t, nil)
		if err := s.Load(lookup); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(read(s.Parameters()), all) {
			t.Errorf("prefix %q: the parameters are not those of the file", prefix)
		}
	}
}

func TestLoadNamesWhatDoesNotFit(t *testing.T) {
	broken := errors.New("broken disk")
	for want, lookup := range map[string]stage.Lookup{
		`tensor "transformer.wte.weight" [11 12] is missing`: func(string) ([]int, []float32, bool, error) {
			return nil, nil, false, nil
		},
		`tensor "transformer.wte.weight" has shape [12 11] and 132 values; the model makes it [11 12]`: func(string) ([]int, []float32, bool, error) {
			return []int{12, 11}, make([]float32, 132), true, nil
		},
		`stage 0 of 1: load parameters: tensor "transformer.wte.weight": broken disk`: func(string) ([]int, []float32, bool, error) {
			return nil, nil, false, broken
		},
	} {
		if err := single(t, nil).Load(lookup); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestNonFiniteLossAndNormAreErrorsOfTheirOwn(t *testing.T) {
	for _, value := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		s := single(t, func(c *stage.Config) {
			c.Range, c.Index, c.Count = stage.Range{From: 3, To: 4}, 3, 4
		})
		bias := s.Tensors()[1] // of the final norm: reaches every logit
		s.Parameters().Write([]float32{value}, bias.Offset)
		micro := stage.Micro{Step: 17, Weight: 1}
		input, dinput := stage.NewBoundary(s.Shape().InputBytes), stage.NewBoundary(s.Shape().InputBytes)
		if err := errors.Join(
			s.Forward(micro, stage.OnHost(input), stagetest.Int32Bytes(batch(2, 6, 1).Targets), stage.Boundary{}),
			s.Backward(micro, stage.Whole, stage.Boundary{}, stage.OnHost(dinput)),
		); err != nil {
			t.Fatal(err)
		}
		_, lossErr := s.Loss()
		stepErr := s.Step(stage.Hyper{LearningRate: 1, GradScale: 1}, nil)
		_, normErr := s.SquaredNorm(0)
		for what, err := range map[string]error{"loss": lossErr, "gradient norm": normErr, "gradient norm of the step": stepErr} {
			var nonFinite *stage.NonFiniteError
			if !errors.As(err, &nonFinite) || !strings.HasPrefix(what, nonFinite.What) || nonFinite.Stage != 3 || nonFinite.Step != 17 {
				t.Errorf("bias %v, %s: error %v, want a NonFiniteError of step 17, stage 3", value, what, err)
			}
		}
	}
}

func TestIgnoredTargetsDoNotCount(t *testing.T) {
	b := batch(2, 6, 1)
	for i := range 12 {
		if i != 4 {
			b.Targets[i] = -1
		}
	}
	ids, one, none := stagetest.Int32Bytes(b.IDs), stagetest.Int32Bytes(b.Targets), stage.NewBoundary(48)
	for i := range none {
		none[i] = 0xff // -1
	}
	s := single(t, nil)
	want, err := s.Evaluate(nil, ids, one, nil)
	if err != nil || want.Targets != 1 {
		t.Fatalf("evaluate: %d targets, error %v", want.Targets, err)
	}
	if err := errors.Join(
		s.Forward(stage.Micro{Index: 0, Weight: 0.5}, stage.OnHost(ids), one, stage.Boundary{}),
		s.Forward(stage.Micro{Index: 1, Weight: 0.5}, stage.OnHost(ids), none, stage.Boundary{}),
		s.Backward(stage.Micro{Index: 0, Weight: 0.5}, stage.Whole, stage.Boundary{}, stage.Boundary{}),
		s.Backward(stage.Micro{Index: 1, Weight: 0.5}, stage.Whole, stage.Boundary{}, stage.Boundary{}),
	); err != nil {
		t.Fatal(err)
	}
	if loss, err := s.Loss(); err != nil || math.Abs(loss-want.Loss) > 1e-6*want.Loss {
		t.Errorf("the mean loss is %v (%v), want %v, that of the one target", loss, err, want.Loss)
	}
}

func TestConfigValidate(t *testing.T) {
	m := tiny(t, true)
	valid := stage.Config{Device: ref.New(), Model: m, Samples: 1, Slots: 1}
	for want, change := range map[string]func(c *stage.Config){
		"":                                  func(*stage.Config) {},
		"Config needs a Device and a Model": func(c *stage.Config) { c.Device = nil },
		"index 2 of 2 stages":               func(c *stage.Config) { c.Index, c.Count = 2, 2 },
		"layers 3 to 5 of 4":                func(c *stage.Config) { c.Range = stage.Range{From: 3, To: 5} },
		"layers 2 to 2 of 4":                func(c *stage.Config) { c.Range = stage.Range{From: 2, To: 2} },
		"0 samples in a micro-batch":        func(c *stage.Config) { c.Samples = 0 },
		"samples of 7 positions; the model takes 1 to 6":                   func(c *stage.Config) { c.Sequence = 7 },
		"0 slots for micro-batches in flight":                              func(c *stage.Config) { c.Slots = 0 },
		"2 weight slots; 0 to 1":                                           func(c *stage.Config) { c.WeightSlots = 2 },
		`stage 0 of 1: recompute is "all"; it is one of none, block, full`: func(c *stage.Config) { c.Recompute = "all" },
		`stage 0 of 1: optimizer name: "x"`:                                func(c *stage.Config) { c.Optimizer.Name = "x" },
	} {
		c := valid
		change(&c)
		err := c.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestForwardOnlyEvaluatesAndRefusesToTrain(t *testing.T) {
	b := batch(2, 6, 1)
	ids, targets := stagetest.Int32Bytes(b.IDs), stagetest.Int32Bytes(b.Targets)
	s, whole := single(t, func(c *stage.Config) { c.ForwardOnly = true }), single(t, nil)
	found, err := s.Evaluate(nil, ids, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	want, err := whole.Evaluate(nil, ids, targets, nil)
	if err != nil || found.Loss != want.Loss {
		t.Errorf("evaluation loss %v, want %v (%v)", found, want, err)
	}
	if s.Gradients() != nil || len(s.State()) != 0 || s.Shape().StateVectors != 0 {
		t.Error("a forward-only stage has gradients or optimizer state")
	}
	if err := s.Forward(stage.Micro{}, stage.OnHost(ids), targets, stage.Boundary{}); err == nil {
		t.Error("a forward-only stage kept a micro-batch")
	}
	if err := s.Step(stage.Hyper{}, nil); err == nil || !strings.Contains(err.Error(), "forward-only") {
		t.Errorf("step of a forward-only stage: error %v", err)
	}
}

func TestVectorsOfOtherDevicesAreRefused(t *testing.T) {
	b := batch(2, 6, 1)
	s, other := single(t, nil), single(t, nil)
	_, err := s.Evaluate(other.Parameters(), stagetest.Int32Bytes(b.IDs), nil, nil)
	if err == nil || !strings.Contains(err.Error(), "NewVector") {
		t.Errorf("parameters of another device: error %v", err)
	}
	if err := s.Step(stage.Hyper{}, other.Parameters()); err == nil || !strings.Contains(err.Error(), "delta") {
		t.Errorf("delta of another device: error %v", err)
	}
}
