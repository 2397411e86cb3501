package worker

import (
	"bytes"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// laid lays an assignment over devices as a plan says, whose stages all live here.
func laid(a control.Assignment, stages int, plan ...string) control.Assignment {
	a.Spec.Job.Stages, a.Plan = job.Count(len(plan)), plan
	a.Stages = slices.Repeat([]control.StagePlace{{Node: "a"}}, stages)
	return a
}

func TestStagesThatShareADeviceGiveTheSameBits(t *testing.T) {
	for _, precision := range []string{"f32", "bf16"} {
		one := setup(t, 1, 2, func(j *job.Job) { j.Precision = precision })
		want := exported(t, one, train(t, one, nil))
		for name, a := range map[string]control.Assignment{
			"interleaved": laid(one, 4, "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1", "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1"),
			"v in halves": laid(one, 4, "0F0 0F1 3F0 3I0 3F1 3I1 3W0 3W1 0I0 0I1 0W0 0W1", "1F0 2F0 1F1 2F1 2I0 1I0 2W0 1W0 2I1 1I1 2W1 1W1"),
		} {
			a.Dir, a.Spec.Job.Recompute = t.TempDir(), []string{"none", "full", "block", "none"}
			o := train(t, a, nil)
			if got := exported(t, a, o); !bytes.Equal(got, want) {
				t.Errorf("%s, %s: the weights after training differ from those of one stage", name, precision)
			}
			if len(o.status.Progress.StageStatus) != 4 {
				t.Errorf("%s: status has %d stages, want 4", name, len(o.status.Progress.StageStatus))
			}
		}
	}
}

// TestAnAsynchronousPlanResumesToTheSameBits also holds that its updates count: the optimizer's state is as old as they are many.
func TestAnAsynchronousPlanResumesToTheSameBits(t *testing.T) {
	pipedream := []string{"F0 F1 B0 U0 F2@1 B1 U1 F3@2 B2 U2 B3 U3", "F0 B0 U0 F1@1 B1 U1 F2@2 B2 U2 F3@3 B3 U3"}
	base := setup(t, 2, 2, func(j *job.Job) {
		j.MicroBatches, j.Optimizer.ClipNorm = 4, 0
		j.Model.Config["tie_word_embeddings"] = false
	})
	whole := laid(base, 2, pipedream...)
	want := train(t, whole, nil)
	weights := exported(t, whole, want)

	half := whole
	half.Dir = t.TempDir()
	first := train(t, half, func(tr *trainer) {
		for round := uint64(3); ; round++ {
			if tr.Commit(control.CommitRequest{Generation: 1, Round: round, Stop: true}).Accepted {
				return
			}
		}
	})
	if first.round < 3 || first.round >= 8 {
		t.Fatalf("stopped at round %d", first.round)
	}
	second := half
	second.Generation, second.Restore = 2, restoreOf(first)
	if got := exported(t, second, train(t, second, nil)); !bytes.Equal(got, weights) {
		t.Errorf("stopped at round %d and resumed, the final weights differ from an uninterrupted run's", first.round)
	}
	across := laid(base, 2, // two batches in a round
		"F0 F1 B0 U0 F2@1 B1 U1 F3@2 B2 U2 F4@3 B3 U3 F5@4 B4 U4 F6@5 B5 U5 F7@6 B6 U6 B7 U7",
		"F0 B0 U0 F1@1 B1 U1 F2@2 B2 U2 F3@3 B3 U3 F4@4 B4 U4 F5@5 B5 U5 F6@6 B6 U6 F7@7 B7 U7")
	across.Dir, across.Spec.Job.Averaging.Tau = t.TempDir(), 2
	o := train(t, across, nil)
	if got := exported(t, across, o); o.round != 4 || bytes.Equal(got, weights) {
		t.Errorf("trained on across batches to round %d, want 4, with weights of its own", o.round)
	}
	if got, want := o.status.Progress.Step, uint64(8); got != want {
		t.Errorf("status says %d steps, want %d", got, want)
	}
	flushed := laid(base, 2, "F0 F1 F2 F3 B0 B1 B2 B3", "F0 F1 F2 F3 B0 B1 B2 B3")
	flushed.Dir = t.TempDir()
	if bytes.Equal(exported(t, flushed, train(t, flushed, nil)), weights) {
		t.Error("four updates a batch gave the weights of one")
	}
}

// TestTiedWeightsThatAreNotTrainedNeedNoOtherStage: adapters of a model whose embeddings are tied learn the same bits over two stages as over
// one, while updates run inside of the batch.
func TestTiedWeightsThatAreNotTrainedNeedNoOtherStage(t *testing.T) {
	lora := func(j *job.Job) {
		j.MicroBatches, j.Optimizer.ClipNorm = 4, 0
		j.LoRA = job.LoRA{Targets: []string{"c_attn"}, Rank: 4, Alpha: 8}
	}
	one := laid(setup(t, 1, 2, lora), 1, "F0 B0 F1 B1 U1 F2 B2 F3 B3 U3")
	want := exported(t, one, train(t, one, nil))
	two := laid(one, 2, "F0 F1 B0 F2 B1 U1 F3 B2 B3 U3", "F0 B0 F1 B1 U1 F2 B2 F3 B3 U3")
	two.Dir = t.TempDir()
	if got := exported(t, two, train(t, two, nil)); !bytes.Equal(got, want) {
		t.Error("the weights of two stages differ from those of one")
	}
}
