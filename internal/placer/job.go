package placer

import (
	"slices"

	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// Job is what stages of a job take, and what they cost.
type Job struct {
	Devices []int   // of each stage, the device of the plan that it is on
	Threads int     // cores of each device; 0: none of its own
	GPUs    int     // that the devices are on, neighbours on the same one where there are fewer; 0: none
	Bytes   []int64 // of each stage, what it takes of its host's memory; nil: not known
	// Groups is how many groups of pipelines there are, each with all stages on nodes of its own. What is said here of devices, GPUs, memory and pipelines is
	// that of one. 0: one.
	Groups int
	// Messages are, of each stage, the bytes that a pipeline sends to every other group in the time of a batch; nil: not known.
	Messages []int64
	// Only is the one node that it may be on; "": any may have it.
	Only string
	// Whole is a node that it takes as a whole, and alone: its devices share the cores, and its memory is not looked at. "": none.
	Whole string
	// Unfit are GPUs that it cannot use, by UUID, of each node.
	Unfit map[string][]string
	// Lacking says what nodes lack of that the job reads, so that no stage can be there.
	Lacking map[string]string
	// Spread asks for as many nodes as possible, else for as few.
	Spread bool
	// Plan is run by Pipelines pipelines, at Costs on devices of speed 1, in seconds, whose MessageBytes say what crosses each boundary. Where
	// it is nil, nothing is known of times.
	Plan      schedule.Plan
	Costs     schedule.Costs
	Pipelines int
	// Batches is how many the plan runs on across; 0 is 1.
	Batches int
	// Lay, unless nil, is how the stages would be cut and planned on devices so fast, as multiples of speed 1, each joined to the next by such a link, without a
	// bandwidth where they share a node; false where they stay as they are. Costs are those there.
	Lay func(speeds []float64, links []Link) (schedule.Plan, schedule.Costs, bool)
}

// unit is devices that are on one node together: those of one GPU, or one.
type unit struct {
	rows    []int // devices of the plan
	cores   int
	gpus    int
	bytes   int64
	seconds float64 // that the slowest of its devices, or its GPU, takes for a micro-batch at speed 1
	fill    float64 // that a micro-batch spends on all its stages
	out     int64   // bytes from its last device to the next, a message
}

// rows is how many devices the plan has.
func (j *Job) rows() int {
	if len(j.Devices) == 0 {
		return 0
	}
	return slices.Max(j.Devices) + 1
}

// gpuOf is the GPU of a device, counted from 0, or -1. Neighbours share one where there are fewer.
func (j *Job) gpuOf(row int) int {
	if j.GPUs == 0 {
		return -1
	}
	rows := j.rows()
	return row * min(j.GPUs, rows) / rows
}

// units are those of the job, in the order of devices.
func (j *Job) units() []unit {
	var all []unit
	for row := range j.rows() {
		seconds, fill, bytes := 0.0, 0.0, int64(0)
		out := int64(0)
		for s, device := range j.Devices {
			if device != row {
				continue
			}
			fill += j.stageSeconds(s)
			seconds += j.stageSeconds(s)
			if j.Bytes != nil {
				bytes += j.Bytes[s]
			}
			out = max(out, j.messageBytes(s))
		}
		if row > 0 && j.GPUs > 0 && j.gpuOf(row) == j.gpuOf(row-1) {
			u := &all[len(all)-1]
			u.rows, u.cores, u.bytes = append(u.rows, row), u.cores+j.Threads, u.bytes+bytes
			u.seconds, u.fill, u.out = u.seconds+seconds, u.fill+fill, out
			continue
		}
		u := unit{rows: []int{row}, cores: j.Threads, bytes: bytes, seconds: seconds, fill: fill, out: out}
		if j.GPUs > 0 {
			u.gpus = 1
		}
		all = append(all, u)
	}
	return all
}

// stageSeconds is a micro-batch, forward and backward, of a stage at speed 1.
func (j *Job) stageSeconds(s int) float64 {
	if j.Plan == nil {
		return 0
	}
	return j.Costs.Forward[s] + j.Costs.Backward[s]
}

// messageBytes is what a stage sends to the next.
func (j *Job) messageBytes(s int) int64 {
	if s >= len(j.Costs.MessageBytes) {
		return 0
	}
	return j.Costs.MessageBytes[s]
}

// microBatches is how many a batch is cut into.
func (j *Job) microBatches() float64 {
	if j.Plan == nil {
		return 1
	}
	return float64(max(1, j.Plan.MicroBatches())) / float64(max(1, j.Batches))
}

// mostOps bounds the plans that are simulated: a placement is chosen within a tenth of a second.
const mostOps = tuner.MostSimulated / 4

// price is the costs with each device as fast as its node, and each message on the link between its nodes.
func (j *Job) price(nodes []Node, of []int, links Links) schedule.Costs {
	c := j.Costs
	for _, list := range []*[]float64{&c.Forward, &c.Backward, &c.BackwardInput, &c.BackwardWeight, &c.Update, &c.Average} {
		*list = slices.Clone(*list)
		for s := range *list {
			(*list)[s] /= nodes[of[j.Devices[s]]].speed()
		}
	}
	boundaries := len(j.Devices) - 1
	c.Link, c.Bandwidth = make([]float64, boundaries), make([]float64, boundaries)
	c.MessageBytes = make([]int64, boundaries)
	for s := range boundaries {
		a, b := of[j.Devices[s]], of[j.Devices[s+1]]
		c.MessageBytes[s] = j.messageBytes(s)
		if a != b {
			link := links.Between(nodes[a].Name, nodes[b].Name)
			c.Link[s], c.Bandwidth[s] = link.RoundTrip.Seconds()/2, link.BitsPerSecond/8
		}
	}
	return c
}

// seconds predicts a batch, by the simulator where the plan is small enough for that; of is the node of each device. 0: nothing is known.
func (j *Job) seconds(nodes []Node, of []int, links Links) float64 {
	if j.Plan == nil {
		return 0
	}
	if j.Plan.Ops()*max(1, j.Pipelines) <= mostOps {
		load := schedule.Load{Pipelines: j.Pipelines, MicroBatches: int(j.microBatches()), AverageEvery: 1, Shares: j.shares(of)}
		plan, costs := j.laid(nodes, of, links)
		if period, err := tuner.Period(plan, costs, load); err == nil {
			return period
		}
	}
	return j.estimate(nodes, of, links)
}

// laid is the plan and its costs as they would be: cut anew where several nodes are crossed.
func (j *Job) laid(nodes []Node, of []int, links Links) (schedule.Plan, schedule.Costs) {
	if j.Lay != nil && len(slices.Compact(slices.Sorted(slices.Values(of)))) > 1 {
		speeds, between := make([]float64, len(of)), make([]Link, len(of)-1)
		for d, n := range of {
			speeds[d] = nodes[n].speed()
			if d > 0 && of[d-1] != n {
				between[d-1] = links.Between(nodes[of[d-1]].Name, nodes[n].Name)
			}
		}
		if plan, costs, ok := j.Lay(speeds, between); ok {
			return plan, costs
		}
	}
	return j.Plan, j.price(nodes, of, links)
}

// shares is, of each device, the first that is on the same GPU; nil where none shares one.
func (j *Job) shares(of []int) []int {
	if j.GPUs == 0 || j.GPUs >= len(of) {
		return nil
	}
	all := make([]int, len(of))
	for row := range all {
		all[row] = row
		if row > 0 && j.gpuOf(row) == j.gpuOf(row-1) {
			all[row] = all[row-1]
		}
	}
	return all
}

// estimate is a batch by its slowest device or link, and the time in which the pipeline fills and drains.
func (j *Job) estimate(nodes []Node, of []int, links Links) float64 {
	units, slowest, fill := j.units(), 0.0, 0.0
	for _, u := range units {
		speed := nodes[of[u.rows[0]]].speed()
		slowest, fill = max(slowest, u.seconds/speed), fill+u.fill/speed
	}
	for s := range len(j.Devices) - 1 {
		a, b := of[j.Devices[s]], of[j.Devices[s+1]]
		if a == b {
			continue
		}
		arrives, occupies := links.Between(nodes[a].Name, nodes[b].Name).message(j.messageBytes(s))
		slowest, fill = max(slowest, occupies), fill+2*arrives
	}
	return j.batch(slowest, fill)
}

// batch is what a batch takes whose slowest device or link takes so long for a micro-batch, which all of them together take so long for.
func (j *Job) batch(slowest, fill float64) float64 {
	m := j.microBatches()
	return max((fill-slowest)/float64(max(1, j.Batches))+m*slowest, float64(max(1, j.Pipelines))*m*slowest)
}
