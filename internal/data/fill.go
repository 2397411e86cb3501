package data

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// samples are one part of a set: what is trained on, or what is held out.
type samples interface {
	count() uint64
	// fill writes sample i as entry j of b, whose lengths fit. It allocates nothing unless it fails.
	fill(b Batch, j int, i uint64, of visit) error
}

// visit is when a sample is read: the epoch, and the source of what is random in it then.
type visit struct{ epoch, key uint64 }

// Samples is the samples in an epoch.
func (s *Set) Samples() uint64 { return s.train.count() }

// HeldOut is the samples kept for evaluation.
func (s *Set) HeldOut() uint64 { return s.held.count() }

// Fill writes samples first..first+count-1 of the cursor's batch to b. It allocates nothing unless it fails.
func (s *Set) Fill(c Cursor, first, count int, b Batch) (err error) {
	if first < 0 || count < 0 || first > c.Batch-count {
		return fmt.Errorf("data: fill: %d samples from %d on; the batch has %d", count, first, c.Batch)
	}
	if err := s.fits(count, b); err != nil {
		return err
	}
	size := s.Samples()
	if size == 0 {
		return errors.New("data: fill: all of the data are held out")
	}
	if len(s.mapped) > 0 {
		defer s.checkMapped(debug.SetPanicOnFault(true), &err)
	}
	var order permutation
	for j := range count {
		position := c.Position(first + j)
		epoch := position / size
		if j == 0 || position%size == 0 {
			order = newPermutation(s.seed, epoch, size)
		}
		i := order.at(position % size)
		if err := s.train.fill(b, j, i, visit{epoch, keyOf(s.seed, epoch, i)}); err != nil {
			return fmt.Errorf("data: fill: sample %d of the training data: %w", i, err)
		}
	}
	return nil
}

// mostLooked bounds how many token files are looked at for one batch: they take turns.
const mostLooked = 8

// checkMapped makes an error of token files that were overwritten in place, after samples were read of them, and of the fault that
// reading one gives when it became shorter. It puts back whether faults of this goroutine are panics.
func (s *Set) checkMapped(before bool, err *error) {
	debug.SetPanicOnFault(before)
	if p := recover(); p != nil {
		fault, ok := p.(interface{ Addr() uintptr })
		if !ok {
			panic(p)
		}
		*err = fmt.Errorf("data: fill: a token file became shorter while it was read (fault at %#x); restore it", fault.Addr())
	}
	n := min(mostLooked, len(s.mapped))
	first := s.looked.Add(uint64(n)) //nolint:gosec // At most mostLooked.
	for i := range uint64(n) {       //nolint:gosec // As above.
		changed := s.mapped[(first+i)%uint64(len(s.mapped))].Unchanged()
		if changed != nil && *err == nil {
			*err = fmt.Errorf("data: fill: %w", changed)
		}
	}
}

// keyOf is the source of what is random in a sample of an epoch.
func keyOf(seed, epoch, sample uint64) uint64 { return mix(mix(mix(seed)^mix(^epoch)) + sample) }

// EvaluationSamples returns how many samples an evaluation of at most n has.
func (s *Set) EvaluationSamples(n int) int {
	if held := s.HeldOut(); held < uint64(max(n, 0)) {
		return int(held)
	}
	return max(n, 0)
}

// FillEvaluation writes samples first..first+count-1 of an evaluation of at most n samples, like Fill. They are the same
// ones whenever and wherever it is called: samples at even distances over all that is held out, whatever the seed, so that
// losses of different runs compare. Where there are fewer than count left, the last is repeated, without a target.
func (s *Set) FillEvaluation(n, first, count int, b Batch) (err error) {
	n = s.EvaluationSamples(n)
	if first < 0 || first >= n {
		return fmt.Errorf("data: fill: samples from %d on; the evaluation has %d", first, n)
	}
	if err := s.fits(count, b); err != nil {
		return err
	}
	if len(s.mapped) > 0 {
		defer s.checkMapped(debug.SetPanicOnFault(true), &err)
	}
	held := s.HeldOut()
	for j := range count {
		i := uint64(min(first+j, n-1)) * held / uint64(n)
		if err := s.held.fill(b, j, i, visit{0, keyOf(0, 0, i)}); err != nil {
			return fmt.Errorf("data: fill: sample %d of the held-out data: %w", i, err)
		}
		if first+j >= n {
			set(row(b.Targets, j, len(b.Targets)/count), Ignored)
		}
	}
	return nil
}
