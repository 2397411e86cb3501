package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/mux"
)

// Why a certificate is refused; test with errors.Is.
var (
	ErrOtherCluster = errors.New("it is of another cluster")
	ErrExpired      = errors.New("it has expired")
	ErrNotYet       = errors.New("it is not valid yet: set the clocks of both hosts")
	ErrRole         = errors.New("its role does not allow this")
	ErrOtherNode    = errors.New("it is of another node: the address was given to another host, or the cluster has an old one")
)

// maxDER bounds a certificate or a request, bytes. TLS bounds a chain by 256 KiB.
const maxDER = 16 << 10

// check verifies that an authority signed a certificate, that it is valid at a time, and for a use.
func check(c *x509.Certificate, authority []*x509.Certificate, use x509.ExtKeyUsage, now time.Time) error {
	if len(c.Raw) > maxDER {
		return fmt.Errorf("a certificate of %d bytes; at most %d", len(c.Raw), maxDER)
	}
	roots := x509.NewCertPool()
	for _, a := range authority {
		roots.AddCert(a)
	}
	_, err := c.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}})
	if err == nil {
		return nil
	}
	what := fmt.Sprintf("the certificate of %q", c.Subject.CommonName)
	_, other := errors.AsType[x509.UnknownAuthorityError](err)
	_, invalid := errors.AsType[x509.CertificateInvalidError](err)
	day := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }
	switch {
	case invalid && now.Before(c.NotBefore):
		return fmt.Errorf("%s: %w: it is valid from %s, and here it is %s", what, ErrNotYet, day(c.NotBefore), day(now))
	case invalid && now.After(c.NotAfter):
		return fmt.Errorf("%s: %w: it was valid until %s, and here it is %s; have another one made, or set the clock", what, ErrExpired, day(c.NotAfter), day(now))
	case other:
		return fmt.Errorf("%s: %w: %q signed it, and %q is trusted here: %w", what, ErrOtherCluster, c.Issuer.CommonName, authority[len(authority)-1].Subject.CommonName, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Refused reports whether an error of a connection is that the other end refuses this one's certificate.
func Refused(err error) bool { return err != nil && strings.Contains(err.Error(), refusedText) }

// refusedText is what crypto/tls says then; it has no type for it.
const refusedText = "remote error: tls: bad certificate"

// Foreign reports whether an error of a connection is that the other end speaks no version of the protocol that this one does.
func Foreign(err error) bool { return err != nil && strings.Contains(err.Error(), foreignText) }

// foreignText is what crypto/tls says then.
const foreignText = "remote error: tls: no application protocol"

// Explain says what an error of a connection means where TLS only has an alert of the other end. Other errors stay as they are.
func Explain(err error) error {
	if err == nil {
		return nil
	}
	for _, m := range []struct{ text, means string }{ // crypto/tls has no types for them
		{refusedText, "the other end refuses this certificate: it is of a node that was removed, of another cluster, or for something else; its audit log says which"},
		{"remote error: tls: certificate required", "the other end wants a certificate of its cluster"},
		{foreignText, "the other end does not speak this protocol in version " + mux.Spoken.String() + ": it is a node of another major version of avgpiped, or none of a cluster; its audit log says which version this end speaks"},
		{"remote error: tls: protocol version not supported", "the other end speaks another version of TLS; nodes speak 1.3"},
		{"first record does not look like a TLS handshake", "the other end does not speak TLS: it is no node of a cluster"},
	} {
		if strings.Contains(err.Error(), m.text) {
			return fmt.Errorf("%s: %w", m.means, err)
		}
	}
	return err
}
