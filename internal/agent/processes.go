package agent

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/avgpipe/avgpipe/internal/process"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// Processes are how a Local reaches the processes of its host: those of the operating system, or fake ones in tests.
type Processes interface {
	Start(p Program) (Started, error)
	// Find returns those that work in a directory of root, whoever started them, by that directory.
	Find(root string) (map[string][]process.ID, error)
	Alive(id process.ID) bool
	// Wait waits until one has ended, whoever started it, or ctx has.
	Wait(ctx context.Context, id process.ID) error
	// Kill ends one at once. One that has ended is no error.
	Kill(id process.ID) error
	// Dial connects to the socket of one.
	Dial(ctx context.Context, socket string) (net.Conn, error)
}

// Program is what a process runs.
type Program struct {
	Command []string
	Dir     string     // that it works in
	Log     *os.File   // gets what it prints
	Reports bool       // it prints messages for its daemon instead, and ends when that does
	Inherit []*os.File // open in it as descriptors process.FirstInherited and on
}

// Started is a process that was started here.
type Started struct {
	ID       process.ID
	Messages Messages    // of a Program that reports; else nil
	Exit     func() Exit // how it ended, after Wait; called once
}

// Messages are what a process prints for its daemon.
type Messages interface {
	io.ReadCloser
	SetReadDeadline(at time.Time) error
}

// osProcesses are those of the operating system.
type osProcesses struct{ process.Host }

// Start starts a process that outlives this one, unless it reports: its standard input, to which nothing is written, then ends with
// this process.
func (osProcesses) Start(p Program) (s Started, err error) {
	cmd := exec.Command(p.Command[0], p.Command[1:]...) //nolint:noctx // it may outlive the daemon
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = p.Dir, p.Log, p.Log, p.Inherit
	if p.Reports {
		if _, err := cmd.StdinPipe(); err != nil {
			return s, err
		}
		in, out, err := os.Pipe()
		if err != nil {
			return s, err
		}
		defer out.Close() //nolint:errcheck // the process has its own descriptor
		s.Messages, cmd.Stdout = in, out
	}
	s.Exit = func() Exit {
		if err := cmd.Wait(); cmd.ProcessState == nil {
			return Exit{Code: -1, Known: true, How: err.Error()}
		}
		return Exit{Code: cmd.ProcessState.ExitCode(), Known: true, How: cmd.ProcessState.String()}
	}
	if s.ID, err = process.Start(cmd); err != nil && s.Messages != nil {
		err = errors.Join(err, s.Messages.Close())
	}
	return s, err
}

func (osProcesses) Dial(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{Timeout: control.AskTimeout}).DialContext(ctx, "unix", socket)
}
