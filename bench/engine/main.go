// Engine measures the training step of one stage on one core, in f32 and in bf16: tokens a second against a peer script,
// alternating with it in one run, and arithmetic against the raw product rate of the same library; and then two devices of one
// core each against the peer's pipelines and data parallelism on the same two cores. See README.md.
package main

import (
	"cmp"
	"context"
	_ "embed" // the peer's script
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// options are the program's flags.
type options struct {
	daemon       *rig.Options // that runs the job on two devices
	python, peer string
	rounds       int
	parts        string
	own          bool
}

func main() {
	o := options{daemon: rig.Flags()}
	child := flag.String("child", "", "measure this shape (JSON) in this process and print the outcome; used by the program itself")
	flag.StringVar(&o.python, "python", "python3", "runs the peer script")
	flag.StringVar(&o.peer, "peer", "", "peer script; it takes `single --layers --width --heads --seq --batch --vocab --steps` and prints a JSON line with tokens_per_s")
	flag.IntVar(&o.rounds, "rounds", 3, "runs of each side and shape, in turn")
	flag.BoolVar(&o.own, "own", false, "without a peer: measure the step over raw products alone")
	flag.StringVar(&o.parts, "parts", "f32,bf16,devices", "what is measured; generate has a peer of its own")
	report.Main("engine", func(ctx context.Context) ([]report.Figure, error) { return run(ctx, o, *child) })
}

func run(ctx context.Context, o options, child string) ([]report.Figure, error) {
	if child != "" {
		return nil, measureHere(child, os.Stdout)
	}
	switch {
	case o.own && (strings.Contains(o.parts, "devices") || strings.Contains(o.parts, "generate")):
		return nil, errors.New("-own: -parts devices and generate compare with a peer")
	case o.own:
	case o.peer == "" && o.parts != "generate":
		return nil, errors.New("-peer is missing: name the script to compare with, or give -own or -parts generate")
	default:
		if err := checkPeer(ctx, o.python); err != nil {
			return nil, err
		}
	}
	var figures []report.Figure
	for part := range strings.SplitSeq(o.parts, ",") {
		f, err := measurePart(ctx, o, part)
		if err != nil {
			return nil, err
		}
		figures = append(figures, f...)
	}
	return figures, nil
}

// bars are what a precision must reach: tokens/s over the peer's, step over raw products, with their aims.
var bars = map[string][2][2]float64{
	"f32":  {{1.2, 1.4}, {0.88, 0.93}},
	"bf16": {{1.5, 1.8}, {0.80, 0.88}},
}

func measurePart(ctx context.Context, o options, part string) (figures []report.Figure, err error) {
	if part == "devices" {
		return o.daemon.With(ctx, func(ctx context.Context, d *rig.Daemon) ([]report.Figure, error) { return compareDevices(ctx, d, o) })
	}
	if part == "generate" {
		return generation(ctx, o)
	}
	if _, ok := bars[part]; !ok {
		return nil, fmt.Errorf("-parts names %q; the parts are f32, bf16, devices and generate", part)
	}
	for _, s := range shapes {
		s.Precision = part
		f, err := compare(ctx, o, s)
		if err != nil {
			return nil, fmt.Errorf("%s, %s: %w", s.Name, part, err)
		}
		figures = append(figures, f...)
	}
	return figures, nil
}

// compare runs the two sides in turn, each run a process of its own on the first core.
func compare(ctx context.Context, o options, s shape) ([]report.Figure, error) {
	var ratios, shares, memory []float64
	var last outcome
	for range o.rounds {
		own, ownPeak, err := runSelf(ctx, s)
		if err != nil {
			return nil, err
		}
		shares, last = append(shares, own.StepGFLOPS/own.ProductGFLOPS), own
		if o.own {
			continue
		}
		peer, peerPeak, err := runPeer(ctx, o, s)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(os.Stderr, "%s, %s: %.0f tokens/s, the peer %.0f; step %.1f of %.1f GFLOP/s\n",
			s.Name, s.Precision, own.TokensPerS, peer.TokensPerS, own.StepGFLOPS, own.ProductGFLOPS)
		ratios = append(ratios, own.TokensPerS/peer.TokensPerS)
		memory = append(memory, ownPeak/peerPeak)
	}
	conditions := map[string]any{
		"shape": s, "parameters": last.Parameters, "device": last.Device, "ratios": ratios, "shares": shares,
		"tokens_per_s": last.TokensPerS, "step_gflops": last.StepGFLOPS, "product_gflops": last.ProductGFLOPS,
	}
	bar, of := bars[s.Precision], s.Precision+", "+s.Name
	figures := []report.Figure{
		{Metric: "step over raw products, " + of, Value: report.Median(shares), Unit: "of 1", Bar: bar[1][0], Aim: bar[1][1], Conditions: conditions},
	}
	if !o.own {
		figures = append(figures,
			report.Figure{Metric: "tokens/s over the peer's, " + of, Value: report.Median(ratios), Unit: "x", Bar: bar[0][0], Aim: bar[0][1], Conditions: conditions},
			report.Figure{Metric: "peak memory over the peer's, " + of, Value: report.Median(memory), Unit: "x", Bar: 1, Aim: 0.8, AtMost: true, Conditions: conditions})
	}
	return figures, nil
}

// runSelf measures a shape in a fresh process.
func runSelf(ctx context.Context, s shape) (o outcome, peakBytes float64, err error) {
	program, err := os.Executable()
	if err != nil {
		return o, 0, err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return o, 0, err
	}
	return process(exec.CommandContext(ctx, program, "-child", string(text)))
}

// accumulate is the peer for batches of several micro-batches on one core, which the peer script does not train.
//
//go:embed accumulate.py
var accumulate string

// runPeer measures a shape with the peer script, on the same core, or as mode says on more of them.
func runPeer(ctx context.Context, o options, s shape, mode ...string) (outcome, float64, error) {
	arguments := []string{o.peer, "single"}
	switch {
	case len(mode) > 0:
		arguments = append([]string{o.peer}, mode...)
	case s.Micro < s.Batch:
		arguments = []string{"-c", accumulate, "single", "--micro", strconv.Itoa(s.Micro)}
	}
	arguments = append(arguments, strings.Fields(fmt.Sprintf("--precision %s --layers %d --width %d --heads %d --seq %d --batch %d --vocab %d --steps %d",
		s.Precision, s.Layers, s.Width, s.Heads, s.Sequence, s.Batch, s.Vocabulary, s.Steps))...)
	cmd := exec.CommandContext(ctx, o.python, arguments...)
	cmd.Env = append(os.Environ(), peerEnvironment...)
	return process(cmd)
}

// peerEnvironment has the peer compute as fast as it can. OpenBLAS 0.3.21 takes some virtual processors with AVX-512 for a Prescott
// and multiplies with SSE, five times slower; a name makes it look again, and a name that this processor cannot
// serve is passed over.
var peerEnvironment = []string{"OPENBLAS_CORETYPE=Cooperlake"}

// optimizedBLAS prints the library that PyTorch multiplies with, or nothing where that is the reference BLAS of the distribution, which
// is thirty times slower.
const optimizedBLAS = `import torch
maps = open("/proc/self/maps").read()
print(next((name for name in ("openblas", "mkl", "blis") if name in maps), ""))`

// checkPeer refuses a PyTorch that multiplies without an optimized BLAS: beating it would say nothing.
func checkPeer(ctx context.Context, python string) error {
	found, err := exec.CommandContext(ctx, python, "-c", optimizedBLAS).Output()
	if err != nil {
		return fmt.Errorf("import torch with %s: %w", python, err)
	}
	if strings.TrimSpace(string(found)) == "" {
		return fmt.Errorf("the PyTorch of %s multiplies with the reference BLAS; install an optimized one: apt-get install libopenblas0-pthread", python)
	}
	return nil
}

// process runs a side and reads its JSON line.
func process(cmd *exec.Cmd) (o outcome, peakBytes float64, err error) {
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return o, 0, fmt.Errorf("%s: %w", cmd.Path, err)
	}
	if err := json.Unmarshal(text, &o); err != nil {
		return o, 0, fmt.Errorf("%s printed %.100q: %w", cmd.Path, text, err)
	}
	usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok || o.TokensPerS <= 0 {
		return o, 0, fmt.Errorf("%s: no tokens/s or no memory use in %.100q", cmd.Path, text)
	}
	return o, cmp.Or(o.PeakBytes, float64(usage.Maxrss)*1024), nil // kilobytes on Linux
}
