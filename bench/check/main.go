// Check runs a short form of every benchmark and holds each figure against the bar that the benchmark itself gives it. It prints a table of
// all of them and exits with 1 when one does not hold or could not be measured. `make bench-check` runs it.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// benches are all benchmarks, the short ones first, and what makes each short.
var benches = []struct {
	name   string
	flags  string
	daemon bool // it starts one, and trains the example job on Go's source
}{
	{"schedules", "-figures DIR", false},
	{"overhead", "-seconds 0.1 -repeats 3", false},
	{"recompute", "-rounds 3", false},
	{"engine", "-parts f32,bf16 -rounds 1 -own", false},
	{"emulated", "-batches 3", false},
	{"recovery", "-kills 3", true},
	{"scaling", "-rounds 1 -tokens 100000", true},
	{"chaos", "-trials 20", false},
	{"tuner", "-parts accuracy -rounds 3", false},
	{"averaging", "-pipelines 2 -steps 512 -seeds 1 -rates 0.006 -rules default", true},
}

// options are the flags.
type options struct {
	goCommand, tags, program, goRoot string
	only                             string
}

func main() {
	var o options
	flag.StringVar(&o.goCommand, "go", "go", "the Go command")
	flag.StringVar(&o.tags, "tags", "", "build `TAGS` of the benchmarks")
	flag.StringVar(&o.program, "avgpiped", "bin/avgpiped", "the daemon")
	flag.StringVar(&o.goRoot, "goroot", "", "what ${GOROOT} in the job file stands for: $(go env GOROOT)")
	flag.StringVar(&o.only, "only", "", "run these `BENCHES` alone, separated by commas")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-check:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (err error) {
	dir, err := os.MkdirTemp("", "avgpipe-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var all []report.Figure
	var failed error
	for _, b := range benches {
		if o.only != "" && !slices.Contains(strings.Split(o.only, ","), b.name) {
			continue
		}
		arguments := strings.Fields(strings.ReplaceAll(b.flags, "DIR", dir))
		if b.daemon {
			arguments = append(arguments, "-goroot", o.goRoot)
		}
		if b.daemon || b.name == "chaos" {
			arguments = append(arguments, "-avgpiped", o.program)
		}
		figures, err := measure(ctx, o, filepath.Join(dir, b.name), b.name, arguments)
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", b.name, err))
		}
		all = append(all, figures...)
	}
	if err := report.Table(os.Stdout, all); err != nil {
		return err
	}
	if n := len(slices.DeleteFunc(slices.Clone(all), func(f report.Figure) bool { return f.Holds })); n > 0 {
		failed = errors.Join(failed, fmt.Errorf("%d of %d figures do not hold", n, len(all)))
	}
	return failed
}

// measure builds a benchmark as program, runs it, and returns what it printed. Its own table goes to the standard error.
func measure(ctx context.Context, o options, program, name string, arguments []string) (figures []report.Figure, err error) {
	fmt.Fprintf(os.Stderr, "\n== %s %s ==\n", name, strings.Join(arguments, " "))
	build := exec.CommandContext(ctx, o.goCommand, "build", "-tags", o.tags, "-o", program, "./bench/"+name)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return nil, fmt.Errorf("build: %w", err)
	}
	cmd := exec.CommandContext(ctx, program, arguments...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var f report.Figure
		if wrong := json.Unmarshal(lines.Bytes(), &f); wrong != nil {
			err = errors.Join(err, fmt.Errorf("it printed %.80q: %w", lines.Text(), wrong))
			continue
		}
		f.Metric = name + ": " + f.Metric
		figures = append(figures, f)
	}
	err = errors.Join(err, lines.Err(), cmd.Wait())
	if err == nil && len(figures) == 0 {
		err = errors.New("it printed no figure")
	}
	return figures, err
}
