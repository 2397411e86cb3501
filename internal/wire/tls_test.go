package wire_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/wire/wiretest"
)

// TestTLS runs the suite over mutual TLS, each side with a certificate that the other trusts.
func TestTLS(t *testing.T) {
	config := wire.MutualTLS(t)
	wiretest.Conform(t, func(t *testing.T, s wire.Spec) (wire.End, wire.End) {
		return connect(t, s, wire.Config{Job: "j", TLS: always(config)})
	})
}

func TestDialRefusesACertificateThatItDoesNotTrust(t *testing.T) {
	certificate, _ := wire.SelfSigned(t)
	_, others := wire.SelfSigned(t)
	l := listen(t, 1, wire.Config{TLS: always(&tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13})})
	client := &tls.Config{RootCAs: others, ServerName: "node", MinVersion: tls.VersionTLS13}
	_, err := wire.Dial(t.Context(), l.Address(), link, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}, wire.Config{TLS: always(client)})
	if err == nil {
		t.Error("Dial succeeded")
	}
}

func TestDialEndsWhenItsCertificateIsRefused(t *testing.T) {
	certificate, pool := wire.SelfSigned(t)
	_, others := wire.SelfSigned(t)
	l := listen(t, 1, wire.Config{TLS: always(&tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: others, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	})})
	client := &tls.Config{Certificates: []tls.Certificate{certificate}, RootCAs: pool, ServerName: "node", MinVersion: tls.VersionTLS13}
	_, err := wire.Dial(t.Context(), l.Address(), link, wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}, wire.Config{TLS: always(client)})
	if err == nil || !strings.Contains(err.Error(), "remote error: tls") {
		t.Errorf("Dial: %v, want the other end's alert", err)
	}
}

// TestListenRefusesCertificates has dialling ends with a certificate that the listening end does not trust, without one, and with one that is not of the
// link. No end of theirs reaches Accept, and their Dial fails.
func TestListenRefusesCertificates(t *testing.T) {
	server := wire.MutualTLS(t)
	stranger := wire.MutualTLS(t)
	stranger.RootCAs = server.RootCAs
	nobody := server.Clone()
	nobody.Certificates = nil
	s := wire.Spec{Generation: 1, Depth: 1, MaxBytes: 8}
	refuse := func(l wire.Link, _ tls.ConnectionState) error { return fmt.Errorf("the %v is not for this node", l) }
	for name, c := range map[string]struct {
		client *tls.Config
		peer   func(wire.Link, tls.ConnectionState) error
		want   string
	}{
		"of another authority": {client: stranger, want: "tls: unknown certificate authority"},
		"none":                 {client: nobody, want: "tls: certificate required"},
		"of another node":      {client: server, peer: refuse, want: "the training link of pipeline 1, stages 0 and 1 is not for this node"},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, 1, wire.Config{TLS: always(server), Peer: c.peer})
			accepted := make(chan error)
			go func() {
				_, err := l.Accept(t.Context(), link, s)
				accepted <- err
			}()
			_, err := wire.Dial(t.Context(), l.Address(), link, s, wire.Config{TLS: always(c.client)})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), l.Address()) {
				t.Errorf("Dial: %v, want %q of %s", err, c.want, l.Address())
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if err := <-accepted; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Accept: %v, want nothing until the listener is closed", err)
			}
		})
	}
}

func always(c *tls.Config) func() (*tls.Config, error) {
	return func() (*tls.Config, error) { return c, nil }
}
