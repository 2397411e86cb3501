package coordinator

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// placement is where a generation of a job runs: each stage, in order. The replicated state carries it.
type placement []stagePlace

// stagePlace is where a stage runs.
type stagePlace struct {
	Stage  int    `json:"stage"`
	Node   string `json:"node"`
	Device int    `json:"device"`          // of those that the job has on the node, from 0
	Cores  []int  `json:"cores,omitempty"` // that the device is pinned to; empty: none in particular
}

// placeOn places all stages of a job on one node, whose cores its devices take in order.
func placeOn(node string, s *spec.Spec, cores []int) placement {
	var p placement
	threads := int(s.Job.Devices.CPU.Threads)
	for stage, device := range s.Placement() {
		at := stagePlace{Stage: stage, Node: node, Device: device}
		if len(cores) >= (device+1)*threads {
			at.Cores = cores[device*threads : (device+1)*threads]
		}
		p = append(p, at)
	}
	return p
}

// cores are those of a node, in the order of devices: the first stages are on one device each, in order.
func (p placement) cores(node string) (all []int) {
	for _, at := range p {
		for _, core := range at.Cores {
			if at.Node == node && !slices.Contains(all, core) {
				all = append(all, core)
			}
		}
	}
	return all
}

// readPlacement reads where a job runs.
func readPlacement(j *cluster.Job) (p placement, err error) {
	if len(j.Placement) == 0 {
		return nil, nil
	}
	if err := json.Unmarshal(j.Placement, &p); err != nil {
		return nil, fmt.Errorf("job %s: decode its placement: %w", j.ID, err)
	}
	return p, nil
}
