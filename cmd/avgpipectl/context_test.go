package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/pki"
)

func TestContextsAreReadStrictly(t *testing.T) {
	t.Parallel()
	c, err := parseContexts("/x/config.yaml", []byte("context: prod\ncontexts:\n  prod:\n    addresses: ['a:7946', 'b:7946']\n"))
	if err != nil {
		t.Fatal(err)
	}
	if one, err := c.find("prod"); err != nil || len(one.addresses) != 2 || one.dir != "/x/prod" {
		t.Errorf("%+v, %v", one, err)
	}
	if one, err := c.find(localContext); err != nil || one != nil {
		t.Errorf("the daemon of this host is %+v, %v", one, err)
	}
	for text, want := range map[string]string{
		"context: prod\n":                            `no context "prod"`,
		"kontext: prod\n":                            "kontext",
		"contexts:\n  local: {addresses: [a:1]}\n":   "this host's daemon",
		"contexts:\n  ../x: {addresses: [a:1]}\n":    "named",
		"contexts:\n  a: {}\n":                       "wants addresses",
		"contexts:\n  a: 7\n":                        "wants addresses",
		"contexts:\n  a: {addresses: [b]}\n":         `the address "b"`,
		"contexts:\n  a: {addresses: [b:1], x: 1}\n": `the key "x"`,
		"contexts: 7\n":                              "contexts",
	} {
		if _, err := parseContexts("/x/config.yaml", []byte(text)); err == nil || exitCode(err) != exitRefused || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// authority makes certificates of a cluster.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{key: key, cert: &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}}
	a.cert = a.sign(t, a.cert, key)
	return a
}

func (a *authority) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	c, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// issue makes a certificate and its key.
func (a *authority) issue(t *testing.T, name, role, uid string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := a.sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotAfter: time.Now().Add(time.Hour), Subject: pkix.Name{CommonName: name, Organization: []string{role}},
		URIs:        []*url.URL{{Scheme: "avgpipe", Host: "uid", Path: "/" + uid}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, key)
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key, Leaf: c}
}

// store writes the files of a context.
func store(t *testing.T, dir string, c tls.Certificate, a *authority) {
	t.Helper()
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		certificateFile: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, keyFile: {Type: "PRIVATE KEY", Bytes: key},
		authorityFile: {Type: "CERTIFICATE", Bytes: a.cert.Raw},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAContextIsAskedOverTLS(t *testing.T) {
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	t.Setenv("AVGPIPE_SOCKET", "")
	t.Setenv("AVGPIPE_CONTEXT", "")
	a, other := newAuthority(t), newAuthority(t)
	daemon := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(api.HeaderAge, "2.5")
		_ = json.NewEncoder(w).Encode([]api.JobStatus{{ID: "7", Name: "of " + r.TLS.PeerCertificates[0].Subject.CommonName, State: api.Running}})
	}))
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	daemon.TLS = &tls.Config{Certificates: []tls.Certificate{a.issue(t, "n1", "node", "0")}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}
	daemon.StartTLS()
	defer daemon.Close()
	address := daemon.Listener.Addr().String()

	dir := filepath.Join(config, "avgpipe")
	all := &contexts{Context: "prod", dir: dir}
	for name, files := range map[string]struct {
		role string
		of   *authority
	}{"prod": {"submit", a}, "elsewhere": {"submit", other}} {
		store(t, filepath.Join(dir, name), files.of.issue(t, "ada", files.role, "1234"), files.of)
		all.set(remoteContext{name: name, addresses: []string{"127.0.0.1:1", address}}) // the first does not answer
	}
	all.set(remoteContext{name: "bare", addresses: []string{address}})
	if err := all.write(); err != nil {
		t.Fatal(err)
	}

	ctl := func(arguments ...string) (code int, out, messages string) {
		var o, m strings.Builder
		code = run(t.Context(), arguments, strings.NewReader(""), &o, &m)
		return code, o.String(), m.String()
	}
	code, out, messages := ctl("status")
	if code != exitDone || !strings.Contains(out, "of ada") || !strings.Contains(messages, "no node leads: this is as of 2.5s ago") {
		t.Errorf("the context in use: %d\n%s%s", code, out, messages)
	}
	if code, _, messages := ctl("status", "--context", "elsewhere"); code != exitNoDaemon || !strings.Contains(messages, "no certificate of the cluster's authority") {
		t.Errorf("another authority: %d %s", code, messages)
	}
	if code, _, messages := ctl("status", "--context", "bare"); code != exitFailed || !strings.Contains(messages, "avgpipectl login "+address) {
		t.Errorf("no certificate: %d %s", code, messages)
	}
	if code, _, messages := ctl("status", "--context", "prot"); code != exitRefused || !strings.Contains(messages, "did you mean prod?") {
		t.Errorf("no such context: %d %s", code, messages)
	}
	if code, _, messages := ctl("status", "--context", "prod", "--socket", "x"); code != exitRefused || !strings.Contains(messages, "stands beside") {
		t.Errorf("two places: %d %s", code, messages)
	}
	if code, _, messages := ctl("context", "use", localContext); code != exitDone {
		t.Errorf("use %s: %d %s", localContext, code, messages)
	}
	if code, out, _ := ctl("context"); code != exitDone || !strings.Contains(out, "*  local") || !strings.Contains(out, "prod") {
		t.Errorf("the list: %d\n%s", code, out)
	}
	t.Setenv("AVGPIPE_CONTEXT", "prod")
	if code, out, _ := ctl("status"); code != exitDone || !strings.Contains(out, "of ada") {
		t.Errorf("by the environment: %d %s", code, out)
	}
	one, err := all.find("prod")
	if err != nil {
		t.Fatal(err)
	}
	if uid, err := one.uid(); err != nil || uid != 1234 {
		t.Errorf("user id %d, %v", uid, err)
	}
}

// TestALoginLeavesAContextOfAnotherCluster: its key is there once. Nobody answers here: what is refused is so before the token is used up.
func TestALoginLeavesAContextOfAnotherCluster(t *testing.T) {
	config := t.TempDir()
	t.Setenv("XDG_CONFIG_HOME", config)
	t.Setenv("AVGPIPE_CONTEXT", "")
	a, other := newAuthority(t), newAuthority(t)
	all := &contexts{Context: "prod", dir: filepath.Join(config, "avgpipe")}
	store(t, filepath.Join(all.dir, "prod"), a.issue(t, "ada", "submit", "1234"), a)
	all.set(remoteContext{name: "prod", addresses: []string{"127.0.0.1:1"}})
	if err := all.write(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		of      *authority
		code    int
		message string
		more    []string
	}{
		{other, exitRefused, "context prod is of another cluster than the token", []string{"--name", "prod"}},
		{other, exitFailed, "127.0.0.1:1", []string{"--name", "prod", "--force"}},
		{other, exitFailed, "127.0.0.1:1", []string{"--name", "second"}},
		{a, exitFailed, "127.0.0.1:1", []string{"--name", "prod"}},
	} {
		var out, messages strings.Builder
		args := append([]string{"login", "127.0.0.1:1", "--token", pki.NewToken(c.of.cert.Raw).String()}, c.more...)
		if code := run(t.Context(), args, strings.NewReader(""), &out, &messages); code != c.code || !strings.Contains(messages.String(), c.message) {
			t.Errorf("%v: exit code %d, %s", c.more, code, messages.String())
		}
	}
}

func TestWhoAnswersMustBeANode(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	daemon := httptest.NewUnstartedServer(http.NotFoundHandler())
	daemon.TLS = &tls.Config{Certificates: []tls.Certificate{a.issue(t, "eve", "submit", "1")}, ClientAuth: tls.RequestClientCert}
	daemon.StartTLS()
	defer daemon.Close()
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	c := api.NewRemoteClient(api.Remote{Name: "prod", Addresses: []string{daemon.Listener.Addr().String()}, Certificate: a.issue(t, "ada", "view", "2"), Authority: pool})
	defer c.Close()
	if _, err := c.Version(t.Context()); err == nil || !strings.Contains(err.Error(), `role ["submit"]`) {
		t.Errorf("a user's certificate is taken for a node's: %v", err)
	}
}
