package generate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
)

// Translation says how to translate.
type Translation struct {
	Device  device.Device // not closed by Run
	Model   *model.Model  // of the task Translation
	Weights stage.Lookup  // tensors with the names of the model's files
	// Start precedes the first token of a translation, End ends sources and translations, Pad fills up.
	Start, End, Pad int32
	// Sequence is the number of positions, for a source with its end and for a translation with its; 0: the model's.
	Sequence int
	// Beam is how many translations of a source are pursued at once; 0 and 1: the likeliest next token every time.
	Beam int
	// LengthPenalty is the alpha of Wu et al. 2016, equation 14: finished translations are compared by their log-probability
	// over ((5 + length) / 6)^alpha. 0 prefers short ones; 0.6 is usual.
	LengthPenalty float64
	// Together is how many sources are translated at once; 0: 8.
	Together int
}

func (c Translation) withDefaults() Translation {
	if c.Sequence == 0 && c.Model != nil {
		c.Sequence = c.Model.Sequence()
	}
	c.Beam = max(c.Beam, 1)
	if c.Together == 0 {
		c.Together = 8
	}
	return c
}

// Validate reports the first field that is missing or out of range.
func (c Translation) Validate() error {
	beam := c.Beam
	c = c.withDefaults()
	switch {
	case c.Device == nil || c.Model == nil || c.Weights == nil:
		return errors.New("translate: Translation needs a Device, a Model and Weights")
	case c.Model.Task != model.Translation:
		return fmt.Errorf("translate: a %s model, of the task %s; one of the task %s is needed", c.Model.Family, c.Model.Task, model.Translation)
	case beam < 0 || c.Beam > c.Model.Vocabulary():
		return fmt.Errorf("translate: a beam of %d; it is 1 to %d (token ids)", beam, c.Model.Vocabulary())
	case !(c.LengthPenalty >= 0) || math.IsInf(c.LengthPenalty, 0):
		return fmt.Errorf("translate: the length penalty is %v; it is at least 0", c.LengthPenalty)
	case c.Together < 1:
		return fmt.Errorf("translate: %d sources at once; at least 1 is needed", c.Together)
	}
	for _, id := range [...]int32{c.Start, c.End, c.Pad} {
		if id < 0 || int(id) >= c.Model.Vocabulary() {
			return fmt.Errorf("translate: start %d, end %d, pad %d; token ids are 0 to %d", c.Start, c.End, c.Pad, c.Model.Vocabulary()-1)
		}
	}
	return nil
}

// Run translates sources, without their end tokens, and hands each translation, without its end, to emit in the order of
// the sources. It returns early with the error of emit or ctx. It computes on the calling goroutine.
//
// Every token costs a forward pass over all positions of encoder and decoder, shared by the sources that are translated
// together: enough to measure and look at a model, not to serve one.
func (c Translation) Run(ctx context.Context, sources [][]int32, emit func(target []int32) error) (err error) {
	if err := c.Validate(); err != nil {
		return err
	}
	c = c.withDefaults()
	for i, source := range sources {
		if len(source)+1 > c.Sequence {
			return fmt.Errorf("translate: source %d has %d tokens, with its end %d; the model is run with %d positions",
				i, len(source), len(source)+1, c.Sequence)
		}
	}
	together := max(min(c.Together, len(sources)), 1)
	t := &translator{Translation: c, rows: together * c.Beam}
	t.stage, err = stage.New(stage.Config{
		Device: c.Device, Model: c.Model, Samples: t.rows, Sequence: c.Sequence, ForwardOnly: true,
	})
	if err != nil {
		return fmt.Errorf("translate: %w", err)
	}
	defer func() { err = errors.Join(err, t.stage.Close()) }()
	if err := t.stage.Load(c.Weights); err != nil {
		return fmt.Errorf("translate: %w", err)
	}
	t.allocate()
	for group := range slices.Chunk(sources, together) {
		if err := t.translate(ctx, group, emit); err != nil {
			return err
		}
	}
	return nil
}

// translator is a translation's model with its boundaries. Rows are samples of the model: Beam of them for each source.
type translator struct {
	Translation
	stage         *stage.Computed
	rows          int
	input, output []byte
	ports         map[string][]byte // (rows,Sequence) int32 each: parts of input, by name
	logits        []float32         // one row of output
}

// allocate makes the boundaries and finds the ports in them.
func (t *translator) allocate() {
	shape := t.stage.Shape()
	t.input, t.output = stage.NewBoundary(shape.InputBytes), stage.NewBoundary(shape.OutputBytes)
	t.ports, t.logits = map[string][]byte{}, make([]float32, t.Model.Vocabulary())
	ports, _ := layer.Ports(t.Model.Layers[0], layer.Size{B: t.rows, T: t.Sequence})
	at := 0
	for _, p := range ports {
		t.ports[p.Name] = t.input[at:][:4*p.Elements]
		at += 4 * layer.Padded(p.Elements)
	}
}

// put writes tokens to row r of a port and fills the rest up.
func (t *translator) put(port string, r int, tokens []int32, rest int32) {
	row := slices.Concat(tokens, slices.Repeat([]int32{rest}, t.Sequence-len(tokens)))
	copy(t.ports[port][4*r*t.Sequence:], device.IntBytes(row))
}

// translate translates one group of sources.
func (t *translator) translate(ctx context.Context, sources [][]int32, emit func([]int32) error) error {
	searches := make([]search, len(sources))
	for i := range searches {
		searches[i].live = []hypothesis{{}}
	}
	for r := range t.rows {
		var source []int32 // of rows of no source
		if i := r / t.Beam; i < len(sources) {
			source = sources[i]
		}
		t.put("ids", r, append(slices.Clone(source), t.End), t.Pad)
		t.put("mask", r, slices.Repeat([]int32{1}, len(source)+1), 0)
		t.put("decoder_ids", r, []int32{t.Start}, t.Pad)
	}
	for position := range t.Sequence {
		if err := t.step(ctx, searches, position); err != nil {
			return err
		}
		if !slices.ContainsFunc(searches, func(s search) bool { return len(s.live) > 0 }) {
			break
		}
	}
	for i := range searches {
		if err := emit(searches[i].best(t.LengthPenalty)); err != nil {
			return err
		}
	}
	return nil
}

// step takes every live hypothesis one token on.
func (t *translator) step(ctx context.Context, searches []search, position int) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("translate: %w", err)
	}
	for i, s := range searches {
		for k, h := range s.live {
			t.put("decoder_ids", i*t.Beam+k, append([]int32{t.Start}, h.tokens...), t.Pad)
		}
	}
	if _, err := t.stage.Evaluate(nil, t.input, nil, t.output); err != nil {
		return fmt.Errorf("translate: %w", err)
	}
	for i := range searches {
		s := &searches[i]
		var all []candidate
		for k := range s.live {
			row := (i*t.Beam+k)*t.Sequence + position
			copy(device.FloatBytes(t.logits), t.output[4*row*len(t.logits):])
			var err error
			if all, err = s.extend(all, k, t.logits, t.Beam); err != nil {
				return fmt.Errorf("translate: token %d: %w", position, err)
			}
		}
		s.choose(all, t.Beam, t.End)
	}
	return nil
}

// hypothesis is a translation, or the beginning of one, with its log-probability in nats.
type hypothesis struct {
	tokens []int32
	score  float64
}

// search is a beam search for the translation of one source.
type search struct {
	live, done []hypothesis
}

// candidate is live hypothesis `from` with one token more.
type candidate struct {
	from  int
	token int32
	score float64
}

// extend adds the likeliest continuations of live hypothesis `from` to all: one more than the beam, since one may be the end.
func (s *search) extend(all []candidate, from int, logits []float32, beam int) ([]candidate, error) {
	best, err := likeliest(logits)
	if err != nil {
		return nil, err
	}
	highest, sum := float64(logits[best]), 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l) - highest)
	}
	start, offset := len(all), s.live[from].score-highest-math.Log(sum)
	for id, l := range logits {
		c := candidate{from: from, token: int32(id), score: offset + float64(l)}
		at, _ := slices.BinarySearchFunc(all[start:], c, better)
		if at > beam {
			continue
		}
		all = slices.Insert(all, start+at, c)
		all = all[:min(len(all), start+beam+1)]
	}
	return all, nil
}

// better orders candidates: the likeliest first, of equal ones the earlier hypothesis and the lower id.
func better(a, b candidate) int {
	return cmp.Or(-cmp.Compare(a.score, b.score), cmp.Compare(a.from, b.from), cmp.Compare(a.token, b.token))
}

// choose keeps the best candidates. One that ends is done if it is among the best `beam` of all; the search is over when as
// many are done.
func (s *search) choose(all []candidate, beam int, end int32) {
	slices.SortFunc(all, better)
	var live []hypothesis
	for rank, c := range all {
		switch before := s.live[c.from].tokens; {
		case c.token == end && rank < beam:
			s.done = append(s.done, hypothesis{tokens: before, score: c.score})
		case c.token != end && len(live) < beam:
			live = append(live, hypothesis{tokens: append(slices.Clone(before), c.token), score: c.score})
		}
	}
	if s.live = live; len(s.done) >= beam {
		s.live = nil
	}
}

// best is the translation with the best score over its length's penalty; one that did not end only where none did.
func (s *search) best(alpha float64) []int32 {
	from := s.done
	if len(from) == 0 {
		from = s.live
	}
	value := func(h hypothesis) float64 {
		return h.score / math.Pow((5+float64(len(h.tokens)+1))/6, alpha)
	}
	return slices.MaxFunc(from, func(a, b hypothesis) int { return cmp.Compare(value(a), value(b)) }).tokens
}
