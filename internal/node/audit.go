package node

import (
	"context"

	"github.com/avgpipe/avgpipe/internal/accounting"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func (n *node) Audit(_ context.Context, ref string) (api.Accounting, error) {
	j, err := n.find(ref)
	if err != nil {
		return api.Accounting{}, err
	}
	return accounting.Audit(j, control.MetaOf(j.LastCommitted()).Epoch), nil
}
