package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// links reach the stages that other nodes host. All stages of a node are reached at one address.
type links struct {
	stages   []control.StagePlace
	config   wire.Config
	identity *pki.Identity // nil: links are not encrypted
	listener *wire.Listener
}

// newLinks listens for the other nodes' links; nil when every stage lives here.
func newLinks(ctx context.Context, a control.Assignment) (*links, error) {
	own, elsewhere := "", false
	for _, place := range a.Stages {
		if place.Node == a.Node {
			own = place.Address
		} else {
			elsewhere = true
		}
	}
	if !elsewhere {
		return nil, nil //nolint:nilnil // there is nothing to reach
	}
	l := &links{stages: a.Stages, config: wire.Config{Job: a.JobID}}
	if t := a.TLS; t != nil {
		var err error
		if l.identity, err = pki.OpenFiles(pki.Files{Certificate: t.Certificate, Key: t.Key, Authority: t.Authority}); err != nil {
			return nil, fmt.Errorf("links: %w", err)
		}
		l.config.TLS, l.config.Peer = l.secured(l.identity.LinkTLS), l.checkPeer
	}
	if a.LinkFD == 0 {
		var err error
		l.listener, err = wire.Listen(ctx, own, a.Generation, l.config)
		return l, err
	}
	file := os.NewFile(uintptr(a.LinkFD), "links")
	inherited, err := net.FileListener(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("links: take over descriptor %d, which the daemon opened at %s: %w", a.LinkFD, own, err)
	}
	l.listener = wire.Serve(ctx, inherited, a.Generation, l.config)
	return l, nil
}

// secured makes configurations with the certificates as they are then: the daemon renews them.
func (l *links) secured(config func() *tls.Config) func() (*tls.Config, error) {
	return func() (*tls.Config, error) {
		if err := l.identity.Reload(); err != nil {
			return nil, err
		}
		return config(), nil
	}
}

// checkPeer refuses a node that does not host the lower stage of a link.
func (l *links) checkPeer(link wire.Link, s tls.ConnectionState) error {
	if len(s.PeerCertificates) == 0 || link.Lower >= len(l.stages) {
		return fmt.Errorf("%v: there is no certificate or no such stage", link)
	}
	subject, err := pki.SubjectOf(s.PeerCertificates[0])
	if err != nil {
		return err
	}
	if want := l.stages[link.Lower].Node; subject.Name != want {
		return fmt.Errorf("stage %d is on node %s, not on %s", link.Lower, want, subject.Name)
	}
	return nil
}

// connect makes this node's end of a link: the node of the stage nearer the input dials.
func (l *links) connect(ctx context.Context, link wire.Link, upper bool, spec wire.Spec) (wire.End, error) {
	if upper {
		e, err := l.listener.Accept(ctx, link, spec)
		return e, at(err, l.stages[link.Lower])
	}
	to, c := l.stages[link.Upper], l.config
	if l.identity != nil {
		c.TLS = l.secured(func() *tls.Config { return l.identity.ClientTLS(mux.ProtocolLink, to.Node) })
	}
	e, err := wire.Dial(ctx, to.Address, link, spec, c)
	return e, at(err, to)
}

// at says which node an error of a link is about.
func at(err error, place control.StagePlace) error {
	if err != nil {
		return fmt.Errorf("node %s: %w", place.Node, err)
	}
	return nil
}

// close stops listening. Links that exist belong to the group.
func (l *links) close() error {
	if l == nil {
		return nil
	}
	return l.listener.Close()
}
