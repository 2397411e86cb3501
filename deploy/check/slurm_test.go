package check

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "avgpipe-deploy-")
	if err == nil {
		c := exec.Command("go", "build", "-tags", os.Getenv("AVGPIPE_TAGS"), "-o", dir+"/", "./cmd/avgpiped", "./cmd/avgpipectl")
		c.Dir = "../.."
		var said []byte
		if said, err = c.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, said)
		}
	}
	return dir, err
})

// build returns a directory with the programs.
func build(t *testing.T) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	if dir, err := built(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// ports returns the first of two ports that nobody listens on.
func ports(t *testing.T) int {
	t.Helper()
	for range 100 {
		first, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			t.Fatal(err)
		}
		n := first.Addr().(*net.TCPAddr).Port
		second, err := net.Listen("tcp", fmt.Sprintf("0.0.0.0:%d", n+1))
		_ = first.Close()
		if err == nil {
			_ = second.Close()
			return n
		}
	}
	t.Fatal("no two free ports were found")
	return 0
}

const job = `version: 1
name: tiny
model:
  family: gpt2
  config: {n_layer: 2, n_head: 2, n_embd: 16, n_positions: 16, vocab_size: 256}
data: {files: [text.txt]}
optimizer: {name: adamw, lr: 1e-3, clip_norm: 1}
train: {steps: 3000, batch: 4}
stages: 2
pipelines: 1
micro_batches: 2
schedule: 1f1b
center: {commit_every: 10}
`

// allocation is one of Slurm, whose hosts are addresses of this machine.
type allocation struct {
	t        *testing.T
	dir      string
	programs string
	port     int
}

// start runs the batch script. Each line that it prints is given to line.
func (a *allocation) start(ctx context.Context, line func(text string, script *os.Process)) (said string, err error) {
	fakes, err := filepath.Abs("testdata")
	if err != nil {
		return "", err
	}
	script, err := filepath.Abs("../slurm/avgpipe.sbatch")
	if err != nil {
		return "", err
	}
	c := exec.CommandContext(ctx, "bash", script, "job.yaml", "model")
	c.Dir = a.dir
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Env = append(os.Environ(), "PATH="+fakes+":"+os.Getenv("PATH"), "AVGPIPE_BIN="+a.programs, "AVGPIPE_DIR="+a.dir+"/s", fmt.Sprintf("AVGPIPE_PORT=%d", a.port),
		"SLURM_JOB_ID=77", "SLURM_JOB_NODELIST=127.0.0.2,127.0.0.3", "FAKE_LOG="+a.dir+"/scontrol.log")
	out, err := c.StdoutPipe()
	if err != nil {
		return "", err
	}
	c.Stderr = c.Stdout
	if err := c.Start(); err != nil {
		return "", err
	}
	var all strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		all.WriteString(lines.Text() + "\n")
		line(lines.Text(), c.Process)
	}
	return all.String(), c.Wait()
}

// An allocation that is preempted goes on from its committed round when it is requeued.
func TestSlurm(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	dir, err := os.MkdirTemp("", "sl") // a short path: sockets lie below it
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	a := &allocation{t, dir, build(t), ports(t)}
	var text strings.Builder
	for i := range 20000 {
		fmt.Fprintln(&text, i)
	}
	for name, content := range map[string]string{"job.yaml": job, "text.txt": text.String()} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	model := filepath.Join(dir, "model")
	if err := os.MkdirAll(filepath.Join(model, "of-another-run"), 0o700); err != nil {
		t.Fatal(err)
	}
	if said, err := a.start(ctx, func(string, *os.Process) {}); err == nil || !strings.Contains(said, "model is there and is not empty: name another directory") {
		t.Fatalf("beside the model of another run: %v; it says\n%s", err, said)
	}
	if err := os.RemoveAll(model); err != nil {
		t.Fatal(err)
	}
	told := false
	said, err := a.start(ctx, func(text string, script *os.Process) {
		if !told && strings.Contains(text, "K tokens/s") {
			told = true
			_ = script.Signal(syscall.SIGUSR1)
		}
	})
	calls, _ := os.ReadFile(filepath.Join(dir, "scontrol.log"))
	if err != nil || !told || !strings.Contains(string(calls), "requeue 77") || !strings.Contains(string(calls), "ReqNodeList=127.0.0.2,127.0.0.3") {
		daemons, _ := os.ReadFile(filepath.Join(dir, "s", "daemons.log"))
		t.Fatalf("preempted: %v, told %t; scontrol was asked %s; it says\n%s\n%s", err, told, calls, said, daemons)
	}
	if said, err = a.start(ctx, func(string, *os.Process) {}); err != nil || !strings.Contains(said, "resumed from round") {
		t.Fatalf("requeued: %v; it says\n%s", err, said)
	}
	if _, err := os.Stat(filepath.Join(model, "model.safetensors")); err != nil {
		t.Error(err)
	}
}
