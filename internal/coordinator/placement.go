package coordinator

import (
	"encoding/json"
	"maps"
	"slices"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/job"
)

// placement is where a generation of a job runs: each stage, in order. The replicated state carries it.
type placement []stagePlace

// stagePlace is where a stage runs.
type stagePlace struct {
	Stage  int    `json:"stage"`
	Node   string `json:"node"`
	Device int    `json:"device"`          // of those that the job has on the node, from 0
	Cores  []int  `json:"cores,omitempty"` // that the device is pinned to; empty: none in particular
	GPU    string `json:"gpu,omitempty"`   // the UUID of the GPU that the device is on, which neighbours may share; empty: on none
}

// equal reports whether both are on the same resources.
func (at stagePlace) equal(other stagePlace) bool {
	return at.Node == other.Node && at.GPU == other.GPU && slices.Equal(at.Cores, other.Cores)
}

// resources are what devices are placed on: cores, and UUIDs of GPUs.
type resources struct {
	cores []int
	gpus  []string
}

// placeStages says where stages go, of each of which the device is given, that needs so many threads: on the first node that has enough free
// cores for all devices, or else device by device on the first that has enough for one. Where a device finds none, all are on the first node
// and share what it has. Devices on GPUs are all on one node, the first with as many free as the job takes; none where there is no such node.
func placeStages(devices []int, threads int, gpus job.GPU, nodes []Node, free map[string]resources) placement {
	rows := len(slices.Compact(slices.Sorted(slices.Values(devices))))
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n Node) bool { return len(free[n.Name].gpus) < int(gpus.Count) })
	if len(nodes) == 0 {
		return nil
	}
	if gpus.Count > 0 && len(free[nodes[0].Name].cores) < threads*rows {
		nodes, threads = nodes[:1], 0
	}
	enough := func(cores int) int {
		return slices.IndexFunc(nodes, func(n Node) bool { return len(free[n.Name].cores) >= cores })
	}
	only := enough(threads * rows)
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
				return placeStages(devices, 0, gpus, nodes, free)
			}
			node := nodes[i].Name
			left := free[node]
			at = stagePlace{Node: node, Device: on[node], Cores: left.cores[:threads:threads]}
			if gpus.Count > 0 {
				at.GPU = left.gpus[gpus.Of(len(seats), rows)]
			}
			left.cores = left.cores[threads:]
			free[node], seats[device] = left, at
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

// gpus are those of a node, in the order of devices.
func (p placement) gpus(node string) (all []string) {
	for _, at := range p {
		if at.Node == node && at.GPU != "" && !slices.Contains(all, at.GPU) {
			all = append(all, at.GPU)
		}
	}
	return all
}

// tuningPlace is where a tuning measures: on cores and GPUs of one node.
func tuningPlace(node string, r resources, cores, gpus int) placement {
	p := placement{{Node: node, Cores: r.cores[:cores:cores]}}
	for i, uuid := range r.gpus[:gpus] {
		if i > 0 {
			p = append(p, stagePlace{Node: node})
		}
		p[i].GPU = uuid
	}
	return p
}

// within reports whether each place of a placement has cores, or a GPU, and no others than these.
func (p placement) within(all map[string]resources) bool {
	return len(p) > 0 && !slices.ContainsFunc(p, func(at stagePlace) bool {
		other := func(core int) bool { return !slices.Contains(all[at.Node].cores, core) }
		lost := at.GPU != "" && !slices.Contains(all[at.Node].gpus, at.GPU)
		return lost || len(at.Cores) == 0 && at.GPU == "" || slices.ContainsFunc(at.Cores, other)
	})
}

// without are resources by node but for those that a placement takes.
func without(all map[string]resources, p placement) map[string]resources {
	left := maps.Clone(all)
	for _, node := range p.nodes() {
		cores, gpus, have := p.cores(node), p.gpus(node), all[node]
		left[node] = resources{
			cores: slices.DeleteFunc(slices.Clone(have.cores), func(core int) bool { return slices.Contains(cores, core) }),
			gpus:  slices.DeleteFunc(slices.Clone(have.gpus), func(uuid string) bool { return slices.Contains(gpus, uuid) }),
		}
	}
	return left
}

// with are free resources, and the GPUs of a placement that are among all.
func with(free, all map[string]resources, p placement) map[string]resources {
	more := map[string]resources{}
	maps.Copy(more, free)
	for _, node := range p.nodes() {
		one := more[node]
		for _, uuid := range p.gpus(node) {
			if slices.Contains(all[node].gpus, uuid) && !slices.Contains(one.gpus, uuid) {
				one.gpus = append(slices.Clip(one.gpus), uuid)
			}
		}
		more[node] = one
	}
	return more
}

// placementOf is where a job runs. What this program did not write is no place.
func placementOf(j *cluster.Job) (p placement) {
	if json.Unmarshal(j.Placement, &p) != nil {
		return nil
	}
	return p
}
