package coordinator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/footprint"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/model"
)

// TestAStatusSaysNothingThatIsOver: what the coordinator waits for, and what holds a commit up, counts while the job goes on alone.
func TestAStatusSaysNothingThatIsOver(t *testing.T) {
	full := &control.Status{Held: "the disk is full"}
	for name, c := range map[string]struct {
		job    cluster.Job
		view   View
		state  api.State
		reason string
	}{
		"training":            {cluster.Job{State: cluster.Running, Reason: "training"}, View{Trains: true, Note: "a commit is due"}, api.Running, "training"},
		"cannot act":          {cluster.Job{State: cluster.Running, Reason: "training"}, View{Trains: true, Failing: true, Note: "no leader"}, api.Running, "training; now: no leader"},
		"a node is silent":    {cluster.Job{State: cluster.Running, Reason: "training"}, View{Trains: true, Unheard: true, Note: "b is silent"}, api.Running, "training; now: b is silent"},
		"a worker is silent":  {cluster.Job{State: cluster.Running, Reason: "training"}, View{Trains: true, Silent: "no answer", Note: "training", Status: full}, api.Running, "training; now: no answer"},
		"it was, and ended":   {cluster.Job{State: cluster.Done, Reason: "done"}, View{Silent: "no answer"}, api.Done, "done"},
		"loading":             {cluster.Job{State: cluster.Starting, Reason: "restarted"}, View{Note: "the worker is loading"}, api.Starting, "restarted; now: the worker is loading"},
		"a commit is held up": {cluster.Job{State: cluster.Running, Reason: "training"}, View{Trains: true, Finished: true, Note: "x", Status: full}, api.Waiting, "training; now: the disk is full"},
		"waiting":             {cluster.Job{State: cluster.Queued, Reason: "resumed"}, View{Waits: true, Note: "the disk is full"}, api.Waiting, "the disk is full"},
		"being cancelled":     {cluster.Job{State: cluster.Running, Cancelling: true, Reason: "cancelling"}, View{Trains: true, Note: "0 of 1 shards", Status: full}, api.Running, "cancelling: 0 of 1 shards"},
		"ended":               {cluster.Job{State: cluster.Cancelled, Reason: "cancelled"}, View{Trains: true, Finished: true, Waits: true, Note: "0 of 1 shards", Status: full}, api.Cancelled, "cancelled"},
	} {
		if s := Status(&c.job, nil, c.view); s.State != c.state || s.Reason != c.reason {
			t.Errorf("%s: %s: %s; want %s: %s", name, s.State, s.Reason, c.state, c.reason)
		}
	}
}

// TestAStatusSaysWhichWorkerDoesNotAnswer once that is a break, and for how long, until it answers again.
func TestAStatusSaysWhichWorkerDoesNotAnswer(t *testing.T) {
	a, b := &worker{process: agent.Process{Node: "a"}, phase: training}, &worker{process: agent.Process{Node: "b"}, phase: training}
	o := &observed{generation: generation{workers: []*worker{a, b}}}
	now := time.Unix(0, 0)
	say := func(of *worker, e agent.Event, want string) {
		t.Helper()
		if o.take(of, e, now); o.silence() != want {
			t.Errorf("after %+v of %s: %q, want %q", e, of.process.Node, o.silence(), want)
		}
	}
	say(a, agent.Event{Silent: time.Second}, "")
	say(a, agent.Event{Silent: 2200 * time.Millisecond}, "the worker on a has not answered for 3s")
	say(b, agent.Event{Silent: 5 * time.Second}, "the worker on b has not answered for 5s")
	say(b, agent.Event{Status: &control.Status{}}, "the worker on a has not answered for 3s")
	say(a, agent.Event{Status: &control.Status{}}, "")
}

// TestAStatusHasWhatWasPredictedBesideWhatIsTaken, and why the job is on GPUs.
func TestAStatusHasWhatWasPredictedBesideWhatIsTaken(t *testing.T) {
	j := job.Default()
	j.Averaging.Tau = 1
	j.Model = job.Model{Family: "gpt2", Config: map[string]any{"n_layer": 2, "n_head": 2, "n_embd": 8, "n_positions": 8, "vocab_size": 256}}
	j.Stages, j.Pipelines, j.MicroBatches, j.Train.Batch, j.Train.Steps, j.Schedule = 2, 2, 2, 4, 10, "1f1b"
	j.Devices.CPU.Threads = 1
	m, err := model.Build(j.Model.Family, j.Model.Config)
	if err != nil {
		t.Fatal(err)
	}
	found, problems := spec.Resolve(j, spec.Facts{Cores: 2, Model: m}, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	const why = "devices.kind auto took cpu: devices.cpu is given"
	admitted, err := spec.New(found, m, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	progress := api.JobStatus{HostBytes: 1 << 20, StageStatus: []api.StageStatus{{Stage: 1, MemoryBytes: 7}}}
	s := Status(&cluster.Job{State: cluster.Running}, admitted, View{Status: &control.Status{Progress: progress}})
	want := admitted.Memory()
	if len(want) != 2 || s.StageStatus[0].PredictedBytes != want[1].OnDevice() || s.StageStatus[0].MemoryBytes != 7 {
		t.Errorf("stage 1 holds %+v; want %v predicted", s.StageStatus[0], want)
	}
	if total := want[0].Total() + want[1].Total() + footprint.ProcessBytes; s.HostBytes != 1<<20 || s.PredictedHostBytes != total || s.DeviceWhy != why || !slices.Contains(admitted.Why, why) {
		t.Errorf("the host: %d bytes, %d predicted, want %d; %q", s.HostBytes, s.PredictedHostBytes, total, s.DeviceWhy)
	}
	placed := cluster.Job{State: cluster.Running, Placement: []byte(`[{"stage":0,"node":"a","device":0},{"stage":1,"node":"b","device":0}]`)}
	if two := Status(&placed, admitted, View{}); two.PredictedHostBytes != s.PredictedHostBytes+footprint.ProcessBytes {
		t.Errorf("of two workers %d bytes are predicted, of one %d", two.PredictedHostBytes, s.PredictedHostBytes)
	}
	if progress.StageStatus[0].PredictedBytes != 0 {
		t.Error("what the worker said was changed")
	}
}

// TestAStatusSaysWhereTheStagesAre: of what the workers of this generation said, on which node each stage is.
func TestAStatusSaysWhereTheStagesAre(t *testing.T) {
	j := cluster.Job{State: cluster.Running, Generation: 2, Placement: []byte(`[{"stage":0,"node":"a","device":0},{"stage":1,"node":"b","device":0}]`)}
	progress := api.JobStatus{StageStatus: []api.StageStatus{{Stage: 1}, {Stage: 0}}}
	for generation, want := range map[uint64]string{2: "b", 1: ""} {
		s := Status(&j, nil, View{Status: &control.Status{Generation: generation, Progress: progress}})
		if !slices.Equal(s.Placement, []api.StageNode{{Stage: 0, Node: "a"}, {Stage: 1, Node: "b"}}) || s.StageStatus[0].Node != want {
			t.Errorf("generation %d: placed %v, stage 1 on %q, want %q", generation, s.Placement, s.StageStatus[0].Node, want)
		}
	}
	if progress.StageStatus[0].Node != "" {
		t.Error("what the worker said was changed")
	}
}

// TestStatusSaysThatProductsRoundToTF32 where GPUs compute, and only there.
func TestStatusSaysThatProductsRoundToTF32(t *testing.T) {
	for kind, want := range map[string]string{job.KindGPU: "tf32", "cpu": "f32"} {
		j := job.Default()
		j.Averaging.Tau = 1
		j.Devices.Kind, j.Devices.GPU = kind, job.GPU{Count: 1, TF32: true}
		if got := Status(&cluster.Job{}, &spec.Spec{Job: *j}, View{}).Precision; got != want {
			t.Errorf("on %s: %s, want %s", kind, got, want)
		}
	}
}

// TestStatusWarnsOfLateDevices once they are later than counts as the times of the devices, and names the latest.
func TestStatusWarnsOfLateDevices(t *testing.T) {
	little, much, more := api.LagBound, 0.031, 0.25
	for name, c := range map[string]struct {
		lags []*float64
		want string
	}{
		"computes on cores": {[]*float64{nil, nil}, ""},
		"in time":           {[]*float64{&little, &little}, ""},
		"late":              {[]*float64{&little, &much, nil}, "the one of stage 1 has been late for 3.1% of the time, and 2% count as none"},
		"two are late":      {[]*float64{&more, &much}, "the one of stage 0 has been late for 25.0% of the time"},
	} {
		var progress api.JobStatus
		for k, lag := range c.lags {
			progress.StageStatus = append(progress.StageStatus, api.StageStatus{Stage: k, Lag: lag})
		}
		found := Status(&cluster.Job{}, nil, View{Status: &control.Status{Progress: progress}}).Warnings
		if text := strings.Join(found, ""); len(found) > 1 || (text == "") != (c.want == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: warnings %q, want one that says %q", name, found, c.want)
		}
	}
}
