package schedule_test

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
)

func TestLandedCountsWhatAStageWorksWithAndOneMore(t *testing.T) {
	for _, c := range []struct {
		schedule          string
		inputs, gradients []int // of 3 stages and 6 micro-batches, all on devices that are copied between
	}{
		{"gpipe", []int{0, 6, 6}, []int{2, 2, 0}},
		{"1f1b", []int{0, 3, 2}, []int{2, 2, 0}},
		{"zb-h1", []int{0, 4, 4}, []int{3, 3, 0}},
	} {
		plan, _, err := schedule.Generate(c.schedule, schedule.Request{Devices: 3, MicroBatches: 6})
		if err != nil {
			t.Fatal(err)
		}
		inputs, gradients := schedule.Landed(plan, func(int, int) bool { return true })
		if !slices.Equal(inputs, c.inputs) || !slices.Equal(gradients, c.gradients) {
			t.Errorf("%s: inputs %v, gradients %v, want %v and %v", c.schedule, inputs, gradients, c.inputs, c.gradients)
		}
		inputs, gradients = schedule.Landed(plan, func(a, b int) bool { return a == 0 && b == 1 })
		if inputs[1] != c.inputs[1] || inputs[2] != 0 || gradients[0] != c.gradients[0] || gradients[1] != 0 {
			t.Errorf("%s, only the first two: inputs %v, gradients %v", c.schedule, inputs, gradients)
		}
	}
}
