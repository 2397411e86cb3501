package spec

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

// checkOpen checks what is given of a job that is tuned before it starts. What is not known yet is checked by resolve.
func (a *admission) checkOpen() {
	stages, devices := int(a.job.Stages), int(a.job.Offered())
	if devices > 0 && devices < stages {
		a.refuseDevices(devices, stages)
	}
	if devices == 0 {
		devices = stages
	}
	if stages > 0 && a.job.MicroBatches > 0 && a.job.Schedule != job.AutoSchedule {
		pipelines := max(1, int(a.job.Pipelines)) // as good as any: no plan depends on them
		a.checkPlan(job.Counts{Stages: stages, Pipelines: pipelines, MicroBatches: int(a.job.MicroBatches), Devices: devices})
		return
	}
	a.checkOpenLists(stages, devices)
}

// checkOpenLists checks the lists of a job of which not all counts are given. A candidate for which recompute has no entries is left
// out; emulated devices would have to make times up.
func (a *admission) checkOpenLists(stages, devices int) {
	lists, open := a.job.EachStage(), "stages: auto"
	known := stages * max(1, int(a.job.Chunks)) // 0: not known
	if stages > 0 && a.job.Schedule == job.AutoSchedule && a.job.Chunks == job.Auto {
		known, open = 0, "schedule: auto, and some have several on a device"
		delete(lists, "recompute")
	}
	if known > 0 {
		lists = nil
	}
	for _, key := range slices.Sorted(maps.Keys(lists)) {
		a.refuse(key, "", "%s has entries for %d stages, and how many there are is to be measured (%s); give that, or a value that stands for all",
			key, lists[key], open)
	}
	if key, problem := a.job.CheckEntries(known, devices); key != "" {
		a.refuse(key, "", "%s", problem)
	}
}

func (a *admission) refuseDevices(devices, stages int) {
	a.refuse(a.job.OfferedKey(), strconv.Itoa(stages),
		"%s is %d for %d stages; every stage computes on a device of its own", a.job.OfferedKey(), devices, stages)
}

// Resolve returns the spec with what a tuning chose, for a node with so many cores.
func (s *Spec) Resolve(r *tuner.Report, cores int) (*Spec, error) {
	if r.Ruled != "" {
		return s.ByRules(cores, r.Ruled)
	}
	c := &r.Chosen
	out := *s
	j := &out.Job
	if err := Agrees(&s.Job, c); err != nil {
		return nil, fmt.Errorf("resolve job %s: %w", s.Job.Name, err)
	}
	j.Stages, j.Pipelines, j.MicroBatches = job.Count(c.Devices), job.Count(c.Pipelines), job.Count(c.MicroBatches)
	j.Schedule, j.Chunks = c.Schedule, job.Count(max(1, c.Chunks))
	if len(c.Recompute) > 0 {
		j.Recompute = oneForAll(c.Recompute)
	} else if j.RecomputeOpen() {
		j.Recompute = kinds[:1]
	}
	if c.Threads > 0 {
		j.Devices.CPU.Threads = job.Count(c.Threads)
	}
	counts, _ := job.Resolve(j, job.Facts{Cores: cores, Layers: max(c.Devices, layersOf(c))})
	counts.Devices = max(counts.Devices, int(s.Job.Offered()))
	j.Take(counts)
	resolveAveraging(j, c.Pipelines)
	budget := out.setBudget()
	out.Layout = &Layout{Costs: c.Costs, PinnedLimit: c.InFlightLimit, Split: c.Split}
	plan, why, err := out.Plan()
	if err == nil {
		err = schedule.Check(plan, c.MicroBatches, schedule.Limits{})
	}
	if err != nil {
		return nil, fmt.Errorf("resolve job %s: the plan that tuning chose: %w", s.Job.Name, err)
	}
	if err := out.holds(plan); err != nil {
		return nil, fmt.Errorf("resolve job %s: the plan that tuning chose: %w", s.Job.Name, err)
	}
	out.Why = append(slices.Clone(s.Why), fmt.Sprintf("stages %d, pipelines %d, micro-batches %d: %s", c.Devices, c.Pipelines, c.MicroBatches, tunedBy(r)),
		"schedule "+c.Schedule+": "+why, budget)
	if s.Job.RecomputeOpen() {
		out.Report = r
		out.Why = append(out.Why, out.whyRecompute())
	}
	out.Warnings = slices.Clone(s.Warnings)
	if s.Budget == nil { // else it was warned at admission
		out.warnOfRounds()
	}
	if j.Devices.Kind != job.KindEmulated { // which need no cores
		out.Warnings = append(out.Warnings, sharedCores(counts, cores)...)
	}
	return &out, nil
}

// resolveAveraging decides what the number of pipelines decides about their averaging, where the job leaves it open.
func resolveAveraging(j *job.Job, pipelines int) {
	a := &j.Averaging
	if a.Alpha == 0 {
		a.Alpha = elastic.DefaultAlpha(elastic.PullRule(a.Pull), pipelines)
	}
	if a.RateScale == job.AutoFactor {
		a.RateScale = job.Factor(elastic.DefaultRateScale(stage.Adaptive(j.Optimizer.Name), pipelines))
	}
}

// holds checks that lists fit the counts that were chosen, and that the devices hold their stages. A plan may come from a cache,
// and whoever filled that may count otherwise.
func (s *Spec) holds(plan schedule.Plan) error {
	if key, problem := s.Job.CheckEntries(plan.Stages(), int(s.Job.Devices.CPU.Count)); key != "" {
		return errors.New(problem)
	}
	if !boundedMemory(&s.Job) {
		return nil
	}
	m, err := model.FromHuggingFace(s.Model)
	if err != nil {
		return err
	}
	p, err := newPricer(m, &s.Job, plan.Stages(), s.Layout.Split)
	if err != nil {
		return err
	}
	short, err := p.short(plan)
	if err != nil || len(short) == 0 {
		return err
	}
	return fmt.Errorf("%w; submit it again with --retune", &short[0])
}

// Agrees checks that a choice keeps to what the job's file gives.
func Agrees(j *job.Job, c *tuner.Candidate) error {
	for _, k := range []struct {
		key           string
		given, chosen int
	}{
		{"stages", int(j.Stages), c.Devices}, {"chunks", int(j.Chunks), max(1, c.Chunks)}, {"pipelines", int(j.Pipelines), c.Pipelines}, {"micro_batches", int(j.MicroBatches), c.MicroBatches},
	} {
		if k.chosen < 1 || k.given > 0 && k.given != k.chosen {
			return fmt.Errorf("tuning chose %s %d, the job file says %d", k.key, k.chosen, k.given)
		}
	}
	if j.Schedule != job.AutoSchedule && j.Schedule != c.Schedule {
		return fmt.Errorf("tuning chose the schedule %s, the job file says %s", c.Schedule, j.Schedule)
	}
	return nil
}

// layersOf is the number of layers that a candidate cuts.
func layersOf(c *tuner.Candidate) int {
	if len(c.Split) == 0 {
		return 0
	}
	return c.Split[len(c.Split)-1][1]
}

// oneForAll is a list, or its one word when all are the same.
func oneForAll(words []string) []string {
	if len(slices.Compact(slices.Clone(words))) == 1 {
		return words[:1:1]
	}
	return slices.Clone(words)
}

// tunedBy says what a choice rests on.
func tunedBy(r *tuner.Report) string {
	text := fmt.Sprintf("the fastest of %d candidates, by a profile", r.Considered)
	if m := r.Chosen.Measured; m != nil {
		text = fmt.Sprintf("the fastest of %d candidates, %.4g samples/s in a short run", r.Considered, m.SamplesPerSecond)
	}
	if r.Cached {
		text += " of an earlier tuning"
	}
	return text
}

// sharedCores warns where a job computes on more cores than there are.
func sharedCores(c job.Counts, cores int) []string {
	need := c.Stages * c.Threads
	if need <= cores {
		return nil
	}
	return []string{fmt.Sprintf("the job computes on %d cores (%d stages of %d threads) and the node has %d: they are shared, so it runs slower than it could",
		need, c.Stages, c.Threads, cores)}
}

// MaxReport bounds what Raft's log is given to keep of a tuning.
const MaxReport = 256 << 10

// EncodeReport is a report for the replicated state. One that is too large loses runners-up from its end.
func EncodeReport(r *tuner.Report) (json.RawMessage, error) {
	short := *r
	for {
		text, err := json.Marshal(&short)
		if err != nil {
			return nil, fmt.Errorf("encode the report of a tuning: %w", err)
		}
		n := len(short.RunnersUp)
		if len(text) <= MaxReport || n == 0 {
			return text, nil
		}
		short.RunnersUp = short.RunnersUp[:n/2]
	}
}

// readReport reads the report of a tuned job; nil of one that was not tuned.
func readReport(id string, text json.RawMessage) (*tuner.Report, error) {
	if len(text) == 0 || string(text) == "null" { // as it is written where there is none
		return nil, nil
	}
	var r tuner.Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("job %s: decode the report of its tuning: %w", id, err)
	}
	if r.Version != tuner.ReportVersion {
		return nil, fmt.Errorf("job %s: the report of its tuning has version %d, this program reads %d", id, r.Version, tuner.ReportVersion)
	}
	return &r, nil
}

// ByRules returns the spec with what is open decided by the rules, for a node with so many cores, since measuring would cost too much.
func (s *Spec) ByRules(cores int, why string) (*Spec, error) {
	m, err := model.FromHuggingFace(s.Model)
	if err != nil {
		return nil, fmt.Errorf("resolve job %s: %w", s.Job.Name, err)
	}
	j := s.Job
	j.Tuning = job.TuneByRules
	a := &admission{cores: cores, job: &j, model: m, Spec: *s}
	a.Spec.Why, a.Spec.Warnings = append(append([]string{}, s.Why...), why), append([]string{}, s.Warnings...)
	if a.checkLayout() {
		a.decideCounts()
	}
	if len(a.problems) > 0 {
		return nil, fmt.Errorf("resolve job %s by the rules: %w", s.Job.Name, a.problems)
	}
	if a.job.Stages == job.Auto {
		return nil, errors.New("resolve job " + s.Job.Name + ": the rules left its stages open")
	}
	a.Spec.Job = j
	a.Spec.Why = append(a.Spec.Why, a.Spec.setBudget())
	if s.Budget == nil {
		a.Spec.warnOfRounds()
	}
	return &a.Spec, nil
}
