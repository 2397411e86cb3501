package worker

import (
	"context"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/schedule"
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

// checkPlaces refuses stages that could not be reached.
func checkPlaces(a control.Assignment, plan schedule.Plan) error {
	addresses := map[string]string{}
	nodes := make([]string, len(plan)) // of each device
	placement := plan.Placement()
	for k, place := range a.Stages {
		switch node := &nodes[placement[k]]; {
		case *node == "":
			*node = place.Node
		case *node != place.Node:
			return fmt.Errorf("stage %d lives on node %q, another stage of its device %d on node %q", k, place.Node, placement[k], *node)
		}
		if known, ok := addresses[place.Node]; ok && known != place.Address {
			return fmt.Errorf("stage %d: node %q has addresses %q and %q: one for all its stages", k, place.Node, known, place.Address)
		}
		addresses[place.Node] = place.Address
	}
	if _, here := addresses[a.Node]; !here {
		return fmt.Errorf("no stage lives on node %q", a.Node)
	}
	for node, address := range addresses {
		if len(addresses) > 1 && address == "" {
			return fmt.Errorf("node %q has no address, and stages live on %d nodes", node, len(addresses))
		}
	}
	return nil
}
