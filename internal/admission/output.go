package admission

import (
	"errors"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/internal/outputdir"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// checkOutput judges whether the daemon can write the model to output.dir, and refuses one that no model can be written to. A right
// that is missing does not refuse the job: the user can give it, or export the model. Nil: the daemon is not to.
func (a *admission) checkOutput(r api.SubmitRequest, user *access.User) *spec.Output {
	if a.job.Output.Dir == "" || r.ClientExports {
		return nil
	}
	o := &spec.Output{Force: r.Force}
	err := outputdir.Target{Dir: a.job.Output.Dir, User: *user, Force: r.Force}.Check()
	if _, never := errors.AsType[*modeldir.Refusal](err); never {
		a.at.Refuse("output.dir", "", "output.dir: %v", err)
	} else if err != nil {
		o.Refused = err.Error()
	}
	return o
}
