package data

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// Cursor says which samples one pipeline consumes at its next step. It is a value, stored in the manifest of a round.
//
// All samples that a run ever consumes stand in one line, the epochs of the seed one after the other, and position p of it
// is consumed exactly once: sample j of pipeline i of N at step s has position
//
//	Base + (s-From)*N*Batch + i*Batch + j
//
// With Base = From = 0, as at the start of a run, N pipelines at step s consume N*Batch consecutive positions. When the
// number of pipelines or the batch changes, the line goes on where it was: see Reshard.
type Cursor struct {
	Seed      uint64 `json:"seed"`
	Pipeline  int    `json:"pipeline"` // 0..Pipelines-1
	Pipelines int    `json:"pipelines"`
	Batch     int    `json:"batch"` // samples per step
	Step      uint64 `json:"step"`  // of the pipeline's optimizer, from 0
	From      uint64 `json:"from"`  // the step that starts at Base
	Base      uint64 `json:"base"`  // position in the line
}

// Validate reports what does not fit in a cursor that was read from a file.
func (c Cursor) Validate() error {
	switch {
	case c.Batch < 1 || c.Batch > math.MaxInt32:
		return fmt.Errorf("data: cursor with a batch of %d samples; it has at least 1", c.Batch)
	case c.Pipelines < 1 || c.Pipelines > math.MaxInt32 || c.Pipeline < 0 || c.Pipeline >= c.Pipelines:
		return fmt.Errorf("data: cursor of pipeline %d of %d; it is 0 to the count less 1", c.Pipeline, c.Pipelines)
	case c.Step < c.From:
		return fmt.Errorf("data: cursor at step %d, before its base at step %d", c.Step, c.From)
	}
	if _, ok := c.position(uint64(c.Batch) - 1); !ok {
		return fmt.Errorf("data: cursor at step %d is beyond the last position that 64 bits count", c.Step)
	}
	return nil
}

// Position returns the place in the line of sample j of the next batch.
func (c Cursor) Position(j int) uint64 {
	p, _ := c.position(uint64(j))
	return p
}

// position also reports whether the place fits in 64 bits.
func (c Cursor) position(j uint64) (uint64, bool) {
	perStep := uint64(c.Pipelines) * uint64(c.Batch) // both below 2^31
	over, p := bits.Mul64(c.Step-c.From, perStep)
	p, carry := bits.Add64(p, uint64(c.Pipeline)*uint64(c.Batch)+j, 0)
	p, carry2 := bits.Add64(p, c.Base, 0)
	return p, over == 0 && carry == 0 && carry2 == 0
}

// Next returns the cursor after this step.
func (c Cursor) Next() Cursor {
	c.Step++
	return c
}

// Reshard returns the cursors of another number of pipelines, or another batch, that go on where these stand: positions
// below are consumed, none above. All cursors of the run are needed and have to stand at one step, as they do at the end of
// a round; otherwise a sample between them would be lost or repeated.
func Reshard(cursors []Cursor, pipelines, batch int) ([]Cursor, error) {
	if len(cursors) == 0 {
		return nil, errors.New("data: reshard: no cursors")
	}
	first := cursors[0]
	first.Pipeline = 0
	for i, c := range cursors {
		want := first
		want.Pipeline, want.Pipelines = i, len(cursors)
		if c != want {
			return nil, fmt.Errorf("data: reshard: cursor %d is %+v; expected %+v, in step with the first", i, c, want)
		}
	}
	if err := first.Validate(); err != nil {
		return nil, fmt.Errorf("data: reshard: %w", err)
	}
	out := make([]Cursor, pipelines)
	for i := range out {
		out[i] = Cursor{
			Seed: first.Seed, Pipeline: i, Pipelines: pipelines, Batch: batch,
			Step: first.Step, From: first.Step, Base: first.Position(0),
		}
		if err := out[i].Validate(); err != nil {
			return nil, fmt.Errorf("data: reshard: %w", err)
		}
	}
	return out, nil
}
