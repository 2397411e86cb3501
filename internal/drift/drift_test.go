package drift

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// pipelined is a candidate of 1f1b over stages with a device each, which compute 0.4 s for the 4 micro-batches of a batch and
// expect one to take a second. A message takes 10 ms.
func pipelined(stages, pipelines int) Chosen {
	c := &tuner.Candidate{
		Devices: stages, Chunks: 1, Pipelines: pipelines, MicroBatches: 4, Schedule: "1f1b", Costs: schedule.Uniform(stages, 0.04, 0.06, 0.01),
		Predicted: tuner.Prediction{BatchSeconds: 1, Links: slices.Repeat([]tuner.LinkTerms{{MessageSeconds: 0.01}}, stages-1)},
	}
	for k := range stages {
		c.Predicted.Stages = append(c.Predicted.Stages, tuner.StageTerms{Device: k, ComputeSeconds: 0.4, WaitSeconds: 0.2})
	}
	return Chosen{Candidate: c}
}

// TestDrift runs the scenarios of testdata/drift: two stages on two devices, two pipelines, one second a batch expected, of which
// each pipeline computes 0.4 s on each stage, and a bound of 15%. So 10 ms more for each message are some 13 ms more for a batch, since
// one pipeline computes while the other waits.
//
//	see at=20s batch=1.2 compute=0.5,0.4 optimizer=0,0.1 link=0.03     what was observed, and what of it changed
func TestDrift(t *testing.T) {
	c := pipelined(2, 2)
	expected := c.Predicted
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		watch := Watch{Hold: 10 * time.Second}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			at, observed := time.Unix(0, 0), tuner.Measurement{}
			observed.Stages = append(observed.Stages, expected.Stages...)
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "at":
					at = at.Add(duration(t, a))
				case "batch":
					observed.BatchSeconds = seconds(t, a)[0]
				case "compute":
					for k, v := range seconds(t, a) {
						observed.Stages[k].ComputeSeconds = v
					}
				case "optimizer":
					for k, v := range seconds(t, a) {
						observed.Stages[k].OptimizerSeconds = v
					}
				case "link":
					observed.Links = []tuner.LinkTerms{{MessageSeconds: seconds(t, a)[0]}}
				case "wait":
					for k, v := range seconds(t, a) {
						observed.Stages[k].WaitSeconds = v
					}
				default:
					t.Fatalf("unknown key %s", a.Key)
				}
			}
			changed := watch.See(at, c, &observed, 0.15)
			out := "as expected\n"
			if x := watch.Now; x != nil {
				out = fmt.Sprintf("drifts since %v: %s\n", x.Since.Sub(time.Unix(0, 0)), x.Text)
			}
			if changed {
				out = "changed: " + out
			}
			return out
		})
	})
}

// Of several links it is the one that has changed, however much the stages after it wait; and the time a batch takes longer is what the
// plan makes of it.
func TestTheLinkThatBecameSlowIsNamed(t *testing.T) {
	c := pipelined(4, 1)
	observed := tuner.Measurement{Prediction: tuner.Prediction{BatchSeconds: 1.38, Stages: slices.Clone(c.Predicted.Stages)}}
	for k := range observed.Stages {
		observed.Stages[k].WaitSeconds = 0.6
	}
	for link := range 3 {
		observed.Links = slices.Clone(c.Predicted.Links)
		observed.Links[link].MessageSeconds = 0.06
		d := describe(time.Now(), c, &observed)
		want := fmt.Sprintf("most of that is transfer between stages %d and %d, 60ms instead of 10ms for a message", link, link+1)
		if d.Stage != link || d.Term != api.TermTransfer || d.TermPredicted != 0.01 || d.TermObserved != 0.06 || !strings.HasSuffix(d.Text, want) {
			t.Errorf("link %d: %+v", link, d)
		}
	}
	observed.Links[0].MessageSeconds = 0 // none was observed
	observed.Links[2].MessageSeconds = 0.01
	if d := describe(time.Now(), c, &observed); d.Term != api.TermWait {
		t.Errorf("with links as expected: %+v", d)
	}
}

// A norm that is exchanged goes over each link twice more, and all stages wait for it.
func TestNormsWaitForLinksAsWell(t *testing.T) {
	c, slow := pipelined(2, 1), []tuner.LinkTerms{{MessageSeconds: 0.06}}
	without := transferred(c, slow, 1).effect
	c.ExchangeNorm = true
	if more := transferred(c, slow, 1).effect - without; math.Abs(more-2*0.05) > 0.01 {
		t.Errorf("50 ms more for a message add %v s to a batch, and %v s more with a norm, want 0.1", without, more)
	}
}

// What no simulation can tell is not blamed on links.
func TestLinksWithoutASimulationExplainNothing(t *testing.T) {
	slow := []tuner.LinkTerms{{MessageSeconds: 0.5}}
	for name, change := range map[string]func(Chosen){
		"no link was expected":      func(c Chosen) { c.Predicted.Links = nil },
		"the candidate has no plan": func(c Chosen) { c.Schedule = "nonsense" },
		"the plan is too long":      func(c Chosen) { c.Pipelines = tuner.MostSimulated/16 + 1 },
		"links have no costs":       func(c Chosen) { c.Costs.Link = nil },
	} {
		c := pipelined(2, 1)
		if m := transferred(c, slow, 1); m.effect < 0.25 {
			t.Fatalf("half a second for a message adds %v s", m.effect)
		}
		change(c)
		if m := transferred(c, slow, 1); m.effect != 0 {
			t.Errorf("%s: %v, which adds %v s", name, m, m.effect)
		}
	}
}

func seconds(t *testing.T, a datadriven.CmdArg) []float64 {
	var values []float64
	for _, text := range a.Vals {
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("%s: %v", a.Key, err)
		}
		values = append(values, v)
	}
	return values
}

// TestMeasuredAddsUp: what is put in a report's terms adds up to the batch time on every device, with the time of evaluations left out.
func TestMeasuredAddsUp(t *testing.T) {
	batch := 2.0
	s := api.JobStatus{
		State: api.Running, Pipelines: 2, BatchS: &batch, StageStatus: []api.StageStatus{
			{Stage: 0, Busy: 0.3, Optimizer: 0.02, Evaluate: 0.1, Memory: &tuner.Memory{Weights: 2, Center: 3}},
			{Stage: 1, Busy: 0.5, Average: 0.1, Evaluate: 0.1},
			{Stage: 2, Busy: 0.2, WaitUpstream: 0.3, Evaluate: 0.1},
		},
	}
	m := Measured(&s, []int{0, 1, 0}, 8)
	if math.Abs(m.BatchSeconds-1.8) > 1e-12 || math.Abs(m.SamplesPerSecond-2*8/1.8) > 1e-9 {
		t.Errorf("a batch takes %v s, %v samples/s; want 1.8 and %v", m.BatchSeconds, m.SamplesPerSecond, 2*8/1.8)
	}
	if m.Stages[0].Memory.Total() != 5 || m.Stages[1].ComputeSeconds != 0.5 {
		t.Errorf("stages are %+v", m.Stages)
	}
	for device, stages := range map[int][]int{0: {0, 2}, 1: {1}} {
		sum := m.Stages[stages[0]].WaitSeconds
		for _, k := range stages {
			x := m.Stages[k]
			sum += 2 * (x.ComputeSeconds + x.OptimizerSeconds + x.AverageSeconds)
			if x.Device != device || x.WaitSeconds != m.Stages[stages[0]].WaitSeconds {
				t.Errorf("stage %d: %+v", k, x)
			}
		}
		if math.Abs(sum-m.BatchSeconds) > 1e-9 {
			t.Errorf("device %d: the terms add up to %v of %v s", device, sum, m.BatchSeconds)
		}
	}
	s.State = api.Starting
	if Measured(&s, nil, 8) != nil {
		t.Error("a job that does not train is measured")
	}
}

func duration(t *testing.T, a datadriven.CmdArg) time.Duration {
	d, err := time.ParseDuration(a.Vals[0])
	if err != nil {
		t.Fatalf("%s: %v", a.Key, err)
	}
	return d
}
