package hosts

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/Shopify/toxiproxy/v2/stream"
	"github.com/Shopify/toxiproxy/v2/toxics"
	"golang.org/x/sys/unix"
)

// Proxies stand in every TCP connection between two hosts, from when they were made. Neither end sees them. What they do to what passes is a toxic of
// toxiproxy, which delays, cuts or withholds. They have toxiproxy's toxics and none of its server, which gets stuck on a connection that is to lose a toxic
// while its far end does not read.
type Proxies struct {
	network   *Network
	listeners []*net.TCPListener // one on each host, for what that opens
	stop      context.CancelFunc
	joined    sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	inForce []*poison // the newest last
	open    map[*passage]struct{}
}

// poison is a toxic in the connections of a host.
type poison struct {
	host  *Host
	toxic *toxics.ToxicWrapper
}

const (
	// proxyMark is on the packets of connections that the proxy itself opens.
	proxyMark = 7
	// proxyDial is how long the proxy tries to reach the far end.
	proxyDial = 10 * time.Second
	// chunks is how many pieces of up to 32 KiB a direction holds, which is what a delayed line has on the way.
	chunks = 1024
	// switching is how long a connection may take to change its toxic. One whose far end does not read is closed then.
	switching = time.Second
)

// Proxy puts proxies between all hosts. Connections that are open already go past them. Close takes them away, with all connections through them.
func (n *Network) Proxy(ctx context.Context) (*Proxies, error) {
	p := &Proxies{network: n, open: map[*passage]struct{}{}}
	ctx, p.stop = context.WithCancel(ctx)
	for _, h := range n.hosts {
		l, err := h.listen(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("proxy of host %s: %w", h.Name, err), p.Close(ctx))
		}
		p.listeners = append(p.listeners, l)
		p.joined.Go(func() { p.accept(ctx, h, l) })
	}
	return p, nil
}

// listen has all TCP connections that a host opens to another one come to the listener.
func (h *Host) listen(ctx context.Context) (*net.TCPListener, error) {
	var l *net.TCPListener
	err := h.enter(func() (err error) {
		l, err = net.ListenTCP("tcp4", nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	at, err := netip.ParseAddrPort(l.Addr().String())
	rules := fmt.Sprintf("table ip proxy {\n chain out {\n type nat hook output priority -100\n meta mark %d return\n"+
		" ip daddr != { %s, 127.0.0.0/8 } meta l4proto tcp redirect to :%d\n }\n}\n", proxyMark, h.Address, at.Port())
	if err = errors.Join(err, h.nft(ctx, rules, "-f", "-")); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// enter calls a function on a thread in the host's network namespace. The thread ends with it.
func (h *Host) enter(do func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocks it
		f, err := os.Open("/run/netns/" + h.namespace())
		if err == nil {
			defer f.Close() //nolint:errcheck // only read
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = do()
		}
		done <- err
	}()
	return <-done
}

// Close ends the proxies and their connections. It must be called while the hosts are there.
func (p *Proxies) Close(ctx context.Context) (err error) {
	p.stop()
	for i, l := range p.listeners {
		err = errors.Join(err, p.network.hosts[i].nft(context.WithoutCancel(ctx), "", "delete", "table", "ip", "proxy"), l.Close())
	}
	p.mu.Lock()
	p.closed = true
	for c := range p.open {
		c.close()
	}
	p.mu.Unlock()
	p.joined.Wait()
	return err
}

// accept takes the connections that a host opens, until the listener is closed.
func (p *Proxies) accept(ctx context.Context, from *Host, l *net.TCPListener) {
	for {
		near, err := l.AcceptTCP()
		if err != nil {
			return
		}
		p.joined.Go(func() {
			to, err := meantFor(near)
			var far *net.TCPConn
			if err == nil {
				far, err = from.reach(ctx, to)
			}
			if err != nil {
				_ = near.SetLinger(0) // as from a host that refuses
				_ = near.Close()
				return
			}
			c := &passage{near: near, far: far, ends: []*Host{from}}
			for _, h := range p.network.hosts {
				if h.Address == to.Addr().String() {
					c.ends = append(c.ends, h)
				}
			}
			p.pass(c)
		})
	}
}

// reach opens a connection from the host past the proxy.
func (h *Host) reach(ctx context.Context, to netip.AddrPort) (far *net.TCPConn, err error) {
	ctx, cancel := context.WithTimeout(ctx, proxyDial)
	defer cancel()
	err = h.enter(func() error {
		dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
			failed := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, proxyMark) })
			return errors.Join(failed, err)
		}}
		far, err = dialer.DialTCP(ctx, "tcp4", netip.AddrPort{}, to)
		return err
	})
	return far, err
}

// meantFor is where a connection was going before it was turned to the proxy.
func meantFor(c *net.TCPConn) (to netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		const originalDst = 80 // SO_ORIGINAL_DST: a sockaddr_in, which this structure has room for
		var a *unix.IPv6Mreq
		if a, failed = unix.GetsockoptIPv6Mreq(int(fd), unix.SOL_IP, originalDst); failed == nil {
			m := a.Multiaddr // family, port and address
			to = netip.AddrPortFrom(netip.AddrFrom4([4]byte(m[4:8])), binary.BigEndian.Uint16(m[2:4]))
		}
	})
	return to, errors.Join(err, failed)
}

// passage is a connection through the proxies: one to each end, and a line in each direction.
type passage struct {
	near, far *net.TCPConn
	ends      []*Host
	toxic     *toxics.ToxicWrapper
	lines     [2]*line
}

// line is a direction of a passage.
type line struct {
	stub    *toxics.ToxicStub
	in, out chan *stream.StreamChunk
	joined  *sync.WaitGroup
}

// pass carries what comes, until one end has closed.
func (p *Proxies) pass(c *passage) {
	var joined sync.WaitGroup
	for i := range c.lines {
		l := &line{in: make(chan *stream.StreamChunk, chunks), out: make(chan *stream.StreamChunk), joined: &joined}
		l.stub = toxics.NewToxicStub(l.in, l.out)
		c.lines[i] = l
	}
	p.mu.Lock()
	p.open[c] = struct{}{}
	if p.closed {
		c.close()
	}
	c.arm(p.of(c))
	for _, l := range c.lines {
		l.run(c.toxic)
	}
	p.mu.Unlock()
	for i, l := range c.lines {
		from, to := c.near, c.far
		if i == 1 {
			from, to = c.far, c.near
		}
		joined.Go(func() {
			_, _ = io.Copy(stream.NewChanWriter(l.in), from) // an end that breaks has ended
			close(l.in)
		})
		joined.Go(func() {
			_, _ = io.Copy(to, stream.NewChanReader(l.out))
			c.close()
			for range l.out { // a toxic that has something for a closed end must not wait
			}
			for range l.in { // as above, where the toxic has ended
			}
		})
	}
	joined.Wait()
	p.mu.Lock()
	delete(p.open, c)
	p.mu.Unlock()
}

// close closes both connections.
func (c *passage) close() {
	_ = c.near.Close()
	_ = c.far.Close()
}

// harmless is the toxic of connections that have no other.
var harmless = &toxics.ToxicWrapper{Toxic: &toxics.NoopToxic{}, Toxicity: 1}

// of is the toxic that a connection is to have: the newest of one of its ends.
func (p *Proxies) of(c *passage) *toxics.ToxicWrapper {
	for _, one := range slices.Backward(p.inForce) {
		if slices.Contains(c.ends, one.host) {
			return one.toxic
		}
	}
	return harmless
}

// arm notes a connection's toxic. One that resets connections has them reset when they close.
func (c *passage) arm(t *toxics.ToxicWrapper) {
	c.toxic = t
	linger := -1
	if _, resets := t.Toxic.(*toxics.ResetToxic); resets {
		linger = 0
	}
	_, _ = c.near.SetLinger(linger), c.far.SetLinger(linger) // one that is closed already needs none
}

// run starts a toxic on a line that has none.
func (l *line) run(t *toxics.ToxicWrapper) {
	if stateful, ok := t.Toxic.(toxics.StatefulToxic); ok {
		l.stub.State = stateful.NewState()
	}
	l.joined.Go(func() { l.stub.Run(t) })
}

// Toxic puts one of toxiproxy's into both directions of all connections of a host to others, and of others to it: a toxics.LatencyToxic, say. Where several
// are in force, a connection has the newest. undo takes it away. A connection whose far end does not read for a second meanwhile is closed.
func (p *Proxies) Toxic(name string, t toxics.Toxic) (undo func()) {
	one := &poison{p.network.Host(name), &toxics.ToxicWrapper{Toxic: t, Toxicity: 1}}
	p.change(func(all []*poison) []*poison { return append(all, one) })
	return func() {
		p.change(func(all []*poison) []*poison { return slices.DeleteFunc(all, func(o *poison) bool { return o == one }) })
	}
}

// change changes the toxics in force, and with them those of connections.
func (p *Proxies) change(to func([]*poison) []*poison) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.inForce = to(p.inForce)
	var joined sync.WaitGroup
	for c := range p.open {
		before, after := c.toxic, p.of(c)
		if before == after {
			continue
		}
		late := time.AfterFunc(switching, c.close)
		c.arm(after)
		joined.Go(func() {
			for _, l := range c.lines {
				l.change(before.Toxic, after)
			}
			late.Stop()
		})
	}
	joined.Wait()
}

// change puts one toxic in another's place.
func (l *line) change(from toxics.Toxic, to *toxics.ToxicWrapper) {
	if !l.stub.InterruptToxic() {
		return // the line has ended
	}
	if clean, ok := from.(toxics.CleanupToxic); ok {
		clean.Cleanup(l.stub)
	}
	if !l.stub.Closed() {
		l.run(to)
	}
}
