package agenttest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/shard"
	"github.com/avgpipe/avgpipe/internal/spec"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Rig is an agent under test, on an empty host whose programs are the fake worker and the fake tuning.
type Rig struct {
	Agent agent.Agent
	// Log reads a job's log.
	Log func(id string) string
	// Another returns an agent of the same host that did not start what runs there, as after a restart of the daemon.
	Another func() agent.Agent
}

// Conforms holds an agent to what agent.Agent says.
func Conforms(t *testing.T, open func(t *testing.T) Rig) {
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
		"small files are kept and read":      testObjects,
		"a host says what it has":            testInfo,
		"what a job reads is looked for":     testLook,
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
	timeout := time.After(envtest.Bound)
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
			t.Fatalf("after %v, not yet: %s", envtest.Bound, what)
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
func record(t *testing.T, r Rig, id string) {
	t.Helper()
	if err := r.Agent.Record(t.Context(), &cluster.Job{ID: id}, false); err != nil {
		t.Fatal(err)
	}
}

func start(t *testing.T, r Rig, a control.Assignment) (agent.Process, *seen) {
	t.Helper()
	record(t, r, a.JobID)
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

func trains(e agent.Event) bool { return e.Status != nil && e.Status.Progress.Round > 0 }

// commit has a round committed, earliest or a later one, and returns its number: the worker trains on while it is asked.
func commit(t *testing.T, r Rig, p agent.Process, earliest uint64, stop bool) uint64 {
	t.Helper()
	for {
		round := earliest + 100
		answer, err := r.Agent.Commit(t.Context(), p, control.CommitRequest{Generation: p.Generation, Round: round, Stop: stop})
		if err != nil || !answer.Accepted && answer.Earliest <= earliest {
			t.Fatalf("round %d: %+v, %v", round, answer, err)
		}
		if answer.Accepted {
			if answer.Earliest == 0 || answer.Earliest > round {
				t.Errorf("round %d is accepted where the earliest is %d", round, answer.Earliest)
			}
			return round
		}
		earliest = answer.Earliest
	}
}

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
	if err != nil || now.Progress.Round < e.Status.Progress.Round {
		t.Fatalf("asked how it is: %+v, %v", now, err)
	}
	round := commit(t, r, p, now.NextCommit, true)
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
	p, s := start(t, r, Assignment("1", "long", 4, 1e6))
	s.until(t, "it trains", trains)
	a := r.Another()
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

func testCancelled(t *testing.T, r Rig) {
	record(t, r, "1")
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
	record(t, r, "1")
	r.Agent.Log("1", zap.InfoLevel, "placed", zap.Int("cores", 2))
	timeout := time.Now().Add(envtest.Bound)
	for r.Log("1") == "" && time.Now().Before(timeout) {
		time.Sleep(time.Millisecond)
	}
	if text := r.Log("1"); text == "" {
		t.Error("nothing was written")
	}
	log, err := r.Agent.OpenLog(t.Context(), "1", api.LogRequest{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	entry, err := log.Next(true)
	if err != nil || !bytes.Contains(entry, []byte(`"placed"`)) {
		t.Fatalf("the log begins with %s, %v", entry, err)
	}
	if e, err := log.Next(true); !errors.Is(err, io.EOF) {
		t.Errorf("the log goes on with %s, %v", e, err)
	}
	again, err := r.Agent.OpenLog(t.Context(), "1", api.LogRequest{After: log.Place()})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	r.Agent.Log("1", zap.WarnLevel, "more")
	for entry, err = again.Next(false); errors.Is(err, io.EOF) && time.Now().Before(timeout); entry, err = again.Next(false) {
		time.Sleep(time.Millisecond)
	}
	if err != nil || !bytes.Contains(entry, []byte(`"more"`)) {
		t.Errorf("after the first entry comes %s, %v", entry, err)
	}
	bad, ok := errors.AsType[*api.Error](func() error { _, err := r.Agent.OpenLog(t.Context(), "1", api.LogRequest{After: "x"}); return err }())
	if !ok || bad.Status != 400 {
		t.Errorf("a bad place: %v", bad)
	}
}

func tune(t *testing.T, r Rig, id, name string) (agent.Process, *seen) {
	t.Helper()
	if id != "" {
		record(t, r, id)
	}
	p, err := r.Agent.Tune(t.Context(), control.TuneRequest{JobID: id, Spec: spec.Spec{Version: spec.Version, Job: TrainJob(name)}, Cores: []int{0}})
	if err != nil {
		t.Fatal(err)
	}
	return p, watch(t.Context(), r.Agent, p)
}

func testTuning(t *testing.T, r Rig) {
	for _, id := range []string{"1", ""} {
		_, s := tune(t, r, id, "open")
		for i := range TuneSteps {
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

func testKilledTuning(t *testing.T, r Rig) {
	p, s := tune(t, r, "1", "tunehangs")
	s.until(t, "a step", func(e agent.Event) bool { return e.Tuning != nil })
	if err := r.Agent.Kill(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if x := s.end(t); x.How != "signal: killed" {
		t.Errorf("it ended: %+v", x)
	}
}

func testFiles(t *testing.T, r Rig) {
	ctx := t.Context()
	j := &cluster.Job{ID: "1", Name: "one", File: "job.yaml", Submitted: time.Unix(1000, 0).UTC()}
	if own, err := r.Agent.Retire(ctx, j, "x"); err != nil || own {
		t.Errorf("a job without a directory: %v, %v", own, err)
	}
	for range 2 {
		if err := r.Agent.Record(ctx, j, false); err != nil {
			t.Fatal(err)
		}
	}
	other := *j
	other.Submitted = time.Unix(2000, 0).UTC()
	if err := r.Agent.Record(ctx, &other, false); err == nil {
		t.Error("the directory of another job was taken")
	}
	if _, err := r.Agent.Retire(ctx, &other, "x"); err == nil {
		t.Error("the directory of another job was retired")
	}
	if s := r.Agent.KeptStatus(ctx, "1"); s != nil {
		t.Errorf("kept before it was: %+v", s)
	}
	if err := r.Agent.KeepStatus(ctx, "1", &control.Status{JobID: "1", Final: 7}); err != nil {
		t.Error(err)
	}
	if s := r.Agent.KeptStatus(ctx, "1"); s == nil || s.Final != 7 {
		t.Errorf("the kept status is %+v", s)
	}
	if bytes := r.Agent.Usage(ctx, "1"); bytes <= 0 {
		t.Errorf("it takes %d bytes", bytes)
	}
	if free, size, err := r.Agent.Disk(ctx); err != nil || size <= 0 || free > size {
		t.Errorf("the disk has %d bytes, %d free, %v", size, free, err)
	}
	if own, err := r.Agent.Retire(ctx, j, "x"); err != nil || !own {
		t.Errorf("retired: %v, %v", own, err)
	}
	if err := r.Agent.Delete(ctx, "1"); err != nil {
		t.Error(err)
	}
	if s := r.Agent.KeptStatus(ctx, "1"); s != nil {
		t.Errorf("after its deletion: %+v", s)
	}
	if err := r.Agent.Record(ctx, &other, false); err != nil {
		t.Errorf("another job after the deletion: %v", err)
	}
}

func testShards(t *testing.T, r Rig) {
	ctx := t.Context()
	p, s := start(t, r, Assignment("1", "long", 1, 1e6))
	var digests []shard.Digest
	for range 2 {
		commit(t, r, p, s.until(t, "it trains", trains).Status.NextCommit, false)
		e := s.until(t, "a shard is durable", is(control.Shard))
		digests = append(digests, shard.Digest(e.Worker.Shard.Digest))
		for _, look := range []func(context.Context, shard.Digest) (int64, error){r.Agent.Shards("1").Verify, r.Agent.Shards("1").Size} {
			if bytes, err := look(ctx, digests[len(digests)-1]); err != nil || bytes != e.Worker.Shard.Bytes {
				t.Errorf("%d bytes, %v; the worker said %d", bytes, err, e.Worker.Shard.Bytes)
			}
		}
	}
	content, size, err := r.Agent.Shards("1").Open(ctx, digests[0])
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(content)
	if err != nil || int64(len(text)) != size || content.Close() != nil {
		t.Errorf("%d bytes of %d were read, %v", len(text), size, err)
	}
	if err := r.Agent.Shards("1").Fetch(ctx, digests[0], size, nil); err != nil {
		t.Errorf("what is here was fetched: %v", err)
	}
	if err := r.Agent.Shards("1").Fetch(ctx, digests[0], size+1, nil); err == nil {
		t.Error("a shard of another length was fetched")
	}
	removed, err := r.Agent.Shards("1").Collect(ctx, shard.Collection{Keep: digests[1:], Before: math.MaxUint64, Generation: math.MaxUint64})
	if err != nil || !slices.Equal(removed, digests[:1]) {
		t.Errorf("removed %v, %v; want %v", removed, err, digests[:1])
	}
	for _, look := range []func(context.Context, shard.Digest) (int64, error){r.Agent.Shards("1").Verify, r.Agent.Shards("1").Size} {
		if _, err := look(ctx, digests[0]); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a shard that was taken out: %v", err)
		}
	}
	if err := r.Agent.Shards("1").Fetch(ctx, digests[0], size, nil); err == nil {
		t.Error("a shard was fetched from nowhere")
	}
	if err := r.Agent.Kill(ctx, p); err != nil {
		t.Error(err)
	}
}

func testObjects(t *testing.T, r Rig) {
	ctx := t.Context()
	record(t, r, "1")
	d, err := r.Agent.Keep(ctx, "1", []byte("name: x"))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := r.Agent.Object(ctx, "1", d); err != nil || string(text) != "name: x" {
		t.Errorf("kept: %q, %v", text, err)
	}
	if _, err := r.Agent.Keep(ctx, "1", make([]byte, agent.MaxObject+1)); err == nil {
		t.Error("a file that is too large was kept")
	}
	absent := shard.Digest("00" + d[2:])
	if _, err := r.Agent.Object(ctx, "1", absent); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("one that was never kept: %v", err)
	}
	if _, err := r.Agent.Object(ctx, "1", "../x"); err == nil {
		t.Error("a path was taken for a digest")
	}
	if _, err := r.Agent.Companion(ctx, "1", "card.json"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a companion that is not there: %v", err)
	}
	if _, err := r.Agent.Companion(ctx, "1", "../job.record"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path was taken for a name: %v", err)
	}
	if records, damaged, err := r.Agent.History(ctx, "1"); err != nil || len(records) != 0 || damaged != 0 {
		t.Errorf("a history before the first worker: %v, %d, %v", records, damaged, err)
	}
}

func testInfo(t *testing.T, r Rig) {
	if i, err := r.Agent.Info(t.Context()); err != nil || i.Node == "" || i.Boot == "" {
		t.Errorf("%+v, %v", i, err)
	}
	if address, err := r.Agent.Listen(t.Context(), "1", 1); err != nil || address != "" {
		t.Errorf("alone: %q, %v", address, err)
	}
	if _, err := r.Agent.Probe(t.Context(), "nobody"); !errors.Is(err, agent.ErrUnreachable) {
		t.Errorf("nobody was measured: %v", err)
	}
}
