package server

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// stateRoutes are the operations on the control state as a whole.
func (h *handler) stateRoutes() []route {
	b := h.backend
	return []route{
		{
			method: http.MethodGet, path: api.PathBackup, name: "backup", who: admin, told: true, contentType: api.ContentTypeBackup,
			does:   "Send a backup of the control state: the jobs and their committed rounds, without tensors. It is as secret as the state directory.",
			stream: func(q *http.Request, w io.Writer) error { return b.Backup(q.Context(), w) },
		},
		answering(route{
			method: http.MethodPost, path: api.PathRestore, name: "restore", who: admin, contentIn: api.ContentTypeBackup, most: api.MaxBackup,
			does: "Bring back the jobs of a backup that are not there. Those that had not ended then are failed, and can be resumed.",
		}, func(q *http.Request) (none api.RestoreResponse, err error) {
			peer, err := peerFrom(q.Context())
			if err != nil {
				return none, err
			}
			body := &kept{from: q.Body}
			answer, err := b.Restore(q.Context(), body, peer)
			if body.failed != nil { // it is why the backup is not whole
				return none, bodyError(q, body.failed)
			}
			return answer, err
		}),
	}
}

// kept reads, and keeps the error that reading ended with.
type kept struct {
	from   io.Reader
	failed error // nil: none, or the end
}

func (k *kept) Read(p []byte) (int, error) {
	n, err := k.from.Read(p)
	if err != nil && err != io.EOF {
		k.failed = err
	}
	return n, err //nolint:wrapcheck // as io.Reader has it
}

// bounded bounds the body of a request. One that may be long is bounded by its progress as well, not by the time that all of it takes.
func bounded(r route, next http.Handler) http.Handler {
	if r.most == 0 {
		return http.MaxBytesHandler(next, maxBody)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		long := *q
		long.Body = &progress{ReadCloser: q.Body, control: http.NewResponseController(w)}
		http.MaxBytesHandler(next, r.most).ServeHTTP(w, &long)
	})
}

// progress gives each read of a body its own deadline, and the answer the whole time after the last. Once the body has ended none is left: package
// http reads on, for the end of the connection, and cancels the request where that read is late.
type progress struct {
	io.ReadCloser
	control *http.ResponseController
}

func (p *progress) Read(b []byte) (int, error) {
	now := time.Now()
	if err := p.until(now.Add(readTimeout), now.Add(readTimeout+answerTimeout)); err != nil {
		return 0, err
	}
	n, err := p.ReadCloser.Read(b)
	if err == io.EOF {
		if err := p.until(time.Time{}, now.Add(readTimeout+answerTimeout)); err != nil {
			return n, err
		}
	}
	return n, err //nolint:wrapcheck // as io.Reader has it
}

// until sets the deadlines of reading and writing.
func (p *progress) until(read, write time.Time) error {
	err := cmp.Or(p.control.SetReadDeadline(read), p.control.SetWriteDeadline(write))
	if err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("set the deadline: %w", err)
	}
	return nil
}
