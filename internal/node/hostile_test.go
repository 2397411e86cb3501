package node_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
)

// hostile is a job file that names something which hurts its reader.
type hostile struct {
	name    string
	prepare func(t *testing.T, dir string)
	lines   string // of the job file, in place of model and data; DIR is the directory
	want    string
}

func fifo(name string) func(t *testing.T, dir string) {
	return func(t *testing.T, dir string) {
		t.Helper()
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const (
	tinyConfig = `{"model_type": "gpt2", "vocab_size": 256, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2}`
	tinyModel  = "model: {family: gpt2, config: {vocab_size: 256, n_positions: 16, n_embd: 8, n_layer: 2, n_head: 2}}\n"
	fromDir    = "model: {family: gpt2, from: DIR}\ndata: {files: [DIR/data.txt]}\n"
)

var hostiles = []hostile{
	{"endless config", func(t *testing.T, dir string) {
		t.Helper()
		if err := os.Symlink("/dev/zero", filepath.Join(dir, "config.json")); err != nil {
			t.Fatal(err)
		}
	}, fromDir, "config.json is a device, not a file"},
	{"config is a pipe", fifo("config.json"), fromDir, "config.json is a pipe, not a file"},
	{"weights are a pipe", func(t *testing.T, dir string) {
		t.Helper()
		write(t, filepath.Join(dir, "config.json"), tinyConfig)
		fifo("model.safetensors")(t, dir)
	}, fromDir, "model.safetensors is a pipe, not a file"},
	{"tokenizer is a pipe", fifo("tokenizer.json"), tinyModel + "data: {files: [DIR/data.txt], tokenizer: DIR/tokenizer.json}\n", "tokenizer.json is a pipe, not a file"},
	{"data are a pipe", fifo("pipe.txt"), tinyModel + "data: {files: [DIR/pipe.txt]}\n", "pipe.txt is a pipe, not a file"},
	{"validation is a pipe", fifo("pipe.txt"), tinyModel + "data: {files: [DIR/data.txt], validation: [DIR/pipe.txt]}\n", "pipe.txt is a pipe, not a file"},
	{"plan is a pipe", fifo("plan"), tinyModel + "data: {files: [DIR/data.txt]}\nschedule: file:DIR/plan\n", "plan is a pipe, not a file"},
	{"pages of 2 GiB", func(t *testing.T, dir string) {
		t.Helper()
		text, err := os.ReadFile("../data/table/testdata/claims.parquet")
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "claims.parquet"), string(text))
	}, tinyModel + "data: {files: [DIR/claims.parquet], format: parquet}\n", "claims 2147483647 bytes decompressed"},
	{"a header of nothing", func(t *testing.T, dir string) {
		t.Helper()
		write(t, filepath.Join(dir, "config.json"), tinyConfig)
		write(t, filepath.Join(dir, "model.safetensors"), "\xff\xff\xff\xff\x00\x00\x00\x00{}")
	}, fromDir, "the header claims 4294967295 bytes in a file of 10"},
}

// TestHostileFilesHurtNobody: what makes its reader wait for ever or allocate without bound is refused in words, and the daemon has no
// more threads and children than before.
func TestHostileFilesHurtNobody(t *testing.T) {
	t.Parallel()
	d := nodetest.Spawn(t, nodetest.StateDir(t))
	good := nodetest.Job(t, d.Dir, "good", 50)
	_, rest, _ := strings.Cut(good, "optimizer:")
	submit := func(h hostile) {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "data.txt"), strings.Repeat("some text. ", 1000))
		h.prepare(t, dir)
		source := "version: 1\nname: hostile\n" + strings.ReplaceAll(h.lines, "DIR", dir) + "optimizer:" + rest
		_, err := d.Client.Submit(t.Context(), api.SubmitRequest{File: "job.yaml", Source: source, Base: dir})
		if err == nil || !strings.Contains(err.Error(), h.want) {
			t.Errorf("%s: %v, want %q", h.name, err, h.want)
		}
	}
	for _, h := range hostiles {
		submit(h)
	}
	before := threads(t, d)
	for range 2 {
		for _, h := range hostiles {
			submit(h)
		}
	}
	// The runtime may start a few of its own; a leak would be one for each refusal.
	if after := threads(t, d); after > before+len(hostiles) {
		t.Errorf("the daemon has %d threads after %d more refusals, it had %d", after, 2*len(hostiles), before)
	}
	if s := d.Until(t, d.Submit(t, good), "ends", ended); s.State != api.Done {
		t.Errorf("a good job is %s: %s", s.State, s.Reason)
	}
}

// threads is how many a spawned daemon has.
func threads(t *testing.T, d *nodetest.Daemon) int {
	t.Helper()
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", d.Cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(tasks)
}

// TestWorkersOpenWithTheRightsOfTheSubmitter: who submitted is in the assignment.
func TestWorkersOpenWithTheRightsOfTheSubmitter(t *testing.T) {
	t.Parallel()
	d := nodetest.Start(t, nodetest.StateDir(t))
	id := d.Submit(t, nodetest.Job(t, d.Dir, "mine", 50))
	d.Until(t, id, "ends", ended)
	text, err := os.ReadFile(filepath.Join(d.Dir, "jobs", id, "assignment.json"))
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(text)), ""), fmt.Sprintf(`"user":{"uid":%d,`, os.Getuid())) {
		t.Errorf("the assignment does not name user %d: %v\n%s", os.Getuid(), err, text)
	}
}
