package worker

import (
	"bytes"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/export/exporttest"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
)

// values reads the tensors of a weights file.
func values(t *testing.T, file []byte) map[string][]float32 {
	t.Helper()
	path := filepath.Join(t.TempDir(), "model.safetensors")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := checkpoint.OpenSafetensors(path, os.Open)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	all := map[string][]float32{}
	for _, x := range f.Tensors() {
		all[x.Name] = make([]float32, x.Elements())
		if err := f.ReadF32(x.Name, all[x.Name], 0); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// partly trains the last block and the final norm alone.
func partly(j *job.Job) { j.Train.Only, j.Averaging.Pull = []string{"h.1.*", "ln_f.*"}, "predicted" }

// What is frozen leaves training with the bits that it came with, whatever the split, the precision and the pipelines, and what is trained
// does not.
func TestFrozenParametersComeOutAsTheyWentIn(t *testing.T) {
	for _, precision := range []string{"f32", "bf16"} {
		for _, shape := range [][2]int{{1, 1}, {2, 2}, {4, 1}} {
			a := setup(t, shape[0], shape[1], func(j *job.Job) { partly(j); j.Precision = precision })
			o := train(t, a, nil)
			got := values(t, exported(t, a, o))
			if p := o.status.Progress; p.Trained == 0 || p.Trained >= p.Parameters {
				t.Errorf("status counts %d trained parameters of %d", p.Trained, p.Parameters)
			}
			m, err := model.Build("gpt2", a.Spec.Job.Model.Config)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range m.Params() {
				if p.TiedTo != "" {
					continue
				}
				want := make([]float32, p.Len())
				stage.InitialValues(p, a.Spec.Job.Seed, want)
				trained := strings.Contains(p.Name, "h.1.") || strings.Contains(p.Name, "ln_f.")
				if slices.Equal(got[p.Name], want) == trained {
					t.Errorf("%s, %v: %s: trained is %t, and that its values are those of the beginning is so too", precision, shape, p.Name, trained)
				}
			}
		}
	}
}

// A job that goes on does so with the frozen parameters of its first generation, which no round writes again, also where the directory
// that they came from holds others now.
func TestFrozenParametersAreCommittedOnce(t *testing.T) {
	base := setup(t, 1, 1, func(j *job.Job) { j.Train.Steps = 2 })
	from := filepath.Join(t.TempDir(), "base")
	unpack(t, from, base, train(t, base, nil))
	change := func(j *job.Job) { partly(j); j.Model = job.Model{Family: "gpt2", From: from} }
	whole := setup(t, 2, 2, change)
	o := train(t, whole, nil)
	want := exported(t, whole, o)

	first := setup(t, 2, 2, change)
	first.Spec.Job.Data.Files = whole.Spec.Job.Data.Files
	half := train(t, first, stopAfter(3))
	second := first
	second.Generation, second.Restore = 2, restoreOf(half)
	if err := os.WriteFile(filepath.Join(from, "model.safetensors"), want, 0o600); err != nil {
		t.Fatal(err)
	}
	again := train(t, second, nil)
	if got := exported(t, second, again); !bytes.Equal(got, want) {
		t.Error("the model of the resumed run is another")
	}
	for k := range 2 {
		one, two := half.shards[k].Frozen, again.shards[k].Frozen
		if one != two || one != o.shards[k].Frozen || one.Digest == "" {
			t.Errorf("stage %d: the frozen parameters are in %v, then in %v, and in %v without an interruption", k, one, two, o.shards[k].Frozen)
		}
	}
	if err := errors.Join(os.Remove(shard.StoreAt(control.ShardDir(second.Dir)).Path(half.shards[0].Frozen.Digest)), os.RemoveAll(from)); err != nil {
		t.Fatal(err)
	}
	if lost := train(t, second, nil); lost.err == nil || !strings.Contains(lost.err.Error(), "frozen parameters of stage 0") {
		t.Errorf("without the file the worker ended with %v", lost.err)
	}
}

// unpack makes a model directory of an outcome.
func unpack(t *testing.T, dir string, a control.Assignment, o outcome) {
	t.Helper()
	m, store, digests := parts(t, a, o)
	if err := exporttest.Unpack(t.Context(), dir, m, store, digests, control.ModelDir(a.Dir)); err != nil {
		t.Fatal(err)
	}
}

// Adapters learn over splits, pipelines, precisions and an interruption; and the exported model, which has none, computes what the adapted one
// does: a job that begins from it has the loss with which this one ended.
func TestAnExportedModelIsTheBaseWithItsAdapters(t *testing.T) {
	base := setup(t, 1, 1, func(j *job.Job) { j.Train.Steps, j.Model.Config["tie_word_embeddings"] = 30, false })
	from := filepath.Join(t.TempDir(), "base")
	unpack(t, from, base, train(t, base, nil))
	for _, precision := range []string{"f32", "bf16"} {
		change := func(j *job.Job) {
			j.Model, j.Precision, j.Averaging.Pull = job.Model{Family: "gpt2", From: from}, precision, "predicted"
			j.Optimizer.LearningRate, j.Train.Steps, j.Train.EvalSamples = 1e-2, 40, 20
			j.LoRA = job.LoRA{Targets: []string{"c_attn", "c_fc", "h.1.*.c_proj", "lm_head"}, Rank: 16, Alpha: 32, Dropout: 0.1}
		}
		first := setup(t, 2, 2, change)
		first.Spec.Job.Data.Files = base.Spec.Job.Data.Files
		half := train(t, first, stopAfter(5))
		second := first
		second.Generation, second.Restore = 2, restoreOf(half)
		second.Spec.Job.Data.Files = base.Spec.Job.Data.Files
		o := train(t, second, nil)
		if o.round != 40 || o.status.Progress.EvalLoss == nil {
			t.Fatalf("%s: the worker ended at round %d with %v", precision, o.round, o.err)
		}
		loss, start := *o.status.Progress.EvalLoss, lossOf(t, from, base, precision)
		if !(loss < 0.9*start) {
			t.Errorf("%s: the loss fell from %v to %v, expected a tenth", precision, start, loss)
		}
		merged := filepath.Join(t.TempDir(), "merged-"+precision)
		unpack(t, merged, second, o)
		bound := map[string]float64{"f32": 1e-4, "bf16": 2e-2}[precision]
		if got := lossOf(t, merged, base, precision); math.Abs(got-loss) > bound*loss {
			t.Errorf("%s: the exported model has a loss of %v, the adapted one %v", precision, got, loss)
		}
	}
}

// lossOf is the loss of a model before anything is trained.
func lossOf(t *testing.T, from string, like control.Assignment, precision string) float64 {
	t.Helper()
	a := setup(t, 1, 1, func(j *job.Job) {
		j.Model, j.Precision, j.Train.Steps, j.Train.EvalSamples = job.Model{Family: "gpt2", From: from}, precision, 1, 20
	})
	a.Spec.Job.Data.Files = like.Spec.Job.Data.Files
	return *train(t, a, nil).status.Progress.InitialLoss
}
