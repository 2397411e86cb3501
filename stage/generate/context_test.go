package generate_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/ref"
	"github.com/avgpipe/avgpipe/stage/generate"
	"github.com/avgpipe/avgpipe/stage/model"
)

// random is a config with weights that were never trained, far from 0, so that every token depends on all before it.
func random(t *testing.T, family string) generate.Config {
	t.Helper()
	m, err := model.Build(family, counters[family])
	if err != nil {
		t.Fatal(err)
	}
	shapes := map[string][]int{}
	for _, p := range m.Params() {
		shapes[m.TensorNames(p)[0]] = p.Shape
	}
	return generate.Config{
		Device: ref.New(), Model: m, Tokens: 30,
		Weights: func(name string) ([]int, []float32, bool, error) {
			shape, ok := shapes[name]
			n := 1
			for _, d := range shape {
				n *= d
			}
			values, r := make([]float32, n), rand.New(rand.NewPCG(uint64(len(name)), uint64(n)))
			for i := range values {
				values[i] = float32(r.NormFloat64())
			}
			return shape, values, ok, nil
		},
	}
}

// The tokens are those of forwards over all positions that the context holds: over a prompt's end where it is longer than that, and from half of
// the positions on where they are full.
func TestTokensAreThoseOfWholeForwards(t *testing.T) {
	const window = 8
	for family := range counters {
		for length := 1; length <= window+3; length++ {
			c := random(t, family)
			s, err := stage.New(stage.Config{Device: c.Device, Model: c.Model, Samples: 1, ForwardOnly: true})
			if err != nil {
				t.Fatal(err)
			}
			if err := s.Load(c.Weights); err != nil {
				t.Fatal(err)
			}
			for i := range length {
				c.Prompt = append(c.Prompt, int32(i*i+length)%7)
			}
			held, want := c.Prompt[max(0, length-window):], []int32(nil)
			ids, logits := stage.NewBoundary(4*window), stage.NewBoundary(4*window*7)
			for len(want) < c.Tokens {
				if len(held) > window {
					held = held[len(held)-window/2:]
				}
				copy(ids, device.IntBytes(held))
				if _, err := s.Evaluate(nil, ids, nil, logits); err != nil {
					t.Fatal(err)
				}
				row := device.Values[float32](logits)[7*(len(held)-1):][:7]
				token := int32(slices.Index(row, slices.Max(row)))
				held, want = append(slices.Clone(held), token), append(want, token)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			if got := run(t, c); !slices.Equal(got, want) {
				t.Errorf("%s, a prompt of %d: tokens %v, of whole forwards %v", family, length, got, want)
			}
		}
	}
}

func TestATokenEndsTheSequence(t *testing.T) {
	c := counting(t, "gpt2")
	c.Stop = []int32{9, 1}
	var out []int32
	o, err := generate.Run(t.Context(), c, func(token int32) error { out = append(out, token); return nil })
	if err != nil || !o.Stopped || o.Tokens != 3 || !slices.Equal(out, []int32{5, 6, 0}) {
		t.Errorf("error %v, tokens %v, outcome %+v; want 5 6 0, stopped by 1", err, out, o)
	}
}
