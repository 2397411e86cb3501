package coordinator

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/spec"
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
