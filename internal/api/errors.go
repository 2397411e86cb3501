package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/internal/words"
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
	TooSlow          Code = "too_slow"           // the request did not come in time
	RefusedFile      Code = "refused"            // the job file cannot be run; problems say where and why
	TooManyRequests  Code = "too_many_requests"  // this user asks too often; the header Retry-After says when to ask again
	Internal         Code = "internal"           // a fault of the daemon; its log says more
	Unavailable      Code = "unavailable"        // the daemon is starting, stopping or without a leader; asking again later helps
)

// codes is the code of each status.
var codes = map[int]Code{
	http.StatusBadRequest: BadRequest, http.StatusForbidden: Forbidden, http.StatusNotFound: NotFound,
	http.StatusMethodNotAllowed: MethodNotAllowed, http.StatusConflict: Conflict, http.StatusRequestEntityTooLarge: TooLarge, http.StatusRequestTimeout: TooSlow,
	http.StatusTooManyRequests: TooManyRequests, http.StatusUnprocessableEntity: RefusedFile, http.StatusInternalServerError: Internal, http.StatusServiceUnavailable: Unavailable,
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
	return e.Problems.Error()
}

// Refused returns the error of a refused job file.
func Refused(problems strictyaml.Problems) *Error {
	e := Errorf(http.StatusUnprocessableEntity, "the job file is refused: %s", words.Count(len(problems), "problem"))
	e.Problems = problems
	return e
}

// Errorf returns an error with a status of HTTP, which must be one that has a code.
func Errorf(status int, format string, args ...any) *Error {
	return &Error{Status: status, Code: codes[status], Message: fmt.Sprintf(format, args...)}
}

// ConnectError reports that no daemon answers on a socket, or none of a context.
type ConnectError struct {
	Socket string // or the context's name
	Err    error
	Remote bool // it is a context's
}

// howToStart is what to do when there is no daemon.
const howToStart = "start one with `avgpiped --dev` or `systemctl start avgpiped`, or name its socket with --socket or AVGPIPE_SOCKET"

// Error says why nobody answers, as far as the file system tells, and what to do about it.
func (e *ConnectError) Error() string {
	if e.Remote {
		return e.remote()
	}
	info, statErr := os.Stat(e.Socket)
	switch {
	case errors.Is(e.Err, context.DeadlineExceeded):
		return fmt.Sprintf("the daemon at %s took the request and does not answer: it is stopped, or hangs; `systemctl status avgpiped` and its log may say why", e.Socket)
	case errors.Is(e.Err, fs.ErrPermission):
		return e.forbidden()
	case errors.Is(e.Err, fs.ErrNotExist):
		return fmt.Sprintf("no daemon at %s: there is no such socket; %s", e.Socket, howToStart)
	case statErr == nil && info.Mode().Type() != fs.ModeSocket:
		return fmt.Sprintf("no daemon at %s: that is no socket; name the daemon's with --socket or AVGPIPE_SOCKET", e.Socket)
	case errors.Is(e.Err, syscall.ECONNREFUSED):
		return fmt.Sprintf("no daemon at %s: the socket is the leftover of one that is gone, which `systemctl status avgpiped` may explain; %s", e.Socket, howToStart)
	}
	return fmt.Sprintf("no daemon at %s (%v): %s", e.Socket, e.Err, howToStart)
}

// forbidden says which group may use the socket.
func (e *ConnectError) forbidden() string {
	closed := e.Socket
	var info fs.FileInfo
	for { // the socket, or the directory that hides it
		var err error
		if info, err = os.Stat(closed); err == nil || closed == filepath.Dir(closed) {
			break
		}
		closed = filepath.Dir(closed)
	}
	text := fmt.Sprintf("permission denied on %s", e.Socket)
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return text
	}
	if owner.Gid == 0 { // of a daemon that root started by hand; nobody should be told to join that group
		return text + ": it belongs to root alone; use the daemon that is installed, or start one of your own with `avgpiped --dev`"
	}
	name := strconv.Itoa(int(owner.Gid))
	if group, err := user.LookupGroupId(name); err == nil {
		name = group.Name
	}
	me := "USER"
	if u, err := user.Current(); err == nil {
		me = u.Username
		if all, err := u.GroupIds(); err == nil && slices.Contains(all, strconv.Itoa(int(owner.Gid))) {
			return fmt.Sprintf("%s: it is for the group %s, which you, %s, have joined since this session began: log in again", text, name, me)
		}
	}
	return fmt.Sprintf("%s: it is for the group %s, and you, %s, are not in it: sudo usermod -aG %s %s, then log in again", text, name, me, name, me)
}

// Unwrap returns the error of the dial.
func (e *ConnectError) Unwrap() error { return e.Err }
