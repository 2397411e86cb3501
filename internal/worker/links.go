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
	"github.com/avgpipe/avgpipe/internal/wire/ucx"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// links reach the stages that other nodes host, and those of other groups of pipelines. All stages of a node are reached at one address.
type links struct {
	stages   []control.StagePlace
	groups   [][]control.StagePlace // with those of the own one; nil: it is the only one
	shared   int                    // pipelines of a group
	config   wire.Config
	identity *pki.Identity // nil: links are not encrypted
	listener *wire.Listener
	ucx      *ucx.Transport // nil: links stay on their connections
	progress *progress      // gets to know the links
}

// newLinks listens for the other nodes' links, and tells of those that it refuses; nil when every stage lives here, of every pipeline.
func newLinks(ctx context.Context, a control.Assignment, p *progress, refused func(from net.Addr, err error)) (*links, error) {
	own, elsewhere := "", len(a.Groups) > 1
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
	l := &links{stages: a.Stages, groups: a.Groups, shared: a.Spec.Job.Shared(), config: wire.Config{Job: a.JobID, Refused: refused}, progress: p}
	l.openPaths(a.UCX)
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

// refusedEvery is how often at most connections that are refused are a line of the job's log and an event.
const refusedEvery = time.Minute

// sayRefused tells of connections that are no links of this generation, of the worker of an earlier one or of a stranger.
func sayRefused(log *zap.Logger, events *control.EventLog) func(net.Addr, error) {
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
			events.Append(control.Event{Kind: control.Refused, From: from.String(), Error: err.Error()})
		}
	}
}

// openPaths has links choose between their connections and UCX, on these network devices. Where UCX cannot be used the links go on without it, and say why.
func (l *links) openPaths(devices string) {
	if devices == "" {
		return
	}
	l.config.Paths = &wire.Paths{}
	opened, err := ucx.New(devices)
	if err != nil {
		l.config.Paths.Missing = err.Error()
		return
	}
	l.ucx, l.config.Paths.Transport = opened, opened
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

// lower is where the lower stage of a link is, which dials: that of messages is in the group of the pipeline.
func (l *links) lower(link wire.Link) (control.StagePlace, bool) {
	stages := l.stages
	if link.Purpose == wire.Averaged {
		if stages = nil; link.Pipeline/l.shared < len(l.groups) {
			stages = l.groups[link.Pipeline/l.shared]
		}
	}
	if link.Lower >= len(stages) {
		return control.StagePlace{}, false
	}
	return stages[link.Lower], true
}

// checkPeer refuses a node that does not host the lower stage of a link.
func (l *links) checkPeer(link wire.Link, s tls.ConnectionState) error {
	place, known := l.lower(link)
	if len(s.PeerCertificates) == 0 || !known {
		return fmt.Errorf("%v: there is no certificate or no such stage", link)
	}
	subject, err := pki.SubjectOf(s.PeerCertificates[0])
	if err != nil {
		return err
	}
	if subject.Name != place.Node {
		return fmt.Errorf("stage %d is on node %s, not on %s", link.Lower, place.Node, subject.Name)
	}
	return nil
}

// connect makes this node's end of a link: the node of the stage nearer the input dials.
func (l *links) connect(ctx context.Context, link wire.Link, upper bool, spec wire.Spec) (wire.End, error) {
	if !upper {
		return l.dial(ctx, link, l.stages[link.Upper], spec)
	}
	from, _ := l.lower(link)
	spec.Watch = l.watch(link, from)
	e, err := l.listener.Accept(ctx, link, spec)
	return e, at(err, from)
}

// publish makes this node's end of a link that carries a pipeline's messages to another group.
func (l *links) publish(ctx context.Context, link wire.Link, group int, spec wire.Spec) (wire.End, error) {
	return l.dial(ctx, link, l.groups[group][link.Upper], spec)
}

// dial makes the lower end of a link to a place.
func (l *links) dial(ctx context.Context, link wire.Link, to control.StagePlace, spec wire.Spec) (wire.End, error) {
	spec.Watch = l.watch(link, to)
	c := l.config
	if l.identity != nil {
		c.TLS = l.secured(func() *tls.Config { return l.identity.ClientTLS(mux.ProtocolLink, to.Node) })
	}
	e, err := wire.Dial(ctx, to.Address, link, spec, c)
	return e, at(err, to)
}

// watch makes what watches the other end of a link.
func (l *links) watch(link wire.Link, other control.StagePlace) *wire.Watch {
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
				SilentS: o.Silent.Seconds(), BoundS: o.Bound.Seconds(), Over: o.Choice.Over,
			}
			if c := o.Choice; c.Reason != "" {
				out.Choice = &api.LinkChoice{Reason: c.Reason, MessageBytes: int64(c.Bytes), ConnectionS: c.Connection.Seconds(), PathS: c.Path.Seconds()}
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
	err := l.listener.Close()
	if l.ucx != nil {
		err = errors.Join(err, l.ucx.Close())
	}
	return err
}
