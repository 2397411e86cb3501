package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// values are what a step found, by name.
type values map[string]any

// step is one thing that is checked or measured. Each runs in a process of its own: a GPU that has failed for one is whole for the next.
type step struct {
	name, about string
	checks      bool // whether it computes rightly: a failure is one of the whole run
	run         func(o options) (values, error)
}

// steps are in order of their value: whoever has a GPU for a minute only has the first ones.
func steps() []step {
	return []step{
		{"driver", "the driver, and the GPUs that it shows", true, findDriver},
		{"kernels", "the driver compiles the kernels", true, compileKernels},
		{"libraries", "cuBLAS and cuDNN", false, findLibraries},
		{"conformance", "every operation against package ref", true, conform},
		{"gradients", "a gradient of each family of models against package ref", true, compareGradients},
		{"training", "losses of a small GPT-2 on the GPU and on the CPU", true, compareTraining},
		{"pipelines", "N and K of 1 and 2 train to the same bits", true, comparePipelines},
		{"links", "copies between two GPUs, and a training on both", true, checkLinks},
		{"peak", "the rate of products", false, measurePeak},
		{"bandwidth", "the rate of copies in the memory of the GPU", false, measureBandwidth},
		{"operations", "each kind of operation of GPT-2 124M against its roofline", false, measureOperations},
		{"launches", "what a launch costs", false, measureLaunches},
		{"transfers", "the rate of copies to the host and back", false, measureTransfers},
	}
}

// outcome is a step in the report.
type outcome struct {
	Step    string  `json:"step"`
	About   string  `json:"about"`
	Checks  bool    `json:"checks"`
	Passed  bool    `json:"passed"`
	Seconds float64 `json:"seconds"`
	Values  values  `json:"values,omitempty"`
	Error   string  `json:"error,omitempty"`
	Output  string  `json:"output,omitempty"` // of its process: the end of it
}

// record is the report.
type record struct {
	Begun  time.Time `json:"begun"`
	Host   string    `json:"host"`
	Go     string    `json:"go"`
	Toy    bool      `json:"toy"`
	Passed bool      `json:"passed"` // all steps that check, of those that ran
	Steps  []outcome `json:"steps"`
}

// smoke runs the steps, and writes the report after each.
func smoke(ctx context.Context, o options) error {
	chosen := steps()
	if o.parts != "" {
		names := strings.Split(o.parts, ",")
		for _, name := range names {
			if !slices.ContainsFunc(chosen, func(s step) bool { return s.name == name }) {
				return fmt.Errorf("-part names %q; the steps are %s", name, strings.Join(stepNames(), ", "))
			}
		}
		chosen = slices.DeleteFunc(chosen, func(s step) bool { return !slices.Contains(names, s.name) })
	}
	host, _ := os.Hostname()
	r := record{Begun: time.Now(), Host: host, Go: runtime.Version(), Toy: o.toy, Passed: true}
	var failed []string
	for _, s := range chosen {
		fmt.Fprintf(os.Stderr, "%s: %s\n", s.name, s.about)
		found := o.apart(ctx, s)
		r.Steps = append(r.Steps, found)
		if s.checks && !found.Passed {
			r.Passed = false
			failed = append(failed, s.name)
		}
		if err := r.write(o.out); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%s: interrupted", s.name)
		}
	}
	if err := r.print(os.Stdout); err != nil {
		return err
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s failed: %s; %s says more", strings.Join(failed, ", "), r.firstError(), o.out)
	}
	return nil
}

func stepNames() (names []string) {
	for _, s := range steps() {
		names = append(names, s.name)
	}
	return names
}

// firstError is that of the first step that failed.
func (r record) firstError() string {
	for _, s := range r.Steps {
		if s.Checks && !s.Passed {
			return s.Error
		}
	}
	return ""
}

// write replaces the report.
func (r record) write(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// print prints a line for each step.
func (r record) print(to io.Writer) error {
	table := tabwriter.NewWriter(to, 0, 8, 2, ' ', 0)
	for _, s := range r.Steps {
		verdict := "FAIL"
		if s.Passed {
			verdict = "PASS"
		}
		says := s.Error
		if headline, ok := s.Values["headline"].(string); ok && says == "" {
			says = headline
		}
		fmt.Fprintf(table, "%s\t%s\t%.1f s\t%s\n", verdict, s.Step, s.Seconds, strings.ReplaceAll(says, "\n", "; ")) //nolint:errcheck // Flush returns it
	}
	return table.Flush()
}

// apart runs a step in a process of its own.
func (o options) apart(ctx context.Context, s step) outcome {
	begun := time.Now()
	found, output, err := o.process(ctx, s.name)
	r := outcome{
		Step: s.name, About: s.about, Checks: s.checks, Passed: err == nil, Seconds: time.Since(begun).Seconds(), Values: found, Output: output,
	}
	if err != nil {
		r.Error = err.Error()
	}
	return r
}

// answer is what a step's process writes to its file 3.
type answer struct {
	Values values `json:"values"`
	Error  string `json:"error,omitempty"`
}

// mostOutput is how much of what a step prints is kept: the end of it.
const mostOutput = 1 << 20

// process runs a step with arguments beside those of o, and returns its values and what it printed.
func (o options) process(ctx context.Context, name string, arguments ...string) (values, string, error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit)
	defer cancel()
	program, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("find this program: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, "", fmt.Errorf("make a pipe: %w", err)
	}
	var printed, answered bytes.Buffer
	cmd := exec.CommandContext(ctx, program, slices.Concat([]string{"step", "-part", name}, o.arguments(), arguments)...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &printed, &printed, []*os.File{write}
	cmd.WaitDelay = 10 * time.Second
	err = cmd.Start()
	err = errors.Join(err, write.Close())
	if err == nil {
		_, err = io.Copy(&answered, read)
		err = errors.Join(cmd.Wait(), err)
	}
	err = errors.Join(err, read.Close())
	output := printed.String()
	output = output[max(0, len(output)-mostOutput):]
	var a answer
	if wrong := json.Unmarshal(answered.Bytes(), &a); wrong != nil && answered.Len() > 0 {
		err = errors.Join(err, fmt.Errorf("read the answer of step %s: %w", name, wrong))
	}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("ended after %v: %w", o.limit, ctx.Err())
	case a.Error != "":
		err = errors.New(a.Error)
	case err != nil:
		err = fmt.Errorf("%w: %s", err, ending(output))
	case answered.Len() == 0: // package testing ended the process
		passed := strings.Count(output, "--- PASS: ")
		if a.Values = (values{"passed": passed, "headline": fmt.Sprintf("%d cases pass", passed)}); passed == 0 {
			err = fmt.Errorf("step %s did not answer: %s", name, ending(output))
		}
	}
	return a.Values, output, err
}

// ending says which tests failed in an output, or else its last words.
func ending(output string) string {
	var failed []string
	for line := range strings.Lines(output) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "--- FAIL: "); ok {
			failed = append(failed, strings.Fields(name)[0])
		}
	}
	if len(failed) > 0 {
		return strings.Join(failed, ", ")
	}
	return strings.TrimSpace(output[max(0, len(output)-400):])
}

// child runs one step in this process.
func child(_ context.Context, o options) error {
	runtime.LockOSThread() // a device is used on one thread
	to := os.NewFile(3, "the answer")
	for _, s := range append(steps(), step{name: "train", run: trainShape}, step{name: "pipeline", run: trainPipelines}) {
		if s.name != o.parts {
			continue
		}
		found, err := s.run(o)
		a := answer{Values: found}
		if err != nil {
			a.Error = err.Error()
		}
		return errors.Join(json.NewEncoder(to).Encode(a), to.Close())
	}
	return fmt.Errorf("step %q: expected one of %s", o.parts, strings.Join(stepNames(), ", "))
}
