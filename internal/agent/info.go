package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/spec"
)

// Measurer is an Agent of another node that can measure the way to it.
type Measurer interface {
	Measure(ctx context.Context) (Link, error)
}

// Info implements Agent.
func (l *Local) Info(context.Context) (Info, error) {
	var i Info
	if l.config.Info != nil {
		i = l.config.Info()
	}
	i.Node = l.config.Node
	if i.Boot == "" {
		text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
		if err != nil {
			return i, fmt.Errorf("ask the kernel which boot of the host this is: %w", err)
		}
		i.Boot = strings.TrimSpace(string(text))
	}
	return i, nil
}

// Look implements Agent.
func (l *Local) Look(ctx context.Context, s *spec.Spec) (Sight, error) {
	if len(s.Remote) > 0 && l.config.Fetch != nil {
		if here := l.config.Fetch(s); here != (Sight{}) {
			return here, nil // the rest can wait
		}
	}
	if l.config.Look == nil {
		return Sight{}, nil
	}
	return l.config.Look(ctx, s)
}

// fetchAgain is how often a tuning of no job looks whether what it reads has come.
const fetchAgain = 200 * time.Millisecond

// fetched waits until what a job reads from elsewhere is here.
func (l *Local) fetched(ctx context.Context, s *spec.Spec) error {
	for len(s.Remote) > 0 && l.config.Fetch != nil {
		switch here := l.config.Fetch(s); {
		case here == (Sight{}):
			return nil
		case here.Data != "":
			return errors.New(here.Data)
		}
		select {
		case <-time.After(fetchAgain):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Probe implements Agent. The way from a node to itself takes no time and has no bound: both are 0.
func (l *Local) Probe(ctx context.Context, node string) (Link, error) {
	if node == l.config.Node {
		return Link{}, nil
	}
	peer, err := l.peer(node)
	if err != nil {
		return Link{}, err
	}
	m, ok := peer.(Measurer)
	if !ok {
		return Link{}, fmt.Errorf("measure the way to node %s: %w: it is not reached over a network", node, ErrUnreachable)
	}
	return m.Measure(ctx)
}

// peer is the agent of another node.
func (l *Local) peer(node string) (Agent, error) {
	if l.config.Peers == nil {
		return nil, fmt.Errorf("node %s: %w: this host is alone", node, ErrUnreachable)
	}
	return l.config.Peers(node)
}
