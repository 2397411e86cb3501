package node_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/pki"
)

// stranger is a node of another cluster, which looks at no certificate but its own.
func stranger(t *testing.T) *tls.Config {
	t.Helper()
	a, err := pki.NewAuthority(pki.NewCluster(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, certificate, err := a.Issue(pki.Subject{Role: pki.RoleNode, Name: "stranger"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{pair}, NextProtos: []string{mux.ProtocolRaft}} //nolint:gosec // as said
}

// TestWhoIsRefusedAtTheDoorIsWrittenDown: with a certificate of another authority, with none, and a member that asks what it may not, or badly.
func TestWhoIsRefusedAtTheDoorIsWrittenDown(t *testing.T) {
	t.Parallel()
	h := form(t, 1)[0]
	foreign, nobody := stranger(t), stranger(t)
	nobody.Certificates = nil
	for text, config := range map[string]*tls.Config{"the other end refuses this certificate": foreign, "wants a certificate of its cluster": nobody} {
		c, err := (&tls.Dialer{Config: config}).DialContext(t.Context(), "tcp", h.address)
		if err == nil {
			_, err = c.Read(make([]byte, 1)) // TLS 1.3 says it then
			_ = c.Close()
		}
		if err := pki.Explain(err); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("who connects is told %v; want %q", err, text)
		}
	}
	dir := nodetest.StateDir(t)
	if _, err := node.Join(t.Context(), dir, "n2", envtest.FreeAddress(t), "test", token(t, h, "node"), []string{h.address}); err != nil {
		t.Fatal(err)
	}
	member, err := pki.Open(filepath.Join(dir, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return member.Dial(ctx, mux.ProtocolAgent, "n1", h.address)
	}}
	defer transport.CloseIdleConnections()
	for _, c := range []struct {
		method, body string
		status       int
	}{{"delete", `{"job":"1"}`, http.StatusForbidden}, {"info", `{`, http.StatusBadRequest}, {"later", `{}`, http.StatusNotFound}} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://n1/agent/v1/"+c.method, bytes.NewReader([]byte(c.body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Avgpipe-Term", "1")
		answer, err := transport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != c.status {
			t.Errorf("%s: %s %s, %v", c.method, answer.Status, text, err)
		}
	}
	h.Stop(t)
	text := audits(t, h)
	for _, want := range []string{
		`"operation":"connect","error":"TLS handshake: the certificate of \"stranger\": it is of another cluster`,
		`"operation":"connect","error":"TLS handshake: tls: client didn't provide a certificate"`,
		`"operation":"agent","object":"/agent/v1/delete","status":403,"error":"the node does not serve who asks: node n2 in term 1: `,
		`"user":"n2","role":"node","from":"127.0.0.1:`, `"object":"/agent/v1/info","status":400,"error":"info: unexpected EOF"`, `"object":"/agent/v1/later","status":404`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the audit log lacks %s:\n%s", want, text)
		}
	}
}
