package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// faulty submits a job of two pipelines and two stages whose modules do what their program says, and returns its id and where they note what they do.
func (s *site) faulty(how string, steps int) (id, notes string) {
	s.t.Helper()
	path, err := filepath.Abs("testdata/faults.py")
	if err != nil {
		s.t.Fatal(err)
	}
	notes = filepath.Join(s.dir, how)
	source := fmt.Sprintf(`version: 1
name: %[1]s
model: {python: %[2]s:build, args: {how: %[1]s, notes: %[3]s}, interpreter: %[4]s}
data: {files: [corpus.txt], holdout: 0.1, sequence: 16}
optimizer: {lr: 1e-3}
train: {steps: %[5]d, batch: 4, eval_samples: 8}
stages: 2
pipelines: 2
micro_batches: 2
center: {commit_every: 2}
devices: {cpu: {count: 2, threads: 1}}
`, how, path, notes, stagetest.Python(s.t), steps)
	answer, err := s.client.Submit(s.t.Context(), api.SubmitRequest{File: how + ".yaml", Source: source, Base: s.dir})
	if err != nil {
		s.t.Fatal(err)
	}
	return answer.ID, notes
}

// noted waits until the modules have noted something.
func (s *site) noted(notes, text string) {
	s.t.Helper()
	s.until("the note "+text, func(context.Context) bool {
		found, err := os.ReadFile(notes)
		return err == nil && strings.Contains("\n"+string(found), "\n"+text+"\n")
	})
}

// interpreters are the processes that workers of the site have started.
func (s *site) interpreters() (all []int) {
	s.t.Helper()
	processes, err := procfs.AllProcs()
	if err != nil {
		s.t.Fatal(err)
	}
	workers := s.workers()
	for _, p := range processes {
		stat, err := p.Stat()
		for _, worker := range workers {
			if err == nil && stat.PPID == worker {
				all = append(all, p.PID)
			}
		}
	}
	return all
}

// gone waits until processes have ended.
func (s *site) gone(pids []int) {
	s.t.Helper()
	for _, pid := range pids {
		s.until("the end of process "+strconv.Itoa(pid), func(context.Context) bool {
			return syscall.Kill(pid, 0) != nil
		})
	}
}

// TestAProgramThatPrintsWithoutEndTrains, and its log is bounded and says what was left out. The interpreter has no descriptor of the worker's or of the daemon's but
// those that it is given.
func TestAProgramThatPrintsWithoutEndTrains(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	began := time.Now()
	id, notes := s.faulty("prints", 40)
	if status := s.ended(id); status.State != api.Done {
		t.Fatalf("the job is %s: %s", status.State, status.Reason)
	}
	logs, err := filepath.Glob(filepath.Join(s.dir, "state", "jobs", id, "worker.log*"))
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, path := range logs {
		text.WriteString(content(t, path))
	}
	const devices, streams, burst, perSecond, own = 2, 2, 1 << 20, 64 << 10, 1 << 20
	most := devices*streams*(2*burst+2*perSecond*int(2+time.Since(began).Seconds())) + own
	if text.Len() > most || !strings.Contains(text.String(), "lines are left out") || strings.Count(text.String(), strings.Repeat("x", 99)) < 1000 {
		t.Errorf("the log has %d bytes, expected at most %d, many lines of the program, and how many were left out: %.2000s", text.Len(), most, text.String())
	}
	builds := 0
	for line := range strings.Lines(content(t, notes)) {
		builds++
		if line != "0 1 2 3 4 5 arena\n" {
			t.Errorf("the interpreter has the descriptors %s", line)
		}
	}
	if builds != 3 {
		t.Errorf("%d builds, expected one when the job was submitted and one for each device", builds)
	}
}

// TestAnErrorOfAProgramIsInTheStatus of the generation that it was raised in, with the line: nothing is tried again first.
func TestAnErrorOfAProgramIsInTheStatus(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start()
	id, notes := s.faulty("raises", 40)
	s.noted(notes, "raises")
	raised := time.Now()
	status := s.ended(id)
	t.Logf("it was in the status %v after the program raised it", time.Since(raised))
	_, at, found := strings.Cut(status.Reason, "faults.py:41: ArithmeticError: module ")
	if status.State != api.Failed || status.Generation != 1 || !found || !strings.Contains(at, ": nine") {
		t.Errorf("the job is %s in generation %d: %s", status.State, status.Generation, status.Reason)
	}
}

// TestNothingWaitsForAnInterpreterThatHangs, whether it computes for ever or a signal has stopped it: status answers, a job is cancelled, the daemon ends in order, and no
// process is left. All of that is less than the minute that an answer may take.
func TestNothingWaitsForAnInterpreterThatHangs(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"sleeps", "stops"} {
		for end, do := range map[string]func(s *site, id string){
			"cancel": func(s *site, id string) {
				if _, err := s.client.Cancel(s.t.Context(), id); err != nil {
					s.t.Fatal(err)
				}
				if status := s.ended(id); status.State != api.Cancelled {
					s.t.Errorf("the job is %s: %s", status.State, status.Reason)
				}
			},
			"stop": func(s *site, _ string) { s.signal(syscall.SIGTERM) },
		} {
			t.Run(how+", "+end, func(t *testing.T) {
				s := newSite(t)
				s.start()
				id, notes := s.faulty(how, 40)
				s.noted(notes, how)
				s.until("a status that says that it trains", func(ctx context.Context) bool {
					status, err := s.client.Job(ctx, id)
					return err == nil && status.State == api.Running
				})
				processes := append(s.interpreters(), s.workers()...)
				if len(processes) != 3 {
					t.Fatalf("processes %v, expected a worker and two interpreters", processes)
				}
				do(s, id)
				s.gone(processes)
				if strings.Contains(s.log(), "did not answer") {
					t.Error("it was waited for until the interpreter was given up")
				}
			})
		}
	}
}

// TestKillsOfInterpretersChangeNoBit, nor those of a worker or of the daemon beside them. `make chaos-python` is the long form.
func TestKillsOfInterpretersChangeNoBit(t *testing.T) {
	t.Parallel()
	const rounds = 60 // of 0.1 s, so that all kills meet the job while it trains
	var want []byte
	for _, disturbed := range []bool{false, true} {
		s := newSite(t)
		s.start()
		id, _ := s.faulty("slow", 2*rounds)
		if disturbed {
			for i, kill := range []func(){
				func() { s.kill(s.interpreters()[:1]) },
				func() { s.kill(s.interpreters()) },
				func() { s.kill([]int{s.worker()}) },
				func() {
					before := s.interpreters()
					s.signal(syscall.SIGKILL)
					s.kill(before[:1]) // while no daemon looks
					s.start()
				},
			} {
				s.committed(id, uint64(2+4*i)) //nolint:gosec // small
				s.until("two interpreters", func(context.Context) bool { return len(s.interpreters()) == 2 })
				kill()
			}
		}
		if status := s.ended(id); status.State != api.Done || status.CommittedRound != rounds || disturbed && status.Generation < 4 {
			t.Fatalf("the job is %s at round %d of generation %d: %s", status.State, status.CommittedRound, status.Generation, status.Reason)
		}
		weights := s.model(id)
		if want == nil {
			want = weights
		}
		if !bytes.Equal(weights, want) {
			t.Error("the weights are others than those of a run that nothing disturbed")
		}
	}
}

func (s *site) kill(pids []int) {
	s.t.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			s.t.Fatal(err)
		}
	}
	s.gone(pids)
}
