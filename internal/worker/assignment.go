package worker

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// loadAssignment reads and checks the file that the daemon wrote.
func loadAssignment(path string) (control.Assignment, schedule.Plan, error) {
	fail := func(err error) (control.Assignment, schedule.Plan, error) {
		return control.Assignment{}, nil, fmt.Errorf("worker: assignment %s: %w", path, err)
	}
	a, err := control.ReadAssignment(path)
	if err != nil {
		return a, nil, err
	}
	plan, err := schedule.Parse(strings.Join(a.Plan, "\n"))
	if err != nil {
		return fail(err)
	}
	if err := checkAssignment(a, plan); err != nil {
		return fail(err)
	}
	if err := schedule.Check(plan, int(a.Spec.Job.MicroBatches)); err != nil {
		return fail(err)
	}
	return a, plan, nil
}

// checkAssignment refuses what cannot be computed, or would be indexed out of its range. A daemon of this version never writes it.
func checkAssignment(a control.Assignment, plan schedule.Plan) error {
	stages := plan.Stages()
	unresolved := func(count job.Count) bool { return count < 1 }
	switch spec := a.Spec.Job; {
	case a.JobID == "" || a.Generation == 0:
		return fmt.Errorf("job %q generation %d: both must be given", a.JobID, a.Generation)
	case !filepath.IsAbs(a.Dir):
		return fmt.Errorf("dir %q is not an absolute path", a.Dir)
	case unresolved(spec.Stages) || unresolved(spec.Pipelines) || unresolved(spec.MicroBatches) ||
		unresolved(spec.Devices.CPU.Count) || unresolved(spec.Devices.CPU.Threads):
		return fmt.Errorf("stages %d, pipelines %d, micro_batches %d, devices.cpu.count %d, devices.cpu.threads %d: every count must be resolved",
			spec.Stages, spec.Pipelines, spec.MicroBatches, spec.Devices.CPU.Count, spec.Devices.CPU.Threads)
	case spec.Devices.Kind == job.KindGPU && slices.ContainsFunc(a.Stages, func(at control.StagePlace) bool { return at.GPU == "" }):
		return errors.New("a stage has no GPU; devices.kind is gpu")
	case len(plan) != int(spec.Stages) || len(a.Stages) != stages:
		return fmt.Errorf("the plan has %d devices and %d stages, the job %d devices and %d stage places",
			len(plan), stages, spec.Stages, len(a.Stages))
	case len(a.Groups) != spec.Groups && max(len(a.Groups), spec.Groups) > 1 || a.Group < 0 || a.Group >= max(1, len(a.Groups)) || int(spec.Pipelines)%max(1, spec.Groups) != 0:
		return fmt.Errorf("it is of group %d, with places of %d groups; the job has %d pipelines in %d groups, evenly", a.Group, len(a.Groups), spec.Pipelines, max(1, spec.Groups))
	case slices.ContainsFunc(a.Groups, func(of []control.StagePlace) bool { return len(of) != stages }):
		return fmt.Errorf("a group does not have %d stage places: %v", stages, a.Groups)
	case spec.Averaging.Tau < 1:
		return fmt.Errorf("a round of %d steps; it has at least 1", spec.Averaging.Tau)
	case a.Spec.Budget != nil && (a.Spec.Budget.Steps < 1 || a.Spec.Budget.Steps%uint64(spec.Averaging.Tau) != 0):
		return fmt.Errorf("%d steps are not a whole number of rounds of %d steps", a.Spec.Budget.Steps, spec.Averaging.Tau)
	case len(spec.Recompute) > 1 && len(spec.Recompute) != stages:
		return fmt.Errorf("recompute has entries for %d stages of %d", len(spec.Recompute), stages)
	case spec.Train.Batch%int(spec.MicroBatches) != 0:
		return fmt.Errorf("batch %d is not a multiple of %d micro-batches", spec.Train.Batch, spec.MicroBatches)
	}
	if r := a.Restore; r != nil && (len(r.Shards) == 0 || len(r.Cursors) == 0) {
		return fmt.Errorf("restore of round %d: %d shards and %d cursors; it has at least one of each", r.Round, len(r.Shards), len(r.Cursors))
	}
	return nil
}
