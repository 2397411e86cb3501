package spec

import (
	"fmt"
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/job"
)

// counted is a job with its counts by the rules, and why.
func counted(j *job.Job, cores, layers int) (*job.Job, string) {
	x := &resolver{Resolution: &Resolution{Job: *j}}
	why := x.count(cores, layers, int(j.Offered()))
	return &x.Job, why
}

// TestRulesCount holds the rule for automatic counts.
func TestRulesCount(t *testing.T) {
	for _, c := range []struct {
		name                          string
		stages, pipelines, micro, cpu job.Count
		batch                         int
		cores, layers                 int
		want                          string
	}{
		{"a stage for each core", 0, 0, 0, 0, 16, 2, 8, "[2 2 4 2 1]"},
		{"no more stages than layers", 0, 0, 0, 0, 16, 16, 6, "[6 2 16 6 2]"},
		{"one core, one stage, one pipeline", 0, 0, 0, 0, 16, 1, 8, "[1 1 2 1 1]"},
		{"devices before cores", 0, 0, 0, 3, 12, 8, 8, "[3 2 6 3 2]"},
		{"given counts are kept", 4, 3, 8, 0, 16, 2, 8, "[4 3 8 4 1]"},
		{"the larger of two equally near divisors", 3, 0, 0, 0, 32, 8, 8, "[3 2 8 3 2]"}, // 4 and 8 around 6
		{"a prime batch", 2, 0, 0, 0, 13, 8, 8, "[2 2 1 2 4]"},                           // 1 and 13 around 4
		{"a small batch", 4, 0, 0, 0, 2, 8, 8, "[4 2 2 4 2]"},
		{"a node that says nothing", 0, 0, 0, 0, 4, 0, 0, "[1 1 2 1 1]"},
	} {
		j := job.Default()
		j.Stages, j.Pipelines, j.MicroBatches, j.Devices.CPU.Count, j.Train.Batch = c.stages, c.pipelines, c.micro, c.cpu, c.batch
		j, reason := counted(j, c.cores, c.layers)
		got := fmt.Sprint([]job.Count{j.Stages, j.Pipelines, j.MicroBatches, j.Devices.CPU.Count, j.Devices.CPU.Threads})
		if got != c.want {
			t.Errorf("%s: %s (%s), want %s", c.name, got, reason, c.want)
		}
		if c.batch%int(j.MicroBatches) != 0 {
			t.Errorf("%s: %d micro-batches do not divide %d", c.name, j.MicroBatches, c.batch)
		}
	}
	each := job.Default()
	each.Train.Batch, each.Groups = 16, 3
	if got, why := counted(each, 2, 8); got.Pipelines != 6 || got.Shared() != 2 {
		t.Errorf("in 3 groups %d pipelines: %s", got.Pipelines, why)
	}
	j := job.Default()
	j.Train.Batch = 16
	_, reason := counted(j, 2, 8)
	want := "stages 2 (one for each of 2 cores), pipelines 2 (the second works while the first waits), " +
		"micro-batches 4 (the divisor of batch 16 nearest to twice the stages)"
	if reason != want {
		t.Errorf("reason %q\nwant %q", reason, want)
	}
}

// What a node offers is counted, else as many as a list has entries for; and one for each stage where the stages are given.
func TestEmulatedDevicesAreCounted(t *testing.T) {
	for _, c := range []struct {
		set             []string
		devices, stages int
		key             string // of the list that does not fit
	}{
		{[]string{"devices.emulated.count=4"}, 4, 4, ""},
		{[]string{"devices.emulated.count=4", "stages=2"}, 4, 2, ""},
		{[]string{"devices.emulated.count=4", "stages=2", "devices.emulated.memory=[1, 2, 3, 4]"}, 4, 2, ""},
		{[]string{"devices.emulated.flops=[1, 2, 3]"}, 3, 3, ""},
		{[]string{"devices.emulated.flops=[1, 2, 3]", "devices.emulated.memory=[1, 2]"}, 3, 3, "devices.emulated.memory"},
		{[]string{"stages=2", "devices.emulated.flops=[1, 2, 3]"}, 2, 2, "devices.emulated.flops"},
		{[]string{"stages=8"}, 8, 8, ""},
		{nil, 2, 2, ""}, // of the node's cores
	} {
		const source = "version: 1\nmodel: {family: gpt2, config: {}}\ndata: {files: [text]}\noptimizer: {lr: 1e-3}\ntrain: {steps: 8, batch: 16}\n"
		j, _, err := job.Parse("job.yaml", []byte(source), append(c.set, "devices.kind=emulated", "devices.emulated.forward=1ms"), job.Environment{})
		if err != nil {
			t.Fatalf("%v: %v", c.set, err)
		}
		j, why := counted(j, 2, 8)
		devices, stages := int(j.Devices.Emulated.Count), int(j.Stages)
		if devices != c.devices || stages != c.stages {
			t.Errorf("%v: %d stages on %d devices (%s), want %d on %d", c.set, stages, devices, why, c.stages, c.devices)
		}
		if key, message := j.CheckEntries(stages, devices); key != c.key {
			t.Errorf("%v: %q, want %q", c.set, message, c.key)
		}
	}
}

func TestAutomaticSchedulesChangeNoResults(t *testing.T) {
	names := synchronous()
	for _, name := range []string{"gpipe", "1f1b", "afp"} {
		if !slices.Contains(names, name) {
			t.Errorf("%s is missing: %v", name, names)
		}
	}
	for _, name := range []string{"pipedream", "pipedream-2bw"} {
		if slices.Contains(names, name) {
			t.Errorf("%s steps inside of a batch", name)
		}
	}
}
