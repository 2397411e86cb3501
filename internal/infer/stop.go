package infer

import (
	"bytes"
	"errors"
	"io"
)

// errEnd ends a text where a string that stops it came.
var errEnd = errors.New("the text ends")

// stopWriter passes text on up to the first of some strings, and then fails with errEnd. What may be the beginning of one it keeps back until
// that is certain.
type stopWriter struct {
	out   io.Writer
	stops []string
	held  []byte
}

// Write implements io.Writer.
func (w *stopWriter) Write(p []byte) (int, error) {
	w.held = append(w.held, p...)
	end, first := len(w.held), len(w.held)
	for _, stop := range w.stops {
		if at := bytes.Index(w.held, []byte(stop)); at >= 0 {
			first = min(first, at)
		}
		for n := min(len(stop), len(w.held)); n > 0; n-- {
			if bytes.HasSuffix(w.held, []byte(stop[:n])) {
				end = min(end, len(w.held)-n)
				break
			}
		}
	}
	if first < len(w.held) {
		_, err := w.out.Write(w.held[:first])
		w.held = nil
		return len(p), errors.Join(err, errEnd)
	}
	if end == 0 {
		return len(p), nil
	}
	_, err := w.out.Write(w.held[:end])
	w.held = append(w.held[:0], w.held[end:]...)
	return len(p), err
}

// flush writes what was kept back: no string that stops the text came.
func (w *stopWriter) flush() error {
	_, err := w.out.Write(w.held)
	w.held = nil
	return err
}
