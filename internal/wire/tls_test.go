package wire_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/wire"
)

// TestTLS runs the suite over mutual TLS, each side with a certificate that the other trusts.
func TestTLS(t *testing.T) {
	certificate, pool := selfSigned(t)
	config := &tls.Config{
		Certificates: []tls.Certificate{certificate}, RootCAs: pool, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, ServerName: "node", MinVersion: tls.VersionTLS13,
	}
	conforms(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) {
		return connect(t, s, wire.Config{Job: "j", TLS: always(config)})
	})
}

func TestDialRefusesACertificateThatItDoesNotTrust(t *testing.T) {
	certificate, _ := selfSigned(t)
	_, others := selfSigned(t)
	l := listen(t, 1, wire.Config{TLS: always(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})})
	client := &tls.Config{RootCAs: others, ServerName: "node", MinVersion: tls.VersionTLS13}
	_, err := wire.Dial(t.Context(), l.Address(), link, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}, wire.Config{TLS: always(client)})
	if err == nil {
		t.Error("Dial succeeded")
	}
}

func TestDialEndsWhenItsCertificateIsRefused(t *testing.T) {
	certificate, pool := selfSigned(t)
	_, others := selfSigned(t)
	l := listen(t, 1, wire.Config{TLS: always(&tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: others, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	})})
	client := &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: pool, ServerName: "node", MinVersion: tls.VersionTLS13}
	_, err := wire.Dial(t.Context(), l.Address(), link, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}, wire.Config{TLS: always(client)})
	if err == nil || !strings.Contains(err.Error(), "remote error: tls") {
		t.Errorf("Dial: %v, want the other end's alert", err)
	}
}

func always(c *tls.Config) func() (*tls.Config, error) {
	return func() (*tls.Config, error) { return c, nil }
}

func selfSigned(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"node"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}
