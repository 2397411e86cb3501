package data

import "fmt"

// Task says what a sample is: which fields of a Batch a set fills. The values are those of model.Task.
type Task string

// The tasks, with what a set of each fills. T is Config.Sequence. A mask is 1 at a token and 0 at padding.
const (
	// Language: Tokens (count,T); Targets (count,T) are the tokens one position on.
	Language Task = "language"
	// MaskedLanguage: Tokens, Types, Mask (count,T), some tokens hidden; Targets (count,T) are those, Ignored elsewhere.
	MaskedLanguage Task = "masked-language"
	// Classification: Tokens, Types, Mask (count,T) of a text or a pair of texts; Targets (count) are classes.
	Classification Task = "classification"
	// Translation: Tokens, Mask (count,T) of the source, Decoder (count,T) what precedes each target; Targets (count,T),
	// Ignored beyond the end.
	Translation Task = "translation"
	// Images: Pixels (count,C,H,W); Targets (count) are classes.
	Images Task = "images"
	// Samples: Tokens (count) are numbers of samples that a user's program makes: see Config.Counts; Targets (count) are the same.
	Samples Task = "samples"
)

// texts reports whether samples are made of tokens of texts.
func (t Task) texts() bool { return t != Images && t != Samples }

// Ignored is the target of a position that no loss is computed for.
const Ignored = -1

// Counts is how many samples a user's program has to train on, and how many of its own to evaluate on; none: some of the others are held out.
type Counts struct{ Train, HeldOut int }

// Image is the shape of an image: channels (1: grey, 3: red, green, blue), rows, columns.
type Image struct{ Channels, Height, Width int }

// Values is the number of values in an image.
func (i Image) Values() int { return i.Channels * i.Height * i.Width }

// Batch holds the buffers that a fill writes, for count samples. A nil field is left out. A field that the task does not
// have must be nil, but for Types and Mask, which a text of any task has: one segment (0), all tokens (1).
type Batch struct {
	Tokens  []int32   // (count,T) token ids; of the source in a translation
	Types   []int32   // (count,T) the segment of each token: 0, and 1 for the second text of a pair
	Mask    []int32   // (count,T) 1 at a token, 0 at padding
	Decoder []int32   // (count,T) the start token, then the targets but for the last: what a decoder is given
	Pixels  []float32 // (count,C,H,W)
	Targets []int32   // (count,T), or (count) where a sample has one class
}

// fits reports buffers of the wrong length for count samples, and buffers that the task has no values for.
func (s *Set) fits(count int, b Batch) error {
	tokens, decoder, pixels, targets := count*s.sequence, 0, 0, count*s.sequence
	switch s.task {
	case Images:
		tokens, pixels, targets = 0, count*s.image.Values(), count
	case Classification, Samples: // of which the sequence is 1
		targets = count
	case Translation:
		decoder = tokens
	case Language, MaskedLanguage:
	}
	for _, f := range [...]struct {
		name       string
		given      bool
		have, want int
	}{
		{"tokens", b.Tokens != nil, len(b.Tokens), tokens},
		{"types", b.Types != nil, len(b.Types), tokens},
		{"mask", b.Mask != nil, len(b.Mask), tokens},
		{"decoder", b.Decoder != nil, len(b.Decoder), decoder},
		{"pixels", b.Pixels != nil, len(b.Pixels), pixels},
		{"targets", b.Targets != nil, len(b.Targets), targets},
	} {
		if f.given && f.have != f.want {
			return fmt.Errorf("data: fill: %s have room for %d values; %d samples of the task %s have %d",
				f.name, f.have, count, s.task, f.want)
		}
	}
	return nil
}

// row is entry j of a buffer whose entries have n values; nil of a nil one.
func row[T any](buffer []T, j, n int) []T {
	if buffer == nil {
		return nil
	}
	return buffer[j*n : (j+1)*n]
}

func set(v []int32, value int32) {
	for i := range v {
		v[i] = value
	}
}
