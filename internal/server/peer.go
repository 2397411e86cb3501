package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Peer is the user at the other end of a connection, as the kernel knows it.
type Peer struct {
	UID  int
	GIDs []int // the primary group first
}

// maxGroups bounds a user's supplementary groups (NGROUPS_MAX of Linux).
const maxGroups = 65536

type peerKey struct{}

// withPeer keeps the peer of a connection for the requests that come over it.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	peer, err := peerOf(c)
	if err != nil {
		return context.WithValue(ctx, peerKey{}, err)
	}
	return context.WithValue(ctx, peerKey{}, peer)
}

// peerFrom returns what withPeer kept.
func peerFrom(ctx context.Context) (Peer, error) {
	switch v := ctx.Value(peerKey{}).(type) {
	case Peer:
		return v, nil
	case error:
		return Peer{}, v
	default:
		return Peer{}, errors.New("the connection's user is not known")
	}
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
		peer = Peer{UID: int(cred.Uid), GIDs: append([]int{int(cred.Gid)}, groups...)}
	})
	return peer, errors.Join(err, failed)
}

// peerGroups returns the supplementary groups of the process that connected.
func peerGroups(fd uintptr) ([]int, error) {
	for room := 64; room <= maxGroups; room *= 4 {
		ids := make([]uint32, room)
		size := uint32(room) * 4
		_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
			uintptr(unsafe.Pointer(&ids[0])), uintptr(unsafe.Pointer(&size)), 0)
		if errno == unix.ERANGE {
			continue
		}
		if errno != 0 {
			return nil, errno
		}
		groups := make([]int, size/4)
		for i := range groups {
			groups[i] = int(ids[i])
		}
		return groups, nil
	}
	return nil, fmt.Errorf("more than %d groups", maxGroups)
}
