package api

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/avgpipe/avgpipe/job"
)

// Code says what kind of error an answer is, for programs. A code keeps its meaning in all versions of the API.
type Code string

// The codes. Each has one status of HTTP.
const (
	BadRequest       Code = "bad_request"        // the request itself is wrong: its body, a parameter
	Forbidden        Code = "forbidden"          // the caller may not do this
	NotFound         Code = "not_found"          // there is no such job or path
	MethodNotAllowed Code = "method_not_allowed" // the path has other methods; the header Allow lists them
	Conflict         Code = "conflict"           // the job's state, or that of several with the name, does not allow it
	TooLarge         Code = "too_large"          // the body is longer than the server reads
	RefusedFile      Code = "refused"            // the job file cannot be run; problems say where and why
	Internal         Code = "internal"           // a fault of the daemon; its log says more
	Unavailable      Code = "unavailable"        // the daemon is starting, stopping or without a leader; asking again later helps
)

// codes is the code of each status.
var codes = map[int]Code{
	http.StatusBadRequest: BadRequest, http.StatusForbidden: Forbidden, http.StatusNotFound: NotFound,
	http.StatusMethodNotAllowed: MethodNotAllowed, http.StatusConflict: Conflict, http.StatusRequestEntityTooLarge: TooLarge,
	http.StatusUnprocessableEntity: RefusedFile, http.StatusInternalServerError: Internal, http.StatusServiceUnavailable: Unavailable,
}

// CodeOf returns the code of a status of HTTP that is not 2xx.
func CodeOf(status int) (Code, bool) {
	c, ok := codes[status]
	return c, ok
}

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
	e := Errorf(http.StatusUnprocessableEntity, "the job file is refused: %s", count(len(problems), "problem"))
	for _, p := range problems {
		e.Problems = append(e.Problems, Problem(p))
	}
	return e
}

// Errorf returns an error with a status of HTTP, which must be one that has a code.
func Errorf(status int, format string, args ...any) *Error {
	return &Error{Status: status, Code: codes[status], Message: fmt.Sprintf(format, args...)}
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
