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

// Role says what somebody may do who asks over the network, as a certificate has it.
type Role string

// The roles. A viewer may read what it owns, and what everybody may see. Who submits owns jobs, too. An administrator may do everything.
const (
	Viewer    Role = "view"
	Submitter Role = "submit"
	Admin     Role = "admin"
)

// roleNode is that of nodes, which pass on what others ask.
const roleNode = "node"

// Peer is who asks. Of a unix socket it is the user at the other end, as the kernel knows it: the primary group comes first. Users have
// the same ids on all hosts.
type Peer struct {
	access.User
	// Name is the user's, as a certificate or another node has it; empty: as this host does.
	Name string `json:"name,omitempty"`
	// Role is what the peer may do; empty: it asks on a unix socket of this host, and the user's id and groups decide.
	Role Role `json:"role,omitempty"`
	// From is the address that the peer asks from, or unix.
	From string `json:"from"`
	// Via is the node that passed the request on; empty: none did.
	Via string `json:"-"`
}

type askerKey struct{}

// asker is the peer of a connection, or why it is not known.
type asker struct {
	peer Peer
	err  error
}

// withPeer keeps the peer of a unix socket's connection for the requests that come over it.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	if _, unix := c.(*net.UnixConn); !unix {
		return ctx // a certificate says it, with each request
	}
	peer, err := peerOf(c)
	return context.WithValue(ctx, askerKey{}, asker{peer, err})
}

// peerFrom returns who makes a request.
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
		peer = Peer{User: access.User{UID: cred.Uid, GIDs: append([]uint32{cred.Gid}, groups...)}, From: "unix"}
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
