package data

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/avgpipe/avgpipe/internal/nearest"
)

// maxLinks bounds the links on one path, as the kernel does (path_resolution(7)).
const maxLinks = 40

// User is whose rights count.
type User struct {
	UID  uint32
	GIDs []uint32 // every group, the main one included
}

// Access returns a function for Config.Access that tells whether a user may read a file, or list and enter a directory:
// every directory on the way must let him search it. It judges by owner, group and mode alone (inode(7)); under an access
// control list the group's bits are the list's mask, so a stricter entry for a group goes unseen. It remembers the
// directories that it has judged, so use one for one listing, from one goroutine.
func Access(u User) func(path string) error {
	judged := map[string]error{}
	return func(path string) error { return u.readable(path, judged) }
}

// Readable reports, as an error that names the path and the permission, why a user may not read a file or directory.
func Readable(path string, u User) error { return u.readable(path, map[string]error{}) }

// readable walks a path component by component, through links.
func (u User) readable(path string, judged map[string]error) error {
	path = filepath.Clean(path)
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s is not an absolute path", path)
	}
	at, rest, links := "/", components(path), 0
	for len(rest) > 0 {
		err, known := judged[at]
		if !known {
			err = u.search(at)
			judged[at] = err
		}
		if err != nil {
			return err
		}
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		info, err := os.Lstat(next)
		if err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return fmt.Errorf("%s: more than %d links on the way", path, maxLinks)
		}
		target, err := os.Readlink(next)
		if err != nil {
			return err
		}
		if filepath.IsAbs(target) {
			at = "/"
		}
		rest = append(components(target), rest...)
	}
	info, err := os.Stat(at)
	if err != nil {
		return err
	}
	if info.IsDir() {
		return permits(at, info, u, 0o5, "list")
	}
	return permits(at, info, u, 0o4, "read")
}

// search reports why a user may not go through a directory.
func (u User) search(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	return permits(dir, info, u, 0o1, "enter")
}

// components cuts a path, dropping what means nothing. A .. stays: after a link it is not what filepath.Clean takes it for.
func components(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "/"), func(c string) bool { return c == "" || c == "." })
}

// permits reports why a file's owner, group and mode keep a user from it. Want holds permission bits: 4 read, 1 search.
func permits(path string, info os.FileInfo, u User, want os.FileMode, verb string) error {
	if u.UID == 0 {
		return nil
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: the owner is not known on this system", path)
	}
	bits, class := info.Mode().Perm(), "others"
	switch {
	case owner.Uid == u.UID:
		bits, class = bits>>6, "its owner"
	case slices.Contains(u.GIDs, owner.Gid):
		bits, class = bits>>3, fmt.Sprintf("group %d", owner.Gid)
	}
	if bits&want == want {
		return nil
	}
	return fmt.Errorf("user %d may not %s %s: its mode is %v for owner %d and group %d, and the user counts as %s: %w",
		u.UID, verb, path, info.Mode(), owner.Uid, owner.Gid, class, fs.ErrPermission)
}

// explain replaces the refusal of a path, if owner, group and mode tell why, by one that says so.
func explain(path string, err error) error {
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	u := User{UID: uint32(os.Geteuid())} //nolint:gosec // A user id fits.
	groups, groupErr := os.Getgroups()
	if groupErr != nil {
		return err
	}
	for _, g := range append(groups, os.Getegid()) {
		u.GIDs = append(u.GIDs, uint32(g)) //nolint:gosec // A group id fits.
	}
	why := Readable(path, u)
	if _, other := errors.AsType[*fs.PathError](why); why == nil || other {
		return err // something beside owner, group and mode refuses it
	}
	return why
}

// isLoop reports an error of a link that leads to itself.
func isLoop(err error) bool { return errors.Is(err, syscall.ELOOP) }

// nearestName returns the path of the name in a directory that is nearest to a name that is not there, "" without one.
func nearestName(dir, name string) string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return ""
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	if near := nearest.Word(name, names); near != "" {
		return filepath.Join(dir, near)
	}
	return ""
}
