package node

import (
	"context"
	"fmt"
	"net/http"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/words"
)

// recount resolves a job for the counts that a request asks for, and prices it; nil where it asks for none. Nothing is changed.
func (n *node) recount(j *cluster.Job, r api.ResumeRequest) (*spec.Spec, error) {
	if r.Stages == 0 && r.Pipelines == 0 && r.Groups == 0 {
		return nil, nil
	}
	if r.Stages < 0 || r.Pipelines < 0 || r.Groups < 0 {
		return nil, api.Errorf(http.StatusBadRequest, "resume job %s: %d stages, %d pipelines and %d groups: at least 1 of each", j.ID, r.Stages, r.Pipelines, r.Groups)
	}
	if !j.State.Ended() {
		return nil, api.Errorf(http.StatusConflict, "resume job %s: it is %s, and its counts change only once it has ended; "+
			"`avgpipectl cancel %[1]s` first", j.ID, j.State)
	}
	s, err := n.coordinator().Spec(j)
	if err != nil {
		return nil, err
	}
	changed, problems := s.Recount(spec.Counts{Stages: r.Stages, Pipelines: r.Pipelines, Groups: r.Groups}, spec.Facts{
		Cores: len(n.config.Cores), MemoryBytes: n.memory(), Hosts: n.hosts(), GPUs: n.gpus.GPUs(), NoGPU: n.noGPU(),
	})
	if len(problems) == 0 {
		return changed, nil
	}
	nearest := ""
	if near := problems[0].Nearest; near != "" {
		nearest = "; the nearest that fits: " + near
	}
	refused := api.Errorf(http.StatusUnprocessableEntity, "resume job %s with other counts: %s%s", j.ID, problems[0].Message, nearest)
	refused.Problems = problems
	return nil, refused
}

// whenChecked answers a request that only asks whether it would be refused, and would not be.
func (n *node) whenChecked(ctx context.Context, j *cluster.Job, recounted *spec.Spec) (api.JobStatus, error) {
	s, err := n.Job(ctx, j.ID)
	if recounted != nil {
		s.Reason = "would go on " + counts(recounted)
		s.Groups = recounted.Groups()
		s.Stages, s.Pipelines, s.Warnings = int(recounted.Job.Stages), int(recounted.Job.Pipelines), append([]string{}, recounted.Warnings...)
		s.PredictedHostBytes = recounted.WorkersBytes(recounted.Groups())
	}
	return s, err
}

// counts says with what a job goes on.
func counts(s *spec.Spec) string {
	groups := ""
	if s.Groups() > 1 {
		groups = fmt.Sprintf(" in %d groups", s.Groups())
	}
	return fmt.Sprintf("with %s and %s%s, in %s of memory", words.Count(int(s.Job.Stages), "stage"), words.Count(int(s.Job.Pipelines), "pipeline"), groups,
		words.Bytes(s.WorkersBytes(s.Groups())))
}
