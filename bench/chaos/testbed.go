package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// responseTimeout is the daemons' response_timeout.
const responseTimeout = time.Second

// stateBytes is the size of the small disk that the state directory is on, where file systems can be mounted.
const stateBytes = 32 << 20

// testbed is one trial's: a daemon, its directory and its jobs.
type testbed struct {
	program string // the daemon
	dir     string // all of it
	base    string // the state directory
	state   string // the same, as the configuration spells it
	seed    uint64
	mounts  bool // file systems can be mounted
	verbose bool
	daemon  *rig.Supervisor
	client  *api.Client
	random  *rand.Rand // of whoever applies faults
	jobs    []*trialJob

	inForce   []force  // faults, the last one last
	leftovers []string // temporary files that a fault left

	mu      sync.Mutex
	damaged []string // paths of committed shards that a fault damaged, as reasons name them
	began   time.Time
	events  []string
}

// newTestbed makes a directory with data and a configuration. Nothing runs in it yet.
func newTestbed(o options, seed uint64) (*testbed, error) {
	dir, err := os.MkdirTemp("", "chaos-") // short, for sockets
	if err != nil {
		return nil, err
	}
	w := &testbed{
		program: o.program, dir: dir, base: filepath.Join(dir, "state"), state: filepath.Join(dir, "state"), seed: seed, mounts: o.inside, verbose: o.verbose,
		random: rand.New(rand.NewPCG(seed, 1)), client: api.NewClient(filepath.Join(dir, "sock")), began: time.Now(),
	}
	var text strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&text, "%d bottles of beer on wall %d\n", i%100, i*i%37)
	}
	err = errors.Join(
		os.Mkdir(w.base, 0o750), os.Mkdir(filepath.Join(dir, "data"), 0o750),
		os.WriteFile(filepath.Join(dir, "data", corpus), []byte(text.String()), 0o600), w.configure("info"),
	)
	if err == nil && w.mounts {
		err = mountSmall(w.base, stateBytes)
	}
	if err != nil {
		return nil, errors.Join(err, w.remove())
	}
	return w, nil
}

// configure writes the daemon's configuration.
func (w *testbed) configure(level string) error {
	text := fmt.Sprintf("state_dir: %s\nsocket: %s\nlog_level: %s\nresponse_timeout: %v\nretry_first: 50ms\nretry_longest: 500ms\n"+
		"retry_limit: 20\norphan_after: 1m\n", w.state, filepath.Join(w.dir, "sock"), level, responseTimeout)
	return os.WriteFile(w.config(), []byte(text), 0o600)
}

func (w *testbed) config() string { return filepath.Join(w.dir, "avgpiped.yaml") }

// log is where the daemons print.
func (w *testbed) log() string { return filepath.Join(w.dir, "daemon.log") }

// jobDir is the directory of a job.
func (w *testbed) jobDir(j *trialJob) string { return filepath.Join(w.base, "jobs", j.id) }

// say notes what happens, for the report of a trial that fails.
func (w *testbed) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Sprintf("%6.2f s  %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
	w.events = append(w.events, line)
	if w.verbose {
		fmt.Fprintf(os.Stderr, "seed %d %s\n", w.seed, line)
	}
}

// logText is what the daemons have printed.
func (w *testbed) logText() string {
	text, err := os.ReadFile(w.log())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// answers waits until a daemon answers.
func (w *testbed) answers(ctx context.Context) error {
	return rig.Poll(ctx, startBound, "an answer of the daemon", func() bool { return w.answered(ctx) })
}

// answered asks the daemon once.
func (w *testbed) answered(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	_, err := w.client.Version(ctx)
	return err == nil
}

// remove removes the directory, and what may be mounted in it.
func (w *testbed) remove() error {
	w.client.Close()
	if w.mounts {
		for err := error(nil); err == nil; { // faults mount over it
			err = unix.Unmount(w.base, unix.MNT_DETACH)
		}
	}
	return os.RemoveAll(w.dir)
}

// save copies the directory of a failed trial, with its logs, and what it failed with.
func (w *testbed) save(to string, failed error) error {
	to = filepath.Join(to, fmt.Sprintf("seed-%d", w.seed))
	events := fmt.Appendf(nil, "%s\n\n%v\n", strings.Join(w.events, "\n"), failed)
	if err := errors.Join(os.MkdirAll(to, 0o750), os.WriteFile(filepath.Join(w.dir, "events"), events, 0o600)); err != nil {
		return err
	}
	if said, err := exec.Command("cp", "-a", w.dir, to).CombinedOutput(); err != nil { //nolint:noctx // also of a campaign that was interrupted
		return fmt.Errorf("keep %s: %w: %s", w.dir, err, said)
	}
	return nil
}

// What tells a worker and a tuning from other processes of a trial.
const (
	asWorker = "\x00--assignment\x00"
	asTuning = "\x00--request\x00"
)

// processes returns the running processes whose command line names something in the trial's directory, and holds what.
func (w *testbed) processes(what string) []int { return rig.Processes(what, w.dir+"/") }

// signalAll signals processes. One that has ended is no error.
func signalAll(pids []int, sig syscall.Signal) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d: %w", pid, err)
		}
	}
	return nil
}

// pick draws one of several things; the zero value of none.
func pick[T any](w *testbed, of []T) (one T) {
	if len(of) > 0 {
		one = of[w.random.IntN(len(of))]
	}
	return one
}
