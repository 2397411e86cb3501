package access

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Writable opens a directory that both the user and this process may make files in, to work in it by its descriptor: whatever
// becomes of the path in the meantime, what is written goes there. The caller closes it.
func (o *Opener) Writable(path string) (*os.File, error) {
	o.tell(path)
	p, err := o.walk(path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if !p.mode().IsDir() {
		return nil, &fs.PathError{Op: "write to", Path: path, Err: unix.ENOTDIR}
	}
	if err := o.may(&p, mayWrite|maySearch, "write to"); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(p.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == nil {
		if err = unix.Faccessat(fd, ".", unix.W_OK|unix.X_OK, unix.AT_EACCESS); err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		_ = unix.Close(fd) // nothing was read
	}
	return nil, p.explain(err, mayWrite|maySearch, "write to")
}

// Become gives this process the user's rights for good. Only root may.
func (u User) Become() error {
	group := int(u.UID)
	groups := make([]int, len(u.GIDs))
	for i, g := range u.GIDs {
		groups[i] = int(g)
	}
	if len(groups) > 0 {
		group = groups[0]
	}
	id := int(u.UID)
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setresgid(group, group, group), syscall.Setresuid(id, id, id)); err != nil {
		return fmt.Errorf("take the rights of user %d: %w", u.UID, err)
	}
	return nil
}
