package node

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
)

// diskPatience is how long a request waits for the files of a job. A mount that hangs may never answer.
const diskPatience = 10 * time.Second

// patiently returns what read returns. No system call can be ended, so one that takes too long stays where it is, and is not waited for.
func patiently[T any](ctx context.Context, job string, read func() (T, error)) (T, error) {
	timer := time.NewTimer(diskPatience)
	defer timer.Stop()
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := read()
		answers <- answer{value, err}
	}()
	var none T
	select {
	case a := <-answers:
		return a.value, a.err
	case <-timer.C:
		return none, api.Errorf(http.StatusServiceUnavailable,
			"the directory of job %s has not answered for %v: its file system hangs; ask again once it works", job, diskPatience)
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// patientLog is a log whose reader waits for no disk that hangs.
type patientLog struct {
	*agent.LogReader
	job     string
	reading atomic.Bool
}

// Next implements server.LogReader.
func (l *patientLog) Next(ended bool) ([]byte, error) {
	l.reading.Store(true)
	return patiently(context.Background(), l.job, func() ([]byte, error) {
		defer l.reading.Store(false)
		return l.LogReader.Next(ended)
	})
}

// Close implements server.LogReader. A file whose reading hangs is closed when it is collected.
func (l *patientLog) Close() error {
	if l.reading.Load() {
		return nil
	}
	return l.LogReader.Close()
}
