package nodetest

import (
	"errors"
	"net/http"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
)

// Answered asks until a node that leads answers, and returns what it says. The one that led may have lost its followers, on a busy host, and whoever asks is
// told to ask again.
func Answered[T any](t testing.TB, ask func() (T, error)) (answer T, err error) {
	t.Helper()
	answer, err, _ = answered(t, ask)
	return answer, err
}

// answered says also whether an earlier answer was lost, so that what was asked may have been done then.
func answered[T any](t testing.TB, ask func() (T, error)) (answer T, err error, lost bool) { //nolint:revive // the error is the answer's
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("the last answer: %v", err)
		}
	}()
	Eventually(t, "a node that leads answers", func() bool {
		answer, err = ask()
		lost = lost || unavailable(err)
		return !unavailable(err)
	})
	return answer, err, lost
}

// unavailable reports whether an error says that asking again helps.
func unavailable(err error) bool {
	e, ok := errors.AsType[*api.Error](err)
	return ok && e.Status == http.StatusServiceUnavailable
}

// changed asks for a change of a job's state, which an answer that was lost may have told of.
func changed(t testing.TB, ask func() (api.JobStatus, error)) {
	t.Helper()
	_, err, lost := answered(t, ask)
	if e, ok := errors.AsType[*api.Error](err); lost && ok && e.Status == http.StatusConflict {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Cancel cancels a job.
func (d *Daemon) Cancel(t testing.TB, id string) {
	t.Helper()
	changed(t, func() (api.JobStatus, error) { return d.Client.Cancel(t.Context(), id) })
}

// Resume resumes a job.
func (d *Daemon) Resume(t testing.TB, id string, r api.ResumeRequest) {
	t.Helper()
	changed(t, func() (api.JobStatus, error) { return d.Client.Resume(t.Context(), id, r) })
}
