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

	"golang.org/x/sync/semaphore"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/gpu"
	"github.com/avgpipe/avgpipe/internal/pinned"
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

// Request is what an inspect process is asked: whether a job file is one that the cluster can run for a user or, with a Spec, what of that an admitted
// job reads is missing on this host.
type Request struct {
	Spec   json.RawMessage   `json:"spec,omitempty"`
	Submit api.SubmitRequest `json:"request"`
	User   access.User       `json:"user"`
	Host   Host              `json:"host"`
	// Remote is what the URLs of the job file stand for, by entry. Nil: nobody has asked yet.
	Remote map[string]Resolved `json:"remote,omitempty"`
}

// Resolved is what a URL stands for, or why nobody can say.
type Resolved struct {
	Objects []pinned.Object `json:"objects,omitempty"`
	Problem string          `json:"problem,omitempty"`
}

// Host is what admission knows of the node.
type Host struct {
	Cores       int   `json:"cores"`
	MemoryBytes int64 `json:"memory_bytes"` // that jobs may take; 0: the system does not say

	Hosts []spec.Host `json:"hosts,omitempty"` // the nodes that stages may lie on; fewer than two: this one alone

	GPUs  []gpu.GPU `json:"gpus,omitempty"`   // of the node, the sick ones too
	NoGPU string    `json:"no_gpu,omitempty"` // why jobs can use none, whichever there are

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
	Sight   *agent.Sight    `json:"sight,omitempty"`
	Wants   []string        `json:"wants,omitempty"` // URLs of the job file that somebody has to resolve before it is admitted
}

// Inspector has job files admitted outside of the daemon, which opens nothing that a user names. Whatever such a file does to its
// reader becomes a refusal of the job.
type Inspector struct {
	// Resolve finds what a URL stands for, with the rights of a user: the inspect process has no credentials. Nil: URLs are refused.
	Resolve func(ctx context.Context, user *access.User, entry string) ([]pinned.Object, error)

	command []string
	limit   time.Duration
	slots   *semaphore.Weighted
	users   sync.Map // by user, half as many slots: nobody keeps others out
}

// NewInspector runs a command for each job file.
func NewInspector(command []string) *Inspector {
	return &Inspector{command: command, limit: inspectLimit, slots: semaphore.NewWeighted(mostInspected)}
}

// enter waits for a slot, and returns what gives it back.
func (i *Inspector) enter(ctx context.Context, user uint32) (leave func(), err error) {
	value, _ := i.users.LoadOrStore(user, semaphore.NewWeighted(mostInspected/2))
	own := value.(*semaphore.Weighted) //nolint:errcheck,forcetypeassert // What is stored.
	if err := own.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	if err := i.slots.Acquire(ctx, 1); err != nil {
		own.Release(1)
		return nil, err
	}
	return func() { i.slots.Release(1); own.Release(1) }, nil
}

// Admit has an inspect process judge a job file.
func (i *Inspector) Admit(ctx context.Context, q Request) (*spec.Spec, error) {
	what := "submit " + q.Submit.File
	as := asking{what: what, read: "reading the job file", refused: "the job file is refused: "}
	answer, err := i.ask(ctx, q, as)
	if err == nil && len(answer.Wants) > 0 {
		q.Remote = i.resolve(ctx, &q.User, answer.Wants)
		answer, err = i.ask(ctx, q, as)
	}
	if err != nil {
		return nil, err
	}
	return answer.result(q.Submit.File)
}

// asking is how messages name what an inspect process does.
type asking struct {
	what    string // "submit FILE"
	read    string // what it reads before it opens anything
	refused string // before a path on which it fails
}

// ask starts an inspect process in a process group of its own, and kills it at the bound or when ctx ends.
func (i *Inspector) ask(ctx context.Context, q Request, as asking) (*finding, error) {
	leave, err := i.enter(ctx, q.User.UID)
	if err != nil {
		return nil, fmt.Errorf("%s: wait for others to be admitted: %w", as.what, err)
	}
	defer leave()
	text, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", as.what, err)
	}
	bounded, cancel := context.WithTimeout(ctx, i.limit)
	defer cancel()
	messages := &head{}
	cmd := exec.CommandContext(bounded, i.command[0], i.command[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stderr, cmd.WaitDelay = "/", bytes.NewReader(text), messages, inspectGrace
	process.Isolate(cmd)
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", as.what, err)
	}
	opens, answer, broken := readFindings(out)
	if broken != nil {
		cancel()
	}
	err = cmd.Wait()
	what := fmt.Sprintf("%s: %sreading %s", as.what, as.refused, opens)
	if opens == "" {
		what = fmt.Sprintf("%s: %s", as.what, as.read)
	}
	refused := func(format string, args ...any) error {
		return api.Errorf(http.StatusUnprocessableEntity, "%s %s", what, fmt.Sprintf(format, args...))
	}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", as.what, ctx.Err())
	case answer != nil && err == nil:
		return answer, nil
	case errors.Is(bounded.Err(), context.DeadlineExceeded):
		return nil, refused("took longer than %v", i.limit)
	case broken != nil:
		return nil, fmt.Errorf("%s: %w", what, broken)
	case messages.outOfMemory():
		return nil, refused("took more than %d MiB of memory", inspectBytes>>20)
	case err == nil:
		err = errors.New("without an answer")
	}
	if opens != "" {
		return nil, refused("ended the process that did it: %v: %s", err, messages.line())
	}
	return nil, fmt.Errorf("%s: the process that does it ended: %w: %s", what, err, messages.line())
}

// readFindings reads what an inspect process prints: the last path that it opened, and its answer. It fails on what is no finding.
func readFindings(out io.Reader) (opens string, answer *finding, err error) {
	bounded := &io.LimitedReader{R: out}
	for lines := json.NewDecoder(bounded); ; {
		one := &finding{}
		bounded.N = maxFinding
		err := lines.Decode(one)
		switch {
		case bounded.N <= 0:
			return opens, nil, errors.New("a line of its output is too long")
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return opens, answer, nil
		case err != nil:
			return opens, nil, fmt.Errorf("what it printed is no finding: %w", err)
		case one.Opens != "":
			opens = one.Opens
		default:
			answer = one
		}
	}
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
	opens := func(path string) { say(finding{Opens: path}) }
	if q.Spec != nil {
		sight, err := look(ctx, &q, opens)
		if err != nil {
			say(finding{Failed: err.Error()})
		} else {
			say(finding{Sight: &sight})
		}
		return broken
	}
	s, err := Admit(ctx, q, opens)
	var refused *api.Error
	var wants *wantsError
	switch {
	case errors.As(err, &wants):
		say(finding{Wants: wants.urls})
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
