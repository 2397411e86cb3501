package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
)

// states is a backend that takes backups.
type states struct{ private }

func (*states) Restore(_ context.Context, backup io.Reader, by Peer) (none api.RestoreResponse, err error) {
	text, err := io.ReadAll(backup)
	if err != nil {
		return none, errors.New("the backup is truncated")
	}
	return api.RestoreResponse{Jobs: len(text), Node: by.Name}, nil
}

// TestALongBodyIsTakenOfWhoMaySendIt: through a node that does not lead, which reads nothing of others.
func TestALongBodyIsTakenOfWhoMaySendIt(t *testing.T) {
	t.Parallel()
	leads := Handler(Config{Backend: &states{}, Log: zap.NewNop(), Cluster: &peers{leads: true}})
	c := &peers{leader: Leader{Name: "n2", Transport: wire{leads}}}
	h := Handler(Config{Backend: &states{}, Log: zap.NewNop(), Cluster: c})
	long := strings.Repeat("x", 2*maxBody)
	if w := over(t, h, certificate("root", "admin", "0"), http.MethodPost, api.PathRestore, long); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"node":"root","version":"","jobs":2097152`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	asked := c.asked
	if w := over(t, h, certificate("ada", "submit", "7"), http.MethodPost, api.PathRestore, long); w.Code != http.StatusForbidden || c.asked != asked {
		t.Errorf("of one who may not: %d %s", w.Code, w.Body)
	}
}

// TestABodyThatEndsTheRequestIsNamed, rather than what it does to the backup.
func TestABodyThatEndsTheRequestIsNamed(t *testing.T) {
	t.Parallel()
	h := bounded(route{most: 10}, http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		all := (&handler{backend: &states{}, log: zap.NewNop()}).stateRoutes()
		_, err := all[len(all)-1].value(q.WithContext(context.WithValue(q.Context(), askerKey{}, asker{})))
		if e, ok := errors.AsType[*api.Error](err); !ok || e.Status != http.StatusRequestEntityTooLarge || !strings.Contains(e.Message, "more than 10 bytes") {
			t.Error(err)
		}
		w.WriteHeader(http.StatusTeapot)
	}))
	if w := over(t, h, nil, http.MethodPost, api.PathRestore, string(bytes.Repeat([]byte("x"), 11))); w.Code != http.StatusTeapot {
		t.Error(w.Code)
	}
}
