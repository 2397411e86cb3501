package foreign_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/foreign"
	"github.com/avgpipe/avgpipe/stage/stagetest"
)

// lines keeps what an interpreter writes.
type lines struct {
	mu             sync.Mutex
	all            []string
	bytes, longest int
	count, left    int // lines that came, and bytes that were left out
}

func (l *lines) leftOut(_ string, _, bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.left += bytes
}

func (l *lines) add(_, line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count, l.bytes, l.longest = l.count+1, l.bytes+len(line), max(l.longest, len(line))
	if l.bytes < 1<<20 {
		l.all = append(l.all, line)
	}
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.all, "\n")
}

// child is the process that the program says it has started.
func (l *lines) child(t *testing.T) int {
	t.Helper()
	for line := range strings.SplitSeq(l.text(), "\n") {
		if text, ok := strings.CutPrefix(line, "child "); ok {
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
	}
	t.Fatalf("no child in %q", l.text())
	return 0
}

// runs reports whether a process is there and has not ended.
func runs(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// hangs is when a process is held to hang.
const hangs = 5 * time.Second

func ends(t *testing.T, function string, args map[string]any) (*lines, *foreign.Process, error) {
	t.Helper()
	written := &lines{}
	p := start(t, foreign.Config{Interpreter: stagetest.Python(t), Log: written.add, LeftOut: written.leftOut})
	if function == "hangs" || function == "stops" {
		foreign.BoundAnswers(p, hangs)
	}
	_, err := p.Build(foreign.Program{Path: "testdata/ends.py", Function: function, Args: args}, 1)
	return written, p, err
}

func TestAnInterpreterThatEnds(t *testing.T) {
	for _, c := range []struct{ function, text string }{
		{"exits", "the interpreter ended while it was asked for build: exit status 3; it wrote last: a last word"},
		{"is_killed", "the interpreter ended while it was asked for build: signal: killed"},
		{"closes", "the interpreter ended while it was asked for build: the program closed the descriptor of its socket"},
		{"closes_and_connects", "the interpreter ended while it was asked for build: the program closed the descriptor of its socket"},
	} {
		t.Run(c.function, func(t *testing.T) {
			_, p, err := ends(t, c.function, nil)
			var ended *foreign.EndedError
			if !errors.As(err, &ended) || err.Error() != c.text {
				t.Errorf("found %v, expected %s", err, c.text)
			}
			if _, again := p.Build(foreign.Program{}, 1); !errors.Is(again, err) {
				t.Errorf("another request: found %v, expected the same error", again)
			}
		})
	}
}

// TestABuildThatHangsIsEnded, or one that a signal has stopped: the error names the line, and the log has the stacks of all threads if there is one.
func TestABuildThatHangsIsEnded(t *testing.T) {
	for _, function := range []string{"hangs", "stops"} {
		t.Run(function, func(t *testing.T) {
			t.Parallel()
			written, _, err := ends(t, function, nil)
			hang, ok := errors.AsType[*foreign.HangError](err)
			if !ok {
				t.Fatalf("found %v, expected that it hangs", err)
			}
			first := lineOf(t, "testdata/ends.py", function)
			if filepath.Base(hang.File) != "ends.py" || hang.Line < first || hang.Line > first+1 || hang.Stopped != (function == "stops") || !hang.Logged {
				t.Errorf("found %+v, expected line %d", hang, first)
			}
			if text := written.text(); !strings.Contains(text, fmt.Sprintf("ends.py\", line %d in %s", hang.Line, function)) || strings.Count(text, "hread 0x") < 2 {
				t.Errorf("the log has no stacks of all threads: %s", text)
			}
			if text := written.text(); !strings.Contains(text, "/avgpiped_stub/requests.py\", line ") {
				t.Errorf("the stacks do not name the part of the stub that called the program: %s", text)
			}
		})
	}
}

// TestAProgramThatTakesMoreMemoryThanThereIsLearnsWhere, before the kernel ends something: nothing of this is ever written to.
func TestAProgramThatTakesMoreMemoryThanThereIsLearnsWhere(t *testing.T) {
	_, p, err := ends(t, "takes", nil)
	program, ok := errors.AsType[*foreign.ProgramError](err)
	if !ok || program.Type != "OSError" || !strings.Contains(program.Message, "Cannot allocate memory") || program.Line != lineOf(t, "testdata/ends.py", "takes") {
		t.Errorf("found %v, expected that line %d finds no memory", err, lineOf(t, "testdata/ends.py", "takes"))
	}
	if _, err := p.Build(foreign.Program{Path: "testdata/ends.py", Function: "none"}, 1); err == nil || !strings.Contains(err.Error(), "has no function none") {
		t.Errorf("found %v, expected that the process lives", err)
	}
}

// TestStacksAreNotSaidToBeInALogThatIsNotThere: when a job is submitted, nobody keeps what the program writes.
func TestStacksAreNotSaidToBeInALogThatIsNotThere(t *testing.T) {
	t.Parallel()
	p, err := foreign.Start(t.Context(), foreign.Config{Interpreter: stagetest.Python(t)})
	if err != nil {
		t.Fatal(err)
	}
	foreign.BoundAnswers(p, hangs)
	_, err = p.Build(foreign.Program{Path: "testdata/ends.py", Function: "sleeps"}, 1)
	if hang, ok := errors.AsType[*foreign.HangError](err); !ok || hang.Logged || hang.Line == 0 || strings.Contains(err.Error(), "log") {
		t.Errorf("found %v, expected no word of a log", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// What is handed on of a stream at once, and then in a second; a line costs 160 bytes beside its own.
const (
	burst     = 1 << 20
	perSecond = 64 << 10
	perLine   = 160
)

// TestWhatAProgramWritesIsBounded, one line without end, and many short ones; all of it is read, and what is left out is counted. Stacks come all the same.
func TestWhatAProgramWritesIsBounded(t *testing.T) {
	for _, c := range []struct {
		function  string
		megabytes int
	}{{"prints", 200}, {"prints_lines", 20}} {
		t.Run(c.function, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			written, p, err := ends(t, c.function, map[string]any{"megabytes": c.megabytes})
			if _, ok := errors.AsType[*foreign.ProgramError](err); !ok { // for it returns nothing
				t.Fatal(err)
			}
			foreign.BoundAnswers(p, hangs)
			_, err = p.Build(foreign.Program{Path: "testdata/ends.py", Function: "sleeps"}, 1)
			if hang, ok := errors.AsType[*foreign.HangError](err); !ok || !hang.Logged {
				t.Errorf("found %v, expected that its stacks are in the log", err)
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			most := 2*burst + perSecond*(2+int(time.Since(began).Seconds()))
			if cost := written.bytes + perLine*written.count; cost > most || written.longest > 64<<10 {
				t.Errorf("%d bytes came in %d lines of at most %d; expected that they cost at most %d", written.bytes, written.count, written.longest, most)
			}
			if all := written.bytes + written.left; written.left == 0 || all < c.megabytes<<19 {
				t.Errorf("%d bytes came and %d were left out, of %d MB", written.bytes, written.left, c.megabytes)
			}
		})
	}
}

func TestNothingOutlivesTheInterpreter(t *testing.T) {
	for _, c := range []struct {
		name, function string
		args           map[string]any
		ended          bool
	}{
		{name: "a thread", function: "runs_on"},
		{name: "a fork that returns", function: "forks", args: map[string]any{"session": false, "ends": false}},
		{name: "a fork of a process that ends", function: "forks", args: map[string]any{"session": false, "ends": true}, ended: true},
		{name: "a fork in a session of its own", function: "forks", args: map[string]any{"session": true, "ends": false}},
		{name: "a fork in a session of its own, of a process that ends", function: "forks", args: map[string]any{"session": true, "ends": true}, ended: true},
		{name: "a program", function: "starts", ended: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			written, p, err := ends(t, c.function, c.args)
			var ended *foreign.EndedError
			if errors.As(err, &ended) != c.ended {
				t.Errorf("found %v, expected an end: %v", err, c.ended)
			}
			if !c.ended { // and that a child answered nothing
				if _, err := p.Build(foreign.Program{Path: "testdata/ends.py", Function: "none"}, 1); err == nil || !strings.Contains(err.Error(), "has no function none") {
					t.Errorf("found %v, expected the answer to the second request", err)
				}
			}
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			if c.function == "runs_on" {
				return
			}
			child := written.child(t)
			for range 1000 { // it ends soon after it was killed, or has seen the end of the interpreter
				if !runs(child) {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Errorf("process %d runs on", child)
		})
	}
}

const evaluated = "testdata/evaluated.py"

// built is a device whose process has built a module without parameters, and tensors of as many rows of two numbers.
func (i *interpreter) built(t *testing.T, how, loss string) (d *foreign.Device, tensors []device.Mem, shape []device.ModuleTensor) {
	t.Helper()
	const samples = 4
	if _, err := i.Build(foreign.Program{Path: evaluated, Function: "build", Args: map[string]any{"how": how}, Loss: loss}, 1); err != nil {
		t.Fatal(err)
	}
	shape = []device.ModuleTensor{{Shape: []int{samples, 2}, Type: device.F32}}
	if _, err := i.Probe(foreign.Probe{Inputs: []foreign.ProbeInput{{Shape: shape[0].Shape, Type: "f32"}}}); err != nil {
		t.Fatal(err)
	}
	d = foreign.Over(i.Process, i.on)
	for range 2 {
		m, err := d.Alloc(device.F32, 2*samples)
		if err != nil {
			t.Fatal(err)
		}
		tensors = append(tensors, m)
	}
	return d, tensors, shape
}

func TestALossThatFails(t *testing.T) {
	python := newInterpreter(t, nil)
	for _, c := range []struct{ function, text string }{
		{"vector", "the loss function gave torch.float32 of shape (4, 2); expected a tensor of torch.float32 with one number, of shape ()"},
		{"number", "the loss function gave float; expected a tensor"},
		{"double", "the loss function gave torch.float64 of shape (); expected a tensor of torch.float32"},
		{"fails", "ValueError: the loss function: Expected input batch_size (4) to match target batch_size (1)."},
	} {
		t.Run(c.function, func(t *testing.T) {
			d, tensors, shape := python.built(t, "", c.function)
			rows := shape[0].Shape[0]
			d.Do(&device.ModulesForward{
				Out: make([]device.Mem, 1), UserLoss: tensors[1].Slice(0, 1), In: tensors[:1], Targets: []device.Mem{tensors[1].Slice(rows, rows).As(device.I32, rows)},
				Modules: device.Modules{
					Streams: []uint64{1}, Inputs: shape, Outputs: shape, Targets: []device.ModuleTensor{{Shape: []int{rows}, Type: device.I32}}, Loss: true,
				},
			})
			err, ok := errors.AsType[*foreign.ProgramError](d.Synchronize())
			if !ok || !strings.Contains(err.Error(), c.text) || err.Line != lineOf(t, evaluated, c.function) {
				t.Errorf("found %v, expected %s at line %d", err, c.text, lineOf(t, evaluated, c.function))
			}
		})
	}
}

func TestAForwardThatFails(t *testing.T) {
	path, err := filepath.Abs(evaluated)
	if err != nil {
		t.Fatal(err)
	}
	python, written := newInterpreter(t, nil), &lines{}
	for _, c := range []struct {
		how, text string
		ends      bool // the interpreter ends
	}{
		{"raises", "%s: ArithmeticError: module 0 (Of), which was given torch.float32 of shape (4, 2): no", false},
		{"shape", "%s: output 0 of module 0 (Of) is torch.float32 of shape (4, 1); expected f32 of shape (4, 2), as in the dry run", false},
		{"type", "%s: output 0 of module 0 (Of) is torch.float64 of shape (4, 2); expected f32 of shape (4, 2), as in the dry run", false},
		{"exits", "the interpreter ended while it was asked for passes of modules: exit status 4", true},
		{"killed", "the interpreter ended while it was asked for passes of modules: signal: killed", true},
		{"hangs", "%s: the interpreter did not answer passes of modules within %s; it was ended, and where its threads stood is in the log", true},
	} {
		t.Run(c.how, func(t *testing.T) {
			python := python
			if c.ends {
				python = newInterpreter(t, written.add)
			}
			d, tensors, shape := python.built(t, c.how, "")
			if c.how == "hangs" {
				foreign.BoundAnswers(python.Process, hangs)
			}
			d.Do(&device.ModulesForward{In: tensors[:1], Out: tensors[1:2], Modules: device.Modules{Streams: []uint64{1}, Inputs: shape, Outputs: shape}})
			err := d.Synchronize()
			line, expected := lineOf(t, path, c.how), c.text
			if hang := (*foreign.HangError)(nil); errors.As(err, &hang) && (hang.Line == line || hang.Line == line-1) { // at either line of its loop
				expected = fmt.Sprintf(expected, fmt.Sprintf("%s:%d", path, hang.Line), hang.Bound)
			} else if strings.Contains(expected, "%s") {
				expected = fmt.Sprintf(expected, fmt.Sprintf("%s:%d", path, line))
			}
			if err == nil || err.Error() != expected {
				t.Errorf("found %v, expected %s", err, expected)
			}
			if c.how == "hangs" && !strings.Contains(written.text(), "evaluated.py") {
				t.Errorf("the log has no stacks: %s", written.text())
			}
		})
	}
}
