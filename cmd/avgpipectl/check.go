package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/dryrun"
	"github.com/avgpipe/avgpipe/internal/jobfile"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/stage/model"
)

func newCheckCommand() *cobra.Command {
	var set []string
	cmd := verb(&cobra.Command{
		Use:   "check FILE",
		Short: "Try modules of your own in Python (offline)",
		Long: `Try the modules that a job would train (docs/python-models.md), without a daemon and with your rights. FILE is a job file, or a
file of Python and, behind a colon, a function in it, for texts of 64 positions of bytes unless --set says otherwise.

The interpreter is started, the modules are built, and each runs forward and backward on 4 made-up samples. What differs between two runs, changes a
parameter, crosses in a way that nothing can cross, reads what another module left behind, or lets no gradient through is refused with your line,
as it is when a job is submitted; and so is a loss that does not work. What is printed of each module is for one sample, with a bar for its part of the time; and how many times as fast several stages
are at most, if nothing is lost between them.`,
		Example: `  avgpipectl check train.py:build
  avgpipectl check unet.py:build --set model.image=[1,28,28] --set model.cut=[mid,up]
  avgpipectl check denoise.py:build --set model.loss=loss --set data.samples=samples
  avgpipectl check job.yaml -o json`,
	}, func(c *call) error { return c.check(set) })
	setVar(cmd, &set, "model.args={width: 8}")
	return cmd
}

// The job that a program is checked in which stands alone.
const checkedJob = "version: 1\nmodel: {python: %s%s}\ndata: {%s}\noptimizer: {lr: 0.01}\ntrain: {steps: 1, batch: 4}\n"

func (c *call) check(set []string) error {
	j, err := c.checked(c.args[0], set)
	if err != nil {
		return err
	}
	with := dryrun.Config(j, uint32(os.Geteuid())) //nolint:gosec // a user id fits
	with.StartTimeout = checkTimeout
	with.Log = func(_, line string) { fmt.Fprintln(c.messages, line) } //nolint:errcheck // for show
	stop := c.every(checkSays, "still trying the modules of "+j.Model.Python)
	front, err := dryrun.Front(nil, j)
	var config *model.ModulesConfig
	if err == nil {
		config, err = dryrun.Run(c.ctx, j, front, with)
	}
	stop()
	if cause := context.Cause(c.ctx); cause != nil {
		return cause
	}
	if err == nil {
		_, err = config.Build()
	}
	if err != nil {
		return usagef("check %s: %w", c.args[0], err)
	}
	found := checkOf(config)
	return c.show(found, func(p *page) { found.print(p) })
}

const (
	checkTimeout = time.Hour       // of each step: whoever waits may interrupt it
	checkSays    = 5 * time.Second // between lines that say so
)

// every prints a line now and then, until it is stopped.
func (c *call) every(pause time.Duration, line string) (stop func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	var running sync.WaitGroup
	begin := time.Now()
	running.Go(func() {
		for tick := time.Tick(pause); ; {
			select {
			case <-ctx.Done():
				return
			case <-tick:
				fmt.Fprintf(c.messages, "%s, %s\n", line, time.Since(begin).Round(time.Second)) //nolint:errcheck // for show
			}
		}
	})
	return func() { cancel(); running.Wait() }
}

// checked is the job that is checked: of a job file, or of a program alone.
func (c *call) checked(file string, set []string) (*job.Job, error) {
	var source []byte
	var err error
	if name, function, ok := strings.Cut(file, ".py:"); ok && function != "" {
		task, from := "", "files: [none], sequence: 64"
		for _, text := range set {
			switch {
			case strings.HasPrefix(text, "model.image="):
				task, from = ", task: images", "files: [none]"
			case strings.HasPrefix(text, "data.samples="):
				from = ""
			}
		}
		source, file = fmt.Appendf(nil, checkedJob, strconv.Quote(file), task, from), name+".py"
	} else if source, err = c.read(file, "a job file", job.CapBytes); err != nil {
		return nil, usagef("read the job file: %w", err)
	}
	base := filepath.Dir(file)
	if strings.HasSuffix(file, ".py") || file == standardInput {
		base = "."
	}
	if base, err = filepath.Abs(base); err != nil {
		return nil, fmt.Errorf("find the directory of %s: %w", file, err)
	}
	j, _, at := jobfile.Parse(file, source, set, os.LookupEnv)
	if j == nil {
		return nil, at.Err()
	}
	if j.Model.Python == "" {
		at.Refuse("model", "", "model.python is missing: check tries modules of your own; `avgpipectl submit --dry-run` says what other jobs would be")
	}
	j.Absolute(base)
	return j, at.Err()
}

func (found *checkedModules) print(p *page) {
	on := string(found.Task) + " of made-up samples"
	if found.Samples != nil {
		on = fmt.Sprintf("%s of its own", words.Count(found.Samples.Train, "sample"))
		if n := found.Samples.HeldOut; n > 0 {
			on += fmt.Sprintf(" and %d to evaluate on", n)
		}
	}
	p.printf("%s: ok, with %s on %s\n\n", words.Count(len(found.Modules), "module"), found.Framework, on)
	t := table{narrow: []string{"gives", "takes", "kept"}}
	t.add("module", "parameters", "forward", "backward", "kept", "takes", "gives", "time")
	const width = 20
	for _, m := range found.Modules {
		t.add(m.Name, words.Number(float64(m.Parameters)), words.Seconds(m.ForwardSeconds), words.Seconds(m.BackwardSeconds), words.Bytes(m.KeptBytes), strings.Join(m.Takes, " "), strings.Join(m.Gives, " "),
			fmt.Sprintf("%-*s %3.0f%%", width, strings.Repeat("█", int(width*m.Part+0.5)), 100*m.Part))
	}
	p.table(&t)
	s := table{}
	s.add("stages", "times as fast", "cut in front of")
	for _, k := range found.Stages {
		s.add(strconv.Itoa(k.Stages), fmt.Sprintf("%.2f", k.Speedup), strings.Join(k.Before, " "))
	}
	p.below(&s)
	if len(found.Modules) == 1 && len(found.Within) > 1 {
		p.printf("\none module runs on one stage; model.cut: [%s] would cut it in front of each of these, if they are called in this order\n", strings.Join(found.Within[1:], ", "))
	}
}
