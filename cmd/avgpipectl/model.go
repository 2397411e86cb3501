package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/modeldir"
)

// use gives f the directory of a model: what itself, or the model of that job, fetched for as long as f runs.
func (d *daemonFlags) use(ctx context.Context, what string, f func(dir string) error) error {
	is, err := isModel(what)
	if err != nil {
		return err
	}
	if is {
		return f(what)
	}
	temp, err := os.MkdirTemp("", "avgpipectl-model-")
	if err != nil {
		return fmt.Errorf("fetch the model: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // temporary
	dir := filepath.Join(temp, "model")
	client := d.client()
	defer client.Close()
	s, err := client.Job(ctx, what)
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Status == http.StatusNotFound {
		if _, missing := os.Stat(what); missing == nil {
			return &usageError{fmt.Errorf("%w; and %w", err, notModel(what))}
		}
	}
	if err != nil {
		return err
	}
	if err := fetchModel(ctx, client, s, dir, false); err != nil {
		return err
	}
	return f(dir)
}

// isModel reports whether what is an exported model. A path with a slash can only be meant as one; an error says what it is.
func isModel(what string) (bool, error) {
	info, err := os.Stat(filepath.Join(what, "config.json"))
	if err == nil && info.Mode().IsRegular() {
		return true, nil
	}
	if strings.Contains(what, "/") || modeldir.Interrupted(what) {
		return false, &usageError{notModel(what)}
	}
	return false, nil
}

// notModel says why a path is no exported model.
func notModel(path string) error {
	info, err := os.Stat(path)
	switch {
	case modeldir.Interrupted(path):
		return fmt.Errorf("%s holds an export that was interrupted; finish it with: avgpipectl export JOB %s --force", path, path)
	case err != nil:
		return fmt.Errorf("%w; a model is a directory with a config.json, as avgpipectl export writes it", err)
	case info.IsDir():
		return fmt.Errorf("%s is a directory without a config.json, so it holds no model that avgpipectl export wrote", path)
	}
	return fmt.Errorf("%s is a file; a model is a directory with a config.json, as avgpipectl export writes it", path)
}

// infer starts `avgpiped infer VERB --model DIR ARGUMENTS...`, which computes.
func infer(ctx context.Context, verb, dir string, arguments []string, in io.Reader, out, messages io.Writer) (*exec.Cmd, error) {
	program, err := findDaemon()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"infer", verb, "--model", dir}, arguments...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, messages
	cmd.WaitDelay = time.Second // for whatever it started and left behind
	return cmd, nil
}

// outcome is what the end of a program means for the verb that ran it.
func outcome(ctx context.Context, program string, err error) error {
	var status *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &status) && status.ExitCode() > 0:
		return &failure{status.ExitCode()} // it has said why
	case err != nil:
		return fmt.Errorf("run %s: %w", program, err)
	}
	return nil
}

// inferLines runs infer, whose output is a T for each line, and passes each on as soon as it comes.
func inferLines[T any](ctx context.Context, verb, dir string, arguments []string, in io.Reader, messages io.Writer, each func(T) error) error {
	cmd, err := infer(ctx, verb, dir, arguments, in, nil, messages)
	if err != nil {
		return err
	}
	lines, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s: %w", cmd.Path, err)
	}
	failed := decodeLines(lines, each)
	if failed != nil {
		_ = cmd.Process.Kill() // it may wait for somebody to read on
	}
	err = outcome(ctx, cmd.Path, cmd.Wait())
	if failed != nil && ctx.Err() == nil {
		return failed
	}
	return err
}

func decodeLines[T any](lines io.Reader, each func(T) error) error {
	decoder := json.NewDecoder(lines)
	for {
		var line T
		err := decoder.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read what avgpiped computed: %w", err)
		}
		if err := each(line); err != nil {
			return err
		}
	}
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
		return "", fmt.Errorf("%s is neither beside this program nor in PATH; it does the computing: %w", name, err)
	}
	return path, nil
}

// forPeople is out, without the bytes that a terminal would obey when it is one: a model writes what it likes.
func forPeople(out io.Writer) io.Writer {
	if _, ok := terminal(out); ok {
		return &plainWriter{out}
	}
	return out
}

// plainWriter shows what a terminal would obey as it would be written in a program: \x1b.
type plainWriter struct{ out io.Writer }

func (w *plainWriter) Write(p []byte) (int, error) {
	clean := make([]byte, 0, len(p))
	for rest := p; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		switch {
		case r == utf8.RuneError && size == 1 && rest[0] >= 0xa0, r == '\n', r == '\t': // a part of a character, which the next write completes
			clean = append(clean, rest[:size]...)
		case r == utf8.RuneError && size == 1, r < ' ', r >= 0x7f && r < 0xa0:
			code := r
			if size == 1 {
				code = rune(rest[0])
			}
			clean = fmt.Appendf(clean, "\\x%02x", code)
		default:
			clean = append(clean, rest[:size]...)
		}
		rest = rest[size:]
	}
	if _, err := w.out.Write(clean); err != nil {
		return 0, err
	}
	return len(p), nil
}
