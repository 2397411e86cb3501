package admission

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"sync"
	"time"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// How the processes that look at what users name are bounded.
const (
	inspectLimit  = 2 * time.Minute // of one; a table of 64 MiB takes seconds
	inspectBytes  = 1 << 30         // that one may allocate; the header of a model of 100,000 tensors takes a tenth of it
	mostInspected = 4               // at once, half of them for one user
	maxFinding    = 64 << 20        // bytes of one line that it prints
	inspectGrace  = 5 * time.Second // to read the rest of what a dead one printed
)

// Request is what an inspect process is asked: whether a job file is one that this node can run for a user.
type Request struct {
	Submit api.SubmitRequest `json:"request"`
	User   access.User       `json:"user"`
	Host   Host              `json:"host"`
}

// Host is what admission knows of the node.
type Host struct {
	Cores       int   `json:"cores"`
	MemoryBytes int64 `json:"memory_bytes"` // that jobs may take; 0: the system does not say

	Reserved []string          `json:"reserved"` // directories of the daemon's own
	Pending  map[string]string `json:"pending"`  // the output.dir of jobs whose model is still to be written: directory to job
}

// finding is one line of what an inspect process prints: a path that it is about to open, any number of times, then one answer.
type finding struct {
	Opens   string          `json:"opens,omitempty"`
	Spec    json.RawMessage `json:"spec,omitempty"`
	Refused *api.Error      `json:"refused,omitempty"`
	Status  int             `json:"status,omitempty"` // of Refused
	Failed  string          `json:"failed,omitempty"` // not by the job file
}

// Inspector has job files admitted outside of the daemon, which opens nothing that a user names. Whatever such a file does to its
// reader becomes a refusal of the job.
type Inspector struct {
	command []string
	limit   time.Duration
	slots   chan struct{}

	mu    sync.Mutex
	users map[uint32]*share // who has a file inspected, or waits
}

// share is what of the slots one user may take.
type share struct {
	slots chan struct{}
	files int // that are inspected, or wait
}

// NewInspector runs a command for each job file.
func NewInspector(command []string) *Inspector {
	return &Inspector{
		command: command, limit: inspectLimit, slots: make(chan struct{}, mostInspected), users: map[uint32]*share{},
	}
}

// enter waits for a slot, and returns what gives it back. A user takes half of them at most, so that nobody keeps others out.
func (i *Inspector) enter(ctx context.Context, user uint32) (leave func(), err error) {
	i.mu.Lock()
	own := i.users[user]
	if own == nil {
		own = &share{slots: make(chan struct{}, max(1, cap(i.slots)/2))}
		i.users[user] = own
	}
	own.files++
	i.mu.Unlock()
	held := []chan struct{}{}
	leave = func() {
		for _, slots := range held {
			<-slots
		}
		i.mu.Lock()
		defer i.mu.Unlock()
		if own.files--; own.files == 0 {
			delete(i.users, user)
		}
	}
	for _, slots := range []chan struct{}{own.slots, i.slots} {
		select {
		case slots <- struct{}{}:
			held = append(held, slots)
		case <-ctx.Done():
			leave()
			return nil, ctx.Err()
		}
	}
	return leave, nil
}

// Admit starts an inspect process in a process group of its own, and kills it at the bound or when ctx ends.
func (i *Inspector) Admit(ctx context.Context, q Request) (*spec.Spec, error) {
	leave, err := i.enter(ctx, q.User.UID)
	if err != nil {
		return nil, fmt.Errorf("submit %s: wait for others to be admitted: %w", q.Submit.File, err)
	}
	defer leave()
	text, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("submit %s: %w", q.Submit.File, err)
	}
	bounded, cancel := context.WithTimeout(ctx, i.limit)
	defer cancel()
	said := &findings{stop: cancel}
	messages := &head{}
	cmd := exec.CommandContext(bounded, i.command[0], i.command[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = "/", bytes.NewReader(text), said, messages
	process.Isolate(cmd)
	cmd.WaitDelay = inspectGrace
	err = cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("submit %s: %w", q.Submit.File, ctx.Err())
	case said.answer != nil && err == nil:
		return said.answer.result(q.Submit.File)
	}
	return nil, said.explain(bounded, q.Submit.File, i.limit, err, messages)
}

// result is the answer.
func (f *finding) result(file string) (*spec.Spec, error) {
	switch {
	case f.Refused != nil:
		f.Refused.Status = f.Status
		return nil, f.Refused
	case f.Failed != "":
		return nil, errors.New(f.Failed)
	}
	s := &spec.Spec{}
	if err := json.Unmarshal(f.Spec, s); err != nil {
		return nil, fmt.Errorf("submit %s: decode what its inspection found: %w", file, err)
	}
	return s, nil
}

// findings reads what an inspect process prints. One goroutine writes to it, which has ended when the others look.
type findings struct {
	rest   []byte // of a line
	opens  string // the last path
	answer *finding
	broken error  // what it printed is no finding
	stop   func() // ends the process
}

// Write takes lines. An error ends the process.
func (f *findings) Write(p []byte) (int, error) {
	if f.broken = f.take(p); f.broken != nil {
		f.stop()
	}
	return len(p), f.broken
}

func (f *findings) take(p []byte) error {
	f.rest = append(f.rest, p...)
	if len(f.rest) > maxFinding {
		return errors.New("a line of its output is too long")
	}
	for {
		line, rest, whole := bytes.Cut(f.rest, []byte("\n"))
		if !whole {
			return nil
		}
		var one finding
		if err := json.Unmarshal(line, &one); err != nil {
			return fmt.Errorf("what it printed is no finding, %q: %w", line[:min(len(line), 80)], err)
		}
		if f.rest = rest; one.Opens != "" {
			f.opens = one.Opens
		} else {
			f.answer = &one
		}
	}
}

// explain says how a process ended that gave no answer.
func (f *findings) explain(bounded context.Context, file string, limit time.Duration, err error, messages *head) error {
	what := fmt.Sprintf("submit %s: the job file is refused: reading %s", file, f.opens)
	if f.opens == "" {
		what = fmt.Sprintf("submit %s: reading the job file", file)
	}
	if err == nil {
		err = errors.New("without an answer")
	}
	switch {
	case f.broken != nil:
		return fmt.Errorf("%s: %w", what, f.broken)
	case bounded.Err() != nil:
		return api.Errorf(http.StatusUnprocessableEntity, "%s took longer than %v", what, limit)
	case messages.outOfMemory():
		return api.Errorf(http.StatusUnprocessableEntity, "%s took more than %d MiB of memory", what, inspectBytes>>20)
	case f.opens != "":
		return api.Errorf(http.StatusUnprocessableEntity, "%s ended the process that did it: %v: %s", what, err, messages.line())
	}
	return fmt.Errorf("%s: the process that does it ended: %w: %s", what, err, messages.line())
}

// head keeps the first bytes of what is written.
type head struct{ kept []byte }

func (h *head) Write(p []byte) (int, error) {
	const most = 1 << 16
	h.kept = append(h.kept, p[:min(len(p), most-len(h.kept))]...)
	return len(p), nil
}

// line is the first line.
func (h *head) line() string {
	first, _, _ := bytes.Cut(h.kept, []byte("\n"))
	return string(first[:min(len(first), 200)])
}

// outOfMemory reports whether the Go runtime, or the C library, says so. The kernel lets the heap grow into what the runtime has
// reserved, so the bound may be met first where the garbage collector asks for memory of its own; there Go 1.26 uses the answer
// unchecked, and faults.
func (h *head) outOfMemory() bool {
	has := func(words string) bool { return bytes.Contains(h.kept, []byte(words)) }
	return has("out of memory") || has("cannot allocate memory") || has("SIGSEGV: segmentation violation") && has("runtime.gcDrain")
}

// Inspect is the inspect process: it reads an inspection and prints findings. It confines itself first.
func Inspect(ctx context.Context, in io.Reader, out io.Writer) error {
	var q Request
	if err := json.NewDecoder(bufio.NewReader(in)).Decode(&q); err != nil {
		return fmt.Errorf("inspect: read what to do: %w", err)
	}
	if err := confine(q.User); err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	var (
		mu     sync.Mutex
		broken error // of the output: whoever asked is gone
		lines  = json.NewEncoder(out)
	)
	say := func(f finding) {
		mu.Lock()
		defer mu.Unlock()
		broken = errors.Join(broken, lines.Encode(f))
	}
	s, err := Admit(ctx, q, func(path string) { say(finding{Opens: path}) })
	var refused *api.Error
	switch {
	case errors.As(err, &refused):
		say(finding{Refused: refused, Status: refused.Status})
	case err != nil:
		say(finding{Failed: err.Error()})
	default:
		text, err := spec.Encode(s)
		if err != nil {
			return err
		}
		say(finding{Spec: text})
	}
	return broken
}
