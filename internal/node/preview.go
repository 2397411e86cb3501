package node

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/job"
)

// Tune implements server.Backend. What it finds is kept in the cache of plans and nowhere else.
func (n *node) Tune(ctx context.Context, r api.SubmitRequest, peer server.Peer, each func(api.TuneUpdate) error) error {
	r.Set = append(slices.Clone(r.Set), "tuning="+job.TuneByProfile) // whatever the file says: that is what is asked for
	s, err := n.admitJob(ctx, "tune", r, peer)
	if err != nil {
		return err
	}
	if s.Job.PlanFile() != "" {
		return api.Errorf(http.StatusUnprocessableEntity, "tune %s: its plan is a file's, %s, so there is nothing to choose but pipelines, which a rule does; "+
			"name a schedule to measure, such as --set schedule=auto; avgpipectl plan compare simulates", r.File, s.Job.Schedule)
	}
	if len(s.Warnings) > 0 {
		if err := each(api.TuneUpdate{Warnings: s.Warnings}); err != nil {
			return err
		}
	}
	last, err := n.coordinator.Tune(ctx, s, each)
	switch {
	case err != nil && n.stopping(): // requests end as well, and with them ctx
		last = api.TuneUpdate{Error: fmt.Sprintf("tune %s: the daemon is stopping", r.File)}
	case err != nil && ctx.Err() != nil:
		return context.Cause(ctx) // whoever asked has gone
	case err != nil:
		last = api.TuneUpdate{Error: fmt.Sprintf("tune %s: %v", r.File, err)}
	case last.Report != nil && !s.Job.Open():
		if err := n.keepGiven(s, last.Report); err != nil { // it is shown now, and not by explain
			n.log.Warn("keep the report of a tuning", zap.Error(err))
		}
	}
	return each(last)
}
