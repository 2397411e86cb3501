package schedule_test

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
)

func TestHandedCountsWhatAPlanHoldsBetweenItsStages(t *testing.T) {
	for _, c := range []struct {
		schedule        string
		inputs, outputs []int // of 3 stages and 6 micro-batches, all on devices that share memory
	}{
		{"gpipe", []int{0, 6, 6}, []int{6, 6, 0}},
		{"1f1b", []int{0, 3, 2}, []int{3, 2, 0}},
		{"zb-h1", []int{0, 3, 3}, []int{5, 6, 0}},
	} {
		plan, _, err := schedule.Generate(c.schedule, schedule.Request{Devices: 3, MicroBatches: 6})
		if err != nil {
			t.Fatal(err)
		}
		inputs, outputs := schedule.Handed(plan, func(int, int) bool { return true })
		if !slices.Equal(inputs, c.inputs) || !slices.Equal(outputs, c.outputs) {
			t.Errorf("%s: inputs %v, outputs %v, want %v and %v", c.schedule, inputs, outputs, c.inputs, c.outputs)
		}
		inputs, outputs = schedule.Handed(plan, func(a, b int) bool { return a == 0 && b == 1 })
		if inputs[1] != c.inputs[1] || inputs[2] != 0 || outputs[0] != c.outputs[0] || outputs[1] != 0 {
			t.Errorf("%s, the first two share: inputs %v, outputs %v", c.schedule, inputs, outputs)
		}
	}
}
