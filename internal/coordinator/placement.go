package coordinator

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// placement is where a generation of a job runs: each stage of the first group of pipelines, in order, then those of the next. A node has stages of one
// group. The replicated state carries it.
type placement []stagePlace

// stagePlace is where a stage of a group of pipelines runs.
type stagePlace struct {
	Group  int    `json:"group,omitempty"`
	Stage  int    `json:"stage"`
	Node   string `json:"node"`
	Device int    `json:"device"`          // of those that the job has on the node, from 0
	Cores  []int  `json:"cores,omitempty"` // that the device is pinned to; empty: none in particular
	GPU    string `json:"gpu,omitempty"`   // the UUID of the GPU that the device is on, which neighbours may share; empty: on none
	// Laid, of the first stage, is how all are cut and planned for the nodes that they are on; nil: as the job was admitted.
	Laid *spec.Laid `json:"laid,omitempty"`
	// Late, of the first stage, is how many layers are late, where that was chosen for these nodes; nil: the job file says it.
	Late *spec.Late `json:"late,omitempty"`
	// Tau, of the first stage, is how many steps a round has, where that was chosen for these nodes; nil: the job file says it.
	Tau *spec.Tau `json:"tau,omitempty"`
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

// choosePlaces says where a job goes, with what is chosen for the places, and why.
func (c *Coordinator) choosePlaces(o *observed, d decision, rooms []placer.Node) (placement, string) {
	at, why := c.findPlaces(o, d, rooms)
	at, late := c.chooseLate(o, at, rooms)
	at, tau := c.chooseTau(o, at, rooms)
	return at, strings.Join(slices.DeleteFunc([]string{why, late, tau}, func(s string) bool { return s == "" }), "; ")
}

// findPlaces says where a job goes, and why. One that comes back keeps its cores and GPUs, of which those that are sick are replaced; after it has
// waited without them, it gets them again if they are free. nil: nowhere, since the room was given to somebody else.
func (c *Coordinator) findPlaces(o *observed, d decision, rooms []placer.Node) (placement, string) {
	if placed(o.Job) {
		own := slices.Clone(o.place())
		if o.hold == nil {
			rooms = o.withOwn(rooms, own, c.fitting(o, c.all()))
		}
		if own.within(inRooms(rooms, o.want.Unfit)) && !o.lacksAt(own) {
			return own, ""
		}
	}
	want := d.want
	if want.Devices == nil {
		want = o.want.Fitted(rooms)
	}
	if o.spec.Job.Devices.OwnMemory() { // their speed is not that of cores, and not measured
		rooms = slices.Clone(rooms)
		for i := range rooms {
			rooms[i].Speed = 0
		}
	}
	if d.before {
		at, cut := c.lay(o, taken(want, d.placed), rooms)
		return at, d.placed.Reason + cut
	}
	p, err := placer.Place(o.priced(want), rooms, c.links())
	if err != nil {
		return nil, err.Error()
	}
	at, cut := c.lay(o, taken(want, p), rooms)
	return at, p.Reason + cut
}

// tuningPlaces says where a job is tuned; nil: nowhere.
func (c *Coordinator) tuningPlaces(o *observed, rooms []placer.Node) placement {
	here := inRooms(rooms, o.want.Unfit)[c.here.Name]
	if o.cores > len(here.cores) || o.gpus > len(here.gpus) {
		return nil
	}
	return tuningPlace(c.here.Name, here, o.cores, o.gpus)
}

// taken is a placement as the replicated state carries it. Devices that have a whole node share its cores.
func taken(want placer.Job, chosen placer.Placement) (p placement) {
	for _, s := range chosen.Seats {
		at := stagePlace{Group: s.Group, Stage: s.Stage, Node: s.Node, Device: s.Device, Cores: s.Cores, GPU: s.GPU}
		if want.Whole != "" {
			at.Cores = nil
		}
		p = append(p, at)
	}
	return p
}

// roomOf is the room of a node.
func roomOf(rooms []placer.Node, node string) placer.Node {
	if i := slices.IndexFunc(rooms, func(n placer.Node) bool { return n.Name == node }); i >= 0 {
		return rooms[i]
	}
	return placer.Node{Name: node}
}

// inRooms are the cores that are free, and the GPUs that are too and that a job can use, by node that may have stages.
func inRooms(rooms []placer.Node, unfit map[string][]string) map[string]resources {
	free := map[string]resources{}
	for _, n := range rooms {
		if n.Excluded != "" {
			continue
		}
		gpus := slices.DeleteFunc(slices.Clone(n.GPUs), func(uuid string) bool { return slices.Contains(unfit[n.Name], uuid) })
		free[n.Name] = resources{n.Cores, gpus}
	}
	return free
}

// left are rooms without what a placement takes of them.
func (o *observed) left(rooms []placer.Node, p placement) []placer.Node {
	rooms = slices.Clone(rooms)
	free := without(inRooms(rooms, nil), p)
	for i := range rooms {
		n := &rooms[i]
		if slices.Contains(p.nodes(), n.Name) {
			n.Cores, n.GPUs, n.Bytes = free[n.Name].cores, free[n.Name].gpus, n.Bytes-o.bytesOn(p, n.Name)
			if len(p.cores(n.Name)) == 0 && o.cores > 0 {
				n.Cores = nil
			}
		}
	}
	return rooms
}

// withOwn are rooms with what a job has there itself, as far as that is among all.
func (o *observed) withOwn(rooms []placer.Node, own placement, all map[string]resources) []placer.Node {
	rooms = slices.Clone(rooms)
	for i := range rooms {
		n := &rooms[i]
		if !slices.Contains(own.nodes(), n.Name) {
			continue
		}
		n.Bytes += o.bytesOn(own, n.Name)
		cores := own.cores(n.Name)
		if len(cores) == 0 && o.cores > 0 {
			cores = all[n.Name].cores
		}
		for _, core := range cores {
			if slices.Contains(all[n.Name].cores, core) && !slices.Contains(n.Cores, core) {
				n.Cores = append(slices.Clip(n.Cores), core)
			}
		}
		slices.Sort(n.Cores)
		for _, uuid := range own.gpus(n.Name) {
			if slices.Contains(all[n.Name].gpus, uuid) && !slices.Contains(n.GPUs, uuid) {
				n.GPUs = append(slices.Clip(n.GPUs), uuid)
			}
		}
	}
	return rooms
}

// gpusOf counts the GPUs of all nodes.
func gpusOf(all map[string]resources) (n int) {
	for _, r := range all {
		n += len(r.gpus)
	}
	return n
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

// groupOf is the group of pipelines that a node has stages of.
func (p placement) groupOf(node string) int {
	return p[slices.IndexFunc(p, func(at stagePlace) bool { return at.Node == node })].Group
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
	p.takeFrom(left)
	return left
}

// takeFrom takes what a placement has of resources by node.
func (p placement) takeFrom(left map[string]resources) {
	for _, node := range p.nodes() {
		cores, gpus, have := p.cores(node), p.gpus(node), left[node]
		left[node] = resources{
			cores: slices.DeleteFunc(slices.Clone(have.cores), func(core int) bool { return slices.Contains(cores, core) }),
			gpus:  slices.DeleteFunc(slices.Clone(have.gpus), func(uuid string) bool { return slices.Contains(gpus, uuid) }),
		}
	}
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

// place is where the job runs.
func (o *observed) place() placement {
	if o.placedOf != o.Job {
		o.placed, o.placedOf = placementOf(o.Job), o.Job
	}
	return o.placed
}

// placeOf is where the job runs, by a state that may be newer than the last tick's.
func (o *observed) placeOf(j *cluster.Job) placement {
	if j == o.Job {
		return o.place()
	}
	return placementOf(j)
}

// placementOf is where a job runs. What this program did not write is no place.
func placementOf(j *cluster.Job) (p placement) {
	if json.Unmarshal(j.Placement, &p) != nil {
		return nil
	}
	return p
}
