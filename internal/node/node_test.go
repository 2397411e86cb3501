package node_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func ended(s api.JobStatus) bool     { return s.State.Ended() }
func committed(s api.JobStatus) bool { return s.State == api.Running && s.CommittedRound >= 20 }

func trainsAgain(s api.JobStatus) bool { return s.State == api.Running && s.Generation == 2 }

func TestJobTrainsCommitsAndEnds(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "good-at-200", 445)) // with commits on the way
	s := d.Until(t, id, "ends", ended)
	if s.State != api.Done || s.CommittedRound != 445 || s.Step != 445 || s.Generation != 1 {
		t.Errorf("state %s (%s), round %d, step %d, generation %d; want done, 445, 445, 1", s.State, s.Reason, s.CommittedRound, s.Step, s.Generation)
	}
	if s.EvalLoss == nil || *s.EvalLoss != agenttest.Loss(445) || s.InitialLoss == nil || *s.InitialLoss != agenttest.Loss(0) {
		t.Errorf("losses %v and %v are not the worker's", s.InitialLoss, s.EvalLoss)
	}
	nodetest.Eventually(t, "the worker is gone", func() bool {
		return len(d.WorkerPIDs(t, id)) == 0
	})
	// center.keep is 2: the shards of two rounds, two stages each.
	shards, err := os.ReadDir(control.ShardDir(filepath.Join(d.Dir, "jobs", id)))
	if err != nil || len(shards) != 4 {
		t.Errorf("%d shards are kept, %v; want 4", len(shards), err)
	}
	if names := modelFiles(t, d, id); !slices.Equal(names, []string{"config.json", "model.safetensors"}) {
		t.Errorf("the exported model has %v", names)
	}

	// What a job was is still known after a restart.
	before := s
	d.Stop(t)
	d = nodetest.Start(t, d.Dir)
	after := d.Until(t, id, "is known", func(api.JobStatus) bool { return true })
	if after.State != api.Done || after.Step != before.Step || *after.EvalLoss != *before.EvalLoss || after.Reason != before.Reason {
		t.Errorf("after a restart: %+v\nbefore: %+v", after, before)
	}
}

func modelFiles(t *testing.T, d *nodetest.Daemon, id string) []string {
	t.Helper()
	var packed bytes.Buffer
	if err := d.Client.Model(t.Context(), id, &packed); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&packed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(names)
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}

func TestKilledWorkerIsReplacedFromTheLastCommit(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	before := d.Until(t, id, "commits", committed)
	if err := syscall.Kill(d.WorkerPID(t, id), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	after := d.Until(t, id, "trains again", trainsAgain)
	if after.Round < before.CommittedRound || after.CommittedRound < before.CommittedRound {
		t.Errorf("trains again at round %d, committed %d; round %d was committed before", after.Round, after.CommittedRound, before.CommittedRound)
	}
	if !strings.Contains(after.Reason, "signal: killed") || !strings.Contains(after.Reason, "resumed from round") {
		t.Errorf("the reason does not say what happened: %s", after.Reason)
	}
	d.Until(t, id, "commits further", func(s api.JobStatus) bool { return s.CommittedRound > before.CommittedRound })
}

func TestKilledDaemonsWorkersAreAdopted(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	before := d.Until(t, id, "commits", committed)
	pid := d.WorkerPID(t, id)
	d.Kill(t)
	d = nodetest.Spawn(t, d.Dir)
	after := d.Until(t, id, "commits further", func(s api.JobStatus) bool { return s.CommittedRound > before.CommittedRound })
	if now := d.WorkerPID(t, id); now != pid || after.Generation != before.Generation {
		t.Errorf("process %d, generation %d; want the old worker, %d, %d", now, after.Generation, pid, before.Generation)
	}
	// The adopted worker is watched as well as a child.
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.Until(t, id, "trains again", trainsAgain)
}

func TestDeadDaemonsAndWorkersResume(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	before := d.Until(t, id, "commits", committed)
	pid := d.WorkerPID(t, id)
	d.Kill(t)
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d = nodetest.Spawn(t, d.Dir)
	after := d.Until(t, id, "trains again", trainsAgain)
	if after.Round < before.CommittedRound {
		t.Errorf("resumed at round %d; round %d was committed", after.Round, before.CommittedRound)
	}
}

func TestStopCommitsTheRunningRoundAndRestartResumes(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	// Nothing would be committed for a long time.
	source := strings.Replace(nodetest.Job(t, d.Dir, "long", 1e6), "commit_every: 10", "commit_every: 100000", 1)
	id := d.Submit(t, source)
	before := d.Until(t, id, "trains", func(s api.JobStatus) bool { return s.State == api.Running && s.Round >= 20 })
	d.Stop(t)
	if pids := d.WorkerPIDs(t, id); len(pids) != 0 {
		t.Errorf("after the stop, workers %v are alive", pids)
	}
	d = nodetest.Spawn(t, d.Dir)
	after := d.Until(t, id, "trains again", trainsAgain)
	if after.CommittedRound < before.Round {
		t.Errorf("resumed from round %d; want at least %d", after.CommittedRound, before.Round)
	}
}

func TestCancelCommitsAndEnds(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	source := strings.Replace(nodetest.Job(t, d.Dir, "long", 1e6), "commit_every: 10", "commit_every: 100000", 1)
	running := d.Submit(t, source)
	queued := d.Submit(t, source)
	before := d.Until(t, running, "trains", func(s api.JobStatus) bool { return s.State == api.Running && s.Round >= 20 })
	d.Until(t, queued, "waits for cores", func(s api.JobStatus) bool {
		return s.State == api.Queued && strings.Contains(s.Reason, "0 of 2 are free")
	})
	for _, id := range []string{queued, running} {
		if _, err := d.Client.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		if s := d.Until(t, id, "ends", ended); s.State != api.Cancelled {
			t.Errorf("job %s is %s: %s", id, s.State, s.Reason)
		}
	}
	after := d.Until(t, running, "ends", ended)
	if after.CommittedRound < before.Round {
		t.Errorf("round %d is committed; training was at %d before", after.CommittedRound, before.Round)
	}
	if len(modelFiles(t, d, running)) == 0 {
		t.Error("a cancelled job has no model")
	}
	who := (server.Peer{User: access.User{UID: uint32(os.Getuid())}}).String()
	if !strings.HasPrefix(after.Reason, "cancelled by "+who+"; ") || after.Ended == nil {
		t.Errorf("the reason does not say that %s did it, or when: %+v", who, after)
	}
	var refused *api.Error
	if _, err := d.Client.Cancel(t.Context(), running); !errors.As(err, &refused) || refused.Status != http.StatusConflict {
		t.Errorf("cancelling an ended job: %v", err)
	}
}

func TestTroubleEndsTheJobWithItsReason(t *testing.T) {
	t.Parallel()
	for name, reasons := range map[string][]string{
		"nan-at-600":   {"step 600, stage 1", "NaN"},
		"crash-at-600": {"5 workers ended without a new commit", "exit status 7", "fake worker: crash in round 600"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := nodetest.Start(t, nodetest.StateDir(t))
			id := d.Submit(t, nodetest.Job(t, d.Dir, name, 1000))
			s := d.Until(t, id, "ends", ended)
			if s.State != api.Failed || s.CommittedRound == 0 {
				t.Errorf("%s, round %d committed; want failed, and a round that is kept: %s", s.State, s.CommittedRound, s.Reason)
			}
			if strings.Count(s.Reason, reasons[len(reasons)-1]) != 1 {
				t.Errorf("the reason quotes earlier workers as well: %s", s.Reason)
			}
			for _, r := range append(reasons, fmt.Sprintf("round %d is the last committed one", s.CommittedRound)) {
				if !strings.Contains(s.Reason, r) {
					t.Errorf("the reason has no %q: %s", r, s.Reason)
				}
			}
			if names := modelFiles(t, d, id); len(names) == 0 {
				t.Error("the last good center cannot be exported")
			}
		})
	}
}

func TestDamagedShardIsNamedAndNeverLoaded(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string, content []byte) error{
		"flipped": func(path string, content []byte) error {
			content[len(content)-9] ^= 1
			return os.WriteFile(path, content, 0o600)
		},
		"truncated": func(path string, content []byte) error { return os.WriteFile(path, content[:len(content)/2], 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := nodetest.Spawn(t, nodetest.StateDir(t))
			id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
			d.Until(t, id, "commits", committed)
			d.Stop(t)
			path := newestShard(t, filepath.Join(d.Dir, "jobs", id))
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(path, content); err != nil {
				t.Fatal(err)
			}
			d = nodetest.Spawn(t, d.Dir)
			s := d.Until(t, id, "trains again", trainsAgain)
			for _, word := range []string{filepath.Base(path), "was discarded", "resumed from round"} {
				if !strings.Contains(s.Reason, word) {
					t.Errorf("the reason has no %q: %s", word, s.Reason)
				}
			}
			if aside := quarantined(t, d, id); !slices.Contains(aside, filepath.Base(path)) {
				t.Errorf("the quarantine holds %v, want %s as well", aside, filepath.Base(path))
			}
		})
	}
}

// newestShard returns the path of the shard that was written last.
func newestShard(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(control.ShardDir(dir))
	if err != nil {
		t.Fatal(err)
	}
	var newest os.FileInfo
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if newest == nil || info.ModTime().After(newest.ModTime()) {
			newest = info
		}
	}
	return filepath.Join(control.ShardDir(dir), newest.Name())
}

func TestSecondDaemonIsRefused(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	err := node.Run(t.Context(), nodetest.Config(d.Dir, io.Discard))
	if err == nil || !strings.Contains(err.Error(), "in use by another daemon") || !strings.Contains(err.Error(), d.Dir) {
		t.Errorf("a second daemon on the same state: %v", err)
	}
}

func TestNamesAndIds(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	_, err := d.Client.Job(t.Context(), "1")
	var e *api.Error
	if !errors.As(err, &e) || e.Status != http.StatusNotFound {
		t.Errorf("no job yet: %v", err)
	}
	one := d.Submit(t, nodetest.Job(t, d.Dir, "same", 5))
	if s, err := d.Client.Job(t.Context(), "same"); err != nil || s.ID != one {
		t.Errorf("by name: job %q, %v", s.ID, err)
	}
	d.Submit(t, nodetest.Job(t, d.Dir, "same", 5))
	if _, err := d.Client.Job(t.Context(), "same"); !errors.As(err, &e) || e.Status != http.StatusConflict || !strings.Contains(e.Message, "1, 2") {
		t.Errorf("by a name that two jobs have: %v", err)
	}
}
