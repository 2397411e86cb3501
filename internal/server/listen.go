package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxSocketPath is the longest path of a unix socket, in bytes (sockaddr_un less its terminator).
const MaxSocketPath = 107

// socketMode lets the owner and the group in.
const socketMode = 0o660

// Listen binds the socket with mode 0660 and, when the group exists, gives it to the group. The directory is made when it is
// missing. A socket that nobody answers on is a leftover and is replaced; one that answers is an error.
func Listen(ctx context.Context, path, group string) (net.Listener, error) {
	if len(path) > MaxSocketPath {
		return nil, fmt.Errorf("listen on %s: the path has %d bytes, a unix socket's may have %d: name a shorter one", path, len(path), MaxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("listen on %s: make its directory: %w", path, err)
	}
	if err := removeStale(ctx, path); err != nil {
		return nil, err
	}
	// The mode is set before bind, so that the socket is never open to others (unix(7): bind takes the mode of the
	// descriptor, less the umask).
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), socketMode) })
		return errors.Join(err, failed)
	}}
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	if err := share(path, group); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// removeStale removes a socket that nobody answers on.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", path, err)
	}
	if info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("listen on %s: a file that is not a socket is there: remove it or name another path: %w", path, unix.ENOTSOCK)
	}
	c, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "unix", path)
	if err == nil {
		return errors.Join(fmt.Errorf("listen on %s: another daemon answers there; set another socket, or stop that daemon", path), c.Close())
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("listen on %s: a socket is there and cannot be tried: %w", path, err)
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("listen on %s: remove the leftover of a daemon that is gone: %w", path, err)
	}
	return nil
}

// share gives the socket to a group that exists, and undoes what the umask took.
func share(path, group string) error {
	if g, err := user.LookupGroup(group); err == nil {
		gid, err := strconv.Atoi(g.Gid)
		if err != nil {
			return fmt.Errorf("group %s: id %q is not a number: %w", group, g.Gid, err)
		}
		if err := os.Lchown(path, -1, gid); err != nil && !errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("give %s to group %s: %w", path, group, err)
		}
	}
	if err := os.Chmod(path, socketMode); err != nil {
		return fmt.Errorf("set the mode of %s: %w", path, err)
	}
	return nil
}
