package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/audit"
)

// certificate is a connection of somebody, whose certificate TLS has checked.
func certificate(name, role string, uids ...string) *tls.ConnectionState {
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name, Organization: []string{role}}}
	for _, uid := range uids {
		u, err := url.Parse("avgpipe://uid/" + uid)
		if err != nil {
			panic(err)
		}
		c.URIs = append(c.URIs, u)
	}
	return &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}
}

// peers is a cluster in memory, as one of its nodes sees it.
type peers struct {
	leads  bool
	past   error // why it leads no more, though it has not noticed
	leader Leader
	err    error
	asked  int
	noAge  error
	left   chan struct{} // closed when the node that leads does not any more
}

func (p *peers) Leads() bool { return p.leads }

func (p *peers) Leader(context.Context) (Leader, error) {
	p.asked++
	return p.leader, p.err
}

func (p *peers) Current(context.Context) error { return p.past }

func (p *peers) Age() (time.Duration, error) { return 1500 * time.Millisecond, p.noAge }

func (p *peers) Left(ctx context.Context, _ string) {
	select {
	case <-p.left:
	case <-ctx.Done():
	}
}

// wire carries requests to a handler, as node n1.
type wire struct{ to http.Handler }

func (w wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.to == nil {
		return nil, &net.OpError{Op: "dial", Err: errors.New("nobody listens")}
	}
	r = r.Clone(r.Context())
	r.TLS, r.RemoteAddr = certificate("n1", roleNode), "10.0.0.1:5"
	out := httptest.NewRecorder()
	w.to.ServeHTTP(out, r)
	return out.Result(), nil
}

// book keeps what is written down.
type book struct {
	mu      sync.Mutex
	records []audit.Record
}

func (b *book) write(r audit.Record) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
}

func (b *book) last(t *testing.T) audit.Record {
	t.Helper()
	if len(b.records) == 0 {
		t.Fatal("nothing was written down")
	}
	return b.records[len(b.records)-1]
}

// over makes a request with a certificate.
func over(t *testing.T, h http.Handler, who *tls.ConnectionState, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	var content io.Reader = http.NoBody
	if body != "" {
		content = strings.NewReader(body)
	}
	r := httptest.NewRequestWithContext(t.Context(), method, path, content)
	r.TLS, r.RemoteAddr = who, "10.0.0.9:77"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestRolesOfCertificates(t *testing.T) {
	t.Parallel()
	var b book
	h := Handler(Config{Backend: &private{owner: 1234}, Log: zap.NewNop(), AdminGroup: "no-such-group", Audit: b.write})
	for what, c := range map[string]struct {
		who          *tls.ConnectionState
		method, path string
		want         int
	}{
		"a viewer sees jobs":                 {certificate("ada", "view", "1234"), "GET", api.PathJobs, 200},
		"a viewer reads the own job":         {certificate("ada", "view", "1234"), "GET", api.PathJob("7", "explain"), 200},
		"a viewer cancels nothing":           {certificate("ada", "view", "1234"), "POST", api.PathJob("7", "cancel"), 403},
		"a viewer submits nothing":           {certificate("ada", "view", "1234"), "POST", api.PathJobs, 403},
		"a submitter cancels the own job":    {certificate("ada", "submit", "1234"), "POST", api.PathJob("7", "cancel"), 202},
		"a submitter cancels no other job":   {certificate("eve", "submit", "1235"), "POST", api.PathJob("7", "cancel"), 403},
		"the daemon's user has no more":      {certificate("root", "submit", "0"), "POST", api.PathJob("7", "cancel"), 403},
		"an administrator cancels every job": {certificate("bob", "admin", "99"), "POST", api.PathJob("7", "cancel"), 202},
		"a node asks nothing itself":         {certificate("n1", "node"), "GET", api.PathJobs, 403},
		"an unknown role":                    {certificate("ada", "root", "0"), "GET", api.PathJobs, 403},
		"no role":                            {certificate("ada", "", "0"), "GET", api.PathJobs, 403},
		"no user id":                         {certificate("ada", "admin"), "GET", api.PathJobs, 403},
		"two user ids":                       {certificate("ada", "admin", "1", "2"), "GET", api.PathJobs, 403},
		"a large user id":                    {certificate("ada", "admin", "4294967296"), "GET", api.PathJobs, 403},
		"no certificate":                     {&tls.ConnectionState{}, "GET", api.PathJobs, 403},
	} {
		b.records = nil
		if w := over(t, h, c.who, c.method, c.path, ""); w.Code != c.want {
			t.Errorf("%s: %d %s; want %d", what, w.Code, w.Body, c.want)
		}
		if wanted := c.method == "POST" || c.want == 403; wanted != (len(b.records) == 1) {
			t.Errorf("%s: written down: %+v", what, b.records)
		}
	}
	w := over(t, h, certificate("ada", "admin", "1"), "GET", api.PathJobs, "", headerPeer, "e30=")
	if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "is no node's") {
		t.Errorf("a user who asks for somebody else: %d %s", w.Code, w.Body)
	}
	if r := b.last(t); r.User != "" || r.From != "10.0.0.9:77" || r.Status != 403 || r.Operation != "jobs" || r.Request != w.Header().Get(api.HeaderRequest) {
		t.Errorf("written down: %+v", r)
	}
}

func TestRequestsArePassedToTheLeader(t *testing.T) {
	t.Parallel()
	var there, here book
	theirs := &private{owner: 1234}
	leader := Handler(Config{Backend: theirs, Log: zap.NewNop(), AdminGroup: "no-such-group", Audit: there.write, Cluster: &peers{leads: true}})
	mine := &private{owner: 1234}
	h := Handler(Config{Backend: mine, Log: zap.NewNop(), Audit: here.write, Cluster: &peers{leader: Leader{"n2", wire{leader}}}})

	w := over(t, h, certificate("ada", "submit", "1234"), "POST", api.PathJob("theirs", "cancel"), "")
	if w.Code != http.StatusAccepted || len(mine.asked) != 0 || len(theirs.asked) != 1 {
		t.Fatalf("%d %s; asked here %v, there %v", w.Code, w.Body, mine.asked, theirs.asked)
	}
	r := there.last(t)
	if r.User != "ada" || *r.UID != 1234 || r.Role != "submit" || r.From != "10.0.0.9:77" || r.Via != "n1" || r.Request != w.Header().Get(api.HeaderRequest) || r.Status != 202 {
		t.Errorf("written down there: %+v", r)
	}
	if len(here.records) > 0 {
		t.Errorf("written down here, too: %+v", here.records)
	}
	if w := over(t, h, certificate("eve", "submit", "1"), "POST", api.PathJob("7", "cancel"), ""); w.Code != http.StatusForbidden || there.last(t).User != "eve" {
		t.Errorf("of a stranger: %d %s", w.Code, w.Body)
	}
	if w := over(t, h, certificate("ada", "submit", "1234"), "GET", api.PathJob("7", "logs"), ""); w.Code != 200 || !strings.Contains(w.Body.String(), secret) {
		t.Errorf("a stream: %d %s", w.Code, w.Body)
	}
	if w := over(t, h, certificate("ada", "view", "1234"), "GET", api.PathHealth, ""); w.Code != 200 {
		t.Errorf("what every node answers for itself: %d %s", w.Code, w.Body)
	}
	// Of the unix socket of this host: root is an administrator there, too.
	request := httptest.NewRequestWithContext(context.WithValue(t.Context(), askerKey{}, asker{peer: Peer{From: "unix"}}), "POST", api.PathJob("7", "cancel"), http.NoBody)
	out := httptest.NewRecorder()
	h.ServeHTTP(out, request)
	if r := there.last(t); out.Code != http.StatusAccepted || r.Role != "admin" || r.From != "unix" || *r.UID != 0 {
		t.Errorf("root of this host: %d %s, %+v", out.Code, out.Body, r)
	}
}

func TestNoRequestGoesRound(t *testing.T) {
	t.Parallel()
	follower := Handler(Config{Backend: &private{owner: 1234}, Log: zap.NewNop(), Cluster: &peers{leader: Leader{"n3", wire{}}}})
	cluster := &peers{leader: Leader{"n2", wire{follower}}}
	h := Handler(Config{Backend: &private{owner: 1234}, Log: zap.NewNop(), Cluster: cluster})
	w := over(t, h, certificate("ada", "submit", "1234"), "POST", api.PathJob("7", "cancel"), "")
	if w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), "n2 does not lead any more") {
		t.Errorf("%d %v %s", w.Code, w.Header(), w.Body)
	}
	if cluster.asked != passAttempts {
		t.Errorf("the leader was looked for %d times, want %d", cluster.asked, passAttempts)
	}
}

func TestWithoutALeaderReadsSayTheirAge(t *testing.T) {
	t.Parallel()
	for what, cluster := range map[string]*peers{
		"none leads":          {err: context.DeadlineExceeded},
		"the leader is gone":  {leader: Leader{"n2", wire{}}},
		"this node has begun": {leader: Leader{"n1", nil}},
	} {
		b := &private{owner: 1234}
		h := Handler(Config{Backend: b, Log: zap.NewNop(), Cluster: cluster})
		begun := cluster.leader.Name == "n1"
		for _, path := range []string{api.PathJobs, api.PathJob("7")} {
			w := over(t, h, certificate("ada", "submit", "1234"), "GET", path, "")
			if age := w.Header().Get(api.HeaderAge); w.Code != 200 || (age == "1.500") == begun {
				t.Errorf("%s: GET %s: %d %q %s", what, path, w.Code, age, w.Body)
			}
		}
		w := over(t, h, certificate("ada", "submit", "1234"), "POST", api.PathJob("7", "cancel"), "")
		if begun != (w.Code == http.StatusAccepted) || begun != (len(b.asked) == 1) || !begun && w.Code != http.StatusServiceUnavailable {
			t.Errorf("%s: a change: %d %s, done %v", what, w.Code, w.Body, b.asked)
		}
	}
}

// TestANodeThatStoodStillDoesNotAnswerAsIfItLed: another one leads meanwhile, and what this one has is old.
func TestANodeThatStoodStillDoesNotAnswerAsIfItLed(t *testing.T) {
	t.Parallel()
	theirs, mine := &private{owner: 1234}, &private{owner: 1234}
	leader := Handler(Config{Backend: theirs, Log: zap.NewNop(), Cluster: &peers{leads: true}})
	h := Handler(Config{Backend: mine, Log: zap.NewNop(), Cluster: &peers{leads: true, past: errors.New("n2 leads"), leader: Leader{"n2", wire{leader}}}})
	ada := certificate("ada", "submit", "1234")
	if w := over(t, h, ada, "POST", api.PathJob("7", "cancel"), ""); w.Code != http.StatusAccepted || len(mine.asked) != 0 || len(theirs.asked) != 1 {
		t.Errorf("%d %s; asked here %v, there %v", w.Code, w.Body, mine.asked, theirs.asked)
	}
	alone := Handler(Config{Backend: mine, Log: zap.NewNop(), Cluster: &peers{leads: true, past: errors.New("nobody answers"), err: errors.New("nobody leads")}})
	if w := over(t, alone, ada, "GET", api.PathJobs, ""); w.Code != http.StatusOK || w.Header().Get(api.HeaderAge) != "1.500" {
		t.Errorf("a read where nobody leads: %d %v %s", w.Code, w.Header(), w.Body)
	}
	fresh := Handler(Config{Backend: mine, Log: zap.NewNop(), Cluster: &peers{err: errors.New("nobody leads"), noAge: errors.New("nobody knows how old it is")}})
	if w := over(t, fresh, ada, "GET", api.PathJobs, ""); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "nobody knows how old it is") {
		t.Errorf("a read of a state of no known age: %d %v %s", w.Code, w.Header(), w.Body)
	}
}

// hanging takes a request and says nothing.
type hanging struct{ asked chan struct{} }

func (h hanging) RoundTrip(q *http.Request) (*http.Response, error) {
	h.asked <- struct{}{}
	<-q.Context().Done()
	return nil, q.Context().Err() //nolint:wrapcheck // as a transport does
}

// TestALeaderThatHangsIsWaitedForWhileItLeads: then a read is asked again elsewhere, and of a change nobody says that it was not done.
func TestALeaderThatHangsIsWaitedForWhileItLeads(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		method, path string
		status       int
	}{{"GET", api.PathJobs, http.StatusOK}, {"POST", api.PathJob("7", "cancel"), http.StatusServiceUnavailable}} {
		lead := hanging{make(chan struct{}, passAttempts)}
		cluster := &peers{leader: Leader{"n2", lead}, left: make(chan struct{})}
		go func() {
			<-lead.asked
			close(cluster.left)
		}()
		w := over(t, Handler(Config{Backend: &private{owner: 1234}, Log: zap.NewNop(), Cluster: cluster}), certificate("ada", "submit", "1234"), c.method, c.path, "")
		asked := 1
		if c.method == "GET" {
			asked = passAttempts
		}
		if w.Code != c.status || cluster.asked != asked || w.Code != 200 && !strings.Contains(w.Body.String(), "has not said whether it did this") {
			t.Errorf("%s %s: %d %s after %d attempts", c.method, c.path, w.Code, w.Body, cluster.asked)
		}
	}
}

// broken breaks off in the middle of an answer.
type broken struct{}

func (broken) RoundTrip(*http.Request) (*http.Response, error) {
	body := io.MultiReader(strings.NewReader("half"), errReader{})
	return &http.Response{StatusCode: 200, Header: http.Header{}, Body: io.NopCloser(body)}, nil
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestAnAnswerThatBreaksOffThereBreaksOffHere(t *testing.T) {
	t.Parallel()
	h := Handler(Config{Backend: &private{owner: 1234}, Log: zap.NewNop(), Cluster: &peers{leader: Leader{"n2", broken{}}}})
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // what net/http looks for
			t.Errorf("the handler ended with %v", p)
		}
	}()
	over(t, h, certificate("ada", "submit", "1234"), "GET", api.PathJob("7", "logs"), "")
}

func TestWhoAsksTooOftenIsRefused(t *testing.T) {
	t.Parallel()
	var b book
	h := Handler(Config{Backend: &private{owner: 1234}, Log: zap.NewNop(), Audit: b.write, Limits: Limits{Rate: 1e-3, Burst: 2, Streams: 1}})
	ada := certificate("ada", "submit", "1234")
	for i, want := range []int{200, 200, 429, 429} {
		w := over(t, h, ada, "GET", api.PathJobs, "")
		if w.Code != want || want == 429 && (w.Header().Get("Retry-After") == "" || !strings.Contains(w.Body.String(), string(api.TooManyRequests))) {
			t.Errorf("request %d: %d %v %s; want %d", i, w.Code, w.Header(), w.Body, want)
		}
	}
	if len(b.records) != 1 {
		t.Errorf("%d refusals are written down; want one a second", len(b.records))
	}
	if w := over(t, h, certificate("eve", "submit", "1"), "GET", api.PathJobs, ""); w.Code != 200 {
		t.Errorf("somebody else: %d", w.Code)
	}
	a := &accounts{limits: Limits{Streams: 1}.withDefaults()}
	end := a.stream(Peer{Name: "ada"})
	if end == nil || a.stream(Peer{Name: "ada"}) != nil || a.stream(Peer{Name: "eve"}) == nil || a.stream(Peer{Name: "ada", Via: "n2"}) == nil {
		t.Error("streams are not counted by user")
	}
	end()
	if a.stream(Peer{Name: "ada"}) == nil {
		t.Error("a stream that has ended counts")
	}
}

func FuzzPassedPeer(f *testing.F) {
	text, err := Peer{Name: "ada", Role: Submitter}.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add("e30=")
	f.Add(strings.Repeat("A", maxPeer+4))
	f.Fuzz(func(t *testing.T, header string) {
		p, err := passedPeer("n1", header)
		if err == nil && (p.Role == "" || p.Via != "n1") {
			t.Errorf("%+v", p)
		}
	})
}
