package access

import (
	"sync"

	"golang.org/x/sys/unix"
)

// maxDirectories bounds the descriptors that a Keeping opener holds.
const maxDirectories = 64

// Keeping returns an opener for many files of few directories: it follows the path to a directory once and keeps the directory
// open. A directory that is moved, or closed to the user, in the meantime stays what it was. The caller calls release when no call
// is under way any more.
func (o *Opener) Keeping() (keeping *Opener, release func()) {
	keeping = &Opener{directories: &directories{kept: map[string]place{}}}
	if o != nil {
		keeping.User, keeping.OnOpen = o.User, o.OnOpen
	}
	return keeping, keeping.directories.release
}

// directories are places by the path that led to them, which may go through links.
type directories struct {
	mu   sync.Mutex
	kept map[string]place
}

// get returns a copy of what is kept, if a descriptor can be spared for it.
func (d *directories) get(path string) (place, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, ok := d.kept[path]
	if !ok {
		return p, false
	}
	return p.duplicate()
}

// keep keeps a copy of a place. The oldest are not worth an order: a full set is emptied.
func (d *directories) keep(path string, p place) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, twice := d.kept[path]; twice {
		return
	}
	if len(d.kept) >= maxDirectories {
		d.empty()
	}
	if own, ok := p.duplicate(); ok {
		d.kept[path] = own
	}
}

func (d *directories) release() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.empty()
}

// empty closes what is kept. The caller holds mu.
func (d *directories) empty() {
	for _, p := range d.kept {
		p.close()
	}
	clear(d.kept)
}

// duplicate copies a place.
func (p place) duplicate() (place, bool) {
	fd, err := unix.FcntlInt(uintptr(p.fd), unix.F_DUPFD_CLOEXEC, 0)
	p.fd = fd
	return p, err == nil
}
