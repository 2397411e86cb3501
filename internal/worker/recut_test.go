package worker

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// recut is an assignment that goes on from an outcome with other counts.
func recut(t *testing.T, a control.Assignment, o outcome, stages, pipelines int) control.Assignment {
	t.Helper()
	j := &a.Spec.Job
	j.Stages, j.Pipelines, j.Devices.CPU.Count = job.Count(stages), job.Count(pipelines), job.Count(stages)
	plan, _, err := schedule.Generate(j.Schedule, schedule.Request{Devices: stages, MicroBatches: int(j.MicroBatches)})
	if err != nil {
		t.Fatal(err)
	}
	a.Plan, a.Stages = plan.Lines(), slices.Repeat([]control.StagePlace{{Node: "a"}}, stages)
	a.Generation++
	a.Restore = restoreOf(o)
	a.Spec.Budget = j.Resolved(0)
	return a
}

// stopAt has a worker of a generation commit a round, or the first one after it that it can, and stop there.
func stopAt(generation, round uint64) func(*trainer) {
	return func(tr *trainer) {
		for at := round; !tr.Commit(control.CommitRequest{Generation: generation, Round: at, Stop: true}).Accepted; at++ { //nolint:revive // empty
		}
	}
}

// vectorsOf are the vectors of all stages of an outcome, by name, joined.
func vectorsOf(t *testing.T, a control.Assignment, o outcome) map[string][]float32 {
	t.Helper()
	_, store, digests := parts(t, a, o)
	all := map[string][]float32{}
	for _, d := range digests {
		var names []shard.Vector
		var memory [][]float32
		err := shard.Read(t.Context(), store, d, func(h *shard.Header) ([][]float32, error) {
			names = h.Vectors
			for _, v := range names {
				memory = append(memory, make([]float32, v.Elements))
			}
			return memory, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range names {
			all[v.Name] = append(all[v.Name], memory[i]...)
		}
	}
	return all
}

func TestAnotherNumberOfStagesTrainsTheSameBits(t *testing.T) {
	for name, change := range map[string]func(*job.Job){
		"all trained": func(j *job.Job) { j.Train.Steps = 16 },
		"partly":      func(j *job.Job) { partly(j); j.Train.Steps = 16 },
		"adapters":    func(j *job.Job) { adapted(j); j.Train.Steps = 16 },
		"late layers": func(j *job.Job) {
			j.Averaging.Method, j.Averaging.StaleLayers, j.Averaging.Prediction, j.Train.Steps = "sapipe", 2, "local", 16
		},
	} {
		for _, pipelines := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s of %d pipelines", name, pipelines), func(t *testing.T) {
				whole := setup(t, 2, pipelines, change)
				whole.Spec.Budget = whole.Spec.Job.Resolved(0)
				end := train(t, whole, nil)
				want := vectorsOf(t, whole, end)
				a := setup(t, 2, pipelines, change)
				a.Spec.Job.Data.Files = whole.Spec.Job.Data.Files
				a.Spec.Budget = a.Spec.Job.Resolved(0)
				o := train(t, a, stopAt(1, 1))
				for i, stages := range []int{4, 1, 2} {
					a = recut(t, a, o, stages, pipelines)
					drive := stopAt(a.Generation, a.Restore.Round+1)
					if i == 2 {
						drive = nil
					}
					if o = train(t, a, drive); o.err != nil && len(o.shards) != stages {
						t.Fatalf("in %d stages it ended with %v", stages, o.err)
					}
				}
				if o.round != end.round {
					t.Fatalf("it ended at round %d, and undivided at %d", o.round, end.round)
				}
				for name, v := range vectorsOf(t, a, o) {
					if !slices.Equal(v, want[name]) {
						t.Errorf("%s differs from that of a run that kept its stages", name)
					}
				}
			})
		}
	}
}

// TestOtherLateLayersTrainTheSameBitsOnEverySplit: the gradients that a round has in flight, of none to all of the layers, are found in its shards, whichever layers those have.
func TestOtherLateLayersTrainTheSameBitsOnEverySplit(t *testing.T) {
	late := func(j *job.Job) {
		j.Averaging.Method, j.Averaging.StaleLayers, j.Averaging.Prediction, j.Train.Steps = "sapipe", 3, "local", 16
	}
	var files []string
	var ends []map[string][]float32
	for _, splits := range [][]int{{2, 2, 2}, {4, 1, 2}} {
		a := setup(t, 2, 2, late)
		if files == nil {
			files = a.Spec.Job.Data.Files
		}
		a.Spec.Job.Data.Files = files
		a.Spec.Budget = a.Spec.Job.Resolved(0)
		o := train(t, a, stopAt(1, 2))
		for i, stages := range splits {
			a = recut(t, a, o, stages, 2)
			a.Spec.Job.Averaging.StaleLayers = []job.Count{0, 99, 1}[i]
			drive := stopAt(a.Generation, a.Restore.Round+2)
			if i == 2 {
				drive = nil
			}
			if o = train(t, a, drive); o.err != nil && len(o.shards) != stages {
				t.Fatalf("in %d stages it ended with %v", stages, o.err)
			}
		}
		ends = append(ends, vectorsOf(t, a, o))
	}
	for name, v := range ends[0] {
		if !slices.Equal(v, ends[1][name]) {
			t.Errorf("%s differs between splits", name)
		}
	}
}

func TestAnotherNumberOfPipelinesGoesOnInTheData(t *testing.T) {
	a := setup(t, 2, 2, func(j *job.Job) { j.Train.Steps, j.Averaging.Tau = 48, 2 })
	a.Spec.Budget = a.Spec.Job.Resolved(0)
	o := train(t, a, stopAt(1, 1))
	samples := o.round * 2 * 2 * 4
	for _, pipelines := range []int{3, 1, 2} {
		before := o.round
		a = recut(t, a, o, 2, pipelines)
		o = train(t, a, stopAt(a.Generation, before+1))
		if o.err != nil && len(o.shards) != 2 {
			t.Fatalf("with %d pipelines it ended with %v", pipelines, o.err)
		}
		samples += (o.round - before) * 2 * uint64(pipelines) * 4
		if got := o.shards[1].Meta.SamplesSeen; got != samples {
			t.Errorf("after round %d with %d pipelines: %d samples, expected %d", o.round, pipelines, got, samples)
		}
		if n := len(o.shards[0].Cursors); n != pipelines {
			t.Errorf("%d cursors for %d pipelines", n, pipelines)
		}
	}
	a = recut(t, a, o, 2, 2)
	o = train(t, a, nil)
	if got := o.shards[1].Meta.SamplesSeen; got < 48*4 || got >= 48*4+2*2*4 {
		t.Errorf("it ended after %d samples, for a budget of %d", got, 48*4)
	}
	if !bytes.Contains(exported(t, a, o), []byte("wte.weight")) {
		t.Error("no model comes out")
	}
}
