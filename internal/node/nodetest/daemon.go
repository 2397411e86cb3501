package nodetest

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/avgpipe/avgpipe/internal/admission"
	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/logging"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/outputdir"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// ResponseTimeout is how long a worker of these daemons may not answer.
const ResponseTimeout = 3 * time.Second

// programs are what a test binary becomes by its first argument. Each gets the last one.
var programs = map[string]func(last string) int{
	"nodetest-worker": agenttest.Worker,
	"nodetest-tune":   agenttest.Tune,
	"nodetest-inspect": func(string) int {
		return ended("inspect", admission.Inspect(context.Background(), os.Stdin, os.Stdout))
	},
	"nodetest-export": func(string) int { return ended("export", outputdir.Receive(os.Stdin)) },
	"nodetest-daemon": func(dir string) int { // until SIGTERM
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		c := Config(dir, os.Stderr)
		if len(os.Args) > 3 {
			c.Listen, c.NodeID = os.Args[2], "" // the name that it joined with
		}
		return ended("daemon", node.Run(ctx, c))
	},
}

// Main is the TestMain of a test binary that uses this package. run is what a test binary otherwise does: m.Run, or goleak's
// form of it.
func Main(run func() int) {
	if self, err := os.Executable(); err == nil {
		os.Args[0] = self // what is started runs in other directories
	}
	if len(os.Args) > 1 {
		if program, ok := programs[os.Args[1]]; ok {
			os.Exit(program(os.Args[len(os.Args)-1]))
		}
	}
	os.Exit(run())
}

// ended is the exit code of a program that ended with an error, or nil.
func ended(program string, err error) int {
	if err != nil {
		fmt.Fprintln(os.Stderr, program+":", err)
		return 1
	}
	return 0
}

// Config configures a daemon with fake workers and tunings.
func Config(dir string, log io.Writer) node.Config {
	core := zapcore.NewCore(logging.Encoder(), zapcore.Lock(zapcore.AddSync(log)), zap.DebugLevel)
	return node.Config{
		StateDir: dir, Socket: Socket(dir), NodeID: "test", Cores: []int{0, 1}, Version: "test",
		WorkerCommand: []string{os.Args[0], "nodetest-worker"}, TuneCommand: []string{os.Args[0], "nodetest-tune"},
		OpenGPUs:       func() (gpu.Source, error) { return openDriver(dir) },
		InspectCommand: []string{os.Args[0], "nodetest-inspect"}, ExportCommand: []string{os.Args[0], "nodetest-export"},
		Limits: func() node.Limits {
			return node.Limits{
				Agent: agent.Limits{OrphanAfter: agenttest.Patience}, Jobs: coordinator.Limits{ResponseTimeout: ResponseTimeout, RetryLimit: 5},
			}
		},
		DriftHold: 400 * time.Millisecond, Log: zap.New(core),
	}
}

// Socket is where the daemon of a state directory listens.
func Socket(dir string) string { return filepath.Join(dir, "api.sock") }

// StateDir makes a state directory. It goes with the test, and workers that are left in it as well.
func StateDir(t testing.TB) string {
	t.Helper()
	return envtest.ShortDir(t)
}

// Daemon is a running daemon.
type Daemon struct {
	Dir    string
	Client *api.Client
	Cmd    *exec.Cmd // of a spawned one
	stop   func() error
	ended  chan error // nil once it was waited for
}

// Start runs a daemon inside the test's process. It ends, in order, with the test at the latest.
func Start(t testing.TB, dir string, changes ...func(*node.Config)) *Daemon {
	t.Helper()
	return launch(t, dir, func(d *Daemon, log *os.File) func() error {
		ctx, cancel := context.WithCancel(context.Background()) // it ends in order, during cleanup
		d.stop = func() error {
			cancel()
			return nil
		}
		c := Config(dir, log)
		for _, change := range changes {
			change(&c)
		}
		return func() error { return node.Run(ctx, c) }
	})
}

// Spawn runs a daemon as a process of its own, which can be killed. One of several nodes listens at an address.
func Spawn(t testing.TB, dir string, listen ...string) *Daemon {
	t.Helper()
	return launch(t, dir, func(d *Daemon, log *os.File) func() error {
		d.Cmd = exec.Command(os.Args[0], slices.Concat([]string{"nodetest-daemon"}, listen, []string{dir})...) //nolint:noctx // it ends in order, during cleanup
		d.Cmd.Stderr = log
		d.stop = func() error { return d.Cmd.Process.Signal(syscall.SIGTERM) }
		if err := d.Cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return d.Cmd.Wait
	})
}

// launch waits until a daemon answers, which begin has begun to run. What begin returns waits for its end.
func launch(t testing.TB, dir string, begin func(d *Daemon, log *os.File) func() error) *Daemon {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(dir, "daemon.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	d := &Daemon{Dir: dir, Client: api.NewClient(Socket(dir)), ended: ended}
	t.Cleanup(func() {
		d.Client.Close()
		_ = log.Close() // only a log
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the daemon's log:\n%s", text)
		}
	})
	wait := begin(d, log)
	go func() { ended <- wait() }()
	t.Cleanup(func() { d.Stop(t) })
	Eventually(t, "the daemon answers", func() bool {
		select {
		case err := <-ended:
			d.ended = nil
			t.Fatalf("the daemon ended: %v", err)
		default:
		}
		_, err := d.Client.Version(t.Context())
		return err == nil
	})
	return d
}

// Stop ends the daemon in order, as SIGTERM does. A second Stop does nothing.
func (d *Daemon) Stop(t testing.TB) {
	t.Helper()
	if d.ended == nil {
		return
	}
	if err := d.stop(); err != nil {
		t.Errorf("stop the daemon: %v", err)
	}
	if err := d.wait(t); err != nil {
		t.Errorf("the daemon ended with %v", err)
	}
}

// Signal sends a signal to a spawned daemon.
func (d *Daemon) Signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	if err := d.Cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// Kill ends a spawned daemon with SIGKILL.
func (d *Daemon) Kill(t testing.TB) {
	t.Helper()
	d.Signal(t, syscall.SIGKILL)
	_ = d.wait(t) // it was killed
}

func (d *Daemon) wait(t testing.TB) error {
	t.Helper()
	ended := d.ended
	d.ended = nil
	d.Client.Close()
	if d.Cmd != nil { // a spawned one says in its log what it does instead
		quit := time.AfterFunc(envtest.Bound-stacksIn, func() { _ = d.Cmd.Process.Signal(syscall.SIGQUIT) })
		defer quit.Stop()
	}
	return envtest.Receive(t, "the daemon ends", ended)
}

// stacksIn is how long a daemon that does not end has to write the stacks of its goroutines.
const stacksIn = 10 * time.Second

// Eventually waits until something holds.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	envtest.Eventually(t, what, holds)
}

// Submit submits a job and returns its id.
func (d *Daemon) Submit(t testing.TB, source string) string {
	t.Helper()
	r := api.SubmitRequest{File: "job.yaml", Source: source, Base: d.Dir, Key: rand.Text()} // the key makes it one job, however often it is sent
	answer, err := Answered(t, func() (api.SubmitResponse, error) { return d.Client.Submit(t.Context(), r) })
	if err != nil {
		t.Fatal(err)
	}
	return answer.ID
}

// Until waits until a job's status is as wanted and returns it.
func (d *Daemon) Until(t testing.TB, id, what string, holds func(api.JobStatus) bool) api.JobStatus {
	t.Helper()
	var last api.JobStatus
	defer func() {
		if t.Failed() {
			t.Logf("job %s: %+v", id, last)
		}
	}()
	Eventually(t, "job "+id+" "+what, func() bool {
		s, err := Answered(t, func() (api.JobStatus, error) { return d.Client.Job(t.Context(), id) })
		if err != nil {
			t.Fatal(err)
		}
		last = s
		return holds(s)
	})
	return last
}

// Job is a job file of the fake trainer: so many steps of each of two pipelines, of agenttest.RoundTime each, and a commit every 10.
func Job(t testing.TB, dir, name string, steps int) string {
	t.Helper()
	text := make([]byte, 64<<10)
	for i := range text {
		text[i] = byte('a' + i%26)
	}
	if err := os.WriteFile(filepath.Join(dir, "data.txt"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`version: 1
name: %s
model:
  family: gpt2
  config: {vocab_size: 256, n_positions: 16, n_embd: 8, n_layer: 2, n_head: 2}
data:
  files: [data.txt]
optimizer: {lr: 0.01}
train: {steps: %d, batch: 4}
stages: 2
pipelines: 2
micro_batches: 4
center: {commit_every: 10}
`, name, 2*steps)
}

// OpenJob is such a job whose counts are all to be measured.
func OpenJob(t testing.TB, dir, name string, steps int) string {
	t.Helper()
	source := Job(t, dir, name, steps)
	for _, line := range []string{"stages: 2\n", "pipelines: 2\n", "micro_batches: 4\n"} {
		source = strings.Replace(source, line, "", 1)
	}
	return source
}

// WaitForJob waits until a job is there and returns its id.
func (d *Daemon) WaitForJob(t testing.TB) string {
	t.Helper()
	id := ""
	Eventually(t, "a job is there", func() bool {
		jobs, err := d.Client.Jobs(t.Context())
		if err != nil || len(jobs) == 0 {
			return false
		}
		id = jobs[0].ID
		return true
	})
	return id
}

// WorkerPID returns the process of a job's worker.
func (d *Daemon) WorkerPID(t testing.TB, id string) int {
	t.Helper()
	pids := d.WorkerPIDs(t, id)
	if len(pids) != 1 {
		t.Fatalf("workers of job %s: %v; want one", id, pids)
	}
	return pids[0]
}

// WorkerPIDs returns the processes that work on a job.
func (d *Daemon) WorkerPIDs(t testing.TB, id string) []int {
	t.Helper()
	return Running(t, control.AssignmentPath(filepath.Join(d.Dir, "jobs", id)))
}

// TunePIDs returns the processes that tune a job.
func (d *Daemon) TunePIDs(t testing.TB, id string) []int {
	t.Helper()
	return Running(t, control.TuneRequestPath(filepath.Join(d.Dir, "jobs", id)))
}

// Running returns the processes whose command line names a path.
func Running(t testing.TB, named string) []int {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range lines {
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), named) {
			continue // it has ended, or is another's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}
