package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// readyTimeout bounds the checks of one request for /readyz.
const readyTimeout = 5 * time.Second

// Check is one condition for being ready.
type Check struct {
	Name string
	Err  error // nil: it holds
}

// monitoring are the routes that ServeMonitoring has, and the API as well.
func (h *handler) monitoring() []route {
	return []route{
		{
			method: http.MethodGet, path: api.PathMetrics, name: "metrics", who: anyone, here: true, does: "Send metrics in the text format of Prometheus.",
			contentType: "text/plain", plain: metricsHandler(h.backend, h.log),
		},
		{
			method: http.MethodGet, path: api.PathHealth, name: "healthz", who: anyone, here: true, does: "Answer, as long as the process lives.",
			contentType: "text/plain", plain: http.HandlerFunc(healthz),
		},
		{
			method: http.MethodGet, path: api.PathReady, name: "readyz", who: anyone, here: true,
			does: "Say whether the daemon can do its work, a line for each condition; 503 when one does not hold.", contentType: "text/plain", plain: readyz(h.backend),
		},
	}
}

// healthz answers: that it does says that the process lives.
func healthz(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") }

// readyz says whether the daemon can do its work, a line for each check.
func readyz(b Backend) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), readyTimeout)
		defer cancel()
		var text strings.Builder
		status := http.StatusOK
		for _, c := range b.Ready(ctx) {
			if c.Err != nil {
				status = http.StatusServiceUnavailable
				fmt.Fprintf(&text, "%s: %v\n", c.Name, c.Err)
				continue
			}
			fmt.Fprintf(&text, "%s: ok\n", c.Name)
		}
		writeText(w, status, text.String())
	}
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // who asked has gone, or knows
}
