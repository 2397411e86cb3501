package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/modeldir"
)

// withModel gives f the directory of the model that the first argument names, and what messages call it: a directory itself, or the
// model of that job, fetched for as long as f runs.
func (c *call) withModel(f func(dir, name string) error) error {
	what := c.args[0]
	is, err := isModel(what)
	if err != nil {
		return err
	}
	if is {
		return f(what, "model "+what)
	}
	temp, err := os.MkdirTemp("", "avgpipectl-model-")
	if err != nil {
		return fmt.Errorf("fetch the model: %w", err)
	}
	defer func() { _ = os.RemoveAll(temp) }() // temporary
	s, err := c.client.Job(c.ctx, what)
	if refused, ok := errors.AsType[*api.Error](err); ok && refused.Status == http.StatusNotFound {
		if _, missing := os.Stat(what); missing == nil {
			return usagef("%w; and %w", err, notModel(what))
		}
	}
	if err != nil {
		return err
	}
	dir := filepath.Join(temp, "model")
	if err := c.fetchModel(s, dir, false); err != nil {
		return err
	}
	return f(dir, fmt.Sprintf("job %s (%s)", s.ID, s.Name))
}

// isModel reports whether what is an exported model. A path with a slash can only be meant as one; an error says what it is.
func isModel(what string) (bool, error) {
	info, err := os.Stat(filepath.Join(what, "config.json"))
	if err == nil && info.Mode().IsRegular() {
		return true, nil
	}
	if strings.Contains(what, "/") || modeldir.Interrupted(what) {
		return false, usagef("%w", notModel(what))
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

// forPeople is out, without control characters when it is a terminal: a model writes what it likes.
func forPeople(out io.Writer) io.Writer {
	if _, ok := terminal(out); ok {
		return &plainWriter{out}
	}
	return out
}

// plainWriter writes what is printable.
type plainWriter struct{ out io.Writer }

func (w *plainWriter) Write(p []byte) (int, error) {
	if _, err := w.out.Write(printable(p)); err != nil {
		return 0, err
	}
	return len(p), nil
}

// printable writes control characters, on which a terminal would act, as a program would: \x1b. A part of a character, which the next write
// completes, stays.
func printable(p []byte) []byte {
	clean := make([]byte, 0, len(p))
	for len(p) > 0 {
		r, size := utf8.DecodeRune(p)
		code := r
		if size == 1 {
			code = rune(p[0])
		}
		if obeyed := code < ' ' && code != '\n' && code != '\t' || code >= 0x7f && code < 0xa0; obeyed {
			clean = fmt.Appendf(clean, "\\x%02x", code)
		} else {
			clean = append(clean, p[:size]...)
		}
		p = p[size:]
	}
	return clean
}
