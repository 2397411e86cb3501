package worker

import (
	"context"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// links reach the stages that other nodes host. All stages of a node are reached at one address.
type links struct {
	stages   []control.StagePlace
	config   wire.Config
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
	var err error
	if l.listener, err = wire.Listen(ctx, own, a.Generation, l.config); err != nil {
		return nil, err
	}
	return l, nil
}

// connect makes this node's end of a link: the node of the stage nearer the input dials.
func (l *links) connect(ctx context.Context, link wire.Link, upper bool, spec wire.Spec) (wire.End, error) {
	if upper {
		return l.listener.Accept(ctx, link, spec)
	}
	return wire.Dial(ctx, l.stages[link.Upper].Address, link, spec, l.config)
}

// close stops listening. Links that exist belong to the group.
func (l *links) close() error {
	if l == nil {
		return nil
	}
	return l.listener.Close()
}
