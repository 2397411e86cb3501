package job

import "strings"

// Open reports whether a measurement is to decide anything about the job. Where a file holds the plan, there is little left to
// measure, and the rules decide it.
func (j *Job) Open() bool {
	return j.Tuning == TuneByProfile && !strings.HasPrefix(j.Schedule, planFile) && len(j.OpenKeys()) > 0
}

// OpenKeys are the keys that a tuning chooses, of those that the job leaves to the program.
func (j *Job) OpenKeys() (keys []string) {
	for _, k := range []struct {
		key  string
		open bool
	}{
		{"stages", j.Stages == Auto},
		{"pipelines", j.Pipelines == Auto},
		{"micro_batches", j.MicroBatches == Auto},
		{"schedule", j.Schedule == AutoSchedule},
		{"recompute", j.RecomputeOpen()},
	} {
		if k.open {
			keys = append(keys, k.key)
		}
	}
	return keys
}
