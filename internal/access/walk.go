package access

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks bounds the links on one path, as the kernel does (path_resolution(7)).
const maxLinks = 40

// place is what a path, or a part of it, leads to.
type place struct {
	path string // without links
	fd   int    // to look at it only (O_PATH)
	stat unix.Stat_t
}

func (p *place) close() { _ = unix.Close(p.fd) } // nothing was opened for reading

// walk follows a path. The caller closes the place.
func (o *Opener) walk(path string) (place, error) {
	absolute, err := o.absolute(path)
	if err != nil {
		return place{}, err
	}
	names := components(absolute)
	start, kept := place{}, false
	directory, rest := "", names
	if o != nil && o.last != nil && len(names) > 0 {
		directory, rest = strings.Join(names[:len(names)-1], "/"), names[len(names)-1:]
		start, kept = o.last.get(directory)
	}
	if !kept {
		if start, err = root(); err == nil && len(rest) < len(names) {
			start, err = o.follow(start, names[:len(names)-1], path)
		}
		if err != nil {
			return place{}, err
		}
		if directory != "" {
			o.last.keep(directory, start)
		}
	}
	return o.follow(start, rest, path)
}

// follow follows names from p, which it closes.
func (o *Opener) follow(p place, names []string, path string) (place, error) {
	fail := func(err error) (place, error) {
		p.close()
		return place{}, err
	}
	links := 0
	for len(names) > 0 {
		if p.kind() != unix.S_IFDIR {
			return fail(&fs.PathError{Op: "enter", Path: p.path, Err: unix.ENOTDIR})
		}
		if err := o.may(&p, maySearch, "enter"); err != nil {
			return fail(err)
		}
		next, err := p.step(names[0])
		if err != nil {
			return fail(err)
		}
		names = names[1:]
		if next.kind() != unix.S_IFLNK {
			p.close()
			p = next
			continue
		}
		target, err := next.readlink()
		next.close()
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
		names = append(components(target), names...)
	}
	return p, nil
}

// root is where every path starts.
func root() (place, error) { return at(unix.AT_FDCWD, "/", "/") }

// at looks at a name in a directory, and not through a link. A directory is opened as one: that mounts what an automounter has there
// (open(2), O_PATH).
func at(dir int, name, path string) (place, error) {
	const look = unix.O_PATH | unix.O_NOFOLLOW
	fd, err := open(dir, name, look|unix.O_DIRECTORY)
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		fd, err = open(dir, name, look)
	}
	p := place{path: path, fd: fd}
	if err == nil {
		if err = unix.Fstat(fd, &p.stat); err != nil {
			p.close()
		}
	}
	if err != nil {
		return p, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return p, nil
}

func open(dir int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, flags|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// step looks at a name in the directory p.
func (p *place) step(name string) (place, error) {
	next, err := at(p.fd, name, filepath.Join(p.path, name))
	if errors.Is(err, unix.EACCES) {
		err = p.explain(unix.EACCES, maySearch, "enter")
	}
	return next, err
}

// byDescriptor is the path by which this process can open again what the descriptor is of, whatever its own path has become.
func (p *place) byDescriptor() string { return fmt.Sprintf("/proc/self/fd/%d", p.fd) }

// reopen opens what p is, for this process's own rights. The file is named as the user did.
func (p *place) reopen(named string, flags int, want uint32, verb string) (*os.File, error) {
	fd, err := open(unix.AT_FDCWD, p.byDescriptor(), flags)
	if err != nil {
		return nil, p.explain(err, want, verb)
	}
	return os.NewFile(uintptr(fd), named), nil
}

// allows reports why this process may not do what a mode of access(2) stands for.
func (p *place) allows(mode, want uint32, verb string) error {
	return p.explain(unix.Faccessat(unix.AT_FDCWD, p.byDescriptor(), mode, unix.AT_EACCESS), want, verb)
}

// readlink reads the link that p is.
func (p *place) readlink() (string, error) {
	target := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(p.fd, "", target)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: p.path, Err: err}
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
	return &fs.PathError{Op: verb, Path: p.path, Err: err} // something other than owner, group and mode refuses it
}

// regular reports what is not a regular file.
func (p *place) regular(path string) error {
	if p.kind() == unix.S_IFREG {
		return nil
	}
	return fmt.Errorf("%s is %s, not a file", path, Describe(p.mode()))
}

// kind is the type of file (inode(7)).
func (p *place) kind() uint32 { return p.stat.Mode & unix.S_IFMT }

// kinds are the types as package fs has them.
var kinds = map[uint32]fs.FileMode{
	unix.S_IFREG: 0, unix.S_IFDIR: fs.ModeDir, unix.S_IFIFO: fs.ModeNamedPipe, unix.S_IFSOCK: fs.ModeSocket,
	unix.S_IFBLK: fs.ModeDevice, unix.S_IFCHR: fs.ModeDevice,
}

// mode is the mode as package fs has it.
func (p *place) mode() fs.FileMode {
	kind, known := kinds[p.kind()]
	if !known {
		kind = fs.ModeIrregular
	}
	return kind | fs.FileMode(p.stat.Mode&0o777)
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
