package data

import "fmt"

// Sequence is the tokens in a sample.
func (s *Set) Sequence() int { return s.sequence }

// Windows is the samples in an epoch.
func (s *Set) Windows() uint64 { return windows(int64(len(s.train)), s.sequence) }

// HeldOut is the samples kept for evaluation.
func (s *Set) HeldOut() uint64 { return windows(int64(len(s.held)), s.sequence) }

// Identity tells whether another host, or a later run, has the same files.
func (s *Set) Identity() Identity { return s.identity }

// Notes says what was skipped, a sentence each.
func (s *Set) Notes() []string { return s.notes }

// Cursor returns the cursor of a pipeline at the start of a run.
func (s *Set) Cursor(pipeline, pipelines, batch int) Cursor {
	return Cursor{Seed: s.seed, Pipeline: pipeline, Pipelines: pipelines, Batch: batch}
}

// Fill writes samples first..first+count-1 of the cursor's batch: token ids into inputs and, shifted by one, into targets,
// (count,T) each, T the sequence. Nil for one of them leaves it out. It allocates nothing.
func (s *Set) Fill(c Cursor, first, count int, inputs, targets []int32) error {
	if c.Seed != s.seed {
		return fmt.Errorf("data: fill: the cursor is of seed %d, the data were opened with %d", c.Seed, s.seed)
	}
	if err := c.Validate(); err != nil {
		return err
	}
	if first < 0 || count < 0 || first > c.Batch-count {
		return fmt.Errorf("data: fill: %d samples from %d on; the batch has %d", count, first, c.Batch)
	}
	if err := s.fits(count, inputs, targets); err != nil {
		return err
	}
	size := s.Windows()
	var order permutation
	for j := range count {
		position := c.Position(first + j)
		epoch := position / size
		if j == 0 || position%size == 0 {
			order = newPermutation(c.Seed, epoch, size)
		}
		s.window(s.train, order.at(position%size), j, inputs, targets)
	}
	return nil
}

// EvaluationSamples returns how many samples an evaluation of at most n has.
func (s *Set) EvaluationSamples(n int) int {
	if held := s.HeldOut(); held < uint64(max(n, 0)) {
		return int(held)
	}
	return max(n, 0)
}

// FillEvaluation writes samples first..first+count-1 of an evaluation of at most n samples, like Fill. They are the same
// ones whenever and wherever it is called: windows at even distances over all that is held out, whatever the seed, so that
// losses of different runs compare.
func (s *Set) FillEvaluation(n, first, count int, inputs, targets []int32) error {
	n = s.EvaluationSamples(n)
	if first < 0 || count < 0 || first > n-count {
		return fmt.Errorf("data: fill: %d samples from %d on; the evaluation has %d", count, first, n)
	}
	if err := s.fits(count, inputs, targets); err != nil {
		return err
	}
	held := s.HeldOut()
	for j := range count {
		s.window(s.held, uint64(first+j)*held/uint64(n), j, inputs, targets)
	}
	return nil
}

// fits reports buffers of the wrong length.
func (s *Set) fits(count int, buffers ...[]int32) error {
	for i, b := range buffers {
		if b != nil && len(b) != count*s.sequence {
			return fmt.Errorf("data: fill: %s have room for %d tokens; %d samples of %d are %d",
				[]string{"inputs", "targets"}[i], len(b), count, s.sequence, count*s.sequence)
		}
	}
	return nil
}

// window writes window w of a text as sample j of the buffers.
func (s *Set) window(text []byte, w uint64, j int, inputs, targets []int32) {
	at := int(w) * s.sequence
	tokens := text[at : at+s.sequence+1]
	if inputs != nil {
		widen(inputs[j*s.sequence:(j+1)*s.sequence], tokens[:s.sequence])
	}
	if targets != nil {
		widen(targets[j*s.sequence:(j+1)*s.sequence], tokens[1:])
	}
}

// widen converts bytes to token ids.
func widen(ids []int32, text []byte) {
	for i, b := range text[:len(ids)] {
		ids[i] = int32(b)
	}
}
