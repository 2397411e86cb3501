package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// nowhere is the address of every node for the library, which wants one.
var nowhere = net.IPv4(127, 0, 0, 1)

const nowherePort = 1

// errNameless refuses what is for an address.
var errNameless = errors.New("gossip goes to nodes by their names")

// transport implements memberlist.NodeAwareTransport: names are resolved by the replicated state.
type transport struct {
	config  Config
	sealer  *sealer
	packets chan *memberlist.Packet
	streams chan net.Conn
	ctx     context.Context //nolint:containedctx // ends with Shutdown
	end     context.CancelFunc
	running sync.WaitGroup
	dropped atomic.Uint64

	mu    sync.Mutex
	where map[string]place // by name
}

// place is where a node's datagrams go.
type place struct {
	address string // HOST:PORT
	at      net.Addr
	looked  time.Time
}

func newTransport(c Config) (*transport, error) {
	s, err := newSealer(c)
	if err != nil {
		return nil, err
	}
	t := &transport{config: c, sealer: s, packets: make(chan *memberlist.Packet), streams: make(chan net.Conn), where: map[string]place{}}
	t.ctx, t.end = context.WithCancel(context.Background())
	t.running.Go(t.receive)
	t.running.Go(t.accept)
	return t, nil
}

// receive hands datagrams over until Shutdown.
func (t *transport) receive() {
	buffer := make([]byte, maxPacket+1)
	for {
		n, from, err := t.config.Packets.ReadFrom(buffer)
		at := time.Now()
		if t.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return
		}
		var plain []byte
		if err == nil {
			plain, err = t.sealer.open(buffer[:n], t.config.Name)
		}
		if err != nil {
			t.dropped.Add(1)
			t.config.Events.Dropped(from, err)
			continue
		}
		select {
		case t.packets <- &memberlist.Packet{Buf: plain, From: from, Timestamp: at}:
		case <-t.ctx.Done():
			return
		}
	}
}

// accept hands streams over until Shutdown.
func (t *transport) accept() {
	for {
		c, err := t.config.Streams.Accept()
		if err != nil {
			return // it was closed: the port has no other errors
		}
		select {
		case t.streams <- c:
		case <-t.ctx.Done():
			_ = c.Close() // nobody has it
			return
		}
	}
}

// refresh looks up where the peers are.
func (t *transport) refresh(peers map[string]string) {
	t.mu.Lock()
	before := t.where
	t.mu.Unlock()
	now, after := time.Now(), make(map[string]place, len(peers))
	for name, address := range peers {
		p, known := before[name]
		if !known || p.address != address || p.at == nil || now.Sub(p.looked) > resolveAgain {
			ctx, cancel := context.WithTimeout(t.ctx, streamTimeout)
			at, err := t.config.Resolve(ctx, address)
			cancel()
			if err == nil || p.address != address {
				p = place{address, at, now}
			}
		}
		after[name] = p
	}
	t.mu.Lock()
	t.where = after
	t.mu.Unlock()
}

// FinalAdvertiseAddr implements memberlist.Transport.
func (t *transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return nowhere, nowherePort, nil
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	t.mu.Lock()
	p := t.where[to.Name]
	t.mu.Unlock()
	if p.at == nil {
		return time.Time{}, fmt.Errorf("send to node %q: its address is not known", to.Name)
	}
	_, err := t.config.Packets.WriteTo(t.sealer.seal(b, to.Name), p.at)
	return time.Now(), err
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	if to.Name == "" {
		return nil, errNameless
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	return t.config.Dial(ctx, to.Name)
}

// WriteTo implements memberlist.Transport. Config.RequireNodeNames says that it is not used.
func (t *transport) WriteTo([]byte, string) (time.Time, error) { return time.Time{}, errNameless }

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(string, time.Duration) (net.Conn, error) { return nil, errNameless }

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	t.end()
	err := errors.Join(t.config.Packets.Close(), t.config.Streams.Close())
	t.running.Wait()
	return err
}
