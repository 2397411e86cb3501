package main

import (
	"context"
	"fmt"
	"io"
	"os"
)

// standardInput is the name of a file that is read from the standard input.
const standardInput = "-"

// read reads a file that the user names, or the standard input. One of more bytes than most is refused before it takes memory: it may
// be a device that never ends. what it is, such as "a job file", is for messages.
func (c *call) read(path, what string, most int64) ([]byte, error) {
	return unlessInterrupted(c.ctx, func() (text []byte, err error) {
		in := c.in
		if path != standardInput {
			f, err := os.Open(path)
			if err != nil {
				return nil, err
			}
			defer f.Close() //nolint:errcheck // only read
			in = f
		}
		text, err = io.ReadAll(io.LimitReader(in, most+1))
		switch {
		case err != nil:
			return nil, err
		case int64(len(text)) > most:
			return nil, fmt.Errorf("%s has more than %d bytes, the most that %s may have", path, most, what)
		case len(text) == 0:
			return nil, fmt.Errorf("%s is empty", path)
		}
		return text, nil
	})
}

// unlessInterrupted waits for do, or for the end of ctx: opening a pipe that nobody writes to, and reading it, end with neither a signal
// nor a deadline. do is left running then.
func unlessInterrupted[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		value, err := do()
		done <- result{value, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
