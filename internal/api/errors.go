package api

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/job"
)

// Error renders the message and every problem, each with its line and a caret under the column.
func (e *Error) Error() string {
	if len(e.Problems) == 0 {
		return e.Message
	}
	texts := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		texts[i] = job.Problem(p).Error()
	}
	return strings.Join(texts, "\n")
}

// Refused returns the error of a refused job file.
func Refused(problems job.Problems) *Error {
	e := &Error{Status: 422, Message: fmt.Sprintf("the job file is refused: %s", count(len(problems), "problem"))}
	for _, p := range problems {
		e.Problems = append(e.Problems, Problem(p))
	}
	return e
}

// Errorf returns an error with an HTTP status.
func Errorf(status int, format string, args ...any) *Error {
	return &Error{Status: status, Message: fmt.Sprintf(format, args...)}
}

// ConnectError reports that no daemon answers on a socket.
type ConnectError struct {
	Socket string
	Err    error
}

func (e *ConnectError) Error() string {
	return fmt.Sprintf("no daemon at %s (%v): start one with `avgpiped --dev` or `systemctl start avgpiped`, "+
		"or name its socket with --socket", e.Socket, e.Err)
}

// Unwrap returns the error of the dial.
func (e *ConnectError) Unwrap() error { return e.Err }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
