package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"
)

// generateOptions are the flags of `generate`.
type generateOptions struct {
	connection
	output
	prompt      string
	tokens      int
	temperature float64
	topK        int
	seed        uint64
}

func newGenerateCommand() *cobra.Command {
	var o generateOptions
	cmd := &cobra.Command{
		Use:   "generate JOB|DIR --prompt TEXT",
		Short: "Let a model continue a text",
		Long: `Let a model continue a text: the one of a job's last committed round, or an exported one in a directory. It computes
on this machine, with the avgpiped beside this program or in PATH. The continuation is printed as it is drawn, without
the prompt.

Exit codes:
` + exitHelp,
		Example: `  avgpipectl generate my-job --prompt 'func '
  avgpipectl generate ./model --prompt 'func ' --tokens 200 --temperature 0.7 --top-k 40`,
		Args: arguments(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runGenerate(cmd.Context(), o, args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	o.connection.addFlags(cmd)
	o.output.addFlags(cmd)
	f := cmd.Flags()
	f.StringVar(&o.prompt, "prompt", "", "`TEXT` to continue")
	f.IntVar(&o.tokens, "tokens", 300, "`NUMBER` of tokens to generate")
	f.Float64Var(&o.temperature, "temperature", 0.8, "`VALUE` of 0 takes the most likely token every time, 1 draws as the model says")
	f.IntVar(&o.topK, "top-k", 0, "draw from the `K` most likely tokens; 0 is all")
	f.Uint64Var(&o.seed, "seed", 1, "`NUMBER` that determines the draws")
	return cmd
}

func runGenerate(ctx context.Context, o generateOptions, what string, out, messages io.Writer) (err error) {
	dir := what
	if !isModel(what) {
		temp, err := os.MkdirTemp("", "avgpipectl-model-")
		if err != nil {
			return fmt.Errorf("generate: %w", err)
		}
		defer func() { _ = os.RemoveAll(temp) }() // temporary
		dir = filepath.Join(temp, "model")
		client := o.client()
		defer client.Close()
		if err := fetchModel(ctx, client, what, dir, false); err != nil {
			return err
		}
	}
	program, err := findDaemon()
	if err != nil {
		return err
	}
	_, toTerminal := terminal(out)
	var text bytes.Buffer
	into := out
	switch {
	case o.json():
		into = &text
	case toTerminal:
		into = &plainWriter{out}
	}
	if err := o.generate(ctx, program, dir, into, messages); err != nil {
		return err
	}
	if o.json() {
		return printJSON(out, map[string]string{"prompt": o.prompt, "text": text.String()})
	}
	_, err = fmt.Fprintln(out)
	return err
}

// generate runs the program that computes.
func (o *generateOptions) generate(ctx context.Context, program, dir string, out, messages io.Writer) error {
	cmd := exec.CommandContext(ctx, program, "generate", "--model", dir, "--prompt", o.prompt,
		"--tokens", strconv.Itoa(o.tokens), "--temperature", strconv.FormatFloat(o.temperature, 'g', -1, 64),
		"--top-k", strconv.Itoa(o.topK), "--seed", strconv.FormatUint(o.seed, 10))
	cmd.Stdout, cmd.Stderr = out, messages
	err := cmd.Run()
	var status *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &status) && status.ExitCode() > 0:
		return &failure{status.ExitCode()} // it has said why
	case err != nil:
		return fmt.Errorf("generate: run %s: %w", program, err)
	}
	return nil
}

// isModel reports whether a path is an exported model.
func isModel(path string) bool {
	info, err := os.Stat(filepath.Join(path, "config.json"))
	return err == nil && info.Mode().IsRegular()
}

// findDaemon finds the program that computes: the one that was installed with this one, else one in PATH.
func findDaemon() (string, error) {
	const name = "avgpiped"
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), name)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("generate: %s is neither beside this program nor in PATH; it does the computing: %w", name, err)
	}
	return path, nil
}

// plainWriter replaces the bytes that a terminal would obey: a model writes what it likes.
type plainWriter struct{ out io.Writer }

func (w *plainWriter) Write(p []byte) (int, error) {
	clean := bytes.Clone(p)
	for i, b := range clean {
		if b < ' ' && b != '\n' && b != '\t' || b == 0x7f {
			clean[i] = '?'
		}
	}
	return w.out.Write(clean)
}
