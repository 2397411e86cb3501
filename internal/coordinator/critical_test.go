package coordinator

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/noisescale"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

func TestStatusSaysTheCriticalBatchBesideWhatAStepMoves(t *testing.T) {
	for name, c := range map[string]struct {
		pipelines, batch int
		measured         api.CriticalBatch
		text, note       string
	}{
		"near":           {2, 16, api.CriticalBatch{Samples: 18.6, Error: 0.123, Step: 400}, "about 19 samples (measured up to step 400, within 12%); this job moves the model by 32 samples a step", ""},
		"many pipelines": {8, 16, api.CriticalBatch{Samples: 30}, "about 30 samples", "4 times the critical batch, so most of its samples bring little: with pipelines: 2 the same loss takes fewer samples; once the job has ended, avgpipectl resume j1 --pipelines 2 goes on so"},
		"a large batch":  {1, 512, api.CriticalBatch{Samples: 30.2}, "about 30 samples", "17 times the critical batch, so most of its samples bring little: with a train.batch of about 31 the same loss takes fewer samples"},
		"two digits":     {1, 16, api.CriticalBatch{Samples: 12345}, "about 12000 samples", ""},
		"below one":      {1, 1, api.CriticalBatch{Samples: 0.3}, "less than 1 sample (", ""},
		"not known":      {4, 16, api.CriticalBatch{Text: "not known yet: 3 of 8 measurements were made"}, "not known yet: 3 of 8", ""},
	} {
		measured := c.measured
		out := api.JobStatus{ID: "j1", CriticalBatch: &measured}
		sayCritical(&out, &spec.Spec{Job: job.Job{Stages: 1, Pipelines: job.Count(c.pipelines), MicroBatches: 2, Schedule: "1f1b", Train: job.Train{Batch: c.batch}}})
		b := out.CriticalBatch
		if !strings.Contains(b.Text, c.text) || (c.note == "") != (b.Note == "") || !strings.Contains(b.Note, c.note) || b.Moves != c.pipelines*c.batch {
			t.Errorf("%s: %+v", name, *b)
		}
		if measured != c.measured {
			t.Errorf("%s: what the worker said has changed: %+v", name, measured)
		}
	}
}

// TestATuningTakesWhatTheNewestJobLikeItMeasured: of the same name, model and data, whatever else is set, and with an estimate.
func TestATuningTakesWhatTheNewestJobLikeItMeasured(t *testing.T) {
	var measured noisescale.Moments
	for step := range uint64(10) {
		measured.Add(noisescale.Norms{Small: 4, Big: 8, SmallSquare: 1 + 24./4, BigSquare: 1 + 24./8}, step+1, 100)
	}
	few := noisescale.Moments{Count: 2}
	begun := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	specs := map[string]*spec.Spec{}
	var all []*cluster.Job
	add := func(id, name, model, data string, age time.Duration, m *noisescale.Moments) {
		meta, err := json.Marshal(control.RoundMeta{Noise: m})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, &cluster.Job{ID: id, Name: name, Submitted: begun.Add(-age), Committed: []*cluster.Manifest{{Round: 1, Meta: meta}}})
		specs[id] = &spec.Spec{Model: []byte(model), Job: job.Job{Pipelines: 2, Data: job.Data{Files: []string{data}}}}
	}
	asks := &spec.Spec{Model: []byte("gpt"), Job: job.Job{Name: "a", Data: job.Data{Files: []string{"x"}}}}
	find := func() *control.MeasuredBatch {
		return newestMeasured(all, func(j *cluster.Job) (*spec.Spec, error) {
			if s := specs[j.ID]; s != nil {
				return s, nil
			}
			return nil, errors.New("lost")
		}, asks)
	}
	add("other name", "b", "gpt", "x", 0, &measured)
	add("other model", "a", "bert", "x", 0, &measured)
	add("other data", "a", "gpt", "y", 0, &measured)
	add("too few", "a", "gpt", "x", 0, &few)
	add("none", "a", "gpt", "x", 0, nil)
	add("lost", "a", "gpt", "x", 0, &measured)
	specs["lost"] = nil
	all = append(all, &cluster.Job{ID: "no round", Name: "a", Submitted: begun})
	if found := find(); found != nil {
		t.Errorf("found %+v", found)
	}
	add("older", "a", "gpt", "x", 2*time.Hour, &measured)
	add("newer", "a", "gpt", "x", time.Hour, &measured)
	add("oldest", "a", "gpt", "x", 3*time.Hour, &measured)
	if found := find(); found == nil || found.Job != "newer" || found.Step != 10 || found.Samples < 23.9 || found.Samples > 24.1 {
		t.Errorf("found %+v, want that of the newer job", found)
	}
}

// TestStagesOnSeveralNodesAreToldToMeasureNoise together, and those on one node are told nothing, which programs of the version before do not know.
func TestStagesOnSeveralNodesAreToldToMeasureNoise(t *testing.T) {
	for name, c := range map[string]struct {
		groups int
		nodes  []string // of the stages of each group, one group after the other
		want   bool
	}{
		"one node":              {1, []string{"a", "a"}, false},
		"two nodes":             {1, []string{"a", "b"}, true},
		"a node for each group": {2, []string{"a", "a", "b", "b"}, false},
		"two for each group":    {2, []string{"a", "b", "c", "d"}, true},
	} {
		a := &act{}
		a.Job = &cluster.Job{ID: "j1"}
		a.spec = &spec.Spec{Job: job.Job{Stages: 2, Pipelines: 2, Groups: c.groups}}
		for i, node := range c.nodes {
			a.taking = append(a.taking, stagePlace{Group: i / 2, Stage: i % 2, Node: node})
		}
		for _, node := range c.nodes {
			if to := a.assignment(1, nil, node, nil, nil); to.NoiseAcross != c.want {
				t.Errorf("%s: the worker on %s is told %v, want %v", name, node, to.NoiseAcross, c.want)
			}
		}
	}
}
