package node_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
	"github.com/avgpipe/avgpipe/tuner"
)

func tune(ctx context.Context, d *nodetest.Daemon, source string) (*tuner.Report, []api.TuneUpdate, error) {
	var seen []api.TuneUpdate
	report, err := d.Client.Tune(ctx, api.SubmitRequest{File: "job.yaml", Source: source, Base: d.Dir}, func(u api.TuneUpdate) error {
		seen = append(seen, u)
		return nil
	})
	return report, seen, err
}

func TestTuneWithoutAJob(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	report, seen, err := tune(t.Context(), d, nodetest.OpenJob(t, d.Dir, "open", 100)+"tuning: rules\n")
	if err != nil || report.Chosen.Pipelines != 2 || report.Profile.Device != "fake, 2 cores" {
		t.Fatalf("%+v, %v", report, err)
	}
	var steps []string
	for _, u := range seen {
		if u.Progress != nil {
			steps = append(steps, u.Progress.Text)
		}
	}
	if strings.Join(steps, ", ") != "fake step 1, fake step 2, fake step 3, fake step 4" {
		t.Errorf("steps were %q", steps)
	}
	if jobs, err := d.Client.Jobs(t.Context()); err != nil || len(jobs) != 0 {
		t.Errorf("tuning left jobs %v, %v", jobs, err)
	}
	if left, err := os.ReadDir(filepath.Join(d.Dir, "tunings")); err != nil || len(left) != 0 {
		t.Errorf("tuning left %v, %v", left, err)
	}
	var refused *api.Error
	if _, _, err := tune(t.Context(), d, nodetest.OpenJob(t, d.Dir, "nofit", 100)); !errors.As(err, &refused) || refused.Message != agenttest.NoFit {
		t.Errorf("no fit: %v", err)
	}
	if _, _, err := tune(t.Context(), d, nodetest.OpenJob(t, d.Dir, "tunefull", 100)); !errors.As(err, &refused) || refused.Message != agenttest.FullDisk {
		t.Errorf("a full disk: %v", err)
	}
	if _, _, err := tune(t.Context(), d, "version: 2\n"); !errors.As(err, &refused) || len(refused.Problems) == 0 {
		t.Errorf("a bad file: %v", err)
	}
	if _, _, err := tune(t.Context(), d, nodetest.OpenJob(t, d.Dir, "tunedies-at-1", 100)); err == nil || !strings.Contains(err.Error(), "crash in step 1") {
		t.Errorf("a tuning that dies: %v", err)
	}
}

func TestTuneWithoutAJobWaitsForCoresAndHasThem(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	d.Until(t, id, "trains", func(s api.JobStatus) bool { return s.State == api.Running })
	ctx, cancel := context.WithCancel(t.Context())
	waits, done := make(chan string, 1), make(chan error, 1)
	go func() {
		_, err := d.Client.Tune(ctx, api.SubmitRequest{File: "job.yaml", Source: nodetest.OpenJob(t, d.Dir, "tunehangs", 100), Base: d.Dir},
			func(u api.TuneUpdate) error {
				if u.Progress != nil {
					waits <- u.Progress.Text
				}
				return nil
			})
		done <- err
	}()
	if text := envtest.Receive(t, "the tuning says how it goes", waits); text != "waiting for cores: needs 2 cores, 0 of 2 are free" {
		t.Errorf("while a job trains: %s", text)
	}
	if _, err := d.Client.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if text := envtest.Receive(t, "the tuning says how it goes", waits); text != "fake step 1" {
		t.Errorf("once it is over: %s", text)
	}
	behind := d.Submit(t, nodetest.Job(t, d.Dir, "behind", 20))
	s := d.Until(t, behind, "waits", func(s api.JobStatus) bool { return s.Reason != "waits for a place" })
	if !strings.Contains(s.Reason, "0 of 2 are free") {
		t.Errorf("a job behind it: %s", s.Reason)
	}
	cancel()
	if err := envtest.Receive(t, "the tuning ends", done); !errors.Is(err, context.Canceled) {
		t.Errorf("a tuning that was given up: %v", err)
	}
	if s := d.Until(t, behind, "ends", ended); s.State != api.Done {
		t.Errorf("the job behind it is %s: %s", s.State, s.Reason)
	}
}

func TestStopEndsATuningWithoutAJob(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	began, done := make(chan struct{}), make(chan error, 1)
	var once sync.Once
	go func() {
		_, err := d.Client.Tune(context.Background(), api.SubmitRequest{File: "job.yaml", Source: nodetest.OpenJob(t, d.Dir, "tunehangs", 100), Base: d.Dir},
			func(api.TuneUpdate) error {
				once.Do(func() { close(began) })
				return nil
			})
		done <- err
	}()
	envtest.Receive(t, "the tuning begins", began)
	d.Stop(t)
	if err := envtest.Receive(t, "the tuning ends", done); err == nil || !strings.HasSuffix(err.Error(), "tune job.yaml: the daemon is stopping") {
		t.Errorf("the client was told %v", err)
	}
	if left := nodetest.Running(t, filepath.Join(d.Dir, "tunings")); len(left) != 0 {
		t.Errorf("tune processes %v are alive", left)
	}
}

func TestBatchTimesThatLeaveTheirPredictionAreToldOnce(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.OpenJob(t, d.Dir, "slow-at-50", 1e6))
	s := d.Until(t, id, "trains", func(s api.JobStatus) bool { return s.State == api.Running && s.BatchS != nil })
	if s.PredictedBatchS == nil || *s.PredictedBatchS != agenttest.RoundTime.Seconds() {
		t.Errorf("predicted %v, want %v", s.PredictedBatchS, agenttest.RoundTime)
	}
	s = d.Until(t, id, "drifts", func(s api.JobStatus) bool { return s.Drift != nil })
	if s.Drift.Relative != 1 || s.Drift.Term != api.TermCompute || !strings.Contains(s.Drift.Text, "a batch takes 4ms, 100% longer than the expected 2ms") {
		t.Errorf("%+v", s.Drift)
	}
	e, err := d.Client.Explain(t.Context(), id)
	if err != nil || e.Drift == nil || e.Observed == nil || e.Observed.BatchSeconds != 2*agenttest.RoundTime.Seconds() || e.Report == nil || len(e.Plan) != 2 {
		t.Errorf("explained as %+v, %v", e, err)
	}
	kept, err := filepath.Glob(filepath.Join(d.Dir, "jobs", id, "*.object"))
	all := len(kept)
	kept = slices.DeleteFunc(kept, func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && strings.Contains(string(text), "name: slow-at-50") // the text of the job file
	})
	if err != nil || len(kept) != 1 || all != 2 || slices.ContainsFunc(e.Warnings, func(w string) bool { return strings.Contains(w, "lost") }) {
		t.Fatalf("reports %v, %v; warnings %q", kept, err, e.Warnings)
	}
	if err := os.Remove(kept[0]); err != nil {
		t.Fatal(err)
	}
	short, err := d.Client.Explain(t.Context(), id)
	if err != nil || short.Report == nil || short.Report.Chosen.Schedule != e.Report.Chosen.Schedule ||
		!slices.ContainsFunc(short.Warnings, func(w string) bool {
			return strings.Contains(w, "report of the tuning is lost") && strings.Contains(w, kept[0])
		}) {
		t.Errorf("without its report: %+v, %v", short, err)
	}
	before := s.Round
	d.Until(t, id, "trains on", func(s api.JobStatus) bool { return s.Round > before+300 })
	log, err := os.ReadFile(control.LogPath(filepath.Join(d.Dir, "jobs", id)))
	if n := strings.Count(string(log), "has left its prediction"); err != nil || n != 1 {
		t.Errorf("it was told %d times, %v; want once", n, err)
	}
}
