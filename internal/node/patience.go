package node

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
)

// diskPatience is how long a request waits for the files of a job. A mount that hangs may never answer.
const diskPatience = 10 * time.Second

// mostReads is how many reads of a job's files run at once. Those that hang stay, and each holds a thread.
const mostReads = 4

// readers are the reads of each job's files, by job, as channels with a place for each.
type readers struct{ sync.Map }

func (r *readers) of(job string) chan struct{} {
	places, _ := r.LoadOrStore(job, make(chan struct{}, mostReads))
	return places.(chan struct{}) //nolint:errcheck,forcetypeassert // What is stored.
}

// patiently returns what read returns. No system call can be ended, so one that takes too long stays where it is, and is not waited for.
func patiently[T any](ctx context.Context, all *readers, job string, read func() (T, error)) (none T, _ error) {
	timer := time.NewTimer(diskPatience)
	defer timer.Stop()
	type answer struct {
		value T
		err   error
	}
	answers, places, free := make(chan answer, 1), all.of(job), all.of(job)
	for {
		select {
		case free <- struct{}{}:
			free = nil // one is enough
			go func() {
				value, err := read()
				<-places
				answers <- answer{value, err}
			}()
		case a := <-answers:
			return a.value, a.err
		case <-timer.C:
			return none, api.Errorf(http.StatusServiceUnavailable,
				"the directory of job %s has not answered for %v: its file system hangs; ask again once it works", job, diskPatience)
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
	}
}

// patientLog is a log whose reader waits for no disk that hangs.
type patientLog struct {
	*agent.LogFile
	readers *readers
	job     string
	reading atomic.Bool
}

// Next implements server.LogReader.
func (l *patientLog) Next(ended bool) ([]byte, error) {
	return patiently(context.Background(), l.readers, l.job, func() ([]byte, error) {
		l.reading.Store(true)
		defer l.reading.Store(false)
		return l.LogFile.Next(ended)
	})
}

// Close implements server.LogReader. A file whose reading hangs is closed when it is collected.
func (l *patientLog) Close() error {
	if l.reading.Load() {
		return nil
	}
	return l.LogFile.Close()
}
