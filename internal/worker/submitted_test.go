package worker

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/model"
)

// letters is a tokenizer.json of a few letters.
const letters = `{"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, " ": 2, "\n": 3, "</s>": 4}, "merges": []}}`

// configOf is the config of a job's model, as it is found when the job is submitted.
func configOf(t testing.TB, j *job.Job) json.RawMessage {
	t.Helper()
	var m *model.Model
	var err error
	switch {
	case j.Model.Python != "":
		m, err = dry(t, j).Build()
	case j.Model.From != "":
		m, err = export.ReadModel(nil, j.Model.From)
	default:
		m, err = model.Build(j.Model.Family, j.Model.Config)
	}
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(m.Config())
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// beginsFrom trains a small model, and gives the directory that it was exported to and the assignment of a job that begins with it, as
// admission makes it.
func beginsFrom(t *testing.T, change func(*job.Job)) (dir string, a control.Assignment) {
	t.Helper()
	base := setup(t, 1, 1, func(j *job.Job) { j.Train.Steps = 2 })
	dir = filepath.Join(t.TempDir(), "base")
	unpack(t, dir, base, train(t, base, nil))
	a = setup(t, 2, 2, func(j *job.Job) {
		j.Model, j.Averaging.Pull = job.Model{Family: "gpt2", From: dir}, "predicted"
		if change != nil {
			change(j)
		}
	})
	m, err := model.FromHuggingFace(a.Spec.Model)
	if err == nil {
		a.Spec.Weights, err = export.Check(nil, dir, m)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir, a
}

// replace changes the text of a file.
func replace(t *testing.T, path, old, with string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil && !bytes.Contains(text, []byte(old)) {
		t.Fatalf("%s has no %q", path, old)
	}
	if err == nil {
		err = os.WriteFile(path, bytes.Replace(text, []byte(old), []byte(with), 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// The config of the model that a job begins with is read when the job is submitted, and never again.
func TestAnEditedConfigChangesNoJobThatWasSubmitted(t *testing.T) {
	dir, whole := beginsFrom(t, nil)
	want := exported(t, whole, train(t, whole, nil))
	first := whole
	first.Dir = t.TempDir()
	replace(t, filepath.Join(dir, export.ConfigFile), `"n_head": 2`, `"n_head": 1`)
	half := train(t, first, stopAfter(3))
	second := first
	second.Generation, second.Restore = 2, restoreOf(half)
	if got := exported(t, second, train(t, second, nil)); !bytes.Equal(got, want) {
		t.Error("the model of a job whose config.json was edited before it began and was resumed is another")
	}
}

// A job goes on without the directory that it began from: weights, tokenizer and what else is exported are those of its rounds.
func TestAJobGoesOnWithoutItsModelFrom(t *testing.T) {
	tokens, text := []byte(letters), filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte(strings.Repeat("ab ba\n", 400)), 0o600); err != nil {
		t.Fatal(err)
	}
	dir, whole := beginsFrom(t, func(j *job.Job) { j.Data.Files, j.Data.Tokenizer = []string{text}, j.Model.From })
	for name, text := range map[string][]byte{export.TokenizerFile: tokens, "generation_config.json": []byte(`{"top_k": 3}`)} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	whole.Spec.Tokenizer = checkpoint.ObjectDigest(tokens)
	want := exported(t, whole, train(t, whole, nil))
	first := whole
	first.Dir = t.TempDir()
	half := train(t, first, stopAfter(3))
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	second := first
	second.Generation, second.Restore = 2, restoreOf(half)
	again := train(t, second, nil)
	if got := exported(t, second, again); !bytes.Equal(got, want) {
		t.Error("the model of the resumed run is another")
	}
	files := filepath.Join(t.TempDir(), "model")
	unpack(t, files, second, again)
	for _, name := range []string{export.TokenizerFile, "generation_config.json"} {
		if _, err := os.Stat(filepath.Join(files, name)); err != nil {
			t.Errorf("what goes with the model: %v", err)
		}
	}
}

// What was checked when the job was submitted is what it begins with: anything else is refused, with both digests.
func TestFilesThatChangedAfterTheSubmissionAreRefused(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, dir string, a *control.Assignment){
		export.WeightsFile: func(t *testing.T, dir string, _ *control.Assignment) {
			t.Helper()
			other := setup(t, 1, 1, func(j *job.Job) { j.Seed = 8 })
			if err := os.WriteFile(filepath.Join(dir, export.WeightsFile), exported(t, other, train(t, other, nil)), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		export.TokenizerFile: func(t *testing.T, dir string, a *control.Assignment) {
			t.Helper()
			a.Spec.Job.Data.Tokenizer, a.Spec.Tokenizer = filepath.Join(dir, export.TokenizerFile), checkpoint.ObjectDigest([]byte(letters))
			if err := os.WriteFile(a.Spec.Job.Data.Tokenizer, []byte(letters+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		dir, a := beginsFrom(t, nil)
		change(t, dir, &a)
		o := train(t, a, nil)
		for _, part := range []string{filepath.Join(dir, name) + " has changed since the job was submitted: its digest is ", ", expected ", "put it back as it was, or submit the job anew"} {
			if o.err == nil || !strings.Contains(o.err.Error(), part) || !Permanent(o.err) {
				t.Errorf("%s: the worker ended with %v, want %q", name, o.err, part)
			}
		}
	}
}

// A directory that is not there may be on a mount that is late: the job waits, as for its data.
func TestAMissingModelFromIsAnObstacle(t *testing.T) {
	dir, a := beginsFrom(t, nil)
	if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"empty", "missing"} {
		o := train(t, a, nil)
		if found := obstacle.Of(o.err); found == nil || found.Kind != obstacle.Missing || Permanent(o.err) {
			t.Errorf("%s: the worker ended with %v, obstacle %v", what, o.err, found)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
