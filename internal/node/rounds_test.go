package node_test

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/export"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// quarantined lists the shards in a job's quarantine.
func quarantined(t *testing.T, d *nodetest.Daemon, id string) (names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(control.QuarantineDir(filepath.Join(d.Dir, "jobs", id)), "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range paths {
		names = append(names, filepath.Base(p))
	}
	return names
}

// stopped runs a job until it has committed, and stops its daemon. It returns what is needed to start another.
func stopped(t *testing.T) (dir, id string, s api.JobStatus) {
	t.Helper()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	id = d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	s = d.Until(t, id, "commits", committed)
	d.Stop(t)
	return d.Dir, id, s
}

// spoil changes a byte of a shard.
func spoil(t *testing.T, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)-9] ^= 1
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// kept asks which rounds a job keeps, by naming one that it does not.
func kept(t *testing.T, d *nodetest.Daemon, id string) (older, newest uint64) {
	t.Helper()
	_, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{FromRound: 1})
	if err == nil {
		t.Fatal("round 1 was resumed from")
	}
	_, list, _ := strings.Cut(err.Error(), "kept are [")
	if n, err := fmt.Sscanf(list, "%d %d]", &older, &newest); n != 2 {
		t.Fatalf("no two kept rounds in %q: %v", list, err)
	}
	return older, newest
}

// A mount that is late costs nothing: not a round, and not a file.
func TestShardsThatAreNotThereYetHoldTheJob(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]func(jobDir string) string{
		"shards":    control.ShardDir,
		"job":       func(dir string) string { return dir },
		"one shard": func(dir string) string { return newestShard(t, dir) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, id, before := stopped(t)
			path := of(filepath.Join(dir, "jobs", id))
			away := filepath.Join(dir, "away")
			if err := os.Rename(path, away); err != nil {
				t.Fatal(err)
			}
			d := nodetest.Spawn(t, dir)
			s := d.Until(t, id, "waits", waiting)
			if !strings.Contains(s.Reason, path) || !strings.Contains(s.Reason, "is missing") || s.CommittedRound < before.CommittedRound {
				t.Errorf("round %d is committed, %d was; the reason is: %s", s.CommittedRound, before.CommittedRound, s.Reason)
			}
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("something was made in its place: %v", err)
			}
			if err := os.Rename(away, path); err != nil {
				t.Fatal(err)
			}
			after := d.Until(t, id, "trains again", trainsAgain)
			if want := fmt.Sprintf("resumed from round %d", s.CommittedRound); !strings.Contains(after.Reason, want) {
				t.Errorf("the reason has no %q: %s", want, after.Reason)
			}
		})
	}
}

// A job that waits for cores has no round yet that could be missing. It is not trained below a mount that is late either.
func TestNoJobStartsWhereNoDirectoryOfAJobIs(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	first := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	second := d.Submit(t, nodetest.Job(t, d.Dir, "next", 50)) // on the same cores
	d.Until(t, first, "commits", committed)
	d.Stop(t)
	jobs, away := filepath.Join(d.Dir, "jobs"), filepath.Join(d.Dir, "away")
	if err := os.Rename(jobs, away); err != nil {
		t.Fatal(err)
	}
	d = nodetest.Spawn(t, d.Dir)
	for _, id := range []string{first, second} {
		if s := d.Until(t, id, "waits", waiting); !strings.Contains(s.Reason, jobs) || !strings.Contains(s.Reason, "is missing") && !strings.Contains(s.Reason, "is a directory without files") {
			t.Errorf("job %s waits: %s", id, s.Reason)
		}
	}
	if err := os.Remove(jobs); err != nil { // nothing was made in it
		t.Fatal(err)
	}
	if err := os.Rename(away, jobs); err != nil {
		t.Fatal(err)
	}
	d.Until(t, first, "trains again", trainsAgain)
}

func TestAPersonMayGoOnFromAnOlderRound(t *testing.T) {
	t.Parallel()
	dir, id, _ := stopped(t)
	path := newestShard(t, filepath.Join(dir, "jobs", id))
	away := filepath.Join(dir, "away")
	if err := os.Rename(path, away); err != nil {
		t.Fatal(err)
	}
	d := nodetest.Spawn(t, dir)
	d.Until(t, id, "waits", waiting)
	older, newest := kept(t, d, id)
	var refused *api.Error
	for _, dry := range []bool{true, false} {
		if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{FromRound: newest, DryRun: dry}); !errors.As(err, &refused) || refused.Status != http.StatusConflict ||
			!strings.Contains(refused.Message, fmt.Sprintf("--from-round %d)", older)) {
			t.Errorf("round %d, which is not whole, dry run %v: %v", newest, dry, err)
		}
	}
	if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{FromRound: older, DryRun: true}); err != nil {
		t.Errorf("a dry run from round %d, which is whole: %v", older, err)
	}
	shards := control.ShardDir(filepath.Join(dir, "jobs", id))
	if err := os.Rename(shards, shards+".away"); err != nil {
		t.Fatal(err)
	}
	for _, round := range []uint64{older, newest} {
		if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{FromRound: round}); err == nil || !strings.Contains(err.Error(), "no other kept round can be used now") {
			t.Errorf("round %d, and no other is whole either: %v", round, err)
		}
	}
	if err := os.Rename(shards+".away", shards); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{FromRound: older}); err != nil {
		t.Fatal(err)
	}
	s := d.Until(t, id, "trains again", trainsAgain)
	if want := fmt.Sprintf("resumed from round %d", older); !strings.Contains(s.Reason, want) {
		t.Errorf("the reason has no %q: %s", want, s.Reason)
	}
	if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{}); !errors.As(err, &refused) || refused.Status != http.StatusConflict {
		t.Errorf("a job that trains was resumed: %v", err)
	}
	// What comes back late was given up by a person, who may think again: it is not deleted.
	if err := os.Rename(away, path); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "the late shard is in quarantine", func() bool { return slices.Contains(quarantined(t, d, id), filepath.Base(path)) })
}

func TestNothingIsStartedOverByItself(t *testing.T) {
	t.Parallel()
	dir, id, _ := stopped(t)
	shards, err := filepath.Glob(filepath.Join(control.ShardDir(filepath.Join(dir, "jobs", id)), "*.shard"))
	if err != nil || len(shards) == 0 {
		t.Fatal(shards, err)
	}
	for _, path := range shards {
		spoil(t, path)
	}
	d := nodetest.Spawn(t, dir)
	s := d.Until(t, id, "waits", waiting)
	if !strings.Contains(s.Reason, "every kept round is damaged") || !strings.Contains(s.Reason, "--from-start") {
		t.Errorf("the reason is: %s", s.Reason)
	}
	if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{FromStart: true}); err != nil {
		t.Fatal(err)
	}
	d.Until(t, id, "trains again", trainsAgain)
	aside := quarantined(t, d, id)
	for _, path := range shards {
		if !slices.Contains(aside, filepath.Base(path)) {
			t.Errorf("%s is not in quarantine, which holds %v", path, aside)
		}
	}
}

func TestAFailedJobIsExportedAndResumedFromItsLastWholeRound(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "crash-at-600", 1000))
	failed := d.Until(t, id, "ends", ended)
	older, newest := kept(t, d, id)
	if failed.State != api.Failed || newest != failed.CommittedRound {
		t.Fatalf("%s, round %d of %d: %s", failed.State, newest, failed.CommittedRound, failed.Reason)
	}
	spoil(t, newestShard(t, filepath.Join(d.Dir, "jobs", id)))
	card := exportedCard(t, d, id)
	if want := fmt.Sprintf("this is round %d: newer ones cannot be read: round %d", older, newest); !strings.Contains(card.Notice, want) {
		t.Errorf("the card's notice has no %q: %s", want, card.Notice)
	}
	if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{}); err != nil {
		t.Fatal(err)
	}
	again := d.Until(t, id, "ends again", func(s api.JobStatus) bool { return ended(s) && s.Generation > failed.Generation })
	if again.State != api.Failed || again.CommittedRound < older {
		t.Errorf("%s, round %d committed: %s", again.State, again.CommittedRound, again.Reason)
	}
}

func TestOnlyWhatHasSomethingToResumeIsResumed(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	done := d.Submit(t, nodetest.Job(t, d.Dir, "good", 20))
	d.Until(t, done, "ends", ended)
	early := d.Submit(t, nodetest.Job(t, d.Dir, "nan-at-2", 1000))
	d.Until(t, early, "ends", ended)
	for id, word := range map[string]string{done: "is done", early: "--from-start"} {
		if _, err := d.Client.Resume(t.Context(), id, api.ResumeRequest{}); err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("job %s: %v; want %q", id, err, word)
		}
	}
}

// A state directory is what it is, however it is spelt: its workers are adopted, and never doubled.
func TestWorkersAreAdoptedUnderAnotherSpelling(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "long", 1e6))
	before := d.Until(t, id, "commits", committed)
	pid := d.WorkerPID(t, id)
	d.Kill(t)
	other := d.Dir + "-link"
	if err := os.Symlink(d.Dir, other); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(other) }) // it may be gone
	now := nodetest.Spawn(t, other)
	after := now.Until(t, id, "commits further", func(s api.JobStatus) bool { return s.CommittedRound > before.CommittedRound })
	if found := d.WorkerPIDs(t, id); after.Generation != before.Generation || !slices.Equal(found, []int{pid}) {
		t.Errorf("generation %d, workers %v; want %d, and %d alone", after.Generation, found, before.Generation, pid)
	}
}

// exportedCard exports a job and returns its card.
func exportedCard(t *testing.T, d *nodetest.Daemon, id string) (card export.Card) {
	t.Helper()
	var packed bytes.Buffer
	if err := d.Client.Model(t.Context(), id, &packed); err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(&packed); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("no %s: %v", export.CardFile, err)
		}
		if h.Name != export.CardFile {
			continue
		}
		text, err := io.ReadAll(r)
		if err := errors.Join(err, json.Unmarshal(text, &card)); err != nil {
			t.Fatal(err)
		}
		return card
	}
}
