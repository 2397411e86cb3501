package pki_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// identity is a node with a certificate of an authority.
func identity(t *testing.T, a *pki.Authority, name string) *pki.Identity {
	t.Helper()
	key, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.Sign(csr, pki.Subject{Role: pki.RoleNode, Name: name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.WriteIdentity(dir, key, der, a.Certificate.Raw); err != nil {
		t.Fatal(err)
	}
	i, err := pki.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// serve listens as a node, and echoes the name of the protocol.
func serve(t *testing.T, i *pki.Identity, refused chan<- error) string {
	t.Helper()
	m, err := mux.Listen(t.Context(), "127.0.0.1:0", mux.Config{TLS: i.ServerTLS(), Log: zap.NewNop(), OnRefused: func(_ net.Addr, err error) {
		select {
		case refused <- err:
		default:
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{}, 4)
	for _, p := range []string{mux.ProtocolRaft, mux.ProtocolAgent, mux.ProtocolJoin, "http/1.1"} {
		l := m.Listener(p)
		go func() {
			defer func() { ended <- struct{}{} }()
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = c.Write([]byte(p))
				_ = c.Close()
			}
		}()
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		for range 4 {
			<-ended
		}
	})
	return m.Addr().String()
}

// says is what a server says to a client.
func says(t *testing.T, address string, c *tls.Config) (string, error) {
	t.Helper()
	conn, err := (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	text := make([]byte, 64)
	n, err := conn.Read(text)
	return string(text[:n]), err
}

func TestNodesMeetByProtocol(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	n1, n2 := identity(t, a, "n1"), identity(t, a, "n2")
	refused := make(chan error, 1)
	address := serve(t, n1, refused)
	for _, p := range []string{mux.ProtocolRaft, mux.ProtocolAgent, "http/1.1"} {
		if text, err := says(t, address, n2.ClientTLS(p, "n1")); err != nil || text != p {
			t.Errorf("%s: %q, %v", p, text, err)
		}
	}
	if _, err := says(t, address, n2.ClientTLS(mux.ProtocolRaft, "n3")); err == nil || !strings.Contains(err.Error(), "want node n3") {
		t.Errorf("another node answers: %v", err)
	}
	if err := <-refused; err == nil { // the client has ended it
		t.Error("nothing was refused")
	}
	c := identity(t, newAuthority(t), "n2").ClientTLS(mux.ProtocolRaft, "n1")
	c.VerifyConnection = nil
	if _, err := says(t, address, c); err == nil {
		t.Error("a node of another authority is let in")
	}
	if err := <-refused; !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("a node of another authority is refused with %v", err)
	}
	n1.SetMember(func(name string, key []byte) error {
		if name == "n2" && string(key) == string(n2.Key()) {
			return errors.New("n2 is no member any more")
		}
		return nil
	})
	if _, err := says(t, address, n2.ClientTLS(mux.ProtocolRaft, "n1")); err == nil {
		t.Error("a node that was removed is let in")
	}
	if err := <-refused; !strings.Contains(err.Error(), "no member any more") {
		t.Errorf("it is refused with %v", err)
	}
	if _, err := says(t, address, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{mux.ProtocolAgent}}); err == nil { //nolint:gosec // a test's
		t.Error("nobody is let in")
	}
}

func TestUsersSpeakTheAPIAlone(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	n1 := identity(t, a, "n1")
	refused := make(chan error, 4)
	address := serve(t, n1, refused)
	key, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.Sign(csr, pki.Subject{Role: pki.RoleSubmit, Name: "ada", UID: 1000}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(pki.EncodeCertificates(der), key)
	if err != nil {
		t.Fatal(err)
	}
	if s, err := pki.SubjectOf(pair.Leaf); err != nil || s != (pki.Subject{Role: pki.RoleSubmit, Name: "ada", UID: 1000}) {
		t.Errorf("%+v, %v", s, err)
	}
	client := func(p string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, NextProtos: []string{p}, Certificates: []tls.Certificate{pair}} //nolint:gosec // a test's
	}
	if text, err := says(t, address, client("http/1.1")); err != nil || text != "http/1.1" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := says(t, address, client(mux.ProtocolAgent)); err == nil {
		t.Error("a user speaks to an agent")
	}
	if err := <-refused; !strings.Contains(err.Error(), "is for nodes") {
		t.Errorf("it is refused with %v", err)
	}
	// A certificate of a user is no server's.
	c, err := x509.ParseCertificate(der)
	if err != nil || len(c.ExtKeyUsage) != 1 {
		t.Errorf("usages %v, %v", c.ExtKeyUsage, err)
	}
	for _, s := range []pki.Subject{{Role: "root", Name: "x", UID: 1}, {Role: pki.RoleView, Name: "a b", UID: 1}, {Role: pki.RoleSubmit, Name: "root"}} {
		if _, err := a.Sign(csr, s, time.Now()); err == nil {
			t.Errorf("a certificate of %+v is signed", s)
		}
	}
}

func TestCertificatesAreRenewedWithoutARestart(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	n1, n2 := identity(t, a, "n1"), identity(t, a, "n2")
	address := serve(t, n1, make(chan error))
	csr, err := n1.Request()
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.Sign(csr, pki.Subject{Role: pki.RoleNode, Name: "n1"}, time.Now().Add(time.Hour-time.Minute*59))
	if err != nil {
		t.Fatal(err)
	}
	key, before := n1.Key(), n1.Expires()
	if err := n1.Renew(der, a.Certificate.Raw); err != nil {
		t.Fatal(err)
	}
	if !n1.Expires().After(before) || string(n1.Key()) != string(key) || !n1.RenewAt().Before(n1.Expires()) {
		t.Errorf("expires %v, before %v", n1.Expires(), before)
	}
	c := n2.ClientTLS(mux.ProtocolRaft, "n1")
	verify := c.VerifyConnection
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if !s.PeerCertificates[0].NotAfter.Equal(n1.Expires()) {
			t.Error("the old certificate is shown")
		}
		return verify(s)
	}
	if _, err := says(t, address, c); err != nil {
		t.Error(err)
	}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	n1 := identity(t, a, "n1")
	m, err := mux.Listen(t.Context(), "127.0.0.1:0", mux.Config{TLS: n1.ServerTLS(), Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	token := pki.NewToken(a.Certificate.Raw)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var request pki.JoinRequest
		var answer pki.JoinResponse
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil || string(request.Secret) != string(token.Secret) {
			answer.Error = "the token is used"
		} else if answer.Certificate, err = a.Sign(request.CSR, pki.Subject{Role: pki.RoleNode, Name: request.Node}, time.Now()); err != nil {
			answer.Error = err.Error()
		}
		answer.Authority = [][]byte{a.Certificate.Raw}
		_ = json.NewEncoder(w).Encode(answer)
	})}
	ended, listener := make(chan error, 1), m.Listener(mux.ProtocolJoin) // which is there before anybody asks
	go func() { ended <- server.Serve(listener) }()
	defer func() {
		if err := errors.Join(server.Close(), m.Close()); err != nil {
			t.Error(err)
		}
		<-ended
	}()
	_, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	read, err := pki.ParseToken(token.String())
	if err != nil || string(read.Hash()) != string(token.Hash()) {
		t.Fatalf("%v: %+v", err, read)
	}
	ask := func(ctx context.Context, token pki.Token) error {
		_, err := pki.Join(ctx, m.Addr().String(), token, pki.JoinRequest{CSR: csr, Node: "n2"})
		return err
	}
	if err := ask(t.Context(), read); err != nil {
		t.Error(err)
	}
	if err := ask(t.Context(), pki.NewToken(a.Certificate.Raw)); err == nil || !strings.Contains(err.Error(), "the token is used") {
		t.Errorf("another token: %v", err)
	}
	if err := ask(t.Context(), pki.NewToken(newAuthority(t).Certificate.Raw)); err == nil || !strings.Contains(err.Error(), "of another cluster") {
		t.Errorf("another cluster's token: %v", err)
	}
}

func FuzzParseToken(f *testing.F) {
	f.Add(pki.Token{Secret: make([]byte, 24)}.String())
	f.Add("avgpipe-")
	f.Fuzz(func(t *testing.T, text string) {
		if token, err := pki.ParseToken(text); err == nil && token.String() != strings.TrimSpace(text) {
			t.Errorf("%q is read as %q", text, token)
		}
	})
}
