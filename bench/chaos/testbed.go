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
	"sync/atomic"
	"syscall"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/hosts"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/internal/api"
)

// responseTimeout is the daemons' response_timeout in trials of random faults.
const responseTimeout = time.Second

// stateBytes is the size of the small disk that the state directory is on, where file systems can be mounted.
const stateBytes = 32 << 20

// testbed is one trial's: daemons, their directories and their jobs.
type testbed struct {
	program string // the daemon
	dir     string // all of it
	seed    uint64
	mounts  bool // file systems can be mounted
	scarce  bool // each host has one core, and jobs have fewer stages soon after a loss
	verbose bool
	calm    bool // what happens passes by itself, so no daemon logs an error
	// response is the daemons' response_timeout.
	response time.Duration
	hosts    []*host
	network  *hosts.Network // nil: one host, this machine
	proxies  *hosts.Proxies // between them; nil: none
	random   *rand.Rand     // of whoever applies faults
	jobs     []*trialJob
	idle     usage // of daemons before the first job

	inForce   []force  // faults, the last one last
	leftovers []string // temporary files that a fault left

	old atomic.Int64 // answers of daemons without a leader, which say that they are old

	mu      sync.Mutex
	damaged []string // paths of committed shards that a fault damaged, as reasons name them
	began   time.Time
	events  []string
}

// newTestbed makes a directory with data, and hosts. Nothing runs on them yet.
func newTestbed(ctx context.Context, o options, seed uint64) (*testbed, error) {
	dir, err := os.MkdirTemp("", "chaos-") // short, for sockets
	if err != nil {
		return nil, err
	}
	w := &testbed{
		program: o.program, dir: dir, seed: seed, mounts: o.inside, verbose: o.verbose, response: o.response, calm: o.calm,
		random: rand.New(rand.NewPCG(seed, 1)), began: time.Now(),
	}
	err = errors.Join(os.Mkdir(filepath.Join(dir, "data"), 0o750), os.WriteFile(filepath.Join(dir, "data", corpus), rig.Text(2000), 0o600))
	if err == nil && o.modules {
		err = writeProgram(filepath.Join(dir, "data"), o.python)
	}
	if err == nil {
		err = w.makeHosts(ctx, o)
	}
	if err != nil {
		return nil, errors.Join(err, w.remove(ctx))
	}
	return w, nil
}

// makeHosts makes one host of this machine, or several with a network.
func (w *testbed) makeHosts(ctx context.Context, o options) (err error) {
	if o.hosts < 2 {
		h, err := newHost(w, w.dir, "", nil)
		w.hosts = []*host{h}
		return err
	}
	if w.network, err = hosts.New(ctx, names[:o.hosts]...); err != nil {
		return err
	}
	for _, on := range w.network.Hosts() {
		h, err := newHost(w, filepath.Join(w.dir, on.Name), on.Name, on)
		w.hosts = append(w.hosts, h)
		if err != nil {
			return err
		}
	}
	return nil
}

// names are those of hosts.
var names = []string{"a", "b", "c", "d", "e"}

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

// remove removes the directory, what may be mounted in it, and the network.
func (w *testbed) remove(ctx context.Context) (err error) {
	for _, h := range w.hosts {
		h.client.Close()
		if h.disk != nil {
			err = errors.Join(err, h.disk.Close())
		}
		h.unmountAll()
	}
	if w.proxies != nil {
		err = errors.Join(err, w.proxies.Close(ctx))
	}
	if w.network != nil {
		err = errors.Join(err, w.network.Remove(ctx))
	}
	return errors.Join(err, os.RemoveAll(w.dir))
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
func pick[T any, W interface{ draw(n int) int }](w W, of []T) (one T) {
	if len(of) > 0 {
		one = of[w.draw(len(of))]
	}
	return one
}

// draw draws a number below n.
func (w *testbed) draw(n int) int { return w.random.IntN(n) }

// answers waits until all daemons answer.
func (w *testbed) answers(ctx context.Context) error {
	for _, h := range w.hosts {
		if err := h.answers(ctx); err != nil {
			return err
		}
	}
	return nil
}

// any does something with the client of a daemon that answers, which the first one may not.
func (w *testbed) any(ctx context.Context, do func(*api.Client) error) (err error) {
	for _, h := range w.hosts {
		if err = do(h.client); err == nil || ctx.Err() != nil {
			return err
		}
	}
	return err
}
