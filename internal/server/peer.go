package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/avgpipe/avgpipe/internal/access"
)

// Peer is the user at the other end of a connection, as the kernel knows it: the primary group comes first.
type Peer access.User

type askerKey struct{}

// asker is the peer of a connection, or why it is not known.
type asker struct {
	peer Peer
	err  error
}

// withPeer keeps the peer of a connection for the requests that come over it.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	peer, err := peerOf(c)
	return context.WithValue(ctx, askerKey{}, asker{peer, err})
}

// peerFrom returns what withPeer kept.
func peerFrom(ctx context.Context) (Peer, error) {
	a, ok := ctx.Value(askerKey{}).(asker)
	if !ok {
		return Peer{}, errors.New("the connection's user is not known")
	}
	return a.peer, a.err
}

// peerOf asks the kernel who connected: SO_PEERCRED and SO_PEERGROUPS, fixed when the client called connect.
func peerOf(c net.Conn) (Peer, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("peer of %T: only unix sockets tell", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("peer: %w", err)
	}
	var peer Peer
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = fmt.Errorf("peer: SO_PEERCRED: %w", err)
			return
		}
		groups, err := peerGroups(fd)
		if err != nil {
			failed = fmt.Errorf("peer: SO_PEERGROUPS: %w", err)
			return
		}
		peer = Peer{UID: cred.Uid, GIDs: append([]uint32{cred.Gid}, groups...)}
	})
	return peer, errors.Join(err, failed)
}

// peerGroups returns the supplementary groups of the process that connected.
func peerGroups(fd uintptr) ([]uint32, error) {
	ids := make([]uint32, 64)
	for {
		size := uint32(4 * len(ids)) //nolint:gosec // at most 4 * NGROUPS_MAX
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&ids[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch {
		case errno == unix.ERANGE && int(size/4) > len(ids): // size is what they take
			ids = make([]uint32, size/4)
			continue
		case errno != 0:
			return nil, errno
		}
		return ids[:size/4], nil
	}
}
