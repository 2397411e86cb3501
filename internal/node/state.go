package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// lockState makes the state directory this daemon's own until the returned file is closed. The kernel frees the lock when the
// process dies, however it does.
func lockState(dir string) (io.Closer, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, keyError("state_dir", fmt.Errorf("make the state directory: %w", err), unix.ENOTDIR, unix.ENOENT) // such as below /proc
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o640)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		holder, readErr := io.ReadAll(io.LimitReader(f, 32))
		err = fmt.Errorf("lock the state directory %s: %w", dir, err)
		if errors.Is(err, unix.EWOULDBLOCK) && readErr == nil {
			err = fmt.Errorf("the state directory %s is in use by another daemon, process %s: stop that one, or name another directory",
				dir, strings.TrimSpace(string(holder)))
		}
		return nil, errors.Join(err, f.Close())
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendln(nil, os.Getpid()), 0)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock the state directory: %w", err), f.Close())
	}
	return lock{f}, nil
}

// lock is a locked file.
type lock struct{ *os.File }

// Close frees the lock at once: a process that is being started may have the descriptor for a moment more.
func (l lock) Close() error {
	return errors.Join(unix.Flock(int(l.Fd()), unix.LOCK_UN), l.File.Close())
}

// identity is the record at the top of a state directory. It is written once, after the first start has begun Raft's log: where it
// is, a log must be as well.
type identity struct {
	Node string `json:"node"` // this node's name, for good: committed rounds say by name who holds their shards
}

const (
	identityKind    = "identity"
	identityVersion = 1
)

func identityPath(state string) string { return filepath.Join(state, "identity") }

// readIdentity returns what a state directory is. A new one gets the wanted name, else the host's; keepIdentity writes it down.
func readIdentity(state, wanted string) (id identity, kept bool, err error) {
	err = checkpoint.ReadRecord(identityPath(state), identityKind, identityVersion, &id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		id, err = newIdentity(wanted)
		return id, false, err
	case err != nil:
		return id, false, fmt.Errorf("%w; restore it from a backup, or let avgpiped recover write it again", err)
	case wanted != "" && wanted != id.Node:
		return id, false, renamed(state, id.Node, wanted)
	}
	return id, true, nil
}

// renamed refuses a configuration that gives a node another name.
func renamed(state, name, wanted string) error {
	return &KeyError{"node", fmt.Errorf("the state directory %s says that this node is %q, the configuration says %q: a node keeps its name", state, name, wanted)}
}

// newIdentity names a node.
func newIdentity(wanted string) (identity, error) {
	if wanted != "" {
		return identity{Node: wanted}, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return identity{}, fmt.Errorf("name the node: %w", err)
	}
	return identity{Node: name}, nil
}

func keepIdentity(state string, id identity) error {
	return checkpoint.WriteRecord(identityPath(state), identityKind, identityVersion, id, 0o640)
}
