package membership_test

import (
	"context"
	"maps"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/membership"
	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// port is a node with a certificate and one port for TCP and UDP.
type port struct {
	name     string
	identity *pki.Identity
	mux      *mux.Mux
	list     *membership.List
}

// cluster is what the nodes of a test share.
type cluster struct {
	authority *pki.Authority
	mu        sync.Mutex
	peers     map[string]string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	a, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{authority: a, peers: map[string]string{}}
}

// listen makes a node that does not gossip yet.
func (c *cluster) listen(t *testing.T, name string) *port {
	t.Helper()
	key, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := c.authority.Sign(csr, pki.Subject{Role: pki.RoleNode, Name: name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.WriteIdentity(dir, key, der, c.authority.Certificate.Raw); err != nil {
		t.Fatal(err)
	}
	p := &port{name: name}
	if p.identity, err = pki.Open(dir); err != nil {
		t.Fatal(err)
	}
	if p.mux, err = mux.Listen(t.Context(), "127.0.0.1:0", mux.Config{TLS: p.identity.ServerTLS(), Log: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.peers[name] = p.mux.Addr().String()
	c.mu.Unlock()
	t.Cleanup(func() {
		if err := p.mux.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (c *cluster) addresses() map[string]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.peers)
}

// gossip begins to gossip.
func (c *cluster) gossip(t *testing.T, p *port, key byte) {
	t.Helper()
	packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", p.mux.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	secret := make([]byte, 32)
	secret[0] = key
	p.list, err = membership.Open(membership.Config{
		Name: p.name, Version: "v1", Commands: 1, Cluster: "c1", Key: secret, Packets: packets, Streams: p.mux.Listener(mux.ProtocolGossip), Peers: c.addresses,
		Dial: func(ctx context.Context, name string) (net.Conn, error) {
			return p.identity.Dial(ctx, mux.ProtocolGossip, name, c.addresses()[name])
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.list.Close(); err != nil {
			t.Error(err)
		}
	})
}

// until waits until something holds.
func (c *cluster) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	envtest.Eventually(t, what, holds)
}

// sees reports whether some nodes see another in a state.
func sees(by []*port, of string, state membership.State) bool {
	for _, p := range by {
		if p.name != of && p.list.Members()[of].State != state {
			return false
		}
	}
	return true
}

func TestNodesSeeEachOtherOverOnePort(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var all []*port
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		all = append(all, c.listen(t, name))
	}
	for _, p := range all {
		c.gossip(t, p, 1)
	}
	for _, p := range all {
		c.until(t, p.name+" is seen", func() bool { return sees(all, p.name, membership.Alive) })
	}
	c.until(t, "round trips are known", func() bool {
		m := all[0].list.Members()
		return m["n3"].RTT > 0 && m["n4"].RTT > 0 && m["n4"].Version == "v1" && m["n4"].Commands == 1
	})
	if err := all[2].list.Leave(); err != nil {
		t.Error(err)
	}
	c.until(t, "n3 has left", func() bool { return sees([]*port{all[0], all[1], all[3]}, "n3", membership.Left) })
	if err := all[3].list.Close(); err != nil { // as when it is killed
		t.Error(err)
	}
	c.until(t, "n4 is dead", func() bool { return sees(all[:2], "n4", membership.Dead) })
	c.gossip(t, all[3], 1)
	c.until(t, "n4 is back", func() bool { return sees(all[:2], "n4", membership.Alive) })
	c.mu.Lock()
	delete(c.peers, "n4")
	c.mu.Unlock()
	c.until(t, "n4 is removed", func() bool {
		_, there := all[0].list.Members()["n4"]
		return !there
	})
	c.mu.Lock()
	c.peers["n4"] = all[3].mux.Addr().String()
	c.mu.Unlock()
	c.until(t, "n4 is back after it was removed", func() bool { return sees(all[:2], "n4", membership.Alive) })
}

func TestForeignDatagramsAreDroppedAndCounted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	one, two, foreign := c.listen(t, "n1"), c.listen(t, "n2"), c.listen(t, "n3")
	c.gossip(t, one, 1)
	c.gossip(t, two, 1)
	c.until(t, "they see each other", func() bool { return sees([]*port{one, two}, "n1", membership.Alive) })
	before := one.list.Dropped()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "udp", one.mux.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, garbage := range []string{"hello", strings.Repeat("\x01", 100), strings.Repeat("x", 9000)} {
		if _, err := conn.Write([]byte(garbage)); err != nil {
			t.Fatal(err)
		}
	}
	c.until(t, "garbage is counted", func() bool { return one.list.Dropped() >= before+3 })
	before = one.list.Dropped()
	c.gossip(t, foreign, 2)
	c.until(t, "what has another key is counted", func() bool { return one.list.Dropped() > before+3 })
	if !sees([]*port{one, two}, "n2", membership.Alive) {
		t.Errorf("n2 is not alive any more: %+v", one.list.Members())
	}
}

func TestAConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.listen(t, "n1")
	good := func() membership.Config {
		packets, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = packets.Close() }) // Open may have
		return membership.Config{
			Name: "n1", Cluster: "c1", Key: make([]byte, 32), Packets: packets, Streams: p.mux.Listener(mux.ProtocolGossip), Peers: c.addresses,
			Dial: func(context.Context, string) (net.Conn, error) { return nil, net.ErrClosed },
		}
	}
	for what, change := range map[string]func(*membership.Config){
		"no name":          func(c *membership.Config) { c.Name = "" },
		"no peers":         func(c *membership.Config) { c.Peers = nil },
		"a long version":   func(c *membership.Config) { c.Version = strings.Repeat("v", 256) },
		"a key of 5 bytes": func(c *membership.Config) { c.Key = make([]byte, 5) },
	} {
		bad := good()
		change(&bad)
		if l, err := membership.Open(bad); err == nil {
			t.Errorf("%s: it is taken", what)
			_ = l.Close()
		}
	}
}
