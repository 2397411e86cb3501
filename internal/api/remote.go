package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/unixhttp"
)

// roleNode is that of certificates of daemons.
const roleNode = "node"

// Remote is how a cluster is reached over the network.
type Remote struct {
	Name        string   // of the context, for messages
	Addresses   []string // host:port of daemons; the first that answers is asked
	Certificate tls.Certificate
	Authority   *x509.CertPool // whoever answers has a certificate of a node from it
}

// NewRemoteClient returns a client of a cluster. It dials on first use.
func NewRemoteClient(r Remote) *Client {
	c := unixhttp.Over(r.Name, func(ctx context.Context, _ string) (net.Conn, error) { return r.dial(ctx) })
	return &Client{unix: c, remote: &r}
}

// dial connects to the first address that answers.
func (r *Remote) dial(ctx context.Context) (net.Conn, error) {
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 5 * time.Second}, Config: r.Config()}
	var failed error
	for _, address := range r.Addresses {
		bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
		c, err := dialer.DialContext(bounded, "tcp", address)
		cancel()
		if err == nil {
			return c, nil
		}
		failed = errors.Join(failed, fmt.Errorf("%s: %w", address, err))
	}
	return nil, cmp.Or(failed, errors.New("the context has no address"))
}

// Config verifies the chain and the role of whoever answers. Which node it is makes no difference: each passes on what it does not do
// itself.
func (r *Remote) Config() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{r.Certificate}, NextProtos: []string{"http/1.1"},
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies, without the name of a host
		VerifyConnection: func(s tls.ConnectionState) error {
			intermediates := x509.NewCertPool()
			for _, c := range s.PeerCertificates[1:] {
				intermediates.AddCert(c)
			}
			_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{
				Roots: r.Authority, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
			})
			if err == nil && !slices.Equal(s.PeerCertificates[0].Subject.Organization, []string{roleNode}) {
				err = fmt.Errorf("it answers with a certificate of the role %q, not with a node's", s.PeerCertificates[0].Subject.Organization)
			}
			return err
		},
	}
}

// remote is Error of a ConnectError over the network.
func (e *ConnectError) remote() string {
	var authority x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	text := strings.ReplaceAll(e.Err.Error(), "\n", "; ")
	switch {
	case errors.Is(e.Err, context.DeadlineExceeded):
		return fmt.Sprintf("context %s: the daemon took the request and does not answer: %s", e.Socket, text)
	case errors.As(e.Err, &authority):
		return fmt.Sprintf("context %s: whoever answers has no certificate of the cluster's authority: %s; if the cluster was made anew: avgpipectl login", e.Socket, text)
	case errors.As(e.Err, &invalid):
		return fmt.Sprintf("context %s: the certificate of whoever answers is not valid: %s; compare the clocks of both hosts", e.Socket, text)
	case strings.Contains(text, "remote error: tls:"):
		return fmt.Sprintf("context %s: the daemon refuses the certificate: %s; if it has expired: avgpipectl login", e.Socket, text)
	}
	return fmt.Sprintf("context %s: no daemon answers: %s", e.Socket, text)
}
