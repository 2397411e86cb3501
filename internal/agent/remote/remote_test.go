package remote_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/agent/agenttest"
	"github.com/avgpipe/avgpipe/internal/agent/remote"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

func TestMain(m *testing.M) { agenttest.Main(m) }

// memory is a network in memory, of one listener. It can be broken.
type memory struct {
	conns  chan net.Conn
	closed chan struct{}
	end    func()

	mu    sync.Mutex
	open  []net.Conn
	wrap  func(net.Conn) net.Conn // of the client's end
	fails bool
}

func newMemory() *memory {
	closed := make(chan struct{})
	return &memory{conns: make(chan net.Conn), closed: closed, end: sync.OnceFunc(func() { close(closed) })}
}

func (m *memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.closed:
		return nil, net.ErrClosed
	}
}

func (m *memory) Close() error {
	m.end()
	return nil
}

func (*memory) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

func (m *memory) dial(ctx context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	m.mu.Lock()
	fails, wrap := m.fails, m.wrap
	m.open = append(m.open, here)
	m.mu.Unlock()
	if fails {
		return nil, errors.New("no route")
	}
	select {
	case m.conns <- there:
	case <-m.closed:
		return nil, errors.New("nobody listens")
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if wrap != nil {
		return wrap(here), nil
	}
	return here, nil
}

// cut closes all connections.
func (m *memory) cut() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.open {
		_ = c.Close()
	}
	m.open = nil
}

func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// serve serves an agent over a network, and returns a client of it.
func serve(t *testing.T, a agent.Agent, m *memory, h remote.HandlerConfig, c remote.Config) *remote.Client {
	t.Helper()
	h.Node = "a"
	if h.Caller == nil {
		h.Caller = func(*http.Request) (string, error) { return "leader", nil }
	}
	handler := remote.NewHandler(a, h)
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(m) })
	c.Node, c.Dial = "a", m.dial
	client := remote.New(c)
	t.Cleanup(func() {
		client.Close()
		handler.Close()
		_ = server.Close()
		m.cut()
		serving.Wait()
	})
	return client
}

func TestARemoteAgentIsAnAgent(t *testing.T) {
	agenttest.Conforms(t, func(t *testing.T) agenttest.Rig {
		dir := envtest.ShortDir(t)
		p := agenttest.NewProcesses(t)
		open := func() agent.Agent {
			return serve(t, agenttest.Open(t, "a", dir, p), newMemory(), remote.HandlerConfig{}, remote.Config{Silence: agenttest.Patience})
		}
		return agenttest.Rig{
			Agent: open(), Another: open,
			Log: func(id string) string {
				text, _ := os.ReadFile(control.LogPath(agent.JobDir(dir, id))) // it may not be there yet
				return string(text)
			},
		}
	})
}
