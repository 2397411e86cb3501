package pipeline

import (
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage"
)

// Error says where training failed.
type Error struct {
	Pipeline int // 0-based; -1 when it is not one pipeline's
	Stage    int // 0-based
	Step     uint64
	Op       string // "F3", "optimizer step", "round 12"
	Err      error
}

func (e *Error) Error() string {
	if e.Pipeline < 0 {
		return fmt.Sprintf("stage %d: %s: %v", e.Stage, e.Op, e.Err)
	}
	return fmt.Sprintf("pipeline %d, stage %d, step %d: %s: %v", e.Pipeline, e.Stage, e.Step, e.Op, e.Err)
}

// Unwrap is the cause.
func (e *Error) Unwrap() error { return e.Err }

// finite reports a value that is not, for stages that do not check themselves.
func finite(what string, index int, step uint64, value float64) error {
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return &stage.NonFiniteError{What: what, Stage: index, Step: step, Value: value}
	}
	return nil
}
