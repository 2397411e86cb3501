package profile

import (
	"errors"

	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker"
	"github.com/avgpipe/avgpipe/tuner"
)

// permanentError marks what another tuning would say again: that nothing fits, or nothing can run.
type permanentError struct{ err error }

func (e *permanentError) Error() string { return e.err.Error() }
func (e *permanentError) Unwrap() error { return e.err }

// Permanent reports whether an error of this package is about the job, so that another tuning would end with it as well. Others are of
// the host: a full disk, a run that was too large for what memory was free, time that ran out.
func Permanent(err error) bool {
	_, permanent := errors.AsType[*permanentError](err)
	return obstacle.Of(err) == nil && (permanent || worker.Permanent(err))
}

// search searches a space. That nothing of it can be chosen does not depend on when it is asked.
func search(space tuner.Space) (*tuner.Outcome, error) {
	out, err := tuner.Search(space)
	if err != nil {
		return nil, &permanentError{err}
	}
	return out, nil
}
