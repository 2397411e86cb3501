package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/export"
)

// asProgram makes this test binary run as avgpiped: the daemon under test and the workers that it starts are real processes.
const asProgram = "AVGPIPED_TEST_RUN_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
		return
	}
	if err := os.Setenv(asProgram, "1"); err != nil { // processes of a daemon that runs in this one
		panic(err)
	}
	os.Exit(m.Run())
}

// tinyJob trains a small GPT-2 in two stages and two pipelines for some seconds.
const tinyJob = `version: 1
name: tiny
model: {family: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 32, n_positions: 32, vocab_size: 256}}
data: {files: [corpus.txt], holdout: 0.1}
optimizer: {name: adamw, lr: 3e-3, clip_norm: 1}
train: {steps: 320, batch: 4, eval_samples: 8}
stages: 2
pipelines: 2
micro_batches: 2
center: {commit_every: 10}
devices: {kind: ref, cpu: {count: 2, threads: 1}}
seed: 3
`

// site is a place where a daemon runs and is started again.
type site struct {
	t      *testing.T
	dir    string
	client *api.Client
	cmd    *exec.Cmd
}

func newSite(t *testing.T) *site {
	t.Helper()
	dir, err := os.MkdirTemp("", "avgpiped-") //nolint:usetesting // that one has a name too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, dir: dir}
	var text strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&text, "%d bottles of beer on wall %d\n", i%100, i*i%37)
	}
	s.write("corpus.txt", text.String())
	s.write("avgpiped.yaml", fmt.Sprintf("state_dir: %s\nsocket: %s\n", filepath.Join(s.dir, "state"), s.socket()))
	s.client = api.NewClient(s.socket())
	t.Cleanup(func() {
		s.client.Close()
		if s.cmd != nil {
			s.signal(syscall.SIGTERM)
		}
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", s.log())
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *site) socket() string { return filepath.Join(s.dir, "a.sock") }

// log is what the daemons have printed yet.
func (s *site) log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		s.t.Error(err)
	}
	return string(text)
}

func (s *site) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// start starts the daemon and waits until it answers.
func (s *site) start() {
	s.t.Helper()
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.t.Fatal(err)
	}
	defer log.Close() // the daemon has its own descriptor
	s.cmd = exec.Command(os.Args[0], "--config", filepath.Join(s.dir, "avgpiped.yaml"))
	s.cmd.Env = append(os.Environ(), asProgram+"=1")
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.until("the daemon answers", func(ctx context.Context) bool {
		_, err := s.client.Version(ctx)
		return err == nil
	})
}

// signal signals the daemon and waits for its end.
func (s *site) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
	err := s.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); sig == syscall.SIGTERM && (ok || err != nil) {
		s.t.Errorf("the daemon ended on SIGTERM with %v", exit)
	}
	s.cmd = nil
}

// until waits for a condition.
func (s *site) until(what string, reached func(context.Context) bool) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), envtest.Bound)
	defer cancel()
	for !reached(ctx) {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			s.t.Fatalf("%v passed and %s was not reached", envtest.Bound, what)
		}
	}
}

// submit submits the tiny job.
func (s *site) submit() string {
	s.t.Helper()
	answer, err := s.client.Submit(s.t.Context(), api.SubmitRequest{File: "tiny.yaml", Source: tinyJob, Base: s.dir})
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.ID
}

// committed waits until a round from the given one on is durable and returns the status that says so.
func (s *site) committed(id string, round uint64) (status api.JobStatus) {
	s.t.Helper()
	s.until(fmt.Sprintf("commit of round %d", round), func(ctx context.Context) bool {
		var err error
		status, err = s.client.Job(ctx, id)
		if err == nil && status.State.Ended() && status.CommittedRound < round {
			s.t.Fatalf("the job is %s at round %d: %s", status.State, status.Round, status.Reason)
		}
		return err == nil && status.CommittedRound >= round
	})
	return status
}

// done waits for the end of the job and returns its final weights.
func (s *site) done(id string) []byte {
	s.t.Helper()
	status := s.ended(id)
	if status.State != api.Done || status.Step != 160 || status.CommittedRound != 160 {
		s.t.Fatalf("the job is %s at step %d, round %d committed: %s", status.State, status.Step, status.CommittedRound, status.Reason)
	}
	return s.model(id)
}

// model returns the exported weights of the last committed round.
func (s *site) model(id string) []byte {
	s.t.Helper()
	var model bytes.Buffer
	if err := s.client.Model(s.t.Context(), id, &model); err != nil {
		s.t.Fatal(err)
	}
	for archive := tar.NewReader(&model); ; {
		header, err := archive.Next()
		if err != nil {
			s.t.Fatalf("the exported model has no %s: %v", export.WeightsFile, err)
		}
		if filepath.Base(header.Name) == export.WeightsFile {
			content, err := io.ReadAll(archive)
			if err != nil {
				s.t.Fatal(err)
			}
			return content
		}
	}
}

// workers finds the processes that train the job, by their command line.
func (s *site) workers() (pids []int) {
	s.t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, path := range entries {
		line, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(line, []byte("\x00worker\x00")) || !bytes.Contains(line, []byte(s.dir)) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// worker is the only process that trains the job.
func (s *site) worker() int {
	s.t.Helper()
	var pids []int
	s.until("one worker", func(context.Context) bool {
		pids = s.workers()
		return len(pids) == 1
	})
	return pids[0]
}

// others are the processes that train the job beside a worker, which may have ended by now.
func (s *site) others(worker int) []int {
	s.t.Helper()
	return slices.DeleteFunc(s.workers(), func(pid int) bool { return pid == worker })
}

// faultless are the weights of a job that was trained without any fault, once one was.
var faultless struct {
	sync.Mutex
	weights []byte
}

// undisturbed trains the job without any fault.
func undisturbed(t *testing.T) []byte {
	t.Helper()
	faultless.Lock()
	defer faultless.Unlock()
	if faultless.weights == nil {
		s := newSite(t)
		s.start()
		faultless.weights = s.done(s.submit())
	}
	return faultless.weights
}

// What is committed is never lost, and what is not is computed again to the same bits: the model that comes out of any number of
// crashes is the one that comes out of none.
func TestCrashesDoNotChangeABitOfTheModel(t *testing.T) {
	t.Parallel()
	want := undisturbed(t)
	for name, crash := range map[string]func(s *site, id string){
		"worker killed": func(s *site, id string) {
			for _, round := range []uint64{30, 90} {
				before := s.committed(id, round)
				if err := syscall.Kill(s.worker(), syscall.SIGKILL); err != nil {
					s.t.Fatal(err)
				}
				s.until("the next generation trains", func(ctx context.Context) bool {
					now, err := s.client.Job(ctx, id)
					if err == nil && now.Step < before.CommittedRound {
						s.t.Fatalf("step %d was shown after the commit of round %d", now.Step, before.CommittedRound)
					}
					return err == nil && now.Generation > before.Generation && (now.State == api.Running || now.State.Ended())
				})
			}
		},
		"daemon killed, worker adopted": func(s *site, id string) {
			s.committed(id, 30)
			worker := s.worker()
			s.signal(syscall.SIGKILL)
			if now := s.worker(); now != worker {
				s.t.Errorf("worker %d became %d while the daemon was away", worker, now)
			}
			s.start()
			after := s.committed(id, 60)
			if others := s.others(worker); len(others) > 0 || after.Generation != 1 {
				s.t.Errorf("worker %d became %v in generation %d after the daemon's restart; it was healthy and should have been adopted",
					worker, others, after.Generation)
			}
		},
		// The kernel sends SIGHUP and SIGCONT to a stopped process group that loses its parent, unless the process that adopts it is in its session.
		"daemon killed, stopped worker adopted": func(s *site, id string) {
			s.committed(id, 30)
			worker := s.worker()
			if err := syscall.Kill(worker, syscall.SIGSTOP); err != nil {
				s.t.Fatal(err)
			}
			s.signal(syscall.SIGKILL)
			if err := errors.Join(syscall.Kill(worker, syscall.SIGHUP), syscall.Kill(worker, syscall.SIGCONT)); err != nil {
				s.t.Fatal(err)
			}
			s.start()
			if after := s.committed(id, 60); len(s.others(worker)) > 0 || after.Generation != 1 {
				s.t.Errorf("worker %d of generation 1 became %v of generation %d", worker, s.others(worker), after.Generation)
			}
		},
		"daemon and worker killed": func(s *site, id string) {
			s.committed(id, 30)
			worker := s.worker()
			s.signal(syscall.SIGKILL)
			if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
				s.t.Fatal(err)
			}
			s.start()
		},
		"daemon stopped in order": func(s *site, id string) {
			s.committed(id, 30)
			s.signal(syscall.SIGTERM)
			if left := s.workers(); len(left) != 0 {
				s.t.Errorf("workers %v outlive a daemon that ended in order", left)
			}
			s.start()
			if now := s.committed(id, 1); now.CommittedRound <= 30 {
				s.t.Errorf("round %d is committed after the restart; stopping in order commits the running round", now.CommittedRound)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.start()
			id := s.submit()
			crash(s, id)
			if got := s.done(id); !bytes.Equal(got, want) {
				t.Error("the model differs from that of an undisturbed run")
			}
		})
	}
}
