package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/avgpipe/avgpipe/bench/internal/rig"
)

// asInterpreter tells an interpreter from other processes of a trial: the job names it by a link in the trial's directory.
const asInterpreter = "\x00/proc/self/fd/5\x00"

// program are the modules of such jobs: dropout and running statistics, which a pass that is lost or done twice would change.
const program = `from torch import nn


class Mix(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gru, self.norm = nn.GRU(width, width, batch_first=True), nn.BatchNorm1d(width)

    def forward(self, x):
        return x + self.norm(self.gru(x)[0].transpose(1, 2)).transpose(1, 2)


def build(width=8):
    return nn.Sequential(nn.Embedding(256, width), Mix(width), nn.Dropout(0.1), Mix(width), nn.Linear(width, 256))
`

// inPython makes a job of GPT-2 one of modules in Python.
func inPython(source string) string {
	return strings.NewReplacer("model: {family: gpt2, config: {n_layer: 2, n_head: 2, n_embd: 16, n_positions: 16, vocab_size: 256}}",
		"model: {python: modules.py:build, interpreter: ./python3}", "holdout: 0.1", "holdout: 0.1, sequence: 16").Replace(source)
}

// modules is what trials of jobs with modules in Python draw from: they kill and freeze interpreters, workers and daemons.
func modules() setting {
	s := setting{faults: []fault{
		{name: "kill-interpreter", family: "interpreter", does: "SIGKILL an interpreter", apply: onProcess(asInterpreter, kill)},
		{name: "kill-interpreters", family: "interpreter", does: "SIGKILL each interpreter, three times in a row", apply: once(killInterpreters)},
		{name: "freeze-interpreter", family: "interpreter", does: "SIGSTOP an interpreter, up to three response timeouts", lasts: 3 * responseTimeout, apply: onProcess(asInterpreter, freeze)},
	}}
	for _, f := range faults {
		if slices.Contains([]string{"kill-worker", "kill-workers", "kill-daemon", "kill-both"}, f.name) {
			s.faults = append(s.faults, f)
		}
	}
	for _, k := range kinds {
		if slices.Contains([]string{"two-stages", "sgd"}, k.name) {
			k.source = inPython(k.source)
			s.kinds = append(s.kinds, k)
		}
	}
	return s
}

func killInterpreters(ctx context.Context, w *host) error {
	return w.inARow(ctx, func() error { return signalAll(w.processes(asInterpreter), syscall.SIGKILL) })
}

// writeProgram writes what jobs of modules in Python name, beside their data.
func writeProgram(dir, interpreter string) error {
	if err := os.Symlink(interpreter, filepath.Join(dir, "python3")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "modules.py"), []byte(program), 0o600)
}

// awaitInterpreters waits until no interpreter runs while no job trains: the daemon that goes on has none that it could end.
func (w *testbed) awaitInterpreters(ctx context.Context) error {
	return rig.Poll(ctx, leftBound, "the end of all interpreters", func() bool { return len(w.processes(asInterpreter)) == 0 })
}
