package coordinator

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/drift"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Status joins what is known of a job: what its workers report, or failing that its last committed round; what was admitted, nil where
// that cannot be read; and what the cluster has agreed on, which wins. It is a pure function.
func Status(j *cluster.Job, s *spec.Spec, v View) api.JobStatus {
	var out, durable api.JobStatus
	at, last := placementOf(j), j.LastCommitted()
	if last != nil {
		durable = ofRound(last)
		out = durable
	}
	if v.Status != nil {
		out = v.Status.Progress
	}
	if s != nil {
		admit(&out, s)
	}
	out.ID, out.Name, out.State, out.Generation, out.Submitted = j.ID, j.Name, api.State(j.State), j.Generation, j.Submitted
	out.Reason, out.Ended = reasonOf(j, v), j.Ended
	out.OwnerUID = j.Owner
	if !j.State.Ended() && (v.Waits || v.Finished && held(v) != "") {
		out.State = api.Waiting
	}
	if last != nil {
		out.CommittedRound, out.Staleness = last.Round, durable.Staleness
		// What the worker said may be older than the commit, and a worker that has only just been started says less.
		out.Step, out.Round = max(out.Step, durable.Step), max(out.Round, durable.Round)
		out.SamplesSeen = max(out.SamplesSeen, durable.SamplesSeen)
	}
	if out.State != api.Running {
		out.ETAS, out.BatchS = nil, nil
	} else {
		out.Drift = v.Drift
	}
	if s != nil && s.Report != nil {
		seconds := drift.Expectation(&s.Report.Chosen).BatchSeconds
		out.PredictedBatchS = &seconds
	}
	if out.State == api.Tuning {
		out.Tuning = v.Tuning
	}
	if v.Few != "" {
		out.Warnings = append(slices.Clip(out.Warnings), v.Few)
	}
	if late := lateDevice(out.StageStatus); late != "" {
		out.Warnings = append(slices.Clip(out.Warnings), late)
	}
	out.Warnings, out.Recompute = append([]string{}, out.Warnings...), append([]string{}, out.Recompute...) // JSON: [], not null
	out.StageStatus, out.LinkStatus = append([]api.StageStatus{}, out.StageStatus...), append([]api.LinkStatus{}, out.LinkStatus...)
	locate(&out, j, at, v)
	if s != nil {
		out.Ages = s.Ages()
		out.StaleLayers = at.lateStatus()
		out.Tau = at.tauStatus()
		sayCritical(&out, s)
		out.DeviceWhy, out.PredictedHostBytes = s.DeviceWhy(), s.WorkersBytes(max(len(at.nodes()), s.Groups()))
		predicted := s.Memory()
		for i := range out.StageStatus {
			if on := &out.StageStatus[i]; on.Stage < len(predicted) {
				on.PredictedBytes = predicted[on.Stage].Counted()
			}
		}
	}
	return out
}

// locate adds where the stages are, or were last.
func locate(out *api.JobStatus, j *cluster.Job, where placement, v View) {
	out.Placement = nil
	for _, at := range where {
		out.Placement = append(out.Placement, api.StageNode{Group: at.Group, Stage: at.Stage, Node: at.Node})
		for i := range out.StageStatus {
			if on := &out.StageStatus[i]; on.Group == at.Group && on.Stage == at.Stage && v.Status.Generation == j.Generation {
				on.Node = at.Node
			}
		}
	}
}

// lateDevice warns of the emulated device that was late for most of the time, where that is more than counts as its own; "": of none.
func lateDevice(stages []api.StageStatus) string {
	most := -1
	for i, s := range stages {
		if s.Lag != nil && *s.Lag > api.LagBound && (most < 0 || *s.Lag > *stages[most].Lag) {
			most = i
		}
	}
	if most < 0 {
		return ""
	}
	return fmt.Sprintf("times are not those of the devices that the job emulates: the one of stage %d has been late for %.1f%% of the time, and %.0f%% count as none; "+
		"take a smaller model, longer times, or fewer devices for the cores of the node", stages[most].Stage, 100**stages[most].Lag, 100*api.LagBound)
}

// admit adds what was admitted.
func admit(out *api.JobStatus, s *spec.Spec) {
	out.Budget = s.Job.Train.Budget()
	if s.Budget != nil {
		out.Steps, out.BudgetSamples = s.Budget.Steps, s.Budget.Samples
	} else if s.Job.Open() {
		out.BudgetSamples = s.Job.Wanted(0)
	}
	out.Stages, out.Pipelines, out.MicroBatches = int(s.Job.Stages), int(s.Job.Pipelines), int(s.Job.MicroBatches)
	out.Groups = s.Groups()
	out.Schedule, out.Averaging = s.Job.Schedule, s.Averaging()
	out.Parameters, out.Trained = s.Parameters, cmp.Or(s.Trained, s.Parameters)
	out.Warnings, out.OutputDir = s.Warnings, s.Job.Output.Dir
	if out.Precision = s.Job.Precision; s.GPUs() > 0 && s.Job.Devices.GPU.TF32 {
		out.Precision = "tf32"
	}
	out.Family, out.Task, out.Recompute = s.Job.Model.Family, s.Task, s.Job.Recompute
}

// reasonOf says why a job is in its state: what the cluster has agreed on, and while that is not the whole story, what the
// coordinator is at.
func reasonOf(j *cluster.Job, v View) string {
	switch {
	case j.State.Ended() || v.Silent == "" && (v.Note == "" || v.Note == j.Reason):
		return j.Reason
	case v.Waits:
		return v.Note
	case v.Silent != "" && !j.Cancelling && (j.State == cluster.Running || j.State == cluster.Starting): // what else is known is older
		return j.Reason + "; now: " + v.Silent
	case v.Trains && held(v) != "" && !j.Cancelling:
		return j.Reason + "; now: " + held(v)
	case j.Cancelling:
		return j.Reason + ": " + v.Note
	case j.State == cluster.Running && v.Trains && !v.Failing && !v.Unheard:
		return j.Reason
	case j.State == cluster.Running || j.State == cluster.Starting:
		return j.Reason + "; now: " + v.Note
	}
	return v.Note
}

// held says why the workers cannot write a commit yet, or why the last one failed; "" when nothing is in the way.
func held(v View) string {
	if v.Status == nil {
		return v.Fault
	}
	return cmp.Or(v.Status.Held, v.Fault)
}

// ofRound is what a committed round says of its job.
func ofRound(m *cluster.Manifest) api.JobStatus {
	meta := control.MetaOf(m)
	out := api.JobStatus{
		Round: m.Round, SamplesSeen: m.SamplesSeen, Loss: meta.Loss, EvalLoss: meta.EvalLoss, EvalRound: meta.EvalRound,
		Metrics: meta.Metrics, InitialLoss: meta.InitialLoss, ElapsedS: meta.ElapsedS, CriticalBatch: control.CriticalBatch(meta.Noise),
	}
	out.Staleness = staleness(m.Round, meta.Distances)
	if b := meta.Budget; b != nil {
		out.Steps, out.BudgetSamples = b.Steps, b.Samples
	}
	for i, c := range m.Cursors {
		if i == 0 || c.Step < out.Step {
			out.Step = c.Step
		}
	}
	return out
}

// Published is what the coordinator knew at the end of a tick. Nothing in it changes afterwards.
type Published struct {
	Tick      time.Time
	Jobs      map[string]View // by id; a job that is missing has not been looked at yet
	FreeCores int
	Links     map[[2]string]Link // that were measured, by the names of their ends, the lesser first
}

// View is what the coordinator knows of a job beside the replicated state.
type View struct {
	Status   *control.Status // of the current, or the last, workers, joined; nil: none was heard
	Note     string          // what the coordinator is at with the job, for people
	Failing  bool            // the last choice could not be carried out
	Unheard  bool            // a worker cannot be heard, as its node does not answer; Note says which
	Silent   string          // which worker does not answer its node's daemon, and for how long; "": all do
	Fault    string          // why the last commit failed; "" when it did not
	Nodes    []string        // where a worker runs
	Trains   bool            // all workers run and have begun to
	Finished bool            // and have reached their final round
	Waits    bool            // for an obstacle to pass
	Few      string          // why its shards have fewer copies than they are to have; "": they have enough
	Drift    *api.Drift
	Tuning   *api.TuneProgress
}

// lateCopies says which copies a commit waits for, once that takes a while.
func (o *observed) lateCopies(now time.Time) string {
	if o.wholeAt.IsZero() || now.Sub(o.wholeAt) < time.Second {
		return ""
	}
	return o.uncopied
}

// silence says which worker has not answered for longest, where that is a break: it may be stopped, and is not killed before responseAfter. "": all answer.
func (g *generation) silence() string {
	var longest *worker
	for _, w := range g.living() {
		if w.silent >= longestGap && (longest == nil || w.silent > longest.silent) {
			longest = w
		}
	}
	if longest == nil {
		return ""
	}
	return fmt.Sprintf("the worker%s has not answered for %v", g.of(longest), longest.silent.Round(time.Second))
}

// Published returns what the last tick published.
func (c *Coordinator) Published() *Published { return c.published.Load() }

// publish makes known what the coordinator knows.
func (c *Coordinator) publish(free int) {
	p := &Published{Tick: c.ticked, Jobs: make(map[string]View, len(c.jobs)), FreeCores: free, Links: c.ways.known}
	nodes := len(c.nodes())
	for id, o := range c.jobs {
		v := View{
			Status: o.status, Note: o.note, Failing: !o.notBefore.IsZero(), Unheard: len(o.unheard()) > 0, Fault: cmp.Or(o.fault, o.lateCopies(c.ticked)), Waits: o.waits(), Drift: o.drift.Now,
			Trains: o.phase() == training || o.phase() == finished, Finished: o.phase() == finished,
		}
		for _, w := range o.living() {
			v.Nodes = append(v.Nodes, w.process.Node)
		}
		v.Silent = o.silence()
		if o.spec != nil && nodes > 1 && o.spec.Job.Center.Replicas > nodes {
			v.Few = fmt.Sprintf("center.replicas is %d and the cluster has %d nodes: there are %d copies of each shard", o.spec.Job.Center.Replicas, nodes, nodes)
		}
		if o.tuning != nil {
			v.Tuning = o.tuning.show()
		}
		p.Jobs[id] = v
	}
	c.published.Store(p)
}
