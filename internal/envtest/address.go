package envtest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
	"testing"
)

// Ports of FreeAddress. The kernel gives connections their own ports from 32768 on, unless it is told otherwise. One of those may be taken by a connection while
// the server that a test starts again is away; even by one to that server, which then is connected with itself.
const (
	firstPort = 20000
	lastPort  = 32000
)

// FreeAddress is an address of this host that nobody listens on, by TCP or UDP, and that no connection is given. Until the test ends no other test gets it, of any process, also
// while its server is away.
func FreeAddress(t testing.TB) string {
	t.Helper()
	var last error
	for range 1000 {
		port := strconv.Itoa(firstPort + rand.IntN(lastPort-firstPort))
		address := net.JoinHostPort("127.0.0.1", port)
		if last = free(t, address); last == nil {
			if last = reserve(t, port); last == nil {
				return address
			}
		}
		if !errors.Is(last, syscall.EADDRINUSE) {
			break
		}
	}
	t.Fatalf("find a free port of 127.0.0.1 from %d to %d: %v", firstPort, lastPort, last)
	return ""
}

// free is the error of listening on an address.
func free(t testing.TB, address string) error {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", address)
	if err != nil {
		return err
	}
	return packets.Close()
}

// reserve has a port until the test ends: a socket without a file has its number as its name.
func reserve(t testing.TB, port string) error {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", "@avgpipe-test-port-"+port)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = l.Close() }) // nobody connects
	return nil
}
