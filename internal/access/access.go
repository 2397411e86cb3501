// Package access opens files with the rights of a given user, for a process that may do more than he. Between the check and
// the use nothing can be swapped: a path is followed component by component, every directory is opened before its mode is read,
// the next component is opened relative to that descriptor, and links are followed by hand. What is read at the end is what the last
// descriptor is of, whose owner and mode were checked.
//
// The kernel checks the rights of the process itself, so both must allow an access. The user's are judged by owner, group and
// mode alone (inode(7)). Under an access control list the group's bits are the list's mask: a stricter entry for a user or a group
// goes unseen, and one that grants more does not help.
package access

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// User is whose rights count.
type User struct {
	UID  uint32   `json:"uid"`
	GIDs []uint32 `json:"gids"` // every group, the main one included
}

// Opener opens what a user names. A nil Opener, and one without a User, has the rights of this process. Its methods may be called
// concurrently. Errors name the path; where a right is missing they satisfy fs.ErrPermission.
type Opener struct {
	User *User
	// OnOpen is told each path before it is opened, to read it or to list it. It may be called concurrently. Nil: nobody asks.
	OnOpen func(path string)
	// Own are paths of files that the User need not have a right to: this process has put them there for him.
	Own map[string]bool

	last *lastDirectory // nil: every path is followed from the root
}

// Info is what a path leads to, through links.
type Info struct {
	Mode fs.FileMode
	Size int64

	device, inode uint64
	unreadable    error
}

// IsDir reports whether it is a directory.
func (i Info) IsDir() bool { return i.Mode.IsDir() }

// Same reports whether two paths lead to one file.
func (i Info) Same(o Info) bool { return i.device == o.device && i.inode == o.inode }

// Readable reports why the user, or this process, may not read a file or list a directory.
func (i Info) Readable() error { return i.unreadable }

// The permission bits of one class of users.
const (
	mayRead   = 0o4
	mayWrite  = 0o2
	maySearch = 0o1
)

// Open opens a regular file of at most maxBytes; 0 means of any size. Pipes, sockets and devices are refused unopened, and opening
// never waits.
func (o *Opener) Open(path string, maxBytes int64) (*os.File, error) {
	o = o.of(path)
	o.tell(path)
	p, err := o.walk(path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := p.regular(path); err != nil {
		return nil, err
	}
	if err := o.may(&p, mayRead, "read"); err != nil {
		return nil, err
	}
	if maxBytes > 0 && p.stat.Size > maxBytes {
		return nil, fmt.Errorf("%s has %d bytes; at most %d are read", path, p.stat.Size, maxBytes)
	}
	return p.reopen(path, unix.O_RDONLY, mayRead, "read")
}

// of is the opener of a path: one with the rights of this process for what is its own.
func (o *Opener) of(path string) *Opener {
	if o == nil || !o.Own[path] {
		return o
	}
	return &Opener{OnOpen: o.OnOpen}
}

// ReadFile reads a regular file of at most maxBytes.
func (o *Opener) ReadFile(path string, maxBytes int64) ([]byte, error) {
	file, err := o.Open(path, maxBytes)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err == nil && int64(len(content)) > maxBytes { // it grew, or is one that has no size
		err = fmt.Errorf("%s has more than %d bytes; at most these are read", path, maxBytes)
	}
	return content, errors.Join(err, file.Close())
}

// Stat looks at what a path leads to. It opens nothing.
func (o *Opener) Stat(path string) (Info, error) {
	o = o.of(path)
	p, err := o.walk(path)
	if err != nil {
		return Info{}, err
	}
	defer p.close()
	i := Info{Mode: p.mode(), Size: p.stat.Size, device: p.stat.Dev, inode: p.stat.Ino}
	switch {
	case i.IsDir():
		i.unreadable = o.may(&p, mayRead|maySearch, "list")
	case i.Mode.IsRegular():
		if i.unreadable = o.may(&p, mayRead, "read"); i.unreadable == nil {
			i.unreadable = p.allows(unix.R_OK, mayRead, "read")
		}
	default:
		i.unreadable = p.regular(path)
	}
	return i, nil
}

// ReadDir lists a directory by name.
func (o *Opener) ReadDir(path string) ([]fs.DirEntry, error) {
	o.tell(path)
	p, err := o.walk(path)
	if err != nil {
		return nil, err
	}
	defer p.close()
	if err := o.may(&p, mayRead|maySearch, "list"); err != nil {
		return nil, err
	}
	file, err := p.reopen(path, unix.O_RDONLY|unix.O_DIRECTORY, mayRead|maySearch, "list")
	if err != nil {
		return nil, err
	}
	entries, err := file.ReadDir(-1)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, errors.Join(err, file.Close())
}

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
	const verb = "write to"
	if err := p.allows(unix.W_OK|unix.X_OK, mayWrite|maySearch, verb); err != nil {
		return nil, err
	}
	return p.reopen(path, unix.O_RDONLY|unix.O_DIRECTORY, mayWrite|maySearch, verb)
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

func (o *Opener) tell(path string) {
	if o != nil && o.OnOpen != nil {
		o.OnOpen(path)
	}
}

// may reports why the user may not do something with what a descriptor is of.
func (o *Opener) may(p *place, want uint32, verb string) error {
	if o == nil || o.User == nil {
		return nil
	}
	return permits(p, *o.User, want, fmt.Sprintf("user %d", o.User.UID), verb)
}

// permits reports why a file's owner, group and mode keep a user from it.
func permits(p *place, u User, want uint32, who, verb string) error {
	if u.UID == 0 {
		return nil
	}
	bits, class := p.stat.Mode, "others"
	switch {
	case p.stat.Uid == u.UID:
		bits, class = bits>>6, "its owner"
	case slices.Contains(u.GIDs, p.stat.Gid):
		bits, class = bits>>3, fmt.Sprintf("group %d", p.stat.Gid)
	}
	if bits&want == want {
		return nil
	}
	return fmt.Errorf("%s may not %s %s: its mode is %v for owner %d and group %d, and the user counts as %s: %w",
		who, verb, p.path, p.mode(), p.stat.Uid, p.stat.Gid, class, fs.ErrPermission)
}

// self is who this process is.
func self() (User, error) {
	u := User{UID: uint32(os.Geteuid())} //nolint:gosec // A user id fits.
	groups, err := os.Getgroups()
	for _, g := range append(groups, os.Getegid()) {
		u.GIDs = append(u.GIDs, uint32(g)) //nolint:gosec // A group id fits.
	}
	return u, err
}

// components cuts a path, dropping what means nothing. A .. stays: after a link it is not what filepath.Clean takes it for.
func components(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(c string) bool { return c == "" || c == "." })
}

// absolute makes a path absolute. The working directory of a process means nothing to another user.
func (o *Opener) absolute(path string) (string, error) {
	if filepath.IsAbs(path) {
		return path, nil
	}
	if o != nil && o.User != nil {
		return "", fmt.Errorf("%s is not an absolute path", path)
	}
	return filepath.Abs(path)
}
