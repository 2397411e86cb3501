package coordinator

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/avgpipe/avgpipe/internal/cluster"
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

// placeStages says where stages go, of each of which the device is given, that needs so many threads: on the first node that has enough free
// cores for all devices, or else device by device on the first that has enough for one. Where a device finds none, all are on the first node
// and share what it has.
func placeStages(devices []int, threads int, nodes []Node, free map[string][]int) placement {
	enough := func(cores int) int {
		return slices.IndexFunc(nodes, func(n Node) bool { return len(free[n.Name]) >= cores })
	}
	only := enough(threads * len(slices.Compact(slices.Sorted(slices.Values(devices)))))
	free = maps.Clone(free)
	seats, on := map[int]stagePlace{}, map[string]int{} // by device of the plan; how many a node has
	var p placement
	for stage, device := range devices {
		at, seated := seats[device]
		if !seated {
			i := only
			if i < 0 {
				i = enough(threads)
			}
			if i < 0 { // without threads a device needs no core, and any node will do
				return placeStages(devices, 0, nodes, free)
			}
			node := nodes[i].Name
			at = stagePlace{Node: node, Device: on[node], Cores: free[node][:threads:threads]}
			free[node], seats[device] = free[node][threads:], at
			on[node]++
		}
		at.Stage = stage
		p = append(p, at)
	}
	return p
}

// nodes are those that a placement has stages on, in the order of their first stages.
func (p placement) nodes() (all []string) {
	for _, at := range p {
		if !slices.Contains(all, at.Node) {
			all = append(all, at.Node)
		}
	}
	return all
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

// within reports whether each place of a placement has cores, and no others than these.
func (p placement) within(cores map[string][]int) bool {
	return len(p) > 0 && !slices.ContainsFunc(p, func(at stagePlace) bool {
		other := func(core int) bool { return !slices.Contains(cores[at.Node], core) }
		return len(at.Cores) == 0 || slices.ContainsFunc(at.Cores, other)
	})
}

// without are cores by node but for those that a placement takes.
func without(cores map[string][]int, p placement) map[string][]int {
	left := maps.Clone(cores)
	for _, node := range p.nodes() {
		taken := p.cores(node)
		left[node] = slices.DeleteFunc(slices.Clone(cores[node]), func(core int) bool { return slices.Contains(taken, core) })
	}
	return left
}

// placementOf is where a job runs. What this program did not write is no place.
func placementOf(j *cluster.Job) (p placement) {
	if json.Unmarshal(j.Placement, &p) != nil {
		return nil
	}
	return p
}
