package worker

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/export/exporttest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
)

// TestModulesBehindAFamilyTrainTheSameHoweverTheyAreLaidOut: to the bit, on one stage and where layers and modules have stages of their own; only those of modules
// have an interpreter. Its export is gone on from, and so is one of the family itself, whose head is left out.
func TestModulesBehindAFamilyTrainTheSameHoweverTheyAreLaidOut(t *testing.T) {
	program := modules(t, "head", map[string]any{"width": 64})
	family := job.Model{Family: "gpt2", Config: map[string]any{"n_layer": 4, "n_head": 2, "n_embd": 64, "n_positions": 16, "vocab_size": 256, "resid_pdrop": 0.1}}
	behind := func(j *job.Job) {
		program(j)
		j.Model.Family, j.Model.Config = family.Family, family.Config
		j.Train.Steps, j.Optimizer.LearningRate = 24, 0.01
	}
	var want []byte
	for _, stages := range []int{1, 3} {
		a := inPython(t, stages, 2, behind, nil)
		o := train(t, a, nil)
		s := o.status.Progress
		if !errors.Is(o.err, errAborted) || s.InitialLoss == nil || s.EvalLoss == nil || !(*s.EvalLoss < *s.InitialLoss) {
			t.Fatalf("%d stages: %v, evaluations from %v to %v", stages, o.err, s.InitialLoss, s.EvalLoss)
		}
		weights := exported(t, a, o)
		if want == nil {
			want = weights
		}
		if !bytes.Equal(weights, want) {
			t.Errorf("%d stages: other weights than of one stage", stages)
		}
		if stages == 3 {
			checkInterpreters(t, a)
			goOn(t, a, o, behind)
		}
	}
	whole := setup(t, 1, 1, func(j *job.Job) { j.Model = family; j.Data.Sequence = 16 })
	goOn(t, whole, train(t, whole, nil), behind)
}

// checkInterpreters holds which rows of a plan have an interpreter against where the modules are.
func checkInterpreters(t *testing.T, a control.Assignment) {
	t.Helper()
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	h := &host{assignment: a, plan: plan}
	if err := errors.Join(h.openModel(t.Context()), h.cut()); err != nil {
		t.Fatal(err)
	}
	var found []bool
	for row := range h.plan {
		found = append(found, h.overInterpreter(t.Context(), row, "", nil, new(stage.Lookup)) != nil)
	}
	if !found[len(found)-1] || slices.Equal(found, []bool{true, true, true}) {
		t.Errorf("rows with an interpreter: %v of layers %v", found, h.ranges)
	}
}

// goOn starts a job from what another one exported: the first round has those weights of all layers in front.
func goOn(t *testing.T, a control.Assignment, o outcome, behind func(*job.Job)) {
	t.Helper()
	m, store, digests := parts(t, a, o)
	dir := filepath.Join(t.TempDir(), "model")
	if err := exporttest.Unpack(t.Context(), dir, m, store, digests, control.ModelDir(a.Dir)); err != nil {
		t.Fatal(err)
	}
	next := inPython(t, 2, 1, func(j *job.Job) {
		behind(j)
		j.Model.Family, j.Model.Config, j.Model.From = "", nil, dir
		j.Train.Steps, j.Optimizer.LearningRate, j.Center.CommitEvery = 4, 1e-9, 4
	}, nil)
	before, err := export.ReadModel(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	built, err := next.Spec.BuildModel()
	if err != nil {
		t.Fatal(err)
	}
	if next.Spec.Weights, err = export.Check(nil, dir, built); err != nil {
		t.Fatal(err)
	}
	p := train(t, next, nil)
	if !errors.Is(p.err, errAborted) {
		t.Fatalf("from %s: %v", before.Family, p.err)
	}
	again, store, digests := parts(t, next, p)
	second := filepath.Join(t.TempDir(), "model")
	if err := exporttest.Unpack(t.Context(), second, again, store, digests, control.ModelDir(next.Dir)); err != nil {
		t.Fatal(err)
	}
	compareFront(t, dir, second, before.Family == again.Family)
}

// compareFront holds the weights of a directory against those that it came from: with modules or without.
func compareFront(t *testing.T, from, to string, all bool) {
	t.Helper()
	_, a, err := export.Open(nil, from)
	if err != nil {
		t.Fatal(err)
	}
	m, b, err := export.Open(nil, to)
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, p := range m.Params() {
		if !all && !strings.HasPrefix(p.Name, "transformer.") {
			continue
		}
		_, x, ok, err := a.Lookup(p.Name)
		_, y, there, other := b.Lookup(p.Name)
		if err != nil || other != nil || !ok || !there {
			t.Fatalf("%s: %v, %v, %t, %t", p.Name, err, other, ok, there)
		}
		compared++
		for i := range x {
			if d := x[i] - y[i]; d > 1e-6 || d < -1e-6 {
				t.Fatalf("%s[%d] is %v, and was %v", p.Name, i, y[i], x[i])
			}
		}
	}
	if compared < 20 {
		t.Errorf("%d parameters compared", compared)
	}
	if err := errors.Join(a.Close(), b.Close(), os.RemoveAll(to)); err != nil {
		t.Error(err)
	}
}

// TestFrozenModulesKeepWhatTheyWereBuiltWith, in an export too.
func TestFrozenModulesKeepWhatTheyWereBuiltWith(t *testing.T) {
	a := inPython(t, 2, 2, modules(t, "frozen", nil), nil)
	o := train(t, a, nil)
	if !errors.Is(o.err, errAborted) {
		t.Fatal(o.err)
	}
	m, store, digests := parts(t, a, o)
	dir := filepath.Join(t.TempDir(), "model")
	if err := exporttest.Unpack(t.Context(), dir, m, store, digests, control.ModelDir(a.Dir)); err != nil {
		t.Fatal(err)
	}
	_, weights, err := export.Open(nil, dir)
	if err != nil {
		t.Fatal(err)
	}
	_, values, ok, err := weights.Lookup("0.weight")
	if err != nil || !ok {
		t.Fatal(err, ok)
	}
	for i, x := range values {
		if want := float32(i)/(128*16) - 1; x != want {
			t.Fatalf("0.weight[%d] is %v, expected %v", i, x, want)
		}
	}
	if err := weights.Close(); err != nil {
		t.Error(err)
	}
}
