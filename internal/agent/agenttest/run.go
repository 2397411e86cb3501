package agenttest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/job"
)

// Rig is an agent under test, on an empty host whose programs are the fake worker and the fake tuning.
type Rig struct {
	Agent agent.Agent
	// Job makes the directory of a job.
	Job func(id string)
	// Log reads a job's log.
	Log func(id string) string
	// Another returns an agent of the same host that did not start what runs there, as after a restart of the daemon; nil where no
	// process outlives its agent.
	Another func() agent.Agent
}

// Run holds an agent to what agent.Agent says.
func Run(t *testing.T, open func(t *testing.T) Rig) {
	for name, test := range map[string]func(*testing.T, Rig){
		"a worker trains, commits and stops": testWorker,
		"a killed worker is told of":         testKill,
		"a failing worker says why":          testFailure,
		"what has ended is no process":       testEnded,
		"two workers never train":            testOneWorker,
		"a tuning reports":                   testTuning,
		"a tuning is killed":                 testKilledTuning,
		"workers are found and taken over":   testAnother,
		"events end with their context":      testCancelled,
		"a line is added to a job's log":     testLog,
		"a job's files are kept and deleted": testFiles,
		"shards are kept while needed":       testShards,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, open(t))
		})
	}
}

// Assignment is one of the fake worker: so many rounds.
func Assignment(id, name string, generation, rounds uint64) control.Assignment {
	return control.Assignment{
		JobID: id, Generation: generation, Spec: spec.Spec{Version: spec.Version, Job: trainJob(name), Budget: &job.Budget{Steps: rounds, Samples: 4 * rounds}},
		Stages: []control.StagePlace{{}},
	}
}

func trainJob(name string) job.Job {
	j := *job.Default()
	j.Name, j.Stages, j.Pipelines, j.MicroBatches, j.Train.Batch = name, 1, 1, 1, 4
	j.Model.Family = "gpt2"
	j.Model.Config = map[string]any{"vocab_size": 16, "n_positions": 4, "n_embd": 4, "n_layer": 1, "n_head": 1}
	return j
}

// seen are the events of a process.
type seen struct {
	events chan agent.Event
	done   chan error
}

func watch(ctx context.Context, a agent.Agent, p agent.Process) *seen {
	s := &seen{events: make(chan agent.Event, 1<<14), done: make(chan error, 1)}
	go func() {
		s.done <- a.Events(ctx, p, func(e agent.Event) { s.events <- e })
		close(s.events)
	}()
	return s
}

// until waits for an event.
func (s *seen) until(t *testing.T, what string, holds func(agent.Event) bool) agent.Event {
	t.Helper()
	timeout := time.After(Patience)
	for {
		select {
		case e, ok := <-s.events:
			if !ok {
				t.Fatalf("the events ended with %v before: %s", <-s.done, what)
			}
			if holds(e) {
				return e
			}
		case <-timeout:
			t.Fatalf("after %v, not yet: %s", Patience, what)
		}
	}
}

// end waits for the exit, which is the last event.
func (s *seen) end(t *testing.T) agent.Exit {
	t.Helper()
	e := s.until(t, "the process has ended", func(e agent.Event) bool { return e.Exit != nil })
	for e := range s.events {
		t.Errorf("an event after the exit: %+v", e)
	}
	if err := <-s.done; err != nil {
		t.Errorf("the events ended with %v", err)
	}
	return *e.Exit
}

func start(t *testing.T, r Rig, a control.Assignment) (agent.Process, *seen) {
	t.Helper()
	r.Job(a.JobID)
	p, err := r.Agent.Start(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if p.Job != a.JobID || p.Generation != a.Generation || p.Node == "" || p.ID == (process.ID{}) {
		t.Errorf("started %+v", p)
	}
	return p, watch(t.Context(), r.Agent, p)
}

func is(kind control.EventKind) func(agent.Event) bool {
	return func(e agent.Event) bool { return e.Worker != nil && e.Worker.Kind == kind }
}

func trains(e agent.Event) bool { return e.Status != nil && e.Status.Job.Round > 0 }

func testWorker(t *testing.T, r Rig) {
	p, s := start(t, r, Assignment("1", "long", 3, 1e6))
	s.until(t, "it has started", is(control.Started))
	e := s.until(t, "it trains", trains)
	if e.Status.Generation != 3 || e.Status.JobID != "1" || e.Process != p {
		t.Errorf("it says %+v of %+v", e.Status, e.Process)
	}
	answer, err := r.Agent.Commit(t.Context(), p, control.CommitRequest{Generation: 3, Round: 1})
	if err != nil || answer.Accepted || answer.Earliest == 0 {
		t.Errorf("a round that has passed: %+v, %v", answer, err)
	}
	now, err := r.Agent.Status(t.Context(), p)
	if err != nil || now.Job.Round < e.Status.Job.Round {
		t.Fatalf("asked how it is: %+v, %v", now, err)
	}
	round := now.NextCommit + 100
	answer, err = r.Agent.Commit(t.Context(), p, control.CommitRequest{Generation: 3, Round: round, Stop: true})
	if err != nil || !answer.Accepted {
		t.Fatalf("round %d: %+v, %v", round, answer, err)
	}
	if e := s.until(t, "a shard is durable", is(control.Shard)); e.Worker.Round != round || e.Worker.Shard == nil {
		t.Errorf("%+v", e.Worker)
	}
	s.until(t, "it has finished", is(control.Finished))
	if err := r.Agent.Stop(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if x := s.end(t); x.Code != control.ExitDone || !x.Known {
		t.Errorf("it ended: %+v", x)
	}
}

func testKill(t *testing.T, r Rig) {
	p, s := start(t, r, Assignment("1", "long", 1, 1e6))
	s.until(t, "it trains", trains)
	if err := r.Agent.Kill(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if x := s.end(t); x.Code != -1 || x.How != "signal: killed" {
		t.Errorf("it ended: %+v", x)
	}
}

func testFailure(t *testing.T, r Rig) {
	_, s := start(t, r, Assignment("1", "nan-at-20", 1, 1e6))
	if e := s.until(t, "it has failed", is(control.FailedNow)); !e.Worker.Permanent {
		t.Errorf("%+v", e.Worker)
	}
	if x := s.end(t); x.Code != control.ExitFailed {
		t.Errorf("it ended: %+v", x)
	}
	_, s = start(t, r, Assignment("2", "crash-at-20", 1, 1e6))
	if x := s.end(t); x.Code != 7 || x.Trouble != "fake worker: crash in round 20" {
		t.Errorf("it ended: %+v", x)
	}
}

func testEnded(t *testing.T, r Rig) {
	p, s := start(t, r, Assignment("1", "long", 1, 1e6))
	s.until(t, "it trains", trains)
	if err := r.Agent.Kill(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	_, status := r.Agent.Status(t.Context(), p)
	_, commit := r.Agent.Commit(t.Context(), p, control.CommitRequest{})
	events := r.Agent.Events(t.Context(), p, func(e agent.Event) { t.Errorf("%+v", e) })
	for i, err := range []error{status, commit, events, r.Agent.Stop(t.Context(), p)} {
		if !errors.Is(err, agent.ErrNoProcess) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if err := r.Agent.Kill(t.Context(), p); err != nil {
		t.Errorf("killed twice: %v", err)
	}
}

func testOneWorker(t *testing.T, r Rig) {
	_, first := start(t, r, Assignment("1", "long", 1, 1e6))
	first.until(t, "it trains", trains)
	second, _ := start(t, r, Assignment("1", "long", 2, 1e6))
	if x := first.end(t); x.How != "signal: killed" {
		t.Errorf("the first ended: %+v", x)
	}
	found, err := r.Agent.Processes(t.Context())
	if err != nil || len(found) != 1 || found[0].Process.ID != second.ID {
		t.Errorf("running are %+v, %v; want %+v", found, err, second)
	}
	if err := r.Agent.Kill(t.Context(), second); err != nil {
		t.Error(err)
	}
}

func testAnother(t *testing.T, r Rig) {
	if r.Another == nil {
		envtest.Impossible(t, "no process outlives this agent")
	}
	p, s := start(t, r, Assignment("1", "long", 4, 1e6))
	s.until(t, "it trains", trains)
	a := r.Another()
	found, err := a.Processes(t.Context())
	if err != nil || len(found) != 1 || found[0].Process != p || found[0].Status == nil || found[0].Status.Job.Round == 0 {
		t.Fatalf("found %+v, %v; want %+v", found, err, p)
	}
	again := watch(t.Context(), a, p)
	again.until(t, "it trains", trains)
	if err := a.Stop(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if x := again.end(t); x.Known || x.Code != -1 {
		t.Errorf("it ended: %+v", x)
	}
}

func testCancelled(t *testing.T, r Rig) {
	r.Job("1")
	p, err := r.Agent.Start(t.Context(), Assignment("1", "long", 1, 1e6))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	s := watch(ctx, r.Agent, p)
	s.until(t, "it trains", trains)
	enough := fmt.Errorf("enough")
	cancel(enough)
	if err := <-s.done; !errors.Is(err, enough) {
		t.Errorf("the events ended with %v", err)
	}
	if err := r.Agent.Kill(t.Context(), p); err != nil {
		t.Error(err)
	}
}

func testLog(t *testing.T, r Rig) {
	r.Job("1")
	r.Agent.Log("1", zap.InfoLevel, "placed", zap.Int("cores", 2))
	timeout := time.Now().Add(Patience)
	for r.Log("1") == "" && time.Now().Before(timeout) {
		time.Sleep(time.Millisecond)
	}
	if text := r.Log("1"); text == "" {
		t.Error("nothing was written")
	}
}
