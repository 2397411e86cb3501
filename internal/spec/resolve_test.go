package spec_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/tuner"
)

const emulatedJob = `version: 1
name: emulated
model: {family: gpt2, config: {n_layer: 6, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}}
data: {files: [text]}
optimizer: {lr: 1e-3}
train: {steps: 8, batch: 16}
stages: 4
pipelines: 2
micro_batches: 4
schedule: gpipe
devices: {kind: emulated, emulated: {forward: 0.1ms}}
`

var refJob = strings.NewReplacer("name: emulated", "name: large", "n_layer: 6", "n_layer: 2", "stages: 4", "stages: 2",
	"{kind: emulated, emulated: {forward: 0.1ms}}", "{kind: ref}").Replace(emulatedJob)

// parsed is a job file, with changes, and what it is resolved by on a node with so much memory.
func parsed(t *testing.T, source string, memory int64, set ...string) (*job.Job, spec.Facts) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "text"), []byte(strings.Repeat("some text\n", 500)), 0o600); err != nil {
		t.Fatal(err)
	}
	j, _, err := job.Parse("job.yaml", []byte(source), set, job.Environment{
		Families: model.Families(), Schedules: schedule.Names(), Methods: elastic.Settings(),
	})
	if err != nil {
		t.Fatal(err)
	}
	j.Absolute(dir)
	m, err := model.Build(j.Model.Family, j.Model.Config)
	if err != nil {
		t.Fatal(err)
	}
	return j, spec.Facts{Cores: 2, MemoryBytes: memory, Model: m}
}

// resolve resolves it.
func resolve(t *testing.T, source string, memory int64, set ...string) (*spec.Resolution, error) {
	t.Helper()
	j, facts := parsed(t, source, memory, set...)
	found, problems := spec.Resolve(j, facts, nil)
	if len(problems) > 0 {
		return nil, problems
	}
	return found, nil
}

func emulated(t *testing.T, set ...string) (*spec.Resolution, error) {
	t.Helper()
	return resolve(t, emulatedJob, 0, set...)
}

// emulatedSpec is the spec of a job on emulated devices.
func emulatedSpec(t *testing.T, set ...string) (*spec.Spec, error) {
	t.Helper()
	j, facts := parsed(t, emulatedJob, 0, set...)
	found, problems := spec.Resolve(j, facts, nil)
	if len(problems) > 0 {
		return nil, problems
	}
	return spec.New(found, facts.Model, nil, false)
}

// onDevices is what each stage of a job on emulated devices takes.
func onDevices(t *testing.T, set ...string) (bytes []int64) {
	t.Helper()
	found, err := emulated(t, append(slices.Clone(set), "devices.emulated.memory=1e15")...)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range found.Memory {
		bytes = append(bytes, m.OnDevice())
	}
	return bytes
}

// most is what the fullest of them takes.
func most(t *testing.T, set ...string) int64 { return slices.Max(onDevices(t, set...)) }

// TestResolvedJobsStayAsTheyAre: Resolve of a resolved job, with the facts and the report that it was resolved by, changes nothing.
func TestResolvedJobsStayAsTheyAre(t *testing.T) {
	chosen := &tuner.Report{Version: tuner.ReportVersion, Chosen: tuner.Candidate{
		Devices: 2, Chunks: 1, Pipelines: 3, MicroBatches: 8, Schedule: "1f1b", Threads: 1, Recompute: []string{"none", "block"},
		Split: [][2]int{{0, 5}, {5, 8}}, Costs: schedule.Uniform(2, 1, 2, 0),
	}}
	rules := []string{"tuning=rules", "stages=auto", "pipelines=auto", "micro_batches=auto", "schedule=auto", "recompute=auto", "chunks=auto"}
	for name, c := range map[string]struct {
		source string
		memory int64
		report *tuner.Report
		set    []string
	}{
		"given":                       {refJob, 0, nil, nil},
		"rules":                       {refJob, 1e12, nil, rules},
		"rules, devices too small":    {emulatedJob, 0, nil, append(rules, "stages=4", fmt.Sprintf("devices.emulated.memory=%d", most(t, rules[0], "schedule=afp")-100))},
		"several stages on a device":  {emulatedJob, 0, nil, []string{"schedule=interleaved", "stages=2"}},
		"a tuning":                    {refJob, 0, chosen, []string{"model.config.n_layer=6", "stages=auto", "pipelines=auto", "micro_batches=auto", "schedule=auto", "recompute=auto"}},
		"rules, since tuning is dear": {refJob, 0, &tuner.Report{Ruled: "it would take too long"}, []string{"stages=auto", "schedule=auto"}},
		"samples, in bf16":            {refJob, 1e12, nil, []string{"train={samples: 1000, batch: 16}", "precision=bf16", "averaging.pull=old", "tuning=rules"}},
	} {
		j, facts := parsed(t, c.source, c.memory, c.set...)
		before := *j
		once, problems := spec.Resolve(j, facts, c.report)
		if len(problems) > 0 || once.Job.Open() {
			t.Errorf("%s: %v, open: %v", name, problems, once.Job.Open())
			continue
		}
		if !reflect.DeepEqual(*j, before) {
			t.Errorf("%s: the job was changed", name)
		}
		twice, problems := spec.Resolve(&once.Job, facts, c.report)
		if len(problems) > 0 {
			t.Errorf("%s: once more: %v", name, problems)
			continue
		}
		once.Why, twice.Why = nil, nil // what was decided is given the second time
		if !reflect.DeepEqual(once, twice) {
			t.Errorf("%s: resolved to\n%+v\nand that to\n%+v", name, once, twice)
		}
	}
}

// TestAveragingThatCannotBeIsRefusedOnce, and not at the schedule as well, whose memory nobody can tell then.
func TestAveragingThatCannotBeIsRefusedOnce(t *testing.T) {
	j, facts := parsed(t, refJob, 0, "pipelines=2", "averaging={method: allreduce, tau: 2}")
	_, problems := spec.Resolve(j, facts, nil)
	if len(problems) != 1 || problems[0].Key != "averaging.tau" || !strings.Contains(problems[0].Message, "averaging.tau is 2") {
		t.Errorf("%d problems: %v", len(problems), problems)
	}
}

// TestAveragesOfIteratesAreNotPredicted: asgd's passes compute with iterates that are not the parameters.
func TestAveragesOfIteratesAreNotPredicted(t *testing.T) {
	for prediction, want := range map[string]string{"local": "optimizer.name", "none": ""} {
		j, facts := parsed(t, refJob, 0, "pipelines=2", "optimizer.name=asgd", "averaging={method: sapipe, stale_layers: 2, prediction: "+prediction+"}")
		_, problems := spec.Resolve(j, facts, nil)
		if want == "" && len(problems) > 0 || want != "" && (len(problems) != 1 || problems[0].Key != want || !strings.Contains(problems[0].Message, "write name: sgd, adam or adamw")) {
			t.Errorf("prediction %s: %v", prediction, problems)
		}
	}
}

// TestTiedWeightsWaitOnlyWhereTheyAreTrained: a schedule that steps inside of the batch cannot add the gradients of both ends.
func TestTiedWeightsWaitOnlyWhereTheyAreTrained(t *testing.T) {
	lora := []string{"schedule=pipedream", "lora={targets: [c_attn]}"}
	for _, c := range []struct {
		set     []string
		refused bool
	}{{lora, false}, {lora[:1], true}, {append(lora, "train.only=[wte.weight]"), true}} {
		j, facts := parsed(t, refJob, 0, c.set...)
		var err error
		if facts.Model, err = facts.Model.Train(jobfile.Training(j)); err != nil {
			t.Fatal(err)
		}
		_, problems := spec.Resolve(j, facts, nil)
		if refused := problems != nil && strings.Contains(problems.Error(), "is tied to"); refused != c.refused || !refused && problems != nil {
			t.Errorf("%v: %v; want it refused: %v", c.set, problems, c.refused)
		}
	}
}

// TestAdaptersLargerThanTheirLayersAreWarnedOf: others take such a rank without a word.
func TestAdaptersLargerThanTheirLayersAreWarnedOf(t *testing.T) {
	for rank, want := range map[string]bool{"32": false, "33": true} {
		j, facts := parsed(t, refJob, 1<<36, "lora={targets: [c_attn], rank: "+rank+"}")
		var err error
		if facts.Model, err = facts.Model.Train(jobfile.Training(j)); err != nil {
			t.Fatal(err)
		}
		found, problems := spec.Resolve(j, facts, nil)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if warned := strings.Contains(strings.Join(found.Warnings, "\n"), "lora.rank is "+rank+", and "); warned != want {
			t.Errorf("rank %s of layers of width 32: %q", rank, found.Warnings)
		}
	}
}

// TestACriticalBatchThatNothingWeighsIsWarnedOf.
func TestACriticalBatchThatNothingWeighsIsWarnedOf(t *testing.T) {
	for critical, want := range map[string]bool{"0": false, "64": true} {
		found, err := resolve(t, refJob, 0, "pipelines=2", "train.critical_batch="+critical)
		if err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(fmt.Sprint(found.Warnings), "train.critical_batch is 64 and nothing weighs it"); warned != want {
			t.Errorf("%s: %v", critical, found.Warnings)
		}
	}
}

// TestABudgetThatRoundsMultiplyIsWarnedOf.
func TestABudgetThatRoundsMultiplyIsWarnedOf(t *testing.T) {
	for pipelines, want := range map[string]bool{"pipelines=2": false, "pipelines=32": true} {
		found, err := resolve(t, refJob, 0, pipelines, "train.steps=8")
		if err != nil {
			t.Fatal(err)
		}
		if warned := strings.Contains(fmt.Sprint(found.Warnings), "asks for 128 samples and trains on 512: 32 pipelines take 512 in a round"); warned != want {
			t.Errorf("%s: %v", pipelines, found.Warnings)
		}
	}
}

// TestAWarmUpOfTheWholeRunIsWarnedOf: no gradient would be late. A single pipeline has none that are.
func TestAWarmUpOfTheWholeRunIsWarnedOf(t *testing.T) {
	for _, c := range []struct {
		pipelines, warmup string
		want              bool
	}{{"2", "3", false}, {"2", "4", true}, {"1", "8", false}} {
		found, err := resolve(t, refJob, 0, "pipelines="+c.pipelines, "train.steps=8", "averaging={method: pipesgd, warmup: "+c.warmup+"}")
		if err != nil {
			t.Fatal(err)
		}
		said := "averaging.warmup is " + c.warmup + " and each pipeline takes 4 steps: no gradient is ever late"
		if warned := strings.Contains(fmt.Sprint(found.Warnings), said); warned != c.want {
			t.Errorf("%+v: %q", c, found.Warnings)
		}
	}
}

// TestAPlanRunsOnAcrossTheBatchesOfARound where it steps inside of them, also of a single pipeline; the user is told what a longer round would do.
func TestAPlanRunsOnAcrossTheBatchesOfARound(t *testing.T) {
	for _, c := range []struct {
		schedule     string
		tau, batches int
	}{{"pipedream", 1, 1}, {"pipedream", 4, 4}, {"pipedream-2bw", 4, 4}, {"1f1b", 4, 1}} {
		j, facts := parsed(t, refJob, 0, "schedule="+c.schedule, fmt.Sprintf("averaging.tau=%d", c.tau), "pipelines=1", "model.config.tie_word_embeddings=false")
		found, problems := spec.Resolve(j, facts, nil)
		if problems != nil {
			t.Fatal(problems)
		}
		if got := found.Plan.Batches(int(found.Job.MicroBatches)); got != c.batches {
			t.Errorf("%s, tau %d: the plan is of %d batches, want %d", c.schedule, c.tau, got, c.batches)
		}
		why := strings.Join(found.Why, "\n")
		if told := strings.Contains(why, "with a larger averaging.tau it runs on"); told != (c.tau == 1) {
			t.Errorf("%s, tau %d: the reasons are %s", c.schedule, c.tau, why)
		}
		if across := strings.Contains(why, "runs on across the 4 batches of a round"); across != (c.batches == 4) {
			t.Errorf("%s, tau %d: the reasons are %s", c.schedule, c.tau, why)
		}
	}
}

// TestCoresThatAreSharedAreCountedOverAllGroups.
func TestCoresThatAreSharedAreCountedOverAllGroups(t *testing.T) {
	for groups, want := range map[string]string{
		"groups=1": "", "groups=2": "the job computes on 4 cores (2 groups of 2 stages of 1 thread) and the nodes have 3",
	} {
		j, facts := parsed(t, refJob, 0, groups)
		facts.Hosts = []spec.Host{{Name: "a", Cores: 2}, {Name: "b", Cores: 1}}
		found, problems := spec.Resolve(j, facts, nil)
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if warned := strings.Contains(fmt.Sprint(found.Warnings), "they are shared"); warned != (want != "") || !strings.Contains(fmt.Sprint(found.Warnings), want) {
			t.Errorf("%s: %v, want %q", groups, found.Warnings, want)
		}
	}
}

// TestAnEmulatedDeviceComputesOnOneThread, however many cores there are: others of the job share them.
func TestAnEmulatedDeviceComputesOnOneThread(t *testing.T) {
	for source, want := range map[string]job.Count{emulatedJob: 1, refJob: 4} {
		j, facts := parsed(t, source, 1<<36, "stages=1")
		facts.Cores = 4
		if found, problems := spec.Resolve(j, facts, nil); len(problems) > 0 || found.Job.Devices.CPU.Threads != want {
			t.Errorf("%s: %d threads, %v; want %d", j.Name, found.Job.Devices.CPU.Threads, problems, want)
		}
	}
}
