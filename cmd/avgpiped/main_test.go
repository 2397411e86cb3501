package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/envtest"
)

// TestConfig parses the files of testdata/config and prints the outcome, or every problem at its line.
func TestConfig(t *testing.T) {
	datadriven.RunTest(t, "testdata/config", func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "parse" {
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		c, err := parseConfig("avgpiped.yaml", []byte(d.Input))
		if err != nil {
			return err.Error()
		}
		c.file = nil // an address
		return fmt.Sprintf("%+v", c)
	})
}

// The file that is shipped has every key, commented out at its default.
func TestShippedConfigurationIsTheDefault(t *testing.T) {
	const path = "../../deploy/avgpiped.yaml"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	c, err := parseConfig(path, text)
	c.file = nil
	if err != nil || !reflect.DeepEqual(c, defaultConfig()) {
		t.Errorf("as shipped: %+v, %v; want the defaults, %+v", c, err, defaultConfig())
	}
	for _, k := range schema.Fields {
		if line := fmt.Sprintf("\n#%s: %s\n", k.Key, initial(k)); !strings.Contains(string(text), line) {
			t.Errorf("%s has no line %q", path, strings.TrimSpace(line))
		}
		if k.Default == "" {
			continue
		}
		c, err := parseConfig(path, fmt.Appendf(nil, "%s: %s\n", k.Key, initial(k)))
		if c.file = nil; err != nil || !reflect.DeepEqual(c, defaultConfig()) {
			t.Errorf("%s: %s is not the default: %+v, %v", k.Key, initial(k), c, err)
		}
	}
}

func TestHelp(t *testing.T) {
	datadriven.RunTest(t, "testdata/help", func(t *testing.T, _ *datadriven.TestData) string {
		var out, messages bytes.Buffer
		if code := run(t.Context(), []string{"--help"}, &out, &messages); code != exitDone {
			t.Errorf("exit code %d: %s", code, messages.String())
		}
		return out.String()
	})
}

func TestUsage(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "avgpiped.yaml")
	long, here, fresh := "/"+strings.Repeat("x", 200), filepath.Join(dir, "state"), filepath.Join(dir, "fresh")
	if err := os.Mkdir(here, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := checkpoint.WriteRecord(filepath.Join(here, "identity"), "identity", 1, map[string]string{"node": "first"}, 0o600); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		config string // of the file bad
		args   []string
		says   string
	}{
		{"", nil, "--config FILE for a service, --dev to try it"},
		{"", []string{"--dev", "--config", "x"}, "drop --config or --dev"},
		{"", []string{"--cfg"}, "unknown flag"},
		{"", []string{"--confg", "x"}, "unknown flag: --confg; did you mean --config?; see avgpiped --help"},
		{"state_dir: /proc/x\n", []string{"--config", bad}, bad + ":1:12: make the state directory: mkdir /proc/x: no such file"},
		{"", []string{"start"}, "unknown command"},
		{"", []string{"version", "--x"}, "unknown flag: --x; see avgpiped version --help"},
		{"", []string{"version", "x"}, "unknown command"},
		{"", []string{"worker", "--x"}, "unknown flag"},
		{"", []string{"worker"}, "required flag"},
		{"", []string{"recover", "--x"}, "unknown flag"},
		{"", []string{"init"}, "init needs --config FILE"},
		{"cores: 0\n", []string{"init", "--config", bad}, "a node of a cluster needs a port: set listen"},
		{"listen: 0.0.0.0:7700\n", []string{"init", "--config", bad}, "others cannot reach this node at 0.0.0.0:7700: set advertise"},
		{"listen: 7700\n", []string{"init", "--config", bad}, bad + ":1:9: listen wants an address"},
		{"listen: 127.0.0.1:7700\n", []string{"join", "somewhere", "--token", "x", "--config", bad}, `ADDRESS "somewhere": want HOST:PORT`},
		{"", []string{"join", "127.0.0.1:1"}, "[token authority] is required"},
		{"", []string{"join", "--token", "x"}, "requires at least 1 arg"},
		{"", []string{"token", "--role", "view"}, "--role view needs --user NAME"},
		{"", []string{"token", "--expires", "0s"}, "--expires 0s: want at least 1s"},
		{"", []string{"token", "--user", "root"}, "--user is for users"},
		{"", []string{"token", "--role", "view", "--user", "no-such-user"}, "name a user that this host knows"},
		{"state_dir: " + bad + "\n", []string{"--config", bad}, bad + ":1:12: make the state directory: mkdir " + bad + ": not a directory"},
		{"state_dir: " + fresh + "\nsocket: " + bad + "\n", []string{"--config", bad}, bad + ":2:9: listen on " + bad + ": a file that is not a socket is there"},
		{"state_dir: " + fresh + "\nsocket: " + fresh + "/s\nmetrics_address: 192.0.2.1:9464\n", []string{"--config", bad}, bad + ":3:18: listen for metrics"},
		{"retry_longest: 1ms\n", []string{"--config", bad}, bad + ":1:16: retry_longest is 1ms, less than retry_first, 500ms"},
		{"retry_first: 2m\n", []string{"--config", bad}, bad + ":1:14: retry_longest is 1m0s, less than retry_first, 2m0s"},
		{"", []string{"--config", "/nonexistent"}, "read the configuration"},
		{"", []string{"--config", bad}, bad + " is empty"},
		{"", []string{"--config", pipe}, pipe + " is a pipe, not a file"},
		{"node: a b/c\n", []string{"--config", bad}, bad + ":1:7: node wants a name of up to 64 letters"},
		{"sockt: /x\n", []string{"--config", bad}, bad + ":1:1: unknown key \"sockt\""},
		{"# first\nlog_level: wran\n", []string{"--config", bad}, "nearest: warn"},
		{"keep_ended_age: nne\n", []string{"--config", bad}, "nearest: none"},
		{"# first\ncores: 100000\n", []string{"--config", bad}, bad + ":2:8: cores is 100000; this process may use"},
		{"gpus: [0, GPU_1]\n", []string{"--config", bad}, bad + ":1:11: gpus[1] wants all, none, the index or the UUID of a GPU"},
		{"gpus: [0, 00]\n", []string{"--config", bad}, bad + ":1:11: gpus[1] wants all, none, the index or the UUID of a GPU"},
		{"gpus: [0, none]\n", []string{"--config", bad}, bad + ":1:11: gpus has none in a list of 2; it stands alone, for all of the list"},
		{"gpus: [0, 1, 0]\n", []string{"--config", bad}, bad + ":1:14: gpus has 0 twice, at places 1 and 3; name each GPU once"},
		{"state_dir: " + fresh + "\nsocket: " + fresh + "/s\ngpus: [99]\n", []string{"--config", bad}, bad + ":3:7: the GPUs that are asked for cannot be used: "},
		{"socket: " + long + "\n", []string{"--config", bad}, bad + ":1:9: socket " + long},
		{"state_dir: " + long + "\n", []string{"--config", bad}, bad + ":1:12: state directory " + long},
		{"group: no-such-group\n", []string{"--config", bad}, bad + `:1:8: group wants the name of a group of this host, or avgpipe; found text "no-such-group"`},
		{"admin_group: no-such-group\n", []string{"--config", bad}, bad + `:1:14: admin_group wants the name of a group of this host`},
		{"state_dir: " + here + "\nsocket: " + here + "/s\nnode: second\n", []string{"--config", bad}, bad + ":3:7: the state directory " + here + ` says that this node is "first"`},
	} {
		if err := os.WriteFile(bad, []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, messages bytes.Buffer
		if code := run(t.Context(), c.args, &out, &messages); code != exitConfig || !strings.Contains(messages.String(), c.says) {
			t.Errorf("avgpiped %s: exit code %d, want %d; no %q in: %s", strings.Join(c.args, " "), code, exitConfig, c.says, messages.String())
		}
	}
}

// A variable of the daemon that its workers would stumble over keeps it from starting, and no list of GPUs is none.
func TestTheDaemonChecksItsVariables(t *testing.T) {
	t.Setenv("AVGPIPED_CUDA_LAUNCHES", "synchronos")
	var out, messages bytes.Buffer
	want := `the environment variable AVGPIPED_CUDA_LAUNCHES is "synchronos", expected graphs, operations, synchronous, or nothing; did you mean synchronous?`
	for _, args := range [][]string{{"--dev"}, {"gpus"}} {
		messages.Reset()
		if code := run(t.Context(), args, &out, &messages); code != exitConfig || !strings.Contains(messages.String(), want) {
			t.Errorf("%v: exit code %d: %s\nwant %s", args, code, messages.String(), want)
		}
	}
	if c, err := parseConfig("x", []byte("gpus: []\n")); err != nil || !c.selection().None() {
		t.Errorf("an empty list selects %+v, %v", c.selection(), err)
	}
}

// TestVersionSaysWhatComputes: which rule for products in bf16 is in force depends on build and processor.
func TestVersionSaysWhatComputes(t *testing.T) {
	var out, messages bytes.Buffer
	if code := run(t.Context(), []string{"version"}, &out, &messages); code != exitDone {
		t.Fatalf("exit code %d: %s", code, messages.String())
	}
	if !regexp.MustCompile(`^avgpiped \S+ \(go.*\)\ndevice: auto took cpu \(.*, bf16 (in matrix units|in dot products|widened to f32).*\): .*\n$`).MatchString(out.String()) {
		t.Errorf("it prints %q", out.String())
	}
}

// lines collects what a daemon prints and hands out the first line that holds a text.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func TestDevServesAndLeavesNothing(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var messages lines
	done := make(chan int, 1)
	go func() { done <- run(ctx, []string{"--dev"}, &messages, &messages) }()
	socket, deadline := "", time.After(envtest.Bound)
	for socket == "" {
		select {
		case code := <-done:
			t.Fatalf("exit code %d: %s", code, messages.String())
		case <-deadline:
			t.Fatalf("no socket was printed: %s", messages.String())
		case <-time.After(10 * time.Millisecond):
			_, after, _ := strings.Cut(messages.String(), "AVGPIPE_SOCKET=")
			socket, _, _ = strings.Cut(after, "\n")
		}
	}
	client := api.NewClient(socket)
	defer client.Close()
	if v, err := client.Version(t.Context()); err != nil || v.Version != version {
		t.Errorf("the printed socket answers %+v, %v", v, err)
	}
	stop()
	if code := envtest.Receive(t, "the daemon ends", done); code != exitDone {
		t.Errorf("exit code %d: %s", code, messages.String())
	}
	if _, err := os.Stat(filepath.Dir(socket)); !os.IsNotExist(err) {
		t.Errorf("the temporary state is still there: %v", err)
	}
}
