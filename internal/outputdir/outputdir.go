// Package outputdir has the daemon write the model of a finished job to the job's output.dir. A process of its own does it, since the
// daemon opens nothing that a user names: where the daemon runs as root, that process takes the user's identity. Where it runs as
// another user, the directory must be there and both users must be allowed to write to it.
//
// The process that admits a job calls Check. When the job is done the daemon calls Send, which starts a process that calls Receive:
//
//	Send ── JSON of a Target, a tar archive, the trailer ──> Receive ──> internal/modeldir
package outputdir

import (
	"bufio"
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
	"slices"
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

// Check reports why a process with the rights of this one may not write a model to the target, and what to do about it. A
// *modeldir.Refusal is what no right would change.
func (t Target) Check() error {
	return t.in(func(dir string) error {
		if err := modeldir.Check(dir, t.Force); err != nil {
			return err
		}
		return writable(dir)
	})
}

// in calls do with a path to the directory that leads nowhere else in the meantime.
func (t Target) in(do func(dir string) error) error {
	if err := t.stored(); err != nil {
		return err
	}
	if os.Geteuid() == int(t.User.UID) { // the kernel judges every step
		return t.explain(do(t.Dir))
	}
	f, err := (&access.Opener{User: &t.User}).Writable(t.Dir)
	if err != nil {
		return t.advise(t.explain(err))
	}
	return errors.Join(t.explain(do(fmt.Sprintf("/proc/self/fd/%d/.", f.Fd()))), f.Close())
}

// kernelFileSystems show what the kernel has, and store no files.
var kernelFileSystems = map[int64]string{
	unix.PROC_SUPER_MAGIC: "proc", unix.SYSFS_MAGIC: "sysfs", unix.CGROUP_SUPER_MAGIC: "cgroup", unix.CGROUP2_SUPER_MAGIC: "cgroup2",
	unix.DEVPTS_SUPER_MAGIC: "devpts", unix.DEBUGFS_MAGIC: "debugfs", unix.TRACEFS_MAGIC: "tracefs", unix.SECURITYFS_MAGIC: "securityfs",
}

// stored refuses a directory on a file system that stores none.
func (t Target) stored() error {
	var on unix.Statfs_t
	for dir := t.Dir; unix.Statfs(dir, &on) != nil && dir != filepath.Dir(dir); {
		dir = filepath.Dir(dir) // it is to be made there
	}
	if name, kernels := kernelFileSystems[on.Type]; kernels {
		return &modeldir.Refusal{Dir: t.Dir, Why: "is on " + name + ", which stores no files", Remedy: "name a directory on a disk"}
	}
	return nil
}

// explain gives a refusal the name that the user knows, and makes one of a path that leads through a file.
func (t Target) explain(err error) error {
	if refusal, ok := errors.AsType[*modeldir.Refusal](err); ok {
		refusal.Dir = t.Dir
	} else if errors.Is(err, unix.ENOTDIR) {
		return &modeldir.Refusal{Dir: t.Dir, Why: "is a file, or lies below one", Remedy: "name a directory"}
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

// advise says what the user can do to let this process write to his directory.
func (t Target) advise(err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: to let it, name the directory in ReadWritePaths= (systemctl edit avgpiped)", err)
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
		return err
	}
	mkdir := ""
	var there unix.Stat_t
	switch unix.Stat(t.Dir, &there) {
	case nil:
		if there.Uid != t.User.UID { // he may not change it
			return err
		}
	case unix.ENOENT:
		mkdir = "mkdir -p " + t.Dir + "; "
	}
	group, found := t.group()
	if !found {
		return fmt.Errorf("%w: no group has both user %d and the daemon's user %d, who could write there; "+
			"`avgpipectl export` writes the model with your rights", err, t.User.UID, os.Geteuid())
	}
	return fmt.Errorf("%w: to let it, %schgrp %s %s; chmod g+rwx %[4]s; and submit again", err, mkdir, group, t.Dir)
}

// group is one that this process and the user are in, who may give his directory to no other.
func (t Target) group() (name string, found bool) {
	own, _ := os.Getgroups() // without them there is still its first
	for _, id := range append([]int{os.Getegid()}, own...) {
		if !slices.Contains(t.User.GIDs, uint32(id)) { //nolint:gosec // A group's number.
			continue
		}
		if g, err := user.LookupGroupId(strconv.Itoa(id)); err == nil {
			return g.Name, true
		}
		return strconv.Itoa(id), true
	}
	return "", false
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
	from := bufio.NewReader(in)
	line, err := from.ReadBytes('\n')
	var t Target
	if err == nil {
		err = json.Unmarshal(line, &t)
	}
	if err != nil {
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
			end := &tail{from: from}
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
