package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// endingsOf lists what ends the batches in a recorded simulation: "U0 12-13" is stage 0's step, "A0.1 7-8" its averaging of pipeline 1.
func endingsOf(r Result) string {
	var all []string
	for _, e := range r.Events {
		if e.Op.Micro >= 0 {
			continue
		}
		name := fmt.Sprintf("U%d", e.Op.Stage)
		if e.Op.Kind == Kind(averaging) {
			name = fmt.Sprintf("A%d.%d", e.Op.Stage, e.Pipeline)
		}
		all = append(all, name+" "+formatTime(e.Start)+"-"+formatTime(e.End))
	}
	return strings.Join(all, ", ")
}

// TestStageStepsWhenItsOwnWorkIsDone, while its device's other stage still waits for its backward.
func TestStageStepsWhenItsOwnWorkIsDone(t *testing.T) {
	plan := mustParse(t, "0F0 2F0 2B0 0B0\n1F0 3F0 3B0 1B0")
	costs := Uniform(4, 1, 2, 0)
	costs.Update = repeat(1.0, 4)
	one := mustSimulateMany(t, plan, costs, Load{Record: true})
	if got, want := endingsOf(one), "U2 8-9, U0 12-13, U3 6-7, U1 10-11"; got != want || one.Makespan != 13 {
		t.Errorf("steps %s, in all %v; want %s in 13", got, one.Makespan, want)
	}
	costs.Update = []float64{1, 1, 8, 1} // ends at 20, after 0B0 has ended and waited for it
	if got, want := endingsOf(mustSimulateMany(t, plan, costs, Load{Record: true})), "U2 8-16, U0 18-19, U3 6-7, U1 10-11"; got != want {
		t.Errorf("steps %s; want %s, of which U2 keeps 0B0 from its device", got, want)
	}
}

// TestNormGoesDownAndBackUpBeforeStagesStep, behind what is on the links.
func TestNormGoesDownAndBackUpBeforeStagesStep(t *testing.T) {
	plan := mustParse(t, "F0 B0\nF0 B0")
	costs := Uniform(2, 1, 2, 0.5)
	costs.Update = repeat(0.25, 2)
	// B0 of stage 0 ends at 7; the sum is on stage 1 at 7.5, the total on stage 0 at 8.
	got := mustSimulateMany(t, plan, costs, Load{ExchangeNorm: true, Batches: 2, Record: true})
	if want := "U0 8-8.25, U0 16.25-16.5, U1 7.5-7.75, U1 15.75-16"; endingsOf(got) != want || got.Period != 8.25 {
		t.Errorf("steps %s, a batch each %v; want %s, each 8.25", endingsOf(got), got.Period, want)
	}
	if plain := mustSimulateMany(t, plan, costs, Load{}); plain.Makespan != 7.25 {
		t.Errorf("without a norm %v; want 7.25", plain.Makespan)
	}
	// A message takes 1 to be put on the link, the norm 0.5: the sum leaves at 9 and arrives at 10, the total at 11.
	costs.Bandwidth, costs.MessageBytes = []float64{16}, []int64{16}
	got = mustSimulateMany(t, plan, costs, Load{ExchangeNorm: true, Record: true})
	if want := "U0 11-11.25, U1 10-10.25"; endingsOf(got) != want {
		t.Errorf("steps %s; want %s", endingsOf(got), want)
	}
	want := []LinkLoad{{From: 0, To: 1, Messages: 2, Bytes: 24, Busy: 1.5 / 11.25}, {From: 1, To: 0, Messages: 2, Bytes: 24, Busy: 1.5 / 11.25}}
	if !slices.Equal(got.Links, want) {
		t.Errorf("links %+v; want %+v", got.Links, want)
	}
	if _, err := SimulateMany(mustParse(t, "F0 B0 U0"), Uniform(1, 1, 2, 0), Load{ExchangeNorm: true}); err == nil || !strings.Contains(err.Error(), "no stage waits for the norm") {
		t.Errorf("steps inside of the batch: error %v", err)
	}
}

// TestAwaitedRoundHoldsEachStageForTheSlowestPipeline, and does not hold one pipeline alone.
func TestAwaitedRoundHoldsEachStageForTheSlowestPipeline(t *testing.T) {
	plan := mustParse(t, "F0 B0\nF0 B0")
	costs := Uniform(2, 1, 1, 0)
	costs.Average = repeat(1.0, 2)
	for _, c := range []struct {
		load Load
		want string
	}{
		{Load{Pipelines: 2, AverageEvery: 1}, "A0.0 4-5, A0.1 7-8, A1.0 4-5, A1.1 6-7"},
		{Load{Pipelines: 2, AverageEvery: 1, AwaitRound: true}, "A0.0 6-7, A0.1 7-8, A1.0 5-6, A1.1 6-7"},
		{Load{Pipelines: 2, AverageEvery: 2, AwaitRound: true}, ""},
		{Load{AverageEvery: 1, AwaitRound: true}, "A0.0 4-5, A1.0 3-4"},
	} {
		c.load.Record = true
		if got := endingsOf(mustSimulateMany(t, plan, costs, c.load)); got != c.want {
			t.Errorf("%+v: %s; want %s", c.load, got, c.want)
		}
	}
	// Averaging that takes no time is waited for as well.
	costs.Average = nil
	load := Load{Pipelines: 2, Batches: 2, AverageEvery: 1, Record: true}
	free := mustSimulateMany(t, plan, costs, load)
	load.AwaitRound = true
	held := mustSimulateMany(t, plan, costs, load)
	if spansOf(free, 0)[2].Start != 4 || spansOf(held, 0)[2].Start != 6 {
		t.Errorf("pipeline 0 begins its second batch at %v, and at %v where it waits; want 4 and 6", spansOf(free, 0)[2].Start, spansOf(held, 0)[2].Start)
	}
}
