package profile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/job"
)

// restless makes every second run take three times as long, so that all that can be repeated is, and fails the runs of one schedule.
type restless struct {
	bench
	fails string
	runs  int
}

func (b *restless) Run(ctx context.Context, c worker.TrialConfig) (worker.TrialResult, error) {
	if c.Job.Schedule == b.fails && b.fails != "" {
		return worker.TrialResult{}, errors.New("made to fail")
	}
	r, err := b.bench.Run(ctx, c)
	if b.runs++; err == nil && b.runs%2 == 0 {
		for i := range r.Spans {
			r.Spans[i].End += 2 * (r.Spans[i].End - r.Spans[i].Start)
		}
		r.End += 2 * (r.End - r.Start)
	}
	return r, err
}

// progressOf tunes a job beside other work and lists what was said.
func progressOf(t *testing.T, fails string, change func(*job.Job)) []api.TuneProgress {
	t.Helper()
	var said []api.TuneProgress
	s, err := Open(t.Context(), Config{
		Request: request(t, change), Batches: 2, Watch: -1, Repeats: 4, Outpaced: 1, Progress: func(p api.TuneProgress) { said = append(said, p) },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.bench = &restless{bench: s.bench, fails: fails}
	if _, err := s.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return said
}

// Neither what is repeated nor what is left out makes the progress of a tuning go back, or its total up.
func TestProgressGoesOneWay(t *testing.T) {
	again := 0
	for name, c := range map[string]struct {
		fails  string
		change func(*job.Job)
	}{
		"all open":    {"", func(j *job.Job) { j.Schedule = job.AutoSchedule }},
		"all given":   {"", func(j *job.Job) { j.Stages, j.Pipelines, j.MicroBatches = 2, 2, 2 }},
		"a run fails": {"gpipe", func(j *job.Job) { j.Stages, j.Schedule = 2, job.AutoSchedule }},
		"fixed times": {"", func(j *job.Job) { emulate(0)(j); j.Devices.Emulated.Forward = []time.Duration{time.Millisecond} }},
	} {
		t.Run(name, func(t *testing.T) {
			said := progressOf(t, c.fails, c.change)
			for i, p := range said {
				if p.Done < 0 || p.Done >= p.Total {
					t.Errorf("%d of %d are done at %q", p.Done, p.Total, p.Text)
				}
				if i > 0 && (p.Done < said[i-1].Done || p.Total > said[i-1].Total) {
					t.Errorf("after %+v: %+v", said[i-1], p)
				}
				if strings.HasSuffix(p.Text, ", again") {
					again++
				}
			}
			// Repeats of what has failed are taken off when they come, of which nothing is said after the last run.
			if last := said[len(said)-1]; last.Done+1 != last.Total && c.fails == "" {
				t.Errorf("the last step is %+v", last)
			}
		})
	}
	if again == 0 {
		t.Error("nothing was repeated")
	}
}
