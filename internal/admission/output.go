package admission

import (
	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/outputdir"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// checkOutput judges whether the daemon can write the model to output.dir. What is in the way does not refuse the job: it may be gone
// when the user exports the model. Nil: the daemon is not to.
func (a *admission) checkOutput(r api.SubmitRequest, user *access.User) *spec.Output {
	if a.job.Output.Dir == "" || r.ClientExports {
		return nil
	}
	o := &spec.Output{Force: r.Force}
	if err := (outputdir.Target{Dir: a.job.Output.Dir, User: *user, Force: r.Force}).Check(); err != nil {
		o.Refused = err.Error()
	}
	return o
}
