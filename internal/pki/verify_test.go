package pki_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/pki"
)

// signedAt is a node whose certificate was signed at a time.
func signedAt(t *testing.T, a *pki.Authority, name string, at time.Time) *pki.Identity {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	key, csr, err := pki.NodeKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	der, err := a.Sign(csr, pki.Subject{Role: pki.RoleNode, Name: name}, at)
	if err == nil {
		err = pki.WriteIdentity(dir, key, der, a.Certificate.Raw)
	}
	if err != nil {
		t.Fatal(err)
	}
	i, err := pki.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// connect makes a handshake and has the server send a byte. It returns what each end finds.
func connect(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			s := tls.Server(c, server)
			if err = s.HandshakeContext(t.Context()); err == nil {
				_, err = s.Write([]byte{1})
			}
			err = errors.Join(err, c.Close())
		}
		done <- err
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, clientErr = io.ReadFull(tls.Client(c, client), make([]byte, 1))
	_ = c.Close() // the server's end waits for it
	return <-done, pki.Explain(clientErr)
}

// TestWhoIsRefusedIsToldWhy, at both ends.
func TestWhoIsRefusedIsToldWhy(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ours, err := pki.NewAuthority("ours", now.Add(-3*365*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	server := signedAt(t, ours, "a", now)
	server.SetMember(func(name string, _ []byte) error {
		if name == "gone" {
			return errors.New("it was removed")
		}
		return nil
	})
	node := signedAt(t, ours, "b", now)
	careless := func(c *tls.Config) *tls.Config { // it does not look at anything itself
		c.VerifyConnection = nil
		return c
	}
	const refuses = "the other end refuses this certificate"
	const raft = mux.ProtocolRaft
	nobody := func(protocols ...string) *tls.Config {
		return &tls.Config{InsecureSkipVerify: true, NextProtos: protocols} //nolint:gosec // a test's
	}
	old := signedAt(t, ours, "old", now.Add(-366*24*time.Hour))
	other := identity(t, newAuthority(t), "x")
	for name, c := range map[string]struct {
		client         *tls.Config
		server, expect string // what both ends say; "": nothing is wrong
	}{
		"a node":            {node.ClientTLS(raft, "a"), "", ""},
		"any node":          {node.ClientTLS(mux.ProtocolNode, ""), "", ""},
		"another node":      {node.ClientTLS(raft, "c"), "bad certificate", "node a answers; want node c: it is of another node"},
		"other cluster":     {other.ClientTLS(raft, "a"), "bad certificate", `it is of another cluster: "avgpipe cluster ours" signed it, and "avgpipe cluster c1" is trusted here`},
		"of other cluster":  {careless(other.ClientTLS(raft, "a")), `the certificate of "x": it is of another cluster`, refuses},
		"removed":           {signedAt(t, ours, "gone", now).ClientTLS(raft, "a"), "it was removed", refuses},
		"expired":           {old.ClientTLS(raft, "a"), "bad certificate", `this node's own: the certificate of "old": it has expired: it was valid until`},
		"expired, careless": {careless(old.ClientTLS(raft, "a")), `the certificate of "old": it has expired`, refuses},
		"from the future":   {signedAt(t, ours, "b", now.Add(4*365*24*time.Hour)).ClientTLS(raft, "a"), "", ""}, // who signed it had a clock that was ahead
		"no certificate":    {nobody(mux.ProtocolAgent), "didn't provide a certificate", "the other end wants a certificate"},
		"join and more":     {nobody(mux.ProtocolJoin, raft), "didn't provide a certificate", "the other end wants a certificate"},
		"unknown protocol":  {nobody("smtp"), "unsupported application protocols", "the other end does not speak this protocol"},
		"TLS 1.2":           {&tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}, "unsupported versions", "nodes speak 1.3"}, //nolint:gosec // a test's
		"join":              {nobody(mux.ProtocolJoin), "", ""},
	} {
		serverErr, clientErr := connect(t, server.ServerTLS(), c.client)
		for _, end := range []struct {
			which, want string
			err         error
		}{{"server", c.server, serverErr}, {"client", c.expect, clientErr}} {
			if (end.err == nil) != (end.want == "") || end.err != nil && !strings.Contains(end.err.Error(), end.want) {
				t.Errorf("%s: the %s says %v, expected %q", name, end.which, end.err, end.want)
			}
		}
	}
}

// TestAClusterThatWasBegunInTheFutureIsRefused by nodes whose clocks are right, with what to do.
func TestAClusterThatWasBegunInTheFutureIsRefused(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(48 * time.Hour)
	a, err := pki.NewAuthority("later", later)
	if err != nil {
		t.Fatal(err)
	}
	client := signedAt(t, a, "b", later).ClientTLS(mux.ProtocolRaft, "a")
	client.VerifyConnection = nil
	if serverErr, _ := connect(t, signedAt(t, a, "a", later).ServerTLS(), client); !errors.Is(serverErr, pki.ErrNotYet) {
		t.Errorf("%v", serverErr)
	}
}

// TestACertificateByAClockThatIsWrongIsNotTaken: the node keeps the one that is good.
func TestACertificateByAClockThatIsWrongIsNotTaken(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, err := pki.NewAuthority("ours", now.Add(-3*365*24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	n := signedAt(t, a, "n", now)
	before := n.Expires()
	for signed, taken := range map[time.Duration]bool{-2 * 365 * 24 * time.Hour: false, 4 * 365 * 24 * time.Hour: true} {
		csr, err := n.Request()
		if err != nil {
			t.Fatal(err)
		}
		der, err := a.Sign(csr, pki.Subject{Role: pki.RoleNode, Name: "n"}, now.Add(signed))
		if err != nil {
			t.Fatal(err)
		}
		err = n.Renew(der, a.Certificate.Raw)
		if taken != (err == nil) || !taken && !errors.Is(err, pki.ErrExpired) {
			t.Errorf("signed %v from now: %v", signed, err)
		}
		if !taken && n.Expires().Before(before) {
			t.Errorf("signed %v from now: it expires at %v", signed, n.Expires())
		}
	}
}

// TestRenewalAtTwoThirdsOfLife, and again where it failed.
func TestRenewalAtTwoThirdsOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		a, err := pki.NewAuthority("c", start)
		if err != nil {
			t.Fatal(err)
		}
		n := signedAt(t, a, "n", start)
		ctx, cancel := context.WithCancel(t.Context())
		var asked []time.Duration
		failures := 0
		n.KeepRenewed(ctx, func(_ context.Context, csr []byte) ([]byte, [][]byte, error) {
			if asked = append(asked, time.Since(start)); len(asked) == 1 {
				return nil, nil, errors.New("nobody leads")
			}
			cancel()
			der, err := a.Sign(csr, pki.Subject{Role: pki.RoleNode, Name: "n"}, time.Now())
			return der, [][]byte{a.Certificate.Raw}, err
		}, func(error) { failures++ })
		third := 365 * 24 * time.Hour / 3
		if len(asked) != 2 || failures != 1 || asked[0] < 2*third-time.Hour || asked[0] > 2*third+time.Hour || asked[1]-asked[0] != 10*time.Minute {
			t.Errorf("asked at %v, %d failed", asked, failures)
		}
		if !n.Expires().After(start.Add(366 * 24 * time.Hour)) {
			t.Errorf("it ends at %v", n.Expires())
		}
	})
}

// TestARenewalMustBeTheNodesOwn: its name, its key, its authority.
func TestARenewalMustBeTheNodesOwn(t *testing.T) {
	t.Parallel()
	a, other := newAuthority(t), newAuthority(t)
	n := identity(t, a, "n")
	csr, err := n.Request()
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		by, with *pki.Authority
		csr      []byte
		name     string
		expect   error
	}{{a, a, csr, "m", pki.ErrOtherNode}, {a, a, foreign, "n", pki.ErrOtherNode}, {other, a, csr, "n", pki.ErrOtherCluster}, {a, a, csr, "n", nil}} {
		der, err := c.by.Sign(c.csr, pki.Subject{Role: pki.RoleNode, Name: c.name}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Renew(der, c.with.Certificate.Raw); !errors.Is(err, c.expect) {
			t.Errorf("%s: %v, expected %v", c.name, err, c.expect)
		}
	}
}

// TestKeysAreSecretAndStay: one that is there is taken again, unless others can read it.
func TestKeysAreSecretAndStay(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	key, _, err := pki.NodeKey(dir)
	if err != nil {
		t.Fatal(err)
	}
	again, csr, err := pki.NodeKey(dir)
	if err != nil || string(again) != string(key) || len(csr) == 0 {
		t.Errorf("once more: %v", err)
	}
	path := filepath.Join(dir, "node.key")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, _, err := pki.NodeKey(dir); err == nil || !strings.Contains(err.Error(), "others can read the key") {
		t.Errorf("open to all: %v", err)
	}
}

// TestTokensAreRefusedWithoutSayingThem.
func TestTokensAreRefusedWithoutSayingThem(t *testing.T) {
	t.Parallel()
	text := pki.NewToken([]byte("x")).String()
	for _, wrong := range []string{"", "x", text[1:], text[:len(text)-1], text + "A", text[:20] + "!" + text[21:], strings.Repeat("a", 1000)} {
		if _, err := pki.ParseToken(wrong); !errors.Is(err, pki.ErrToken) || len(wrong) > 10 && strings.Contains(err.Error(), wrong[8:]) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// TestRequestsAreChecked: the kind of key, the signature, the length; and an authority at its end signs nothing.
func TestRequestsAreChecked(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	_, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	wide, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, wide)
	if err != nil {
		t.Fatal(err)
	}
	broken := append([]byte{}, csr...)
	broken[len(broken)-1] ^= 1
	subject := pki.Subject{Role: pki.RoleNode, Name: "n"}
	for expect, der := range map[string][]byte{"want one of ECDSA with P-256": other, "the request: ": broken, "bytes; at most": make([]byte, 1<<20)} {
		if _, err := a.Sign(der, subject, time.Now()); err == nil || !strings.Contains(err.Error(), expect) {
			t.Errorf("%v, expected %q", err, expect)
		}
	}
	end := a.Certificate.NotAfter
	der, err := a.Sign(csr, subject, end.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := x509.ParseCertificate(der); err != nil || c.NotAfter.After(end) {
		t.Errorf("a certificate outlives its authority: %v", err)
	}
	if _, err := a.Sign(csr, subject, end); !errors.Is(err, pki.ErrExpired) {
		t.Errorf("after the authority's end: %v", err)
	}
}

// FuzzSign: no request may crash a node, and what is signed is for the name.
func FuzzSign(f *testing.F) {
	a, err := pki.NewAuthority("c", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	_, csr, err := pki.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(csr)
	f.Fuzz(func(t *testing.T, der []byte) {
		signed, err := a.Sign(der, pki.Subject{Role: pki.RoleNode, Name: "n"}, time.Now())
		if err != nil {
			return
		}
		if c, err := x509.ParseCertificate(signed); err != nil || c.Subject.CommonName != "n" {
			t.Errorf("%v", err)
		}
	})
}

// FuzzSubjectOf: no certificate may crash a node, and who it is for can be in another certificate.
func FuzzSubjectOf(f *testing.F) {
	a, err := pki.NewAuthority("c", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	_, csr, err := pki.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	der, err := a.Sign(csr, pki.Subject{Role: pki.RoleView, Name: "ada", UID: 7}, time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(der)
	f.Add(a.Certificate.Raw)
	f.Fuzz(func(t *testing.T, der []byte) {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return
		}
		if s, err := pki.SubjectOf(c); err == nil && s.Validate() != nil {
			t.Errorf("%+v: %v", s, s.Validate())
		}
	})
}
