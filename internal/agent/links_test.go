package agent_test

import (
	"net"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// inherited keeps what the programs of an agent inherit.
type inherited struct {
	*agenttest.Processes

	listeners []net.Listener
}

func (p *inherited) Start(what agent.Program) (agent.Started, error) {
	for _, f := range what.Inherit {
		l, err := net.FileListener(f)
		if err != nil {
			return agent.Started{}, err
		}
		p.listeners = append(p.listeners, l)
	}
	return p.Processes.Start(what)
}

// linked is an agent whose workers accept links, with the directory of job 1.
func linked(t *testing.T, links agent.Links) (*agent.Local, *inherited) {
	t.Helper()
	dir := envtest.ShortDir(t)
	p := &inherited{Processes: agenttest.NewProcesses(t)}
	a, err := agent.Open(agent.Config{
		Node: "a", StateDir: dir, Worker: []string{"worker"}, Log: zap.NewNop(), Processes: p, Links: links, Limits: func() agent.Limits { return agent.Limits{} },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Close)
	if err := a.Record(t.Context(), &cluster.Job{ID: "1"}, false); err != nil {
		t.Fatal(err)
	}
	return a, p
}

// refuses waits until nobody listens at an address.
func refuses(t *testing.T, address string) {
	t.Helper()
	envtest.Eventually(t, "nobody listens at "+address, func() bool {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return true
		}
		_ = c.Close()
		return false
	})
}

func TestAWorkerInheritsThePortOfItsLinks(t *testing.T) {
	paths := &control.LinkTLS{Certificate: "c", Key: "k", Authority: "a"}
	a, p := linked(t, agent.Links{Host: "127.0.0.1", TLS: paths})
	first, err := a.Listen(t.Context(), "1", 1)
	if err != nil {
		t.Fatal(err)
	}
	second, err := a.Listen(t.Context(), "1", 2)
	if err != nil || first == second {
		t.Fatalf("%q, %q, %v", first, second, err)
	}
	refuses(t, first)
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", second) // before the worker runs
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := a.Start(t.Context(), agenttest.Assignment("1", "long", 2, 1e6)); err != nil {
		t.Fatal(err)
	}
	if len(p.listeners) != 1 || p.listeners[0].Addr().String() != second {
		t.Fatalf("it inherits %v, want %s", p.listeners, second)
	}
	got, err := p.listeners[0].Accept()
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Close()
	_ = p.listeners[0].Close()
	refuses(t, second) // the agent keeps no descriptor
}

func TestPortsThatNoWorkerTakesAreClosed(t *testing.T) {
	a, _ := linked(t, agent.Links{Host: "127.0.0.1", Hold: time.Millisecond})
	address, err := a.Listen(t.Context(), "1", 1)
	if err != nil {
		t.Fatal(err)
	}
	refuses(t, address)
	a, _ = linked(t, agent.Links{Host: "127.0.0.1"})
	if address, err = a.Listen(t.Context(), "1", 1); err != nil {
		t.Fatal(err)
	}
	a.Close()
	refuses(t, address)
	if _, err := a.Listen(t.Context(), "1", 2); err == nil {
		t.Error("a port was opened after the end")
	}
	a, _ = linked(t, agent.Links{})
	if address, err := a.Listen(t.Context(), "1", 1); err != nil || address != "" {
		t.Errorf("alone: %q, %v", address, err)
	}
}

func TestPortsOfLinksAreOfARange(t *testing.T) {
	taken, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	a, _ := linked(t, agent.Links{Host: "127.0.0.1", First: port, Last: port})
	if address, err := a.Listen(t.Context(), "1", 1); err == nil {
		t.Errorf("%s is open twice", address)
	}
	if err := (agent.Links{First: 7, Last: 6}).Validate(); err == nil {
		t.Error("an empty range was taken")
	}
}
