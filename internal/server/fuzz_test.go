package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/server"
)

// FuzzRequest sends anything to what takes a body: it is carried out, or refused as the API describes it.
func FuzzRequest(f *testing.F) {
	paths := []string{
		api.PathJobs, api.PathTune, api.PathDryRun, api.PathTokens, api.PathCertificate, api.PathRestore, api.PathNode("n", "drain"), api.PathJob("1", "resume"), api.PathJob("1", "cancel"),
	}
	for _, path := range paths {
		for _, body := range []string{
			``, `{}`, `{} {}`, `[`, `null`, `{"file": "x", "source": "", "base": "/"}`, `{"from_round": -1}`, `{"role": "node", "valid_s": 1e999}`, `{"role": "node", "valid_s": 60}`,
			`{"csr": "-----BEGIN X-----\n!\n-----END X-----\n"}`, `{"reason": "\ud800"}`, `{"fiel": 1}`, "AVGBACKU\x01\x00\x00\x00\xff\xff\xff\xff",
		} {
			f.Add(path, body)
		}
	}
	who := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{
		Subject: pkix.Name{CommonName: "ada", Organization: []string{"admin"}}, URIs: []*url.URL{{Scheme: "avgpipe", Host: "uid", Path: "/1000"}},
	}}}
	f.Fuzz(func(t *testing.T, path, body string) {
		if !slices.Contains(paths, path) {
			return
		}
		h := server.Handler(server.Config{Backend: &fake{job: api.JobStatus{ID: "1"}}, Log: zap.NewNop()})
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
		r.TLS = who
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code/100 == 2 {
			return
		}
		var e api.Error
		if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || w.Code == http.StatusInternalServerError || e.Message == "" {
			t.Errorf("%s %q: %d %s", path, body, w.Code, w.Body)
		}
	})
}
