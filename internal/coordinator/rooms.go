package coordinator

import (
	"math"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/schedule"
)

// rooms are the nodes, in their order, with what is free of each: cores and GPUs that nobody has, and memory that was promised to no job. What is free of it at the
// moment says little: Linux gives memory out when it is first touched, and a worker that loads has touched next to nothing.
func (c *Coordinator) rooms(s snapshot) []placer.Node {
	free, all := c.free(s), c.all()
	nodes := c.nodes()
	rooms := make([]placer.Node, 0, len(nodes))
	for _, n := range nodes {
		rooms = append(rooms, placer.Node{
			Name: n.Name, Cores: free[n.Name].cores, GPUs: free[n.Name].gpus, Bytes: n.MemoryBytes, Excluded: c.shut(n), Speed: speedOf(n.GFLOPs, nodes[0].GFLOPs),
			All:     placer.Capacity{Cores: len(n.Cores), GPUs: len(all[n.Name].gpus), Bytes: n.MemoryBytes},
			Unknown: len(n.Cores) == 0 && !n.Reach.Down,
		})
	}
	c.recall(rooms, s.jobs)
	for _, o := range s.jobs {
		if !o.holdsCores() {
			continue
		}
		at := o.place()
		if o.taking != nil {
			at = o.taking
		}
		if o.State == cluster.Tuning {
			if n := &rooms[0]; !o.tunes() && o.taking == nil { // between two attempts
				n.Cores = n.Cores[min(o.cores, len(n.Cores)):]
			}
			continue
		}
		for _, name := range at.nodes() {
			i, member := c.members.Load().at[name]
			if !member {
				continue
			}
			n := &rooms[i]
			if len(at.cores(name)) == 0 && o.cores > 0 { // its devices share them
				n.Cores = nil
			}
			n.Bytes -= o.bytesOn(at, name)
		}
	}
	return rooms
}

// recall gives nodes that nobody has heard of since this one leads, as those that were gone before, what jobs have had of them. Else a job that had
// more than the others have would be taken for one that asks for more than there is.
func (c *Coordinator) recall(rooms []placer.Node, jobs []*observed) {
	for i := range rooms {
		n := &rooms[i]
		if n.All.Cores > 0 {
			continue
		}
		cores, gpus := map[int]bool{}, map[string]bool{}
		for _, o := range jobs {
			if o.Generation == 0 || o.State.Ended() {
				continue
			}
			for _, core := range o.place().cores(n.Name) {
				cores[core] = true
			}
			for _, uuid := range o.place().gpus(n.Name) {
				gpus[uuid] = true
			}
		}
		n.All.Cores, n.All.GPUs = len(cores), len(gpus)
	}
}

// speedStep is how much faster a node must be to be taken for faster: measurements of one host differ by less.
const speedStep = 1.25

// speedOf is how fast a node is, compared with the one on which jobs are tuned, in whole steps; 0: nobody knows.
func speedOf(gflops, here float64) float64 {
	if gflops <= 0 || here <= 0 {
		return 0
	}
	return math.Pow(speedStep, math.Round(math.Log(gflops/here)/math.Log(speedStep)))
}

// bytesOn is what a job is promised of a node's memory.
func (o *observed) bytesOn(at placement, node string) (sum int64) {
	for _, s := range at {
		if s.Node == node && s.Stage < len(o.want.Bytes) {
			sum += o.want.Bytes[s.Stage]
		}
	}
	return sum
}

// wanted is what a job asks for: devices for its stages, or those that its tuning tries, here.
func (c *Coordinator) wanted(s *spec.Spec, unfit map[string][]string) placer.Job {
	want := placer.Job{GPUs: s.GPUs() / s.Groups(), Unfit: unfit, Groups: s.Groups(), Pipelines: s.Job.Shared()}
	if s.Job.Open() {
		want.Only, want.Threads = c.here.Name, 1
		for i := range max(1, s.Cores(len(c.here.Cores)), want.GPUs) {
			want.Devices = append(want.Devices, i)
		}
		return want
	}
	want.Devices, want.Threads, want.Bytes = s.Placement(), int(s.Job.Devices.CPU.Threads), s.StageBytes()
	want.Spread = s.Job.Placement == "spread"
	return want
}

// unfit are the GPUs of each node that have less memory than a job may take of each: the host may have got others since it was admitted.
func (c *Coordinator) unfit(s *spec.Spec) map[string][]string {
	if s.GPUs() == 0 {
		return nil
	}
	all := map[string][]string{}
	for _, n := range c.nodes() {
		for _, g := range n.usable() {
			if g.MemoryBytes < int64(s.Job.Devices.GPU.Memory) {
				all[n.Name] = append(all[n.Name], g.UUID)
			}
		}
	}
	return all
}

// priced is what a job asks for, with what its stages cost, so that ways to place it can be told apart by time.
func (o *observed) priced(want placer.Job) placer.Job {
	costs, _, ok := o.spec.Price()
	plan, _, err := o.spec.Plan()
	if !ok || err != nil {
		return want
	}
	want.Plan, want.Costs, want.Messages = plan, costs, o.spec.Messages()
	want.Batches = plan.Batches(int(o.spec.Job.MicroBatches))
	if o.spec.Groups() > 1 { // all have one cut
		return want
	}
	survey := sync.OnceValues(o.spec.Survey)
	want.Lay = func(speeds []float64, links []placer.Link) (schedule.Plan, schedule.Costs, bool) {
		v, err := survey()
		if err != nil {
			return nil, schedule.Costs{}, false
		}
		laid, err := v.Lay(spec.Ground{Speeds: speeds, Links: links}, 0)
		if err != nil {
			return nil, schedule.Costs{}, false
		}
		plan, _, err := o.spec.Over(laid).Plan()
		return plan, laid.Layout.Costs, err == nil
	}
	return want
}

// holdersOf are the jobs that hold something, and when they are expected to give it back.
func holdersOf(s snapshot) (all []placer.Holder) {
	for _, o := range s.jobs {
		at := o.place()
		if !o.holdsCores() || o.taking != nil || o.State == cluster.Tuning {
			continue // nobody knows how long
		}
		h := placer.Holder{ID: o.ID, Held: map[string]placer.Held{}}
		for _, node := range at.nodes() {
			h.Held[node] = placer.Held{Cores: at.cores(node), GPUs: at.gpus(node), Bytes: o.bytesOn(at, node)}
		}
		if o.status != nil && o.phase() == training && o.status.Progress.ETAS != nil {
			h.Ends = s.now.Add(time.Duration(*o.status.Progress.ETAS * float64(time.Second)))
		}
		all = append(all, h)
	}
	return all
}

// How long a job that waits is taken to hold its place, beside what is predicted: predictions err, and workers load.
const (
	takesLonger = 1.5
	takesMore   = time.Minute
)

// takes bounds how long a job will hold its place once it has one; 0: nobody knows.
func (o *observed) takes() (bound time.Duration) {
	if o.spec.Job.Open() {
		return 0
	}
	if most := o.spec.Job.Train.MaxTime; most > 0 {
		bound = most + takesMore
	}
	if r, b := o.spec.Report, o.spec.Budget; r != nil && b != nil {
		done := uint64(0)
		if m := o.LastCommitted(); m != nil {
			done = ofRound(m).Step
		}
		seconds := takesLonger * r.Chosen.Predicted.BatchSeconds * float64(max(b.Steps, done)-done)
		if predicted := time.Duration(seconds*float64(time.Second)) + takesMore; bound == 0 || predicted < bound {
			bound = predicted
		}
	}
	return bound
}
