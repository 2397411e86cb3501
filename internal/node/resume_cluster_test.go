package node_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// TestAJobWhoseShardsLieOnOtherNodesIsResumed by the node that leads and has none of them: as it was, with other counts, and in groups.
func TestAJobWhoseShardsLieOnOtherNodesIsResumed(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	lead, others := leader(t, all)
	drain := func(name string) {
		t.Helper()
		nodetest.Eventually(t, "node "+name+" is drained", func() bool {
			_, err := lead.Client.Drain(t.Context(), name, api.DrainRequest{})
			return err == nil
		})
	}
	drain(lead.name)
	id := others[0].Submit(t, "placement: spread\n"+nodetest.Job(t, others[0].Dir, "elsewhere", 1e6))
	cancel := func() api.JobStatus {
		t.Helper()
		others[0].Cancel(t, id)
		return others[0].Until(t, id, "ends", ended)
	}
	resume := func(was api.JobStatus, r api.ResumeRequest) api.JobStatus {
		t.Helper()
		others[1].Resume(t, id, r)
		return others[1].Until(t, id, "commits further", func(s api.JobStatus) bool { return s.CommittedRound > was.CommittedRound })
	}
	others[0].Until(t, id, "commits", committed)
	for _, h := range others {
		if pids := h.WorkerPIDs(t, id); len(pids) != 1 {
			t.Fatalf("workers on %s: %v", h.name, pids)
		}
	}
	resume(cancel(), api.ResumeRequest{})
	now := resume(cancel(), api.ResumeRequest{Stages: 1, Pipelines: 1})
	if now.Stages != 1 || now.Pipelines != 1 || !strings.Contains(now.Reason, "resumed from round") {
		t.Errorf("%d stages, %d pipelines: %s", now.Stages, now.Pipelines, now.Reason)
	}
	was := cancel()
	would, err := nodetest.Answered(t, func() (api.JobStatus, error) {
		return lead.Client.Resume(t.Context(), id, api.ResumeRequest{Pipelines: 2, Groups: 2, DryRun: true})
	})
	if err != nil || would.Groups != 2 ||
		!strings.Contains(would.Reason, "2 pipelines in 2 groups") {
		t.Errorf("a dry run in groups says %d groups: %s (%v)", would.Groups, would.Reason, err)
	}
	if now := resume(was, api.ResumeRequest{Pipelines: 2, Groups: 2}); now.Groups != 2 || len(now.Placement) != 2 || now.Placement[0].Node == now.Placement[1].Node {
		t.Errorf("it goes on in %d groups, on %v", now.Groups, now.Placement)
	}
	a, err := others[0].Client.Audit(t.Context(), id)
	if err != nil || !a.Exact || len(a.Stretches) != 4 || len(a.Stretches[2].Pipelines) != 1 || len(a.Stretches[3].Pipelines) != 2 {
		t.Errorf("the samples behind it are %+v (%v)", a, err)
	}
}
