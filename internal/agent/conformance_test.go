package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestMain makes this binary the fake worker and the fake tuning as well.
func TestMain(m *testing.M) {
	if len(os.Args) == 4 && os.Args[2] == "--assignment" {
		os.Exit(agenttest.Worker(os.Args[3]))
	}
	if len(os.Args) == 4 && os.Args[2] == "--request" {
		os.Exit(agenttest.Tune(os.Args[3]))
	}
	goleak.VerifyTestMain(m)
}

func TestLocalIsAnAgent(t *testing.T) {
	for name, processes := range map[string]func(*testing.T) agent.Processes{
		"of processes":  func(*testing.T) agent.Processes { return nil },
		"of goroutines": func(t *testing.T) agent.Processes { return agenttest.NewProcesses(t) },
	} {
		t.Run(name, func(t *testing.T) {
			conforms(t, func(t *testing.T) rig {
				dir, err := os.MkdirTemp("", "agent-") //nolint:usetesting // t.TempDir's path is too long for a socket
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() {
					if err := os.RemoveAll(dir); err != nil {
						t.Error(err)
					}
				})
				p := processes(t)
				return rig{
					agent: agenttest.Open(t, "a", dir, p), another: func() agent.Agent { return agenttest.Open(t, "a", dir, p) },
					log: func(id string) string {
						text, _ := os.ReadFile(control.LogPath(agent.JobDir(dir, id))) // it may not be there yet
						return string(text)
					},
				}
			})
		})
	}
}

// rig is an agent under test, on an empty host whose programs are the fake worker and the fake tuning.
type rig struct {
	agent agent.Agent
	// log reads a job's log.
	log func(id string) string
	// another returns an agent of the same host that did not start what runs there, as after a restart of the daemon.
	another func() agent.Agent
}

// conforms holds an agent to what agent.Agent says.
func conforms(t *testing.T, open func(t *testing.T) rig) {
	for name, test := range map[string]func(*testing.T, rig){
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
	timeout := time.After(agenttest.Patience)
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
			t.Fatalf("after %v, not yet: %s", agenttest.Patience, what)
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

// record makes the directory of a job.
func record(t *testing.T, r rig, id string) {
	t.Helper()
	if err := r.agent.Record(t.Context(), &cluster.Job{ID: id}, false); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, r rig, a control.Assignment) (agent.Process, *seen) {
	t.Helper()
	record(t, r, a.JobID)
	p, err := r.agent.Start(t.Context(), a)
	if err != nil {
		t.Fatal(err)
	}
	if p.Job != a.JobID || p.Generation != a.Generation || p.Node == "" || p.ID == (process.ID{}) {
		t.Errorf("started %+v", p)
	}
	return p, watch(t.Context(), r.agent, p)
}

func is(kind control.EventKind) func(agent.Event) bool {
	return func(e agent.Event) bool { return e.Worker != nil && e.Worker.Kind == kind }
}

func trains(e agent.Event) bool { return e.Status != nil && e.Status.Progress.Round > 0 }

// commit has a round committed, earliest or a later one, and returns its number: the worker trains on while it is asked.
func commit(t *testing.T, r rig, p agent.Process, earliest uint64, stop bool) uint64 {
	t.Helper()
	for {
		round := earliest + 100
		answer, err := r.agent.Commit(t.Context(), p, control.CommitRequest{Generation: p.Generation, Round: round, Stop: stop})
		if err != nil || !answer.Accepted && answer.Earliest <= earliest {
			t.Fatalf("round %d: %+v, %v", round, answer, err)
		}
		if answer.Accepted {
			return round
		}
		earliest = answer.Earliest
	}
}

func testWorker(t *testing.T, r rig) {
	p, s := start(t, r, agenttest.Assignment("1", "long", 3, 1e6))
	s.until(t, "it has started", is(control.Started))
	e := s.until(t, "it trains", trains)
	if e.Status.Generation != 3 || e.Status.JobID != "1" || e.Process != p {
		t.Errorf("it says %+v of %+v", e.Status, e.Process)
	}
	answer, err := r.agent.Commit(t.Context(), p, control.CommitRequest{Generation: 3, Round: 1})
	if err != nil || answer.Accepted || answer.Earliest == 0 {
		t.Errorf("a round that has passed: %+v, %v", answer, err)
	}
	now, err := r.agent.Status(t.Context(), p)
	if err != nil || now.Progress.Round < e.Status.Progress.Round {
		t.Fatalf("asked how it is: %+v, %v", now, err)
	}
	round := commit(t, r, p, now.NextCommit, true)
	if e := s.until(t, "a shard is durable", is(control.Shard)); e.Worker.Round != round || e.Worker.Shard == nil {
		t.Errorf("%+v", e.Worker)
	}
	s.until(t, "it has finished", is(control.Finished))
	if err := r.agent.Stop(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if x := s.end(t); x.Code != control.ExitDone || !x.Known {
		t.Errorf("it ended: %+v", x)
	}
}

func testKill(t *testing.T, r rig) {
	p, s := start(t, r, agenttest.Assignment("1", "long", 1, 1e6))
	s.until(t, "it trains", trains)
	if err := r.agent.Kill(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if x := s.end(t); x.Code != -1 || x.How != "signal: killed" {
		t.Errorf("it ended: %+v", x)
	}
}

func testFailure(t *testing.T, r rig) {
	_, s := start(t, r, agenttest.Assignment("1", "nan-at-20", 1, 1e6))
	if e := s.until(t, "it has failed", is(control.FailedNow)); !e.Worker.Permanent {
		t.Errorf("%+v", e.Worker)
	}
	if x := s.end(t); x.Code != control.ExitFailed {
		t.Errorf("it ended: %+v", x)
	}
	_, s = start(t, r, agenttest.Assignment("2", "crash-at-20", 1, 1e6))
	if x := s.end(t); x.Code != 7 || x.Trouble != "fake worker: crash in round 20" {
		t.Errorf("it ended: %+v", x)
	}
}

func testEnded(t *testing.T, r rig) {
	p, s := start(t, r, agenttest.Assignment("1", "long", 1, 1e6))
	s.until(t, "it trains", trains)
	if err := r.agent.Kill(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	s.end(t)
	_, status := r.agent.Status(t.Context(), p)
	_, commit := r.agent.Commit(t.Context(), p, control.CommitRequest{})
	events := r.agent.Events(t.Context(), p, func(e agent.Event) { t.Errorf("%+v", e) })
	for i, err := range []error{status, commit, events, r.agent.Stop(t.Context(), p)} {
		if !errors.Is(err, agent.ErrNoProcess) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if err := r.agent.Kill(t.Context(), p); err != nil {
		t.Errorf("killed twice: %v", err)
	}
}

func testOneWorker(t *testing.T, r rig) {
	_, first := start(t, r, agenttest.Assignment("1", "long", 1, 1e6))
	first.until(t, "it trains", trains)
	second, _ := start(t, r, agenttest.Assignment("1", "long", 2, 1e6))
	if x := first.end(t); x.How != "signal: killed" {
		t.Errorf("the first ended: %+v", x)
	}
	found, err := r.agent.Processes(t.Context())
	if err != nil || len(found) != 1 || found[0].Process.ID != second.ID {
		t.Errorf("running are %+v, %v; want %+v", found, err, second)
	}
	if err := r.agent.Kill(t.Context(), second); err != nil {
		t.Error(err)
	}
}

func testAnother(t *testing.T, r rig) {
	p, s := start(t, r, agenttest.Assignment("1", "long", 4, 1e6))
	s.until(t, "it trains", trains)
	a := r.another()
	found, err := a.Processes(t.Context())
	if err != nil || len(found) != 1 || found[0].Process != p || found[0].Status == nil || found[0].Status.Progress.Round == 0 {
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

func testCancelled(t *testing.T, r rig) {
	record(t, r, "1")
	p, err := r.agent.Start(t.Context(), agenttest.Assignment("1", "long", 1, 1e6))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	s := watch(ctx, r.agent, p)
	s.until(t, "it trains", trains)
	enough := fmt.Errorf("enough")
	cancel(enough)
	if err := <-s.done; !errors.Is(err, enough) {
		t.Errorf("the events ended with %v", err)
	}
	if err := r.agent.Kill(t.Context(), p); err != nil {
		t.Error(err)
	}
}

func testLog(t *testing.T, r rig) {
	record(t, r, "1")
	r.agent.Log("1", zap.InfoLevel, "placed", zap.Int("cores", 2))
	timeout := time.Now().Add(agenttest.Patience)
	for r.log("1") == "" && time.Now().Before(timeout) {
		time.Sleep(time.Millisecond)
	}
	if text := r.log("1"); text == "" {
		t.Error("nothing was written")
	}
}

func tune(t *testing.T, r rig, id, name string) (agent.Process, *seen) {
	t.Helper()
	if id != "" {
		record(t, r, id)
	}
	p, err := r.agent.Tune(t.Context(), control.TuneRequest{JobID: id, Spec: spec.Spec{Version: spec.Version, Job: agenttest.TrainJob(name)}, Cores: []int{0}})
	if err != nil {
		t.Fatal(err)
	}
	return p, watch(t.Context(), r.agent, p)
}

func testTuning(t *testing.T, r rig) {
	for _, id := range []string{"1", ""} {
		_, s := tune(t, r, id, "open")
		for i := range agenttest.TuneSteps {
			e := s.until(t, "a step", func(e agent.Event) bool { return e.Tuning != nil })
			if e.Tuning.Progress == nil || e.Tuning.Progress.Done != i {
				t.Errorf("step %d: %+v", i, e.Tuning)
			}
		}
		if e := s.until(t, "the report", func(e agent.Event) bool { return e.Tuning != nil }); e.Tuning.Report == nil {
			t.Errorf("%+v", e.Tuning)
		}
		if x := s.end(t); x.Code != 0 {
			t.Errorf("it ended: %+v", x)
		}
	}
	_, s := tune(t, r, "1", "tunedies-at-1")
	if x := s.end(t); x.Code != 7 || x.Trouble != "fake tuning: crash in step 1" {
		t.Errorf("it ended: %+v", x)
	}
}

func testKilledTuning(t *testing.T, r rig) {
	p, s := tune(t, r, "1", "tunehangs")
	s.until(t, "a step", func(e agent.Event) bool { return e.Tuning != nil })
	if err := r.agent.Kill(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if x := s.end(t); x.How != "signal: killed" {
		t.Errorf("it ended: %+v", x)
	}
}

func testFiles(t *testing.T, r rig) {
	ctx := t.Context()
	j := &cluster.Job{ID: "1", Name: "one", File: "job.yaml", Submitted: time.Unix(1000, 0).UTC()}
	if own, err := r.agent.Retire(ctx, j, "x"); err != nil || own {
		t.Errorf("a job without a directory: %v, %v", own, err)
	}
	for range 2 {
		if err := r.agent.Record(ctx, j, false); err != nil {
			t.Fatal(err)
		}
	}
	other := *j
	other.Submitted = time.Unix(2000, 0).UTC()
	if err := r.agent.Record(ctx, &other, false); err == nil {
		t.Error("the directory of another job was taken")
	}
	if _, err := r.agent.Retire(ctx, &other, "x"); err == nil {
		t.Error("the directory of another job was retired")
	}
	if s := r.agent.KeptStatus(ctx, "1"); s != nil {
		t.Errorf("kept before it was: %+v", s)
	}
	if err := r.agent.KeepStatus(ctx, "1", &control.Status{JobID: "1", Final: 7}); err != nil {
		t.Error(err)
	}
	if s := r.agent.KeptStatus(ctx, "1"); s == nil || s.Final != 7 {
		t.Errorf("the kept status is %+v", s)
	}
	if bytes := r.agent.Usage(ctx, "1"); bytes <= 0 {
		t.Errorf("it takes %d bytes", bytes)
	}
	if free, size, err := r.agent.Disk(ctx); err != nil || size <= 0 || free > size {
		t.Errorf("the disk has %d bytes, %d free, %v", size, free, err)
	}
	if own, err := r.agent.Retire(ctx, j, "x"); err != nil || !own {
		t.Errorf("retired: %v, %v", own, err)
	}
	if err := r.agent.Delete(ctx, "1"); err != nil {
		t.Error(err)
	}
	if s := r.agent.KeptStatus(ctx, "1"); s != nil {
		t.Errorf("after its deletion: %+v", s)
	}
	if err := r.agent.Record(ctx, &other, false); err != nil {
		t.Errorf("another job after the deletion: %v", err)
	}
}

func testShards(t *testing.T, r rig) {
	ctx := t.Context()
	p, s := start(t, r, agenttest.Assignment("1", "long", 1, 1e6))
	var digests []shard.Digest
	for range 2 {
		commit(t, r, p, s.until(t, "it trains", trains).Status.NextCommit, false)
		e := s.until(t, "a shard is durable", is(control.Shard))
		digests = append(digests, shard.Digest(e.Worker.Shard.Digest))
		for _, look := range []func(context.Context, shard.Digest) (int64, error){r.agent.Shards("1").Verify, r.agent.Shards("1").Size} {
			if bytes, err := look(ctx, digests[len(digests)-1]); err != nil || bytes != e.Worker.Shard.Bytes {
				t.Errorf("%d bytes, %v; the worker said %d", bytes, err, e.Worker.Shard.Bytes)
			}
		}
	}
	removed, err := r.agent.Shards("1").Collect(ctx, shard.Collection{Keep: digests[1:], Before: math.MaxUint64})
	if err != nil || !slices.Equal(removed, digests[:1]) {
		t.Errorf("removed %v, %v; want %v", removed, err, digests[:1])
	}
	if _, err := r.agent.Shards("1").Verify(ctx, digests[0]); err == nil {
		t.Error("a shard that was taken out is there")
	}
	if err := r.agent.Kill(ctx, p); err != nil {
		t.Error(err)
	}
}
