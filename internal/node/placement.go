package node

import (
	"encoding/json"
	"fmt"

	"github.com/avgpipe/avgpipe/internal/cluster"
)

// placement is where a generation of a job runs; the replicated state carries it.
type placement struct {
	Node  string `json:"node"`
	Cores []int  `json:"cores"` // that its devices are pinned to; empty: none in particular
}

func readPlacement(j *cluster.Job) (placement, error) {
	var p placement
	if len(j.Placement) == 0 {
		return p, nil
	}
	if err := json.Unmarshal(j.Placement, &p); err != nil {
		return p, fmt.Errorf("job %s: decode its placement: %w", j.ID, err)
	}
	return p, nil
}
