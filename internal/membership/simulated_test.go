package membership_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/avgpipe/avgpipe/internal/membership"
)

// network carries datagrams and streams between lists in one process.
type network struct {
	mu    sync.Mutex
	loss  float64        // of datagrams
	part  map[string]int // by node: those of different parts do not reach each other; gone: nobody does; stopped: datagrams wait for it
	ends  map[string]*end
	lists map[string]*membership.List
	died  map[string]int // how often others saw a node die
}

const (
	gone    = -1
	stopped = -2
)

// end is where a node's datagrams and streams arrive.
type end struct {
	network *network
	name    string
	packets chan packet
	streams chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

type packet struct {
	from endAddr
	data []byte
}

type endAddr string

func (endAddr) Network() string  { return "simulated" }
func (a endAddr) String() string { return string(a) }

var errCut = errors.New("no route")

// reaches reports whether one node reaches another.
func (n *network) reaches(from, to string) *end {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.part[from] < 0 || n.part[to] != stopped && n.part[from] != n.part[to] {
		return nil
	}
	return n.ends[to]
}

// is reports whether a node is in a part.
func (n *network) is(name string, part int) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.part[name] == part
}

func (n *network) set(part int, names ...string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range names {
		n.part[name] = part
	}
}

func (e *end) WriteTo(b []byte, to net.Addr) (int, error) {
	other := e.network.reaches(e.name, to.String())
	e.network.mu.Lock()
	lost := rand.Float64() < e.network.loss
	e.network.mu.Unlock()
	if other == nil || lost {
		return len(b), nil
	}
	select {
	case other.packets <- packet{endAddr(e.name), append([]byte(nil), b...)}:
	default: // its queue is full
	}
	return len(b), nil
}

func (e *end) ReadFrom(b []byte) (int, net.Addr, error) {
	select {
	case p := <-e.packets:
		for e.network.is(e.name, stopped) {
			time.Sleep(time.Millisecond)
		}
		return copy(b, p.data), p.from, nil
	case <-e.closed:
		return 0, nil, net.ErrClosed
	}
}

func (e *end) Accept() (net.Conn, error) {
	select {
	case c := <-e.streams:
		for e.network.is(e.name, stopped) {
			time.Sleep(time.Millisecond)
		}
		return c, nil
	case <-e.closed:
		return nil, net.ErrClosed
	}
}

func (e *end) dial(ctx context.Context, name string) (net.Conn, error) {
	other := e.network.reaches(e.name, name)
	if other == nil {
		<-ctx.Done()
		return nil, errCut
	}
	here, there := net.Pipe()
	select {
	case other.streams <- there:
		return here, nil
	case <-other.closed:
		return nil, os.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (e *end) Close() error {
	e.once.Do(func() { close(e.closed) })
	return nil
}

func (e *end) Addr() net.Addr                   { return endAddr(e.name) }
func (e *end) LocalAddr() net.Addr              { return endAddr(e.name) }
func (e *end) SetDeadline(time.Time) error      { return nil }
func (e *end) SetReadDeadline(time.Time) error  { return nil }
func (e *end) SetWriteDeadline(time.Time) error { return nil }

// simulate makes a network of nodes n1, n2, ... that know each other.
func simulate(t *testing.T, count int, changes ...func(*membership.Config)) (*network, []string) {
	t.Helper()
	n := &network{part: map[string]int{}, ends: map[string]*end{}, lists: map[string]*membership.List{}, died: map[string]int{}}
	var names []string
	for i := range count {
		names = append(names, fmt.Sprintf("n%d", i+1))
	}
	for _, name := range names {
		n.open(t, name, names, changes...)
	}
	n.wait(t, membership.Alive, names, names)
	return n, names
}

// deaths is how often others saw a node die.
func (n *network) deaths(name string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.died[name]
}

// open begins to gossip as a node.
func (n *network) open(t *testing.T, name string, names []string, changes ...func(*membership.Config)) {
	t.Helper()
	e := &end{network: n, name: name, packets: make(chan packet, 1000), streams: make(chan net.Conn), closed: make(chan struct{})}
	n.mu.Lock()
	n.ends[name] = e
	n.mu.Unlock()
	c := membership.Config{
		Name: name, Version: "v1", Commands: 7, Cluster: "c1", Key: make([]byte, 32), Packets: e, Streams: e, Dial: e.dial,
		Peers: func() map[string]string {
			out := map[string]string{}
			for _, name := range names {
				out[name] = name
			}
			return out
		},
		Resolve: func(_ context.Context, address string) (net.Addr, error) { return endAddr(address), nil },
		Events: membership.Events{Changed: func(other string, m membership.Member) {
			if m.State == membership.Dead {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.died[other]++
			}
		}},
	}
	for _, change := range changes {
		change(&c)
	}
	l, err := membership.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	n.lists[name] = l
}

// close ends all lists, and waits for what they have left.
func (n *network) close(t *testing.T) {
	t.Helper()
	for name, l := range n.lists {
		if err := l.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	time.Sleep(time.Minute) // of the bubble: the library's goroutines end by themselves
}

// wait waits until some nodes see others in a state, and returns how long that took.
func (n *network) wait(t *testing.T, state membership.State, by, of []string) time.Duration {
	t.Helper()
	begun := time.Now()
	for {
		all := true
		for _, b := range by {
			members := n.lists[b].Members()
			for _, o := range of {
				all = all && (b == o || members[o].State == state)
			}
		}
		if all {
			return time.Since(begun)
		}
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("%v do not see %v as %s: %+v", by, of, state, n.lists[by[0]].Members())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestANodeThatIsGoneIsDeadWithinSeconds(t *testing.T) {
	for _, c := range []struct {
		count int
		bound time.Duration
	}{{2, 2500 * time.Millisecond}, {3, 2500 * time.Millisecond}, {5, 2500 * time.Millisecond}, {9, 4 * time.Second}} {
		var sum, worst time.Duration
		const runs = 5
		for range runs {
			synctest.Test(t, func(t *testing.T) {
				n, names := simulate(t, c.count)
				time.Sleep(5*time.Second + rand.N(time.Second))
				n.set(gone, names[0])
				took := n.wait(t, membership.Dead, names[1:], names[:1])
				sum, worst = sum+took, max(worst, took)
				n.close(t)
			})
		}
		t.Logf("%d nodes: dead after %v in the mean, %v at most", c.count, sum/runs, worst)
		if worst > c.bound {
			t.Errorf("%d nodes: a node that is gone is dead after %v; want %v at most", c.count, worst, c.bound)
		}
	}
}

func TestANodeThatStopsForASecondIsSuspectAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, names := simulate(t, 3)
		for range 200 {
			n.set(stopped, names[0])
			time.Sleep(time.Second)
			n.set(0, names[0])
			n.wait(t, membership.Alive, names, names)
			time.Sleep(2*time.Second + rand.N(time.Second))
		}
		if died := n.deaths(names[0]); died > 0 {
			t.Errorf("it died %d times", died)
		}
		n.close(t)
	})
}

func TestNodesThatProbeRarelyWaitLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, names := simulate(t, 3, func(c *membership.Config) { c.ProbeEvery = 2 * time.Second })
		for range 20 {
			n.set(stopped, names[0])
			time.Sleep(8 * time.Second) // with the usual times it would be dead after two
			n.set(0, names[0])
			n.wait(t, membership.Alive, names, names)
			time.Sleep(20 * time.Second)
		}
		if died := n.deaths(names[0]); died > 0 {
			t.Errorf("it died %d times", died)
		}
		n.set(gone, names[0])
		n.wait(t, membership.Dead, names[1:], names[:1])
		if m := n.lists[names[1]].Member(names[0]); m != n.lists[names[1]].Members()[names[0]] || m.State != membership.Dead {
			t.Errorf("by itself it is seen as %+v", m)
		}
		n.close(t)
	})
}

func TestLostDatagramsKillNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, names := simulate(t, 5)
		n.mu.Lock()
		n.loss = 0.2
		n.mu.Unlock()
		time.Sleep(10 * time.Minute)
		for _, name := range names {
			if died := n.deaths(name); died > 0 {
				t.Errorf("%s died %d times", name, died)
			}
		}
		n.wait(t, membership.Alive, names, names)
		n.close(t)
	})
}

func TestWhatAPartitionPartedComesTogetherAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, names := simulate(t, 5)
		few, many := names[:2], names[2:]
		n.set(1, few...)
		n.wait(t, membership.Dead, few, many)
		n.wait(t, membership.Dead, many, few)
		n.wait(t, membership.Alive, few, few)
		time.Sleep(5 * time.Minute) // longer than the library tries the dead itself
		n.set(0, few...)
		n.wait(t, membership.Alive, names, names)
		n.close(t)
	})
}

func TestANodeThatStopsInOrderHasLeftAndComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, names := simulate(t, 3)
		for range 3 {
			if err := n.lists["n1"].Leave(); err != nil {
				t.Error(err)
			}
			if err := n.lists["n1"].Close(); err != nil {
				t.Error(err)
			}
			n.wait(t, membership.Left, names[1:], names[:1])
			time.Sleep(time.Minute)
			n.wait(t, membership.Left, names[1:], names[:1])
			n.open(t, "n1", names)
			n.wait(t, membership.Alive, names, names)
		}
		if m := n.lists["n2"].Members()["n1"]; m.Version != "v1" || m.Commands != 7 || m.Address != "n1" {
			t.Errorf("%+v", m)
		}
		if died := n.deaths("n1"); died > 0 {
			t.Errorf("it died %d times", died)
		}
		n.close(t)
	})
}
