package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// checkOpen checks what is given of a job that is tuned before it starts. What is not known yet is checked by resolve.
func (a *admission) checkOpen() {
	stages, devices := int(a.job.Stages), int(a.job.Devices.CPU.Count)
	if devices > 0 && devices < stages {
		a.refuseDevices(devices, stages)
	}
	if n := len(a.job.Recompute); n > 1 && stages == 0 {
		a.refuse("recompute", "", "recompute has entries for %d stages, and how many there are is to be measured (stages: auto); "+
			"give stages, or a word that stands for all", n)
	}
	if stages > 0 && a.job.MicroBatches > 0 && a.job.Schedule != job.AutoSchedule {
		pipelines := max(1, int(a.job.Pipelines)) // as good as any: no plan depends on them
		a.checkPlan(job.Counts{Stages: stages, Pipelines: pipelines, MicroBatches: int(a.job.MicroBatches)})
	}
}

func (a *admission) refuseDevices(devices, stages int) {
	a.refuse("devices.cpu.count", strconv.Itoa(stages),
		"devices.cpu.count is %d for %d stages; every stage computes on a device of its own", devices, stages)
}

// resolve returns the spec with what a tuning chose, for a node with so many cores.
func (s *spec) resolve(r *tuner.Report, cores int) (*spec, error) {
	c := &r.Chosen
	out := *s
	j := &out.Job
	if err := agrees(&s.Job, c); err != nil {
		return nil, fmt.Errorf("resolve job %s: %w", s.Job.Name, err)
	}
	j.Stages, j.Pipelines, j.MicroBatches = job.Count(c.Stages), job.Count(c.Pipelines), job.Count(c.MicroBatches)
	j.Schedule, j.Chunks = c.Schedule, job.Count(max(1, c.Chunks))
	if len(c.Recompute) > 0 {
		j.Recompute = oneForAll(c.Recompute)
	}
	if c.Threads > 0 {
		j.Devices.CPU.Threads = job.Count(c.Threads)
	}
	counts, _ := job.Resolve(j, job.Facts{Cores: cores, Layers: max(c.Stages, layersOf(c))})
	j.Devices.CPU.Count, j.Devices.CPU.Threads = job.Count(counts.Devices), job.Count(counts.Threads)
	if j.Averaging.Alpha == 0 {
		j.Averaging.Alpha = elastic.DefaultAlpha(c.Pipelines)
	}
	out.Layout = &layout{Costs: c.Costs, PinnedLimit: c.PinnedLimit, Split: c.Split}
	plan, why, err := out.plan()
	if err == nil {
		err = schedule.Check(plan, c.MicroBatches, schedule.Limits{})
	}
	if err != nil {
		return nil, fmt.Errorf("resolve job %s: the plan that tuning chose: %w", s.Job.Name, err)
	}
	out.Why = append(slices.Clone(s.Why), fmt.Sprintf("stages %d, pipelines %d, micro-batches %d: %s", c.Stages, c.Pipelines, c.MicroBatches, tunedBy(r)),
		"schedule "+c.Schedule+": "+why)
	out.Warnings = append(slices.Clone(s.Warnings), sharedCores(counts, cores)...)
	return &out, nil
}

// agrees checks that a choice keeps to what the job's file gives.
func agrees(j *job.Job, c *tuner.Candidate) error {
	for _, k := range []struct {
		key           string
		given, chosen int
	}{
		{"stages", int(j.Stages), c.Stages}, {"chunks", int(j.Chunks), max(1, c.Chunks)}, {"pipelines", int(j.Pipelines), c.Pipelines}, {"micro_batches", int(j.MicroBatches), c.MicroBatches},
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

// maxReport bounds what Raft's log is given to keep of a tuning.
const maxReport = 256 << 10

// encodeReport is a report for the replicated state. One that is too large loses runners-up from its end.
func encodeReport(r *tuner.Report) (json.RawMessage, error) {
	short := *r
	for {
		text, err := json.Marshal(&short)
		if err != nil {
			return nil, fmt.Errorf("encode the report of a tuning: %w", err)
		}
		n := len(short.RunnersUp)
		if len(text) <= maxReport || n == 0 {
			return text, nil
		}
		short.RunnersUp = short.RunnersUp[:n/2]
	}
}

// readReport reads the report of a tuned job; nil of one that was not tuned.
func readReport(j *elastic.Job) (*tuner.Report, error) {
	if len(j.Report) == 0 {
		return nil, nil
	}
	var r tuner.Report
	if err := json.Unmarshal(j.Report, &r); err != nil {
		return nil, fmt.Errorf("job %s: decode the report of its tuning: %w", j.ID, err)
	}
	if r.Version != tuner.ReportVersion {
		return nil, fmt.Errorf("job %s: the report of its tuning has version %d, this program reads %d", j.ID, r.Version, tuner.ReportVersion)
	}
	return &r, nil
}
