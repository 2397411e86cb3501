package foreign

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/stage/device"
)

// Config says what interpreter to start, and how.
type Config struct {
	Interpreter string // the program: "/usr/bin/python3"
	Threads     int    // that it computes with; 0 means 1
	Cores       []int  // processors that it may use; none: those of this process
	// Device is what the modules compute on: "", where tensors lie in the arena; "cuda", the first GPU that the interpreter sees; or "cpu", on the processor
	// with copies as for a GPU, which is for tests.
	Device string
	GPU    string   // the only one that the interpreter sees: its UUID, or its number as nvidia-smi counts; "": it sees none
	TF32   bool     // on a GPU, products and convolutions may round what they multiply to TF32
	Dir    string   // where it works; "": where this process does
	Env    []string // as in exec.Cmd
	// As has it run as another user; nil: as this process's.
	As *syscall.Credential
	// Stub is the program that the interpreter runs; nil: the one for Python, which is an archive of several files.
	Stub []byte
	// Log is told the lines that it writes to "stdout" or "stderr", by two goroutines. A line that is longer than 64 KiB comes in parts. What is more than
	// 1 MiB and then 64 KiB a second, of each, is left out, which LeftOut is told at most once a second. While either blocks, so does a program that
	// writes. Nil: they are dropped.
	Log     func(stream, line string)
	LeftOut func(stream string, lines, bytes int)
	// StartTimeout bounds hello, build and the dry run, each; 0 means 5 minutes. LeastTimeout bounds every other request, unless it is
	// longer to take 100 times what the longest before took; 0 means 1 minute.
	StartTimeout, LeastTimeout time.Duration
}

func (c Config) withDefaults() Config {
	if c.Threads == 0 {
		c.Threads = 1
	}
	if c.Stub == nil {
		c.Stub = stub()
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = 5 * time.Minute
	}
	if c.LeastTimeout == 0 {
		c.LeastTimeout = time.Minute
	}
	return c
}

// Process is an interpreter that computes a user's modules. Its methods are called by one goroutine at a time.
type Process struct {
	config  Config
	ctx     context.Context //nolint:containedctx // of the process: what it is asked for ends with it
	arena   *arena
	channel *channel
	cmd     *exec.Cmd
	ended   chan struct{} // closed when it has ended
	how     error
	log     log
	oom     process.OOM
	longest time.Duration // that a request of the training took
	python  string
	program string        // the path of what was to be built last
	modules []BuiltModule // what the last build gave
	copies  bool          // see Built
	locks   bool          // see Built
	failure error         // what ended the process: every later request returns it

	mu     sync.Mutex
	reaped bool // its number may be another process's by now
}

// Start starts an interpreter. It ends when ctx does, or with this process.
func Start(ctx context.Context, c Config) (p *Process, err error) {
	p = &Process{config: c.withDefaults(), ctx: ctx, ended: make(chan struct{})}
	if p.arena, err = newArena(arenaBytes()); err != nil {
		return nil, err
	}
	if err := p.start(); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", c.Interpreter, err), p.arena.close())
	}
	if err := errors.Join(p.pin(), p.confine()); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	var hello helloAnswer
	if err := p.call("hello", helloRequest{"hello", Version, p.config.Threads, p.config.Device, p.config.TF32}, &hello, p.config.StartTimeout); err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", c.Interpreter, err), p.Close())
	}
	p.python = hello.Python
	return p, nil
}

// arenaBytes is how much address space the arena takes: more than the host's memory, which bounds what can be written.
func arenaBytes() int {
	const least = 1 << 36
	return int(min(max(2*device.HostTotal(), least), math.MaxInt64/4)) / arenaAlign * arenaAlign
}

// start makes the process.
func (p *Process) start() error {
	program, err := programFile(p.config.Stub)
	if err != nil {
		return err
	}
	defer program.Close() //nolint:errcheck // it was only read
	c, other, err := newChannel()
	if err != nil {
		return err
	}
	p.channel = c
	end := os.NewFile(uintptr(other), "socket")
	defer end.Close() //nolint:errcheck // the interpreter has its own
	cmd := exec.CommandContext(p.ctx, p.config.Interpreter, "/proc/self/fd/5", "3", "4", strconv.Itoa(len(p.arena.memory)))
	cmd.ExtraFiles = []*os.File{end, p.arena.file, program}
	cmd.Dir, cmd.Env = p.config.Dir, append(p.environment(), p.config.variables()...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true, Credential: p.config.As}
	cmd.Cancel = func() error { p.kill(); return nil }
	p.cmd = cmd
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return errors.Join(fmt.Errorf("%w; expected the path of a Python interpreter, as in /usr/bin/python3", err), c.close())
	}
	return nil
}

func (p *Process) environment() []string {
	if p.config.Env == nil {
		return os.Environ()
	}
	return p.config.Env
}

// variables are what libraries read when they start.
func (c *Config) variables() []string {
	all := []string{"PYTHONUNBUFFERED=1", "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES=" + c.GPU}
	for _, name := range []string{"OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"} {
		all = append(all, name+"="+strconv.Itoa(c.Threads))
	}
	return all
}

// programFile is the stub as a file, which interpreters want.
func programFile(program []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("avgpiped-stub", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("make a file in memory: %w", err)
	}
	f := os.NewFile(uintptr(fd), "stub")
	if _, err := f.Write(program); err != nil {
		return nil, errors.Join(fmt.Errorf("write the stub: %w", err), f.Close())
	}
	return f, nil
}

// run starts the process and waits for its end, on a thread that ends no sooner: the process would end with it.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.log.attach(p.cmd)
	if err == nil {
		err = p.cmd.Start()
	}
	p.log.started()
	if err != nil {
		p.log.end()
		started <- err
		return
	}
	p.oom = process.WatchOOM(p.cmd.Process.Pid)
	p.log.follow(&p.config)
	started <- nil
	for waits := true; waits; { // without Wait, so that it keeps its number until its group has ended
		waits = errors.Is(unix.Waitid(unix.P_PID, p.cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil), unix.EINTR)
	}
	p.kill()
	p.mu.Lock()
	p.reaped = true
	p.mu.Unlock()
	p.how = p.cmd.Wait()
	p.log.end()
	close(p.ended)
}

// kill ends the process and all that it started, except what left its process group.
func (p *Process) kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.reaped {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	}
}

// killTimeout is what the kernel has to end a process that was killed.
const killTimeout = 10 * time.Second

// end waits for the end of the process, and kills it when that takes too long. It reports whether it ended by itself.
func (p *Process) end(within time.Duration) (itself bool, err error) {
	select {
	case <-p.ended:
		return true, nil
	case <-time.After(within):
	}
	p.kill()
	select {
	case <-p.ended:
		return false, nil
	case <-time.After(killTimeout):
		return false, fmt.Errorf("end the interpreter: process %d still runs %v after it was killed", p.cmd.Process.Pid, killTimeout)
	}
}

// pin has the interpreter run on its processors.
func (p *Process) pin() error {
	if len(p.config.Cores) == 0 {
		return nil
	}
	var set unix.CPUSet
	for _, core := range p.config.Cores {
		set.Set(core)
	}
	if err := unix.SchedSetaffinity(p.cmd.Process.Pid, &set); err != nil {
		return fmt.Errorf("bind the interpreter to processors %v: %w", p.config.Cores, err)
	}
	return nil
}

// confine bounds the memory that the process may take for itself by what this one may have, so that a program learns at which line it wants more. The
// kernel takes it first when memory runs out all the same. What it maps of the arena does not count, and would make a dump of its memory huge.
func (p *Process) confine() error {
	pid := p.cmd.Process.Pid
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid), []byte("1000"), 0) // where it may not be told, the worker may be taken
	bounds := map[int]uint64{unix.RLIMIT_CORE: 0}
	if total := device.HostTotal(); total > 0 && p.config.GPU == "" { // CUDA reserves memory as it likes
		bounds[unix.RLIMIT_DATA] = uint64(total) //nolint:gosec // positive
	}
	for which, most := range bounds {
		var limit unix.Rlimit
		err := unix.Prlimit(pid, which, nil, &limit)
		if limit.Cur = min(most, limit.Max); err == nil {
			err = unix.Prlimit(pid, which, &limit, nil)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) { // it has ended, which the first request finds out
			return fmt.Errorf("bound the interpreter's memory: %w", err)
		}
	}
	return nil
}

// Python is the interpreter's version.
func (p *Process) Python() string { return p.python }

// Build has the user's function make its modules, after the random numbers of its framework were seeded.
func (p *Process) Build(program Program, seed uint64) (b Built, err error) {
	if program.Args == nil {
		program.Args = map[string]any{}
	}
	p.program = program.Path
	if err := p.call("build", buildRequest{"build", program, seed}, &b, p.config.StartTimeout); err != nil {
		return Built{}, err
	}
	err = b.check()
	if err == nil {
		err = b.checkSamples(program.Samples != nil)
	}
	if err != nil {
		return Built{}, p.broke("build", err)
	}
	p.modules, p.copies, p.locks = b.Modules, b.Copies, b.Locks
	return b, nil
}

// Probe runs each module by itself on made-up inputs.
func (p *Process) Probe(probe Probe) ([]Probed, error) {
	if probe.Repeat == 0 {
		probe.Repeat = 3
	}
	if err := probe.check(); err != nil {
		return nil, err
	}
	var a probeAnswer
	if err := p.call("probe", probeRequest{"probe", probe}, &a, p.config.StartTimeout); err != nil {
		return nil, err
	}
	if err := checkProbed(p.modules, probe.tensors(), a.Modules); err != nil {
		return nil, p.broke("probe", err)
	}
	return a.Modules, nil
}

// Read is what a parameter or a running statistic is after build.
func (p *Process) Read(name string, length int) ([]float32, error) {
	at := p.arena.alloc(length * device.F32.Bytes())
	if at == nil {
		return nil, fmt.Errorf("read %s: %d elements do not fit into the shared memory", name, length)
	}
	err := p.call("write", writeRequest{"write", []writtenTo{{name, p.arena.offset(at)}}}, nil, p.config.StartTimeout)
	values := append([]float32(nil), unsafe.Slice((*float32)(at), length)...)
	return values, errors.Join(err, p.arena.release(at))
}

// passes is how errors call what training asks for; whoever asks says more.
const passes = "passes of modules"

// train asks for something that training needs.
func (p *Process) train(request any) error {
	begin := time.Now()
	err := p.call(passes, request, nil, max(p.config.LeastTimeout, 100*p.longest))
	p.longest = max(p.longest, time.Since(begin))
	return err
}

// call asks for something that takes at most so long.
func (p *Process) call(name string, request, answer any, bound time.Duration) error {
	if p.failure != nil {
		return p.failure
	}
	var begin time.Time // of waiting, which most requests do not come to
	text, err := p.channel.call(request, mostOf(answer), func() error {
		select {
		case <-p.ended: // what it started may hold the socket open
			return io.EOF
		default:
		}
		if begin.IsZero() {
			begin = time.Now()
		}
		if err := context.Cause(p.ctx); err != nil {
			return err
		}
		if time.Since(begin) > bound {
			return &HangError{Request: name, Bound: bound.String()}
		}
		return nil
	})
	hang, hangs := errors.AsType[*HangError](err)
	switch {
	case err == nil:
		return p.decode(name, text, answer)
	case errors.Is(err, errUnsent):
		return fmt.Errorf("%s: %w", name, err)
	case hangs:
		return p.hung(hang)
	case errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET):
		return p.gone(name)
	case context.Cause(p.ctx) != nil:
		return p.fail(fmt.Errorf("%s: %w", name, err))
	}
	return p.broke(name, err)
}

// decode reads an answer. The process lives on after an error of the user's program, but not after one of its device.
func (p *Process) decode(name string, text []byte, answer any) error {
	err := decode(text, answer)
	program, ok := errors.AsType[*ProgramError](err)
	switch {
	case ok && program.Lost:
		return p.fail(&DeviceError{Request: name, Said: program.Error()})
	case ok || err == nil:
		return err
	}
	return p.broke(name, err)
}

// fail ends the process.
func (p *Process) fail(err error) error {
	_, unended := p.end(0)
	p.failure = errors.Join(err, unended)
	return p.failure
}

// broke ends a process that does not keep to the protocol.
func (p *Process) broke(request string, err error) error {
	return p.fail(&ProtocolError{Request: request, Err: err})
}

// socketClosed is the exit status of a stub whose socket was closed within its process.
const socketClosed = 70

// gone is the error of a process that has ended, or closed its socket.
func (p *Process) gone(request string) error {
	itself, err := p.end(closeTimeout) // it may have closed its socket, and live
	if cause := context.Cause(p.ctx); cause != nil {
		err = errors.Join(fmt.Errorf("%s: %w", request, cause), err)
	} else if err == nil {
		how := "exit status 0"
		switch {
		case !itself:
			how = "it closed its socket"
		case p.cmd.ProcessState.ExitCode() == socketClosed:
			how = "the program closed the descriptor of its socket"
		case p.how != nil:
			how = p.how.Error()
		}
		said := p.log.said()
		err = &EndedError{Request: request, How: p.oom.Cause(said) + how, Said: said}
	}
	p.failure = err
	return err
}

// closeTimeout is what a process has to end by itself.
const closeTimeout = time.Second

var errClosed = errors.New("the interpreter was closed")

// Close ends the interpreter and frees the arena. Nothing of the arena may be used afterwards. Another Close does nothing.
func (p *Process) Close() error {
	if errors.Is(p.failure, errClosed) {
		return nil
	}
	p.failure = errors.Join(errClosed, p.failure)
	err := p.channel.close() // it ends when it sees this
	_, unended := p.end(closeTimeout)
	return errors.Join(err, unended, p.arena.close())
}
