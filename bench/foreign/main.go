// Command foreign measures what it costs that modules of a user's framework run in a process of their own, and what two pipelines of them gain over PyTorch's: see
// README.md.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/bench/internal/rig"
	"github.com/avgpipe/avgpipe/stage"
	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/pick"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/model"
)

// core is the one that either side computes on, as a device of a job does.
const core = 0

// environment is that of both sides: OpenBLAS 0.3.21, which PyTorch multiplies with, does not know newer processors, and takes them for a Prescott.
func environment() []string {
	return append(os.Environ(), "OMP_NUM_THREADS=1", "MKL_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", "OPENBLAS_CORETYPE=Cooperlake")
}

// options are the program's flags.
type options struct {
	daemon                 *rig.Options // that runs the pipelines
	interpreter, directory string
	parts                  string
	repeats, micros        int
	rounds                 int
}

// shape is a model of models.py and its micro-batches.
type shape struct {
	Path       string         `json:"path"`
	Function   string         `json:"function"`
	Args       map[string]any `json:"args"`
	Samples    int            `json:"samples"`
	Positions  int            `json:"positions"`
	Vocabulary int            `json:"vocabulary"`
}

// gpt is a shape.
func (o options) gpt(layers, width, heads, positions, samples int) shape {
	const vocabulary = 256
	return shape{
		Path: filepath.Join(o.directory, "models.py"), Function: "gpt", Samples: samples, Positions: positions, Vocabulary: vocabulary,
		Args: map[string]any{"layers": layers, "width": width, "heads": heads, "positions": positions, "vocabulary": vocabulary},
	}
}

func main() {
	o := options{daemon: rig.Flags()}
	flag.StringVar(&o.interpreter, "interpreter", "/usr/bin/python3", "interpreter that has PyTorch")
	flag.StringVar(&o.directory, "directory", "bench/foreign", "directory of models.py, job.yaml and the peers")
	flag.StringVar(&o.parts, "parts", "bridge,pipelines", "what is measured")
	flag.IntVar(&o.repeats, "repeats", 21, "pairs of measurements of each shape of the bridge; the median of their ratios is reported")
	flag.IntVar(&o.micros, "micro-batches", 40, "micro-batches of a measurement of the bridge")
	flag.IntVar(&o.rounds, "rounds", 3, "runs of each pipeline, in turn; the median of their ratios is reported")
	report.Main("foreign", func(ctx context.Context) ([]report.Figure, error) { return o.run(ctx) })
}

func (o options) run(ctx context.Context) (figures []report.Figure, err error) {
	for part := range strings.SplitSeq(o.parts, ",") {
		switch part {
		case "bridge":
			for _, s := range []shape{o.gpt(1, 32, 4, 64, 2), o.gpt(2, 96, 4, 64, 2), o.gpt(4, 128, 4, 64, 4)} { // about 1, 5 and 20 ms a micro-batch on a core
				f, err := o.onThread(ctx, s)
				if err != nil {
					return figures, err
				}
				figures = append(figures, f)
			}
		case "pipelines":
			more, err := o.pipelines(ctx)
			if err != nil {
				return figures, err
			}
			figures = append(figures, more...)
		default:
			return figures, fmt.Errorf("-parts: there is no %q; there are bridge and pipelines", part)
		}
	}
	return figures, nil
}

// onThread is bridge on a thread of its own, which is bound to a core and ends with it: what is started from it would be bound too.
func (o options) onThread(ctx context.Context, s shape) (f report.Figure, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f, err = o.bridge(ctx, s)
	}()
	<-done
	return f, err
}

// bridge is what a micro-batch takes in a stage, over what it takes in a plain program, measured in turn.
func (o options) bridge(ctx context.Context, s shape) (f report.Figure, err error) {
	p, err := o.startPeer(ctx, s)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	st, err := o.openStage(ctx, s)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	var ratios, plain []float64
	for i := range o.repeats + 1 {
		theirs, err := p.run(o.micros)
		if err != nil {
			return f, err
		}
		ours, err := st.run(o.micros)
		if err != nil {
			return f, err
		}
		if i > 0 { // after a first pair for warm-up
			ratios, plain = append(ratios, ours/theirs), append(plain, theirs/float64(o.micros))
		}
	}
	took := report.Median(plain)
	return report.Figure{
		Metric: fmt.Sprintf("micro-batch of modules in Python over one in a plain program, beyond 1[%.1f ms]", took*1e3),
		Value:  100 * (report.Median(ratios) - 1), Unit: "%", Bar: 3, Aim: 1, AtMost: true,
		Conditions: map[string]any{"shape": s, "plain_ms": took * 1e3, "median_of": o.repeats, "micro_batches": o.micros, "threads": 1},
	}, nil
}

// peer is a plain program.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func (o options) startPeer(ctx context.Context, s shape) (*peer, error) {
	p := &peer{cmd: exec.CommandContext(ctx, "taskset", "-c", strconv.Itoa(core), o.interpreter, filepath.Join(o.directory, "peer.py"))}
	p.cmd.Env = environment()
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	return p, json.NewEncoder(p.in).Encode(s)
}

// run is how many seconds so many micro-batches took.
func (p *peer) run(micros int) (float64, error) {
	if _, err := fmt.Fprintln(p.in, micros); err != nil {
		return 0, err
	}
	line, err := p.out.ReadString('\n')
	if err != nil {
		return 0, fmt.Errorf("peer.py: %w", err)
	}
	return strconv.ParseFloat(strings.TrimSpace(line), 64)
}

func (p *peer) close() error { return errors.Join(p.in.Close(), p.cmd.Wait()) }

// staged is a stage that has all modules.
type staged struct {
	*stage.Computed
	device        device.Device
	input, labels []byte
	step          uint64
}

func (o options) openStage(ctx context.Context, s shape) (*staged, error) {
	p, err := foreign.Start(ctx, foreign.Config{Interpreter: o.interpreter, Cores: []int{core}, Env: environment()})
	if err != nil {
		return nil, err
	}
	on, _, err := pick.Open("cpu", pick.Config{Threads: 1, Cores: []int{core}})
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	d := foreign.Over(p, on)
	st := &staged{device: d}
	if err := d.Attach(); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	if st.Computed, err = o.build(p, st.device, s); err != nil {
		return nil, errors.Join(err, st.device.Close())
	}
	ids := func(n int) []byte {
		b := stage.NewBoundary(n)
		for i := range n / 4 {
			device.Values[int32](b)[i] = rand.Int32N(int32(s.Vocabulary)) //nolint:gosec // small
		}
		return b
	}
	st.input, st.labels = ids(st.Shape().InputBytes), ids(st.Shape().LabelBytes)
	return st, nil
}

func (o options) build(p *foreign.Process, d device.Device, s shape) (*stage.Computed, error) {
	built, err := p.Build(foreign.Program{Path: s.Path, Function: s.Function, Args: s.Args, Loss: "loss"}, 1)
	if err != nil {
		return nil, err
	}
	inputs := []foreign.ProbeInput{{Shape: []int{s.Samples, s.Positions}, Type: "i32", Limit: s.Vocabulary}}
	probed, err := p.Probe(foreign.Probe{Inputs: inputs})
	if err != nil {
		return nil, err
	}
	c := &model.ModulesConfig{ModelType: model.Python, Task: model.Language, Sequence: s.Positions, Vocabulary: s.Vocabulary, UserLoss: true}
	if c.Modules, err = foreign.Modules(built, inputs, probed, s.Samples); err != nil {
		return nil, err
	}
	m, err := c.Build()
	if err != nil {
		return nil, err
	}
	st, err := stage.New(stage.Config{Device: d, Model: m, Samples: s.Samples, Slots: 1, Optimizer: stage.Optimizer{Name: "sgd"}})
	if err != nil {
		return nil, err
	}
	return st, st.Load(p.Lookup(built))
}

// run is how many seconds so many micro-batches took.
func (s *staged) run(micros int) (float64, error) {
	s.ZeroGradients()
	begin := time.Now()
	for m := range micros {
		micro := stage.Micro{Step: s.step, Index: m, Weight: 1}
		err := errors.Join(s.Forward(micro, stage.OnHost(s.input), s.labels, stage.Boundary{}), s.Backward(micro, stage.Whole, stage.Boundary{}, stage.Boundary{}))
		if err != nil {
			return 0, err
		}
	}
	s.step++
	return time.Since(begin).Seconds(), nil
}

func (s *staged) close() error { return errors.Join(s.Close(), s.device.Close()) }
