package schedule

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"testing"
)

func mustSimulateMany(t *testing.T, plan Plan, costs Costs, load Load) Result {
	t.Helper()
	result, err := SimulateMany(plan, costs, load)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// TestSecondPipelineFillsTheBubblesOfTheFirst: one pipeline leaves devices idle while it fills and drains, two hardly ever.
func TestSecondPipelineFillsTheBubblesOfTheFirst(t *testing.T) {
	plan := mustGenerate(t, "1f1b", Request{Devices: 2, MicroBatches: 8})
	costs := Uniform(2, 1, 2, 0.5)
	one := mustSimulateMany(t, plan, costs, Load{Batches: 10})
	two := mustSimulateMany(t, plan, costs, Load{Pipelines: 2, Batches: 10})
	if single := mustSimulate(t, plan, costs); one.Period != single.Makespan || one.Makespan != 10*single.Makespan {
		t.Errorf("one pipeline: a batch each %v, ten in %v; one takes %v", one.Period, one.Makespan, single.Makespan)
	}
	if least := 2 * 8 * 3.0; two.Period < least || two.Period > 1.05*least {
		t.Errorf("two pipelines: a round each %v; each device has %v of work in it", two.Period, least)
	}
	if one.Bubble < 0.2 || two.Bubble > 0.05 {
		t.Errorf("bubble %v of one pipeline, %v of two; want at least 0.2, at most 0.05", one.Bubble, two.Bubble)
	}
	if gain := two.Throughput() / one.Throughput(); gain < 1.2 {
		t.Errorf("two pipelines end %v times as many batches", gain)
	}
}

// TestPeriodIsCountedWhileAllPipelinesRun: what one does when others have ended is no steady state.
func TestPeriodIsCountedWhileAllPipelinesRun(t *testing.T) {
	for _, c := range []struct {
		load Load
		ends []float64
		want float64
	}{
		{Load{Pipelines: 2, Batches: 4}, []float64{1, 2, 3, 4, 2, 4, 5, 6}, 2 / (1 + 0.5)}, // up to 4: batches each 1, and each 2
		{Load{Pipelines: 1, Batches: 3}, []float64{5, 7, 9}, 2},
		{Load{Pipelines: 2, Batches: 1}, []float64{5, 7}, 7},
	} {
		if got := steadyPeriod(c.ends, c.load); !near(got, c.want) {
			t.Errorf("batches that end at %v: each %v; want %v", c.ends, got, c.want)
		}
	}
}

// TestRowsThatShareADeviceRunOneAfterTheOther: whichever row or pipeline an op is of, and other rows keep their own time.
func TestRowsThatShareADeviceRunOneAfterTheOther(t *testing.T) {
	plan, _, err := Generate("gpipe", Request{Devices: 3, MicroBatches: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, pipelines := range []int{1, 2} {
		costs := Uniform(3, 1, 2, 0)
		r, err := SimulateMany(plan, costs, Load{Pipelines: pipelines, Shares: []int{0, 0, 2}, Record: true})
		if err != nil {
			t.Fatal(err)
		}
		if work := float64(pipelines * 2 * 4 * 3); r.Busy[0] != work || r.Busy[1] != work || r.Busy[2] != work/2 || r.Makespan < work {
			t.Errorf("%d pipelines: %v of %v busy; two rows have %v to do", pipelines, r.Busy, r.Makespan, work)
		}
		var on []Event
		for _, e := range r.Events {
			if e.Device < 2 {
				on = append(on, e)
			}
		}
		slices.SortFunc(on, func(a, b Event) int { return cmp.Compare(a.Start, b.Start) })
		for i := range on[1:] {
			if on[i+1].Start < on[i].End {
				t.Fatalf("%d pipelines: %+v begins within %+v", pipelines, on[i+1], on[i])
			}
		}
	}
	for _, shares := range [][]int{{0, 0}, {1, 0, 2}, {0, 3, 2}, {-1, 1, 2}} {
		if _, err := SimulateMany(plan, Uniform(3, 1, 2, 0), Load{Shares: shares}); err == nil || !strings.Contains(err.Error(), "shares the time of") {
			t.Errorf("%v: %v", shares, err)
		}
	}
}

// TestSharedDeviceSlowsDownWhatWantsMoreThanAllOfIt, and only as long as it does.
func TestSharedDeviceSlowsDownWhatWantsMoreThanAllOfIt(t *testing.T) {
	plan := mustParse(t, "F0 B0")
	costs := Costs{Forward: []float64{3}, Backward: []float64{6}}
	for _, c := range []struct {
		use       float64
		pipelines int
		want      float64
	}{
		{1, 1, 9},
		{0.75, 1, 9},
		{0.5, 2, 9},
		{0.75, 2, 9 * 1.5},
		{1, 2, 15 + 3}, // in turns: 3, 6, 12, 18
		{0.25, 4, 9},
		{0.5, 3, 9 * 1.5},
	} {
		costs.Utilisation = []float64{c.use}
		if got := mustSimulateMany(t, plan, costs, Load{Pipelines: c.pipelines}).Makespan; !near(got, c.want) {
			t.Errorf("%d pipelines, each of which uses %v: %v; want %v", c.pipelines, c.use, got, c.want)
		}
	}
}

// TestMessagesWaitForEachOtherOnASlowLink: they are put on it one after the other, and the latency comes on top.
func TestMessagesWaitForEachOtherOnASlowLink(t *testing.T) {
	plan := mustParse(t, "F0 F1 F2 B0 B1 B2\nF0 F1 F2 B0 B1 B2")
	costs := Uniform(2, 1, 1, 0.5)
	costs.Bandwidth, costs.MessageBytes = []float64{10}, []int64{40}
	got := mustSimulate(t, plan, costs)
	// F2 of the first stage ends at 3, is on the link from 9 to 13 and there at 13.5; backwards follow at 14.5, 15.5 and 16.5,
	// the last of which is on the link from 23.5 to 27.5.
	if want := 29.0; got.Makespan != want {
		t.Errorf("takes %v; want %v", got.Makespan, want)
	}
	want := []LinkLoad{
		{From: 0, To: 1, Messages: 3, Bytes: 120, Busy: 12 / 29.0, Waited: 6},
		{From: 1, To: 0, Messages: 3, Bytes: 120, Busy: 12 / 29.0, Waited: 6},
	}
	if !slices.Equal(got.Links, want) {
		t.Errorf("links %+v; want %+v", got.Links, want)
	}
}

// TestMemoryIsTheClosedForm: N (W + G + S + w A) and the center, at most what the device has.
func TestMemoryIsTheClosedForm(t *testing.T) {
	plan := mustGenerate(t, "1f1b", Request{Devices: 3, MicroBatches: 6})
	costs := Uniform(3, 1, 2, 0)
	costs.ActivationBytes, costs.WeightBytes, costs.GradientBytes = []int64{100, 100, 100}, []int64{7, 8, 9}, []int64{7, 8, 9}
	costs.StateBytes, costs.CenterBytes, costs.CapacityBytes = []int64{14, 16, 18}, []int64{14, 16, 18}, []int64{0, 500, 290}
	result := mustSimulateMany(t, plan, costs, Load{Pipelines: 2, Batches: 3})
	for d, m := range result.Memory {
		inFlight := 2 * int64(3-d) * 100
		if want := 10*(7+int64(d)) + inFlight; m.Reserved != want || m.Peak > want || m.Peak <= m.Static {
			t.Errorf("device %d: %+v; want %d reserved", d, m, want)
		}
	}
	if got := []int64{result.Memory[0].Short(), result.Memory[1].Short(), result.Memory[2].Short()}; !slices.Equal(got, []int64{0, 0, 0}) {
		t.Errorf("short by %v; want nothing", got)
	}
	costs.CapacityBytes[2] = 280
	if got := mustSimulateMany(t, plan, costs, Load{Pipelines: 2}).Memory[2].Short(); got != 10 {
		t.Errorf("short by %d; want 10", got)
	}
}

// TestKeptVersionsAreCounted: an update copies the weights that a micro-batch on its way still needs.
func TestKeptVersionsAreCounted(t *testing.T) {
	plan := mustParse(t, "F0 F1 B0 U0 F2@1 B1 U1 B2 U2\nF0 B0 U0 F1@1 B1 U1 F2@2 B2 U2")
	costs := Uniform(2, 1, 2, 0)
	costs.WeightBytes, costs.Update = []int64{1000, 1000}, []float64{1, 1}
	result := mustSimulateMany(t, plan, costs, Load{Batches: 2, Record: true})
	if got := []int64{result.Memory[0].Peak, result.Memory[1].Peak}; !slices.Equal(got, []int64{2000, 1000}) {
		t.Errorf("peaks %v; want 2000 on the stage that keeps a version, 1000 on the other", got)
	}
	over := result.Memory[0].Over
	if len(over) < 4 || over[len(over)-1].Bytes != 1000 {
		t.Errorf("memory over time %v; want it back at 1000", over)
	}
}

// TestEventsNameWhatRan, the steps that end a batch included.
func TestEventsNameWhatRan(t *testing.T) {
	costs := Uniform(2, 1, 2, 0)
	costs.Update, costs.Average = []float64{0.5, 0.5}, []float64{0.25, 0.25}
	result := mustSimulateMany(t, mustParse(t, "F0 B0\nF0 B0"), costs, Load{Batches: 2, AverageEvery: 2, Record: true})
	var got []string
	for _, e := range result.Events {
		if e.Device == 1 {
			got = append(got, e.Op.String()+" "+formatTime(e.Start)+"-"+formatTime(e.End))
		}
	}
	want := "F0 1-2, B0 2-4, U 4-4.5, F0 7.5-8.5, B0 8.5-10.5, U 10.5-11, A 11-11.25"
	if text := strings.Join(got, ", "); text != want {
		t.Errorf("device 1 runs\n%s; want\n%s", text, want)
	}
}

func TestCostsThatCannotBeAreRefusedByName(t *testing.T) {
	plan := mustParse(t, "F0 B0\nF0 B0")
	for _, c := range []struct {
		change func(*Costs)
		want   string
	}{
		{func(c *Costs) { c.Forward = nil }, "forward has 0 values for 2 stages; want one a stage: 2"},
		{func(c *Costs) { c.Backward[1] = -1 }, "backward of stage 1 is -1; want a finite time, 0 or more"},
		{func(c *Costs) { c.Forward[0] = 1e201 }, "forward of stage 0 is 1e+201; want 0, or a time from 1e-200 to 1e+200"},
		{func(c *Costs) { c.Forward[1] = 1e-201 }, "forward of stage 1 is 1e-201; want 0, or a time from"},
		{func(c *Costs) { c.Bandwidth, c.MessageBytes = []float64{1e-300}, []int64{1} }, " for a message; want 0, or a time from 1e-200 to 1e+200"},
		{func(c *Costs) { c.Update = []float64{0, math.NaN()} }, "update of stage 1 is NaN"},
		{func(c *Costs) { c.Average = []float64{1} }, "average has 1 value for 2 stages"},
		{func(c *Costs) { c.ActivationBytes = []int64{5, -7} }, "activation bytes of stage 1 is -7; want a number of bytes, 0 or more"},
		{func(c *Costs) { c.Link = []float64{1, 2} }, "latency has 2 values for 2 stages; want one a link: 1"},
		{func(c *Costs) { c.Bandwidth = []float64{5} }, "link 0 has a bandwidth and no message bytes"},
		{func(c *Costs) { c.Bandwidth, c.MessageBytes = []float64{-5}, []int64{5} }, "bandwidth of link 0 is -5; want bytes a unit of time"},
		{func(c *Costs) { c.Bandwidth, c.MessageBytes = []float64{math.NaN()}, []int64{5} }, "bandwidth of link 0 is NaN; want bytes a unit of time"},
		{func(c *Costs) { c.Bandwidth, c.MessageBytes = []float64{math.Inf(1)}, []int64{5} }, "bandwidth of link 0 is +Inf"},
		{func(c *Costs) { c.Bandwidth, c.MessageBytes = []float64{5, 5}, []int64{5} }, "bandwidth has 2 values for 2 stages; want one a link: 1"},
		{func(c *Costs) { c.MessageBytes = []int64{-5} }, "message bytes of link 0 is -5"},
		{func(c *Costs) { c.Utilisation = []float64{0.5, 0} }, "utilisation of device 1 is 0; want"},
		{func(c *Costs) { c.Utilisation = []float64{math.NaN(), 1} }, "utilisation of device 0 is NaN; want"},
		{func(c *Costs) { c.Utilisation = []float64{1, 1.5} }, "utilisation of device 1 is 1.5; want"},
		{func(c *Costs) { c.Utilisation = []float64{1} }, "utilisation has 1 value for 2 devices"},
		{func(c *Costs) { c.CapacityBytes = []int64{1, -2} }, "capacity bytes of device 1 is -2; want a number of bytes, 0 or more"},
		{func(c *Costs) { c.CapacityBytes = []int64{1, 2, 3} }, "capacity bytes has 3 values for 2 devices; want one a device: 2"},
	} {
		costs := Uniform(2, 1, 2, 0)
		c.change(&costs)
		if _, err := Simulate(plan, costs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v; want %q in it", err, c.want)
		}
	}
	for _, load := range []Load{{Pipelines: -1}, {Batches: -2}, {AverageEvery: -1}, {Batches: 1 << 20, Pipelines: 1 << 20}} {
		if _, err := SimulateMany(plan, Uniform(2, 1, 2, 0), load); err == nil || !strings.Contains(err.Error(), "load: ") {
			t.Errorf("%+v: error %v; want it refused", load, err)
		}
	}
}

// TestEveryListOfCostsIsChecked for its length, and for times and bytes that cannot be.
func TestEveryListOfCostsIsChecked(t *testing.T) {
	refused := func(name string, costs Costs) {
		t.Helper()
		if err := costs.Validate(3); err == nil || !strings.Contains(err.Error(), "costs: "+name+" ") {
			t.Errorf("%s: error %v; want it refused by name", name, err)
		}
	}
	for name, list := range map[string]func(*Costs) *[]float64{
		"forward": func(c *Costs) *[]float64 { return &c.Forward }, "backward": func(c *Costs) *[]float64 { return &c.Backward },
		"backward input":  func(c *Costs) *[]float64 { return &c.BackwardInput },
		"backward weight": func(c *Costs) *[]float64 { return &c.BackwardWeight },
		"update":          func(c *Costs) *[]float64 { return &c.Update }, "average": func(c *Costs) *[]float64 { return &c.Average },
		"latency": func(c *Costs) *[]float64 { return &c.Link },
	} {
		for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1e-9} {
			costs := Uniform(3, 1, 2, 0)
			*list(&costs) = []float64{0, bad, 0}
			if name == "latency" {
				costs.Link = []float64{0, bad}
			}
			refused(name, costs)
		}
		costs := Uniform(3, 1, 2, 0)
		*list(&costs) = []float64{1}
		refused(name, costs)
	}
	for name, list := range map[string]func(*Costs) *[]int64{
		"activation": func(c *Costs) *[]int64 { return &c.ActivationBytes }, "half": func(c *Costs) *[]int64 { return &c.HalfBytes },
		"weight": func(c *Costs) *[]int64 { return &c.WeightBytes }, "gradient": func(c *Costs) *[]int64 { return &c.GradientBytes },
		"state": func(c *Costs) *[]int64 { return &c.StateBytes }, "center": func(c *Costs) *[]int64 { return &c.CenterBytes },
		"message": func(c *Costs) *[]int64 { return &c.MessageBytes },
	} {
		costs := Uniform(3, 1, 2, 0)
		*list(&costs) = []int64{0, 0, -1}
		if name == "message" {
			costs.MessageBytes = []int64{0, -1}
		}
		refused(name, costs)
		*list(&costs) = []int64{1}
		refused(name, costs)
	}
	if err := (Costs{Backward: []float64{1}}).Validate(1); err == nil || !strings.Contains(err.Error(), "forward has 0 values") {
		t.Errorf("no forwards: %v", err)
	}
	if err := (Costs{Forward: []float64{1}}).Validate(1); err == nil || !strings.Contains(err.Error(), "backward has 0 values") {
		t.Errorf("no backwards: %v", err)
	}
}
