package schedule

import (
	"fmt"

	"github.com/avgpipe/avgpipe/internal/words"
)

// Prove reads a plan that a user wrote, and proves that a job can run it: it passes Check, and all devices have the same number of
// stages.
func Prove(text string) (Plan, error) {
	plan, err := Parse(text)
	if err != nil {
		return nil, err
	}
	if err := Check(plan, max(1, plan.MicroBatches())); err != nil {
		return nil, err
	}
	stages := make([]int, len(plan))
	for _, d := range plan.Placement() {
		stages[d]++
	}
	for d, n := range stages {
		if n != stages[0] {
			return nil, fmt.Errorf("schedule: uneven: device 0 has %s, device %d has %d; want the same number on each device", words.Count(stages[0], "stage"), d, n)
		}
	}
	return plan, nil
}
