package access

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the links on one path, as the kernel does (path_resolution(7)).
const maxLinks = 40

// place is what a path, or a part of it, leads to.
type place struct {
	path string // without links
	fd   int    // of a directory, to look at it only (O_PATH); -1: none
	dir  int    // of the directory that it is in; -1: none, at the root
	name string // in dir
	stat unix.Stat_t
}

func (p *place) close() {
	for _, fd := range []int{p.fd, p.dir} {
		if fd >= 0 {
			_ = unix.Close(fd) // nothing was opened for reading
		}
	}
	p.fd, p.dir = -1, -1
}

// walk follows a path. The caller closes the place.
func (o *Opener) walk(path string) (place, error) {
	absolute, err := o.absolute(path)
	if err != nil {
		return place{}, err
	}
	names := components(absolute)
	if o == nil || o.directories == nil || len(names) == 0 {
		return o.follow(root, names, path)
	}
	return o.below(names, path)
}

// below follows the last name from the directory that the others lead to.
func (o *Opener) below(names []string, path string) (place, error) {
	parent := names[:len(names)-1]
	find := func() (place, error) {
		if len(parent) == 0 {
			return root()
		}
		return o.below(parent, path)
	}
	start := func() (place, error) { return o.directories.get(strings.Join(parent, "/"), find) }
	return o.follow(start, names[len(parent):], path)
}

// follow follows names from where start is.
func (o *Opener) follow(start func() (place, error), names []string, path string) (place, error) {
	p, err := start()
	if err != nil {
		return place{}, err
	}
	fail := func(err error) (place, error) {
		p.close()
		return place{}, err
	}
	rest, links := names, 0
	for len(rest) > 0 {
		if p.stat.Mode&unix.S_IFMT != unix.S_IFDIR {
			return fail(&fs.PathError{Op: "enter", Path: p.path, Err: unix.ENOTDIR})
		}
		if err := o.may(&p, maySearch, "enter"); err != nil {
			return fail(err)
		}
		next, err := p.step(rest[0])
		if err != nil {
			return fail(err)
		}
		rest = rest[1:]
		if next.stat.Mode&unix.S_IFMT != unix.S_IFLNK {
			next.dir = p.fd
			p.fd = -1
			p.close()
			p = next
			continue
		}
		target, err := p.readlink(next)
		if links++; err == nil && links > maxLinks {
			err = &fs.PathError{Op: fmt.Sprintf("follow more than %d links of", maxLinks), Path: path, Err: unix.ELOOP}
		}
		if err != nil {
			return fail(err)
		}
		if filepath.IsAbs(target) {
			p.close()
			if p, err = root(); err != nil {
				return place{}, err
			}
		}
		rest = append(components(target), rest...)
	}
	return p, nil
}

// root is where every path starts.
func root() (place, error) {
	fd, err := unix.Open("/", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	p := place{path: "/", fd: fd, dir: -1}
	if err != nil {
		return p, &fs.PathError{Op: "open", Path: p.path, Err: err}
	}
	return p, p.look()
}

// step looks at a name in a directory, and not through a link. A directory is opened, as one: that mounts what an automounter has
// there (open(2), O_PATH).
func (p *place) step(name string) (place, error) {
	next := place{path: filepath.Join(p.path, name), fd: -1, dir: -1, name: name}
	err := unix.Fstatat(p.fd, name, &next.stat, unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return next, p.failed(name, err)
	}
	if next.stat.Mode&unix.S_IFMT != unix.S_IFDIR {
		return next, nil
	}
	if next.fd, err = p.open(p.fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY); err != nil {
		return next, err
	}
	if err := next.look(); err != nil {
		next.close()
		return next, err
	}
	return next, nil
}

// open opens a name in a directory of which p tells the rights.
func (p *place) open(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		switch {
		case err == nil:
			return fd, nil
		case errors.Is(err, unix.EINTR):
		case flags&unix.O_PATH == 0:
			return -1, p.explain(err, mayRead, "read")
		default:
			return -1, p.failed(name, err)
		}
	}
}

// failed puts words to why a name in a directory cannot be looked at.
func (p *place) failed(name string, err error) error {
	if errors.Is(err, unix.EACCES) {
		return p.explain(err, maySearch, "enter")
	}
	return &fs.PathError{Op: "open", Path: filepath.Join(p.path, name), Err: err}
}

// look reads owner and mode of what the descriptor is of.
func (p *place) look() error {
	if err := unix.Fstat(p.fd, &p.stat); err != nil {
		return &fs.PathError{Op: "stat", Path: p.path, Err: err}
	}
	return nil
}

// readlink reads a link in a directory.
func (p *place) readlink(link place) (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(p.fd, link.name, target)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: link.path, Err: err}
	}
	return string(target[:n]), nil
}

// explain puts words to what the kernel refused this process.
func (p *place) explain(err error, want uint32, verb string) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, unix.EACCES) {
		if u, selfErr := self(); selfErr == nil {
			if why := permits(p, u, want, fmt.Sprintf("this process, user %d,", u.UID), verb); why != nil {
				return why
			}
		}
	}
	return &fs.PathError{Op: verb, Path: p.path, Err: err} // something beside owner, group and mode refuses it
}

// regular reports what is not a regular file.
func (p *place) regular(path string) error {
	if p.stat.Mode&unix.S_IFMT == unix.S_IFREG {
		return nil
	}
	return fmt.Errorf("%s is %s, not a file", path, Describe(p.mode()))
}

// mode is the mode as package fs has it.
func (p *place) mode() fs.FileMode {
	mode := fs.FileMode(p.stat.Mode & 0o777)
	switch p.stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return mode
	case unix.S_IFDIR:
		return mode | fs.ModeDir
	case unix.S_IFIFO:
		return mode | fs.ModeNamedPipe
	case unix.S_IFSOCK:
		return mode | fs.ModeSocket
	case unix.S_IFBLK, unix.S_IFCHR:
		return mode | fs.ModeDevice
	}
	return mode | fs.ModeIrregular
}

// Describe names a kind of file.
func Describe(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a pipe"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "a special file"
}
