package worker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
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
	progress *progress // gets to know the links
}

// newLinks listens for the other nodes' links; nil when every stage lives here.
func newLinks(ctx context.Context, a control.Assignment, p *progress, log *zap.Logger) (*links, error) {
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
	l := &links{stages: a.Stages, config: wire.Config{Job: a.JobID, Refused: logRefused(log)}, progress: p}
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

// refusedEvery is how often at most connections that are refused are a line of the job's log.
const refusedEvery = time.Minute

// logRefused writes down connections that are no links of this generation, of the worker of an earlier one or of a stranger.
func logRefused(log *zap.Logger) func(net.Addr, error) {
	var mu sync.Mutex
	var last time.Time
	more := 0
	return func(from net.Addr, err error) {
		mu.Lock()
		due, since := last.IsZero() || time.Since(last) >= refusedEvery, more
		if more++; due {
			last, more = time.Now(), 0
		}
		mu.Unlock()
		if due {
			log.Warn("a connection to the port of links was refused", zap.Stringer("from", from), zap.Error(err), zap.Int("others_before", since))
		}
	}
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
	spec.Watch = l.watch(link, upper)
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

// watch makes what watches the other end of a link.
func (l *links) watch(link wire.Link, upper bool) *wire.Watch {
	other := l.stages[link.Upper]
	if upper {
		other = l.stages[link.Lower]
	}
	w := &wire.Watch{Peer: fmt.Sprintf("node %s at %s", other.Node, other.Address), Step: l.progress.stepTime}
	if link.Purpose == wire.Training {
		w.Timed = l.progress.transfers.frame
		l.progress.watched(link.Lower, w)
	}
	return w
}

// stepTime is how long a step takes; 0 while that is not known.
func (p *progress) stepTime() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	rate := p.rate.PerSecond(p.until(time.Now()))
	if rate <= 0 {
		return 0
	}
	return time.Duration(float64(p.targets) * float64(len(p.steps)) / rate * float64(time.Second))
}

// watched adds a link from a stage to the one after it on another node.
func (p *progress) watched(lower int, w *wire.Watch) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[lower] = append(p.watches[lower], w)
}

// watchesOf are those of a stage. They ask for the time of a step, so they are not asked themselves with the lock held.
func (p *progress) watchesOf(lower int) []*wire.Watch {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.watches[lower])
}

// networkOf is the state of the links of all pipelines between a stage and the next one; nil where they share a node. watches are theirs.
func networkOf(watches []*wire.Watch) *api.NetworkStatus {
	var out *api.NetworkStatus
	sent, received := int64(0), int64(0)
	for _, w := range watches {
		o, open := w.Observation()
		if !open {
			continue
		}
		sent, received = sent+o.Sent, received+o.Received
		if out == nil || o.Silent.Seconds() > out.SilentS {
			out = &api.NetworkStatus{
				Peer: o.Peer, RoundTripS: o.RoundTrip.Seconds(), OffsetS: o.Offset.Seconds(), OffsetErrorS: o.Uncertain.Seconds(),
				SilentS: o.Silent.Seconds(), BoundS: o.Bound.Seconds(),
			}
		}
	}
	if out != nil {
		out.SentBytes, out.ReceivedBytes = sent, received
	}
	return out
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
