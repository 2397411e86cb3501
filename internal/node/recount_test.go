package node_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

func TestAJobIsResumedWithOtherCounts(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "recount", 100000))
	d.Until(t, id, "has committed", func(s api.JobStatus) bool { return s.CommittedRound >= 10 })
	refused := func(status int, word string, r api.ResumeRequest) {
		t.Helper()
		var e *api.Error
		if _, err := d.Client.Resume(t.Context(), id, r); !errors.As(err, &e) || e.Status != status || !strings.Contains(e.Message, word) {
			t.Errorf("%+v: %v; expected status %d and %q", r, err, status, word)
		}
	}
	refused(http.StatusConflict, "it is running", api.ResumeRequest{Stages: 1})
	if _, err := d.Client.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	was := d.Until(t, id, "ends", ended)
	refused(http.StatusUnprocessableEntity, "the nearest that fits: ", api.ResumeRequest{Stages: 500})
	would, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{Stages: 1, Pipelines: 3, DryRun: true})
	if err != nil || would.State != api.Cancelled || would.Stages != 1 || would.Pipelines != 3 || !strings.Contains(would.Reason, "would go on with 1 stage and 3 pipelines") {
		t.Errorf("a dry run says %+v (%v)", would, err)
	}
	if now, err := d.Client.Job(t.Context(), id); err != nil || now.Stages != 2 {
		t.Errorf("a dry run has changed the job to %d stages (%v)", now.Stages, err)
	}
	if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{Stages: 1, Pipelines: 3}); err != nil {
		t.Fatal(err)
	}
	now := d.Until(t, id, "commits again", func(s api.JobStatus) bool { return s.CommittedRound > was.CommittedRound })
	if now.Stages != 1 || now.Pipelines != 3 {
		t.Errorf("it goes on with %d stages and %d pipelines", now.Stages, now.Pipelines)
	}
	a, err := d.Client.Audit(t.Context(), id)
	if err != nil || !a.Exact || len(a.Stretches) != 2 || len(a.Stretches[0].Pipelines) != 2 || len(a.Stretches[1].Pipelines) != 3 {
		t.Errorf("the samples behind it are %+v (%v)", a, err)
	}
}

// TestADryRunOfAResumeIsRefusedAsTheResumeIs: of a job that is done there is nothing to resume, with whichever counts.
func TestADryRunOfAResumeIsRefusedAsTheResumeIs(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "over", 8))
	d.Until(t, id, "ends", ended)
	for _, dry := range []bool{true, false} {
		var e *api.Error
		if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{Stages: 1, DryRun: dry}); !errors.As(err, &e) || e.Status != http.StatusConflict ||
			!strings.Contains(e.Message, "nothing to resume from") {
			t.Errorf("dry run %v: %v", dry, err)
		}
	}
}
