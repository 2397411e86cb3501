package server

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
)

// stranger is nobody that a test's backend knows.
const stranger = 54321

// private is a backend with one job of a user. Whoever gets to it reads its secret.
type private struct {
	Backend
	owner uint32
	asked []string // of job "7", what was let through
}

const secret = "the reason is nobody's business"

func (b *private) Job(_ context.Context, ref string) (api.JobStatus, error) {
	if ref != "7" && ref != "theirs" {
		return api.JobStatus{}, api.Errorf(http.StatusNotFound, "no job %q", ref)
	}
	return api.JobStatus{
		ID: "7", Name: "theirs", Owner: "them", OwnerUID: b.owner, State: api.Done, Reason: secret, OutputDir: "/home/them", Step: 12,
	}, nil
}

func (b *private) Jobs(ctx context.Context) ([]api.JobStatus, error) {
	s, err := b.Job(ctx, "7")
	return []api.JobStatus{s}, err
}

func (b *private) Audit(_ context.Context, ref string) (api.Accounting, error) {
	b.asked = append(b.asked, ref)
	return api.Accounting{Name: secret}, nil
}

func (b *private) Explain(_ context.Context, ref string) (api.Explanation, error) {
	b.asked = append(b.asked, ref)
	return api.Explanation{Reason: secret}, nil
}

func (b *private) Cancel(ctx context.Context, ref string, _ Peer) (api.JobStatus, error) {
	b.asked = append(b.asked, ref)
	return b.Job(ctx, ref)
}

func (b *private) Remove(ctx context.Context, ref string, _ Peer) (api.JobStatus, error) {
	b.asked = append(b.asked, ref)
	return b.Job(ctx, ref)
}

func (b *private) Resume(ctx context.Context, ref string, _ api.ResumeRequest, _ Peer) (api.JobStatus, error) {
	b.asked = append(b.asked, ref)
	return b.Job(ctx, ref)
}

func (b *private) Log(_ context.Context, ref string, _ api.LogRequest) (LogReader, error) {
	b.asked = append(b.asked, ref)
	return &secretLog{}, nil
}

// secretLog has one entry.
type secretLog struct{ read bool }

func (l *secretLog) Next(bool) ([]byte, error) {
	if l.read {
		return nil, io.EOF
	}
	l.read = true
	return []byte(secret), nil
}

func (l *secretLog) Close() error { return nil }

func (b *private) History(_ context.Context, ref string, _ api.HistoryRequest) (api.History, error) {
	b.asked = append(b.asked, ref)
	return api.History{}, nil
}

func (b *private) Model(_ context.Context, ref string, w io.Writer) error {
	b.asked = append(b.asked, ref)
	_, err := io.WriteString(w, secret)
	return err
}

func (b *private) Ready(context.Context) []Check { return nil }

func (b *private) NodeMetrics() NodeMetrics { return NodeMetrics{} }

func (b *private) Version() api.VersionInfo { return api.VersionInfo{} }

func (b *private) Nodes(context.Context) ([]api.NodeStatus, error) { return nil, nil }

// ask sends a request as a user.
func ask(t *testing.T, b Backend, who asker, adminGroup, method, path string) *httptest.ResponseRecorder {
	t.Helper()
	var body io.Reader
	if method == http.MethodPost {
		body = strings.NewReader("{}")
	}
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), askerKey{}, who), method, path, body)
	w := httptest.NewRecorder()
	Handler(Config{Backend: b, Log: zap.NewNop(), AdminGroup: adminGroup}).ServeHTTP(w, r)
	return w
}

func TestAJobIsItsOwners(t *testing.T) {
	mine, err := user.LookupGroupId(strconv.Itoa(os.Getgid()))
	if err != nil {
		envtest.Missing(t, "a name of this test's group: %v", err)
	}
	b := &private{owner: 1234}
	for _, route := range (&handler{backend: &private{}, log: zap.NewNop()}).routes() {
		if !strings.Contains(route.path, "{job}") {
			continue
		}
		for _, ref := range []string{"7", "theirs"} {
			method, path := route.method, strings.Replace(route.path, "{job}", ref, 1)
			for what, c := range map[string]struct {
				peer  Peer
				group string
			}{
				"the owner":           {Peer{User: access.User{UID: 1234}}, "no-such-group"},
				"root":                {Peer{User: access.User{UID: 0}}, "no-such-group"},
				"the daemon's user":   {Peer{User: access.User{UID: uint32(os.Geteuid())}}, "no-such-group"},
				"a member of a group": {Peer{User: access.User{UID: stranger, GIDs: []uint32{54322, uint32(os.Getgid())}}}, mine.Name},
			} {
				if w := ask(t, b, asker{peer: c.peer}, c.group, method, path); w.Code/100 != 2 {
					t.Errorf("%s %s for %s: %d %s", method, path, what, w.Code, w.Body)
				}
			}
			b.asked = nil
			for what, who := range map[string]asker{
				"a stranger":        {peer: Peer{User: access.User{UID: stranger, GIDs: []uint32{54322}}}},
				"nobody that known": {err: io.ErrUnexpectedEOF},
			} {
				w := ask(t, b, who, mine.Name, method, path)
				if w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), "business") || len(b.asked) > 0 {
					t.Errorf("%s %s for %s: %d %s, the backend was asked for %v", method, path, what, w.Code, w.Body, b.asked)
				}
			}
		}
	}
}

func TestForbiddenSaysWhoMay(t *testing.T) {
	w := ask(t, &private{owner: 1234}, asker{peer: Peer{User: access.User{UID: stranger}}}, "avgpipe-admin", "POST", api.PathJobs+"/7/cancel")
	for _, says := range []string{"job 7 (theirs) belongs to them (uid 1234)", "you are uid 54321", "usermod -aG avgpipe-admin 54321"} {
		if !strings.Contains(w.Body.String(), says) {
			t.Errorf("no %q in %s", says, w.Body)
		}
	}
	if w := ask(t, &private{}, asker{peer: Peer{User: access.User{UID: stranger}}}, "", "GET", api.PathJobs+"/8"); w.Code != http.StatusNotFound {
		t.Errorf("a job that does not exist: %d %s", w.Code, w.Body)
	}
}

func TestTheListShowsOfOthersWhatIsPublic(t *testing.T) {
	b := &private{owner: 1234}
	var jobs []api.JobStatus
	w := ask(t, b, asker{peer: Peer{User: access.User{UID: stranger}}}, "no-such-group", "GET", api.PathJobs)
	if err := json.Unmarshal(w.Body.Bytes(), &jobs); err != nil || len(jobs) != 1 {
		t.Fatalf("%v: %s", err, w.Body)
	}
	s := jobs[0]
	if s.ID != "7" || s.Name != "theirs" || s.State != api.Done || s.Owner != "them" || !s.Restricted || s.Step != 0 || strings.Contains(w.Body.String(), "/home/them") ||
		strings.Contains(w.Body.String(), "business") {
		t.Errorf("others see %s", w.Body)
	}
	if w := ask(t, b, asker{peer: Peer{User: access.User{UID: 1234}}}, "no-such-group", "GET", api.PathJobs); !strings.Contains(w.Body.String(), "business") {
		t.Errorf("the owner sees %s", w.Body)
	}
}

func TestEveryRouteDeclaresWhoMayUseIt(t *testing.T) {
	for _, r := range (&handler{backend: &private{}, log: zap.NewNop()}).routes() {
		ofJob := strings.Contains(r.path, "{job}")
		if !slices.Contains([]right{anyone, submitter, owner, admin}, r.who) || ofJob != (r.who == owner) {
			t.Errorf("%s %s is for %q", r.method, r.path, r.who)
		}
	}
}

func (b *private) ClearGPU(_ context.Context, ref string, _ Peer) ([]api.NodeStatus, error) {
	b.asked = append(b.asked, ref)
	return nil, nil
}

func TestAGPUIsClearedByAdministrators(t *testing.T) {
	b := &private{}
	path := api.PathGPUs + "/GPU-a/clear"
	w := ask(t, b, asker{peer: Peer{User: access.User{UID: stranger}}}, "no-such-group", http.MethodPost, path)
	if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "usermod -aG no-such-group 54321") || len(b.asked) > 0 {
		t.Errorf("a stranger is told %d %s", w.Code, w.Body)
	}
	if w := ask(t, b, asker{peer: Peer{User: access.User{UID: 0}}}, "no-such-group", http.MethodPost, path); w.Code != http.StatusOK || !slices.Equal(b.asked, []string{"GPU-a"}) {
		t.Errorf("root is told %d %s; asked was for %v", w.Code, w.Body, b.asked)
	}
}

func TestARouteThatDeclaresNoRightIsRefused(t *testing.T) {
	h := &handler{backend: &private{}, log: zap.NewNop()}
	w := httptest.NewRecorder()
	r := httptest.NewRequestWithContext(context.WithValue(t.Context(), askerKey{}, asker{}), "GET", "/x", nil)
	h.guard("", http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was answered") })).ServeHTTP(w, r)
	if w.Code != http.StatusInternalServerError {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
