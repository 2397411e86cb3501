package access

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Keeping returns an opener for many files, one directory after the other: it follows the path to a directory once and keeps the last
// one open. A directory that is moved, or closed to the user, in the meantime stays what it was. The caller calls release when no call
// is under way any more.
func (o *Opener) Keeping() (keeping *Opener, release func()) {
	keeping = &Opener{last: &lastDirectory{}}
	if o != nil {
		keeping.User, keeping.OnOpen, keeping.Own = o.User, o.OnOpen, o.Own
	}
	return keeping, func() { keeping.last.keep("", place{}) }
}

// lastDirectory is a directory by the path that led to it, which may go through links.
type lastDirectory struct {
	mu   sync.Mutex
	path string // empty: there is none
	place
}

// get returns a copy of what is kept, if a descriptor can be spared for it.
func (l *lastDirectory) get(path string) (place, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path != path || path == "" {
		return place{}, false
	}
	return l.duplicate()
}

// keep keeps a copy of a place instead of what was kept.
func (l *lastDirectory) keep(path string, p place) {
	own, ok := place{}, false
	if path != "" {
		own, ok = p.duplicate()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.path != "" {
		l.close()
	}
	if l.path, l.place = "", own; ok {
		l.path = path
	}
}

// duplicate copies a place.
func (p place) duplicate() (place, bool) {
	fd, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
	p.fd = fd
	return p, err == nil
}
