package node_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func tunes(s api.JobStatus) bool {
	return s.State == api.Tuning && s.Tuning != nil && s.Tuning.Total > 0
}

func TestOpenJobIsTunedAndTrains(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.OpenJob(t, d.Dir, "open", 40)+"schedule: auto\n")
	s := d.Until(t, id, "ends", ended)
	if s.State != api.Done || s.Step != 40 || s.Generation != 1 {
		t.Errorf("%s at step %d, generation %d: %s", s.State, s.Step, s.Generation, s.Reason)
	}
	if s.Stages != 2 || s.Pipelines != 2 || s.MicroBatches != 2 || s.Schedule != "1f1b" || !strings.Contains(s.Averaging, "alpha=1 horizon=1.5 tau=1 lr x1.41") {
		t.Errorf("the job ran as %d stages, %d pipelines, %d micro-batches, %s, %s; want what was chosen: 2, 2, 2, 1f1b and its alpha",
			s.Stages, s.Pipelines, s.MicroBatches, s.Schedule, s.Averaging)
	}
	log, err := os.ReadFile(control.LogPath(filepath.Join(d.Dir, "jobs", id)))
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{`"starting a tuning"`, `"fake step 4"`, `"tuned"`, "the fastest of 2 candidates"} {
		if !strings.Contains(string(log), words) {
			t.Errorf("the job's log has no %s:\n%s", words, log)
		}
	}
	if _, err := os.Stat(filepath.Join(d.Dir, "jobs", id, "tune")); !os.IsNotExist(err) {
		t.Errorf("what the runs left is still there: %v", err)
	}
}

// A job that leaves nothing open but what is computed again is tuned, and runs, shows and explains what was chosen.
func TestOpenRecomputationIsTunedAndShown(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "again", 20)+"recompute: auto\n")
	s := d.Until(t, id, "ends", ended)
	if s.State != api.Done || s.PredictedBatchS == nil || s.MicroBatches != 4 || strings.Join(s.Recompute, " ") != "block" {
		t.Errorf("%s with %d micro-batches, recompute %v, predicted %v: %s", s.State, s.MicroBatches, s.Recompute, s.PredictedBatchS, s.Reason)
	}
	e, err := d.Client.Explain(t.Context(), id)
	if err != nil || strings.Join(e.Recompute, " ") != "block" || !strings.Contains(strings.Join(e.Why, "\n"), "recompute block: ") {
		t.Errorf("explained as recompute %v, because %q, %v", e.Recompute, e.Why, err)
	}
	ruled := d.Submit(t, nodetest.Job(t, d.Dir, "ruled", 20)+"recompute: auto\ntuning: rules\n")
	if s := d.Until(t, ruled, "ends", ended); s.State != api.Done || s.PredictedBatchS != nil || strings.Join(s.Recompute, " ") != "none" {
		t.Errorf("by the rules: %s, recompute %v, predicted %v: %s", s.State, s.Recompute, s.PredictedBatchS, s.Reason)
	}
}

func TestGivenCountsAndRulesAreNotTuned(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	// A tuning of this name would hang.
	for _, source := range []string{
		nodetest.Job(t, d.Dir, "tunehangs", 20),
		nodetest.OpenJob(t, d.Dir, "tunehangs", 20) + "tuning: rules\nschedule: auto\n",
	} {
		id := d.Submit(t, source)
		if s := d.Until(t, id, "ends", ended); s.State != api.Done || s.Schedule != "afp" {
			t.Errorf("%s, schedule %s: %s", s.State, s.Schedule, s.Reason)
		}
	}
}

func TestTroubleOfATuningEndsTheJobWithItsReason(t *testing.T) {
	t.Parallel()
	for name, reasons := range map[string][]string{
		"nofit":         {agenttest.NoFit},
		"tunedies-at-2": {"5 tunings ended without a choice", "exit status 7", "fake tuning: crash in step 2"},
		"tunegarbage":   {"5 tunings ended without a choice", `no message of a tuning, "hello"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := nodetest.Start(t, nodetest.StateDir(t))
			id := d.Submit(t, nodetest.OpenJob(t, d.Dir, name, 1000))
			s := d.Until(t, id, "ends", ended)
			if s.State != api.Failed || s.Generation != 0 {
				t.Errorf("%s in generation %d; want failed before the first", s.State, s.Generation)
			}
			for _, r := range reasons {
				if strings.Count(s.Reason, r) != 1 {
					t.Errorf("the reason has not exactly one %q: %s", r, s.Reason)
				}
			}
		})
	}
}

func TestTuningThatDiesOrIsShortOfDiskBeginsAgain(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"tunedies-once", "tunefull-once"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := nodetest.Start(t, nodetest.StateDir(t))
			id := d.Submit(t, nodetest.OpenJob(t, d.Dir, name, 20))
			if s := d.Until(t, id, "ends", ended); s.State != api.Done || s.Pipelines != 2 {
				t.Errorf("%s with %d pipelines: %s", s.State, s.Pipelines, s.Reason)
			}
		})
	}
}

func TestCancelEndsATuning(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.OpenJob(t, d.Dir, "tunehangs", 20))
	behind := d.Submit(t, nodetest.Job(t, d.Dir, "behind", 20))
	s := d.Until(t, id, "is tuned", tunes)
	if s.Tuning.Total != 4 || s.Tuning.Text != "fake step 1" || !strings.Contains(s.Reason, "step 1 of 4: fake step 1") {
		t.Errorf("while it is tuned: %+v: %s", s.Tuning, s.Reason)
	}
	if s := d.Until(t, behind, "waits", func(s api.JobStatus) bool { return s.Reason != "waits for a place" }); !strings.Contains(s.Reason, "0 of 2 are free") {
		t.Errorf("the job behind it: %s", s.Reason)
	}
	if _, err := d.Client.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if s := d.Until(t, id, "ends", ended); s.State != api.Cancelled || s.Tuning != nil {
		t.Errorf("%s: %s", s.State, s.Reason)
	}
	if s := d.Until(t, behind, "ends", ended); s.State != api.Done {
		t.Errorf("the job behind it is %s: %s", s.State, s.Reason)
	}
	if pids := d.TunePIDs(t, id); len(pids) != 0 {
		t.Errorf("tune processes %v are alive", pids)
	}
}

func TestRestartedDaemonTunesAgain(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*nodetest.Daemon, testing.TB){"stopped": (*nodetest.Daemon).Stop, "killed": (*nodetest.Daemon).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := nodetest.Spawn(t, nodetest.StateDir(t))
			id := d.Submit(t, nodetest.OpenJob(t, d.Dir, "tunehangs", 20))
			d.Until(t, id, "is tuned", tunes)
			before := d.TunePIDs(t, id)
			end(d, t)
			if left := d.TunePIDs(t, id); name == "stopped" && len(left) != 0 {
				t.Errorf("after the stop, tune processes %v are alive", left)
			}
			nodetest.Eventually(t, "the tuning ends with its daemon", func() bool { return len(d.TunePIDs(t, id)) == 0 })
			d = nodetest.Spawn(t, d.Dir)
			d.Until(t, id, "is tuned again", tunes)
			after := d.TunePIDs(t, id)
			if len(before) != 1 || len(after) != 1 || before[0] == after[0] {
				t.Errorf("tune processes were %v and are %v; want another single one", before, after)
			}
			// Another end than the daemon's: a tuning that is killed begins again as well.
			if err := syscall.Kill(after[0], syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			nodetest.Eventually(t, "another tuning runs", func() bool {
				now := d.TunePIDs(t, id)
				return len(now) == 1 && now[0] != after[0]
			})
			if _, err := d.Client.Cancel(t.Context(), id); err != nil {
				t.Fatal(err)
			}
			d.Until(t, id, "ends", ended)
		})
	}
}
