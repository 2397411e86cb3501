package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/mux"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/server"
)

// What nodes ask of each other over mux.ProtocolNode.
const (
	pathStatus = "/status" // GET: nodeReport
	pathKey    = "/key"    // POST: the authority's key, from the node that leads to one that is to vote
	pathSelf   = "/self"   // POST selfRequest: of the node that leads
)

// selfRequest is what a node says of itself to the one that leads, with a request for a certificate where its own is old.
type selfRequest struct {
	Address string `json:"address"`
	Version string `json:"version"`
	CSR     []byte `json:"csr,omitempty"`
}

type selfResponse struct {
	Certificate []byte   `json:"certificate,omitempty"`
	Authority   [][]byte `json:"authority,omitempty"`
}

// maxNodeBody bounds what nodes send each other, bytes.
const maxNodeBody = 1 << 20

// serveMembers serves what other nodes and clients ask over the network until ctx ends.
func (n *node) serveMembers(ctx context.Context, group *errgroup.Group) {
	if n.member == nil {
		return
	}
	m := n.member.mux
	group.Go(func() error { return server.Serve(ctx, n.serverConfig(m.Listener("h2", "http/1.1"))) })
	group.Go(func() error {
		return server.ServeHandler(ctx, m.Listener(mux.ProtocolJoin), n.joinHandler(), nil, n.log)
	})
	group.Go(func() error {
		return server.ServeHandler(ctx, m.Listener(mux.ProtocolNode), n.nodeHandler(), withNode, n.log)
	})
	agents := n.agentHandler()
	group.Go(func() error {
		defer agents.Close()
		return server.ServeHandler(ctx, m.Listener(mux.ProtocolAgent), agents, withNode, n.log)
	})
	group.Go(func() error { return n.keepGossip(ctx) })
	for _, part := range []func(context.Context){n.tellSelf, n.watchStanding} {
		group.Go(func() error {
			part(ctx)
			return nil
		})
	}
}

type askerKey struct{}

// withNode keeps the name of the node at the other end of a connection.
func withNode(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(interface{ ConnectionState() tls.ConnectionState }); ok {
		if all := secure.ConnectionState().PeerCertificates; len(all) > 0 {
			return context.WithValue(ctx, askerKey{}, all[0].Subject.CommonName)
		}
	}
	return ctx
}

// nodeHandler answers other nodes.
func (n *node) nodeHandler() http.Handler {
	h := http.NewServeMux()
	h.HandleFunc("GET "+pathStatus, func(w http.ResponseWriter, r *http.Request) {
		info, err := n.agent.Info(r.Context())
		answer(w, nodeReport{n.self(), n.raft.Progress(), &info}, err)
	})
	h.HandleFunc("POST "+pathKey, func(w http.ResponseWriter, r *http.Request) {
		key, err := io.ReadAll(r.Body)
		if err == nil {
			err = n.takeKey(r.Context(), key)
		}
		answer(w, struct{}{}, err)
	})
	h.HandleFunc("POST "+pathSelf, func(w http.ResponseWriter, r *http.Request) {
		var request selfRequest
		var response selfResponse
		err := json.NewDecoder(r.Body).Decode(&request)
		if err == nil {
			name, _ := r.Context().Value(askerKey{}).(string)
			response, err = n.updateNode(r.Context(), name, request)
		}
		answer(w, response, err)
	})
	return http.MaxBytesHandler(h, maxNodeBody)
}

func answer(w http.ResponseWriter, value any, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // who asked has gone, or knows
}

// ask asks another node.
func (n *node) ask(ctx context.Context, name, method, path string, body []byte, out any) error {
	c, err := n.member.to(name)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+name+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("ask node %s: %w", name, err)
	}
	response, err := c.node.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask node %s: %w", name, err)
	}
	defer response.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(io.LimitReader(response.Body, maxNodeBody))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, bytes.TrimSpace(text))
	}
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return fmt.Errorf("ask node %s for %s: %w", name, path, err)
	}
	return nil
}

// takeKey keeps the authority's key: this node is to vote. Only the node that leads sends it.
func (n *node) takeKey(ctx context.Context, key []byte) error {
	if name, _ := ctx.Value(askerKey{}).(string); name == "" || name != n.raft.Leader() {
		return fmt.Errorf("the authority's key comes from %q, and %q leads", name, n.raft.Leader())
	}
	all := n.member.identity.Authority()
	if _, err := pki.OpenAuthority(all[len(all)-1].Raw, key); err != nil {
		return err
	}
	return pki.WriteAuthorityKey(n.member.dir, key)
}

// updateNode keeps what a node says of itself, and renews its certificate.
func (n *node) updateNode(ctx context.Context, name string, r selfRequest) (out selfResponse, err error) {
	if !n.Leads() {
		return out, fmt.Errorf("%s does not lead", n.id)
	}
	known, err := n.raft.State().Node(name)
	if err != nil {
		return out, err
	}
	if known.Address != r.Address || known.Version != r.Version {
		if _, err := n.raft.Apply(ctx, &cluster.UpdateNode{Name: name, Address: r.Address, Version: r.Version}); err != nil {
			return out, err
		}
	}
	if len(r.CSR) == 0 {
		return out, nil
	}
	authority, err := n.authority()
	if err != nil {
		return out, err
	}
	if out.Certificate, err = authority.Sign(r.CSR, pki.Subject{Role: pki.RoleNode, Name: name}, time.Now()); err != nil {
		return out, err
	}
	out.Authority = n.raft.State().Authority().Certificates
	n.log.Info("a node's certificate was renewed", zap.String("member", name))
	return out, nil
}

// How often a node says to the one that leads where it is, and renews its certificate when that is due.
const (
	tellAgain = time.Second
	tellEvery = time.Minute
)

// tellSelf tells the node that leads where this one is and which program it runs, and renews its certificate, until ctx ends.
func (n *node) tellSelf(ctx context.Context) {
	named := false
	var renewed time.Time // at most once an hour: close to the authority's end each certificate is due when it is made
	for ctx.Err() == nil {
		wait := tellEvery
		due := time.Now().After(n.member.identity.RenewAt()) && (renewed.IsZero() || time.Since(renewed) > time.Hour)
		if !named {
			named = n.keepName()
		}
		if err := n.tellLeader(ctx, due); err != nil {
			n.log.Debug("the node that leads was not told of this one", zap.Error(err))
			wait = tellAgain
		} else if due {
			renewed = time.Now()
		}
		if !named {
			wait = tellAgain
		}
		sleep(ctx, wait)
	}
}

// keepName writes down which node this is, once it has the state of the cluster that it joined. It reports whether that is done.
func (n *node) keepName() bool {
	if n.raft.State().Authority() == nil {
		return false
	}
	_, kept, err := readIdentity(n.config.StateDir, n.id)
	if err == nil && !kept {
		err = keepIdentity(n.config.StateDir, identity{Node: n.id})
	}
	if err != nil {
		n.log.Error("the node's name is not kept", zap.Error(err))
	}
	return err == nil
}

// tellLeader does so once. renew: it asks for another certificate.
func (n *node) tellLeader(ctx context.Context, renew bool) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	self := selfRequest{Address: n.member.advertise, Version: n.config.Version}
	if renew {
		var err error
		if self.CSR, err = n.member.identity.Request(); err != nil {
			return err
		}
	}
	leader, err := n.Leader(ctx)
	if err != nil {
		return err
	}
	var out selfResponse
	if leader.Transport == nil {
		out, err = n.updateNode(ctx, n.id, self)
	} else {
		var body []byte
		if body, err = json.Marshal(self); err == nil {
			err = n.ask(ctx, leader.Name, http.MethodPost, pathSelf, body, &out)
		}
	}
	if err != nil || len(out.Certificate) == 0 {
		return err
	}
	if err := n.member.identity.Renew(out.Certificate, out.Authority...); err != nil {
		return err
	}
	n.log.Info("this node's certificate was renewed", zap.Time("expires", n.member.identity.Expires()))
	return nil
}

// self is the status of this node, as it sees itself.
func (n *node) self() api.NodeStatus {
	devices := make([]string, len(n.config.Cores))
	for i, c := range n.config.Cores {
		devices[i] = fmt.Sprintf("cpu core %d", c)
	}
	s := api.NodeStatus{
		ID: n.id, Address: n.config.Socket, Leader: n.raft.IsLeader(), State: api.NodeAlive, Version: n.config.Version, Cores: len(n.config.Cores),
		Devices: devices, GPUs: n.gpus.Status(), HiddenGPUs: n.gpus.Hidden(), Jobs: []string{}, UptimeS: time.Since(n.started).Seconds(),
		GFLOPs: math.Float64frombits(n.speed.Load()),
	}
	if n.member != nil {
		s.Address = n.member.advertise
	}
	return s
}
