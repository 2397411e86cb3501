// Package outputdir has the daemon write the model of a finished job to the job's output.dir. A process of its own does it, since the
// daemon opens nothing that a user names: where the daemon runs as root, that process takes the user's identity. Where it runs as
// another user, the directory must be there and both users must be allowed to write to it.
//
// The process that admits a job calls Check. When the job is done the daemon calls Send, which starts a process that calls Receive:
//
//	Send ── JSON of a Target, a tar archive, the trailer ──> Receive ──> internal/modeldir
package outputdir

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/access"
	"github.com/avgpipe/avgpipe/internal/modeldir"
	"github.com/avgpipe/avgpipe/internal/process"
)

// Target is where a model goes, and for whom.
type Target struct {
	Dir   string          `json:"dir"` // absolute
	User  access.User     `json:"user"`
	From  modeldir.Source `json:"from"`
	Force bool            `json:"force"` // an earlier export there is replaced
	// Again says that the same export was begun before: what it left is replaced.
	Again bool `json:"again"`
}

// Check reports why a process with the rights of this one may not write a model to the target, and what to do about it.
func (t Target) Check() error {
	return t.in(func(dir string) error { return modeldir.Check(dir, t.Force) })
}

// in calls do with a path to the directory that leads nowhere else in the meantime.
func (t Target) in(do func(dir string) error) error {
	if os.Geteuid() == int(t.User.UID) { // the kernel judges every step
		if err := writable(t.Dir); err != nil {
			return err
		}
		return t.named(do(t.Dir))
	}
	f, err := (&access.Opener{User: &t.User}).Writable(t.Dir)
	if err != nil {
		return t.explain(err)
	}
	return errors.Join(t.named(do(fmt.Sprintf("/proc/self/fd/%d/.", f.Fd()))), f.Close())
}

// named gives a refusal the name that the user knows.
func (t Target) named(err error) error {
	if refusal, ok := errors.AsType[*modeldir.Refusal](err); ok {
		refusal.Dir = t.Dir
	}
	return err
}

// writable reports why this process may not make files in a directory, or make the directory.
func writable(dir string) error {
	err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	if errors.Is(err, unix.ENOENT) && dir != filepath.Dir(dir) {
		return writable(filepath.Dir(dir))
	}
	if err != nil {
		return &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}

// explain says what would let this process write to a directory of another user.
func (t Target) explain(err error) error {
	group := strconv.Itoa(os.Getegid())
	if g, lookup := user.LookupGroupId(group); lookup == nil {
		group = g.Name
	}
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: to let it, name the directory in ReadWritePaths= (systemctl edit avgpiped)", err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: to let it, mkdir %s; chgrp %s %[2]s; chmod g+rwx %[2]s; and submit again", err, t.Dir, group)
	case errors.Is(err, fs.ErrPermission):
		if f, own := (*access.Opener)(nil).Writable(t.Dir); own == nil { // only the user's right is missing
			return errors.Join(err, f.Close())
		}
		return fmt.Errorf("%w: to let it, chgrp %s %s; chmod g+rwx %[3]s; and submit again", err, group, t.Dir)
	}
	return err
}

// trailer follows the archive. Where it is missing, the sender died.
const trailer = "avgpipe: the archive is whole\n"

// sendGrace is how long a process that was told to end may take to print the rest.
const sendGrace = 5 * time.Second

// Send starts a process that calls Receive, and has pack write the model's archive to it. It returns once the model is in the
// target, or is not.
func Send(ctx context.Context, command []string, t Target, pack func(io.Writer) error) error {
	header, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("write the model to %s: %w", t.Dir, err)
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	process.Isolate(cmd)
	cmd.Dir, cmd.Stderr, cmd.WaitDelay = "/", &said, sendGrace
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("write the model to %s: %w", t.Dir, err)
	}
	_, err = in.Write(append(header, '\n'))
	if err == nil {
		err = pack(in)
	}
	if err == nil {
		_, err = io.WriteString(in, trailer)
	}
	err = errors.Join(err, in.Close())
	ended := cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("write the model to %s: %w", t.Dir, ctx.Err())
	case err != nil && !errors.Is(err, unix.EPIPE): // the archive could not be made: the process says less
		return err
	case ended != nil:
		return errors.New(cmp.Or(strings.TrimSpace(said.String()), ended.Error()))
	}
	return err
}

// Receive is the process that Send starts.
func Receive(in io.Reader) error {
	line, err := readLine(in)
	if err != nil {
		return err
	}
	var t Target
	if err := json.Unmarshal(line, &t); err != nil {
		return fmt.Errorf("read where the model goes: %w", err)
	}
	unix.Umask(0o022) // whoever may enter the directory may read the model: its owner says who
	if os.Geteuid() == 0 && t.User.UID != 0 {
		if err := t.User.Become(); err != nil {
			return err
		}
	}
	return t.in(func(dir string) error {
		force := t.Force || t.Again && modeldir.InterruptedFrom(dir, t.From)
		return modeldir.Write(dir, force, t.From, func(staging string) error {
			end := &tail{from: in}
			if err := modeldir.Unpack(end, staging); err != nil {
				return err
			}
			if string(end.last) != trailer {
				return errors.New("the daemon ended before it had sent the model")
			}
			return nil
		})
	})
}

// readLine reads the first line, and no byte more.
func readLine(in io.Reader) (line []byte, err error) {
	one := make([]byte, 1)
	for len(line) < 1<<20 {
		if _, err := io.ReadFull(in, one); err != nil {
			return nil, fmt.Errorf("read where the model goes: %w", err)
		}
		if one[0] == '\n' {
			return line, nil
		}
		line = append(line, one[0])
	}
	return nil, errors.New("read where the model goes: the line is too long")
}

// tail passes bytes on and keeps as many of the last as the trailer has.
type tail struct {
	from io.Reader
	last []byte
}

func (t *tail) Read(p []byte) (int, error) {
	n, err := t.from.Read(p)
	t.last = append(t.last, p[:n]...)
	t.last = t.last[max(0, len(t.last)-len(trailer)):]
	return n, err
}
