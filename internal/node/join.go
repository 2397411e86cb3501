package node

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/audit"
	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/server"
	"github.com/avgpipe/avgpipe/internal/words"
)

// begin is the record of a node that begins a cluster: what its daemon puts into the replicated state.
type begin struct {
	Cluster   string `json:"cluster"`
	GossipKey []byte `json:"gossip_key"`
}

const (
	beginKind    = "begin"
	beginVersion = 1
)

func beginPath(dir string) string { return filepath.Join(dir, "begin.record") }

// Init makes a state directory that of the first node of a cluster: the one of a daemon that was alone, with its jobs, or a new one. No daemon may
// run on it. The next daemon, with a configuration that says where it listens, begins the cluster. It returns the cluster's id.
func Init(state, name string) (id string, err error) {
	authority, err := pki.NewAuthority(pki.NewCluster(), time.Now())
	if err != nil {
		return "", err
	}
	return initWith(state, name, authority)
}

func initWith(state, name string, authority *pki.Authority) (id string, err error) {
	lock, err := lockState(state)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if pki.IsMember(pkiDir(state)) {
		return "", fmt.Errorf("the state directory %s belongs to a node of a cluster already", state)
	}
	if err := checkAlone(state); err != nil {
		return "", err
	}
	who, _, err := readIdentity(state, name)
	if err != nil {
		return "", err
	}
	b := begin{Cluster: authority.Cluster(), GossipKey: make([]byte, 32)}
	_, _ = rand.Read(b.GossipKey) // never fails
	key, csr, err := pki.NewKey()
	if err != nil {
		return "", err
	}
	certificate, err := authority.Sign(csr, pki.Subject{Role: pki.RoleNode, Name: who.Node}, time.Now())
	if err != nil {
		return "", fmt.Errorf("%w; name the node otherwise (node)", err)
	}
	secret, err := authority.MarshalKey()
	if err != nil {
		return "", err
	}
	dir := pkiDir(state)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make %s: %w", dir, err)
	}
	err = checkpoint.WriteRecord(beginPath(dir), beginKind, beginVersion, b, 0o600)
	if err == nil {
		err = pki.WriteAuthorityKey(dir, secret)
	}
	if err == nil {
		err = pki.WriteIdentity(dir, key, certificate, authority.Certificate.Raw)
	}
	return b.Cluster, err
}

// checkAlone refuses the state directory of a node of a cluster that has lost what makes it one: it would wait for the others for ever, and they would
// not know it.
func checkAlone(state string) error {
	who, kept, err := readIdentity(state, "")
	if err != nil || !kept {
		return err
	}
	s, err := raftlog.Peek(raftDir(state))
	if err != nil {
		return damaged(err, state, who.Node)
	}
	a := s.Authority()
	if a == nil {
		return nil
	}
	return fmt.Errorf("the state directory %s is that of node %s of the cluster %s, which has %s, and %s is missing or holds no certificate: nothing was changed; "+
		"restore it from a backup; without one, have the others forget this node (avgpipectl nodes remove %s --force), move the state directory away, and "+
		"join with a new one (avgpiped join); where no other node is left, move %s aside as well, and make the record of jobs again (avgpiped recover)",
		state, who.Node, a.Cluster, words.Count(len(s.Nodes()), "node"), pkiDir(state), who.Node, raftDir(state))
}

// Join makes a new state directory that of a node of a cluster, by a token, which a node at one of some addresses is asked with. No daemon may run on
// it. advertise is where the others reach the daemon that is started next.
func Join(ctx context.Context, state, name, advertise, version, token string, addresses []string) (id string, err error) {
	t, err := pki.ParseToken(token)
	if err != nil {
		return "", err
	}
	lock, err := lockState(state)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if err := fresh(state); err != nil {
		return "", err
	}
	who, err := newIdentity(name)
	if err != nil {
		return "", err
	}
	key, csr, err := pki.NodeKey(pkiDir(state)) // the same once more, where an answer was lost
	if err != nil {
		return "", err
	}
	var failed error
	for _, address := range addresses {
		answer, err := pki.Join(ctx, address, t, pki.JoinRequest{CSR: csr, Node: who.Node, Address: advertise, Version: version})
		if err == nil {
			return answer.Cluster, pki.WriteIdentity(pkiDir(state), key, answer.Certificate, answer.Authority...)
		}
		failed = errors.Join(failed, err)
		if _, refused := errors.AsType[*pki.JoinError](err); refused {
			return "", failed
		}
	}
	return "", &unanswered{failed}
}

// fresh refuses a state directory that a daemon has used.
func fresh(state string) error {
	if pki.IsMember(pkiDir(state)) {
		return fmt.Errorf("the state directory %s belongs to a node of a cluster already", state)
	}
	jobs, err := agent.JobIDs(state)
	if err != nil {
		return err
	}
	for _, path := range []string{identityPath(state), raftDir(state)} {
		if _, err := os.Lstat(path); err == nil || len(jobs) > 0 {
			return fmt.Errorf("the state directory %s is that of a daemon that was alone, with %d jobs: a node joins with a new one; "+
				"to keep those jobs, begin the cluster there (avgpiped init) and let the others join it", state, len(jobs))
		}
	}
	return nil
}

// beginCluster puts what Init wrote into the replicated state, once.
func (n *node) beginCluster(ctx context.Context) error {
	if n.raft.State().Authority() != nil {
		return nil
	}
	var b begin
	if err := checkpoint.ReadRecord(beginPath(n.member.dir), beginKind, beginVersion, &b); err != nil {
		return fmt.Errorf("begin the cluster: %w", err)
	}
	a := cluster.Authority{Cluster: b.Cluster, GossipKey: b.GossipKey}
	for _, c := range n.member.identity.Authority() {
		a.Certificates = append(a.Certificates, c.Raw)
	}
	_, err := n.raft.Apply(ctx, &cluster.BeginCluster{Authority: a, Node: cluster.Node{
		Name: n.id, Address: n.member.advertise, Version: n.config.Version, Key: n.member.identity.Key(), Joined: time.Now(),
	}})
	if err == nil {
		n.log.Info("the cluster has begun", zap.String("cluster", b.Cluster))
	}
	return err
}

// authority opens the cluster's authority, whose key this node has if it may vote.
func (n *node) authority() (*pki.Authority, error) {
	key, err := pki.ReadAuthorityKey(n.member.dir)
	if err != nil {
		return nil, err
	}
	all := n.member.identity.Authority()
	return pki.OpenAuthority(all[len(all)-1].Raw, key)
}

// joinHandler lets those in who have a token.
func (n *node) joinHandler() http.Handler {
	handler := http.NewServeMux()
	handler.HandleFunc("POST "+pki.PathJoin, func(w http.ResponseWriter, r *http.Request) {
		var request pki.JoinRequest
		var answer *pki.JoinResponse
		err := json.NewDecoder(r.Body).Decode(&request)
		if err == nil {
			answer, err = n.admit(r.Context(), request)
		}
		record := audit.Record{From: r.RemoteAddr, Operation: "join", Object: request.Node}
		if err != nil {
			answer = &pki.JoinResponse{Error: err.Error()}
			record.Error = err.Error()
		}
		if answer.Elsewhere == "" {
			record.User, record.Role = answer.Name, answer.Role
			n.audit.Write(record)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer) // who asked has gone, or knows
	})
	return http.MaxBytesHandler(handler, pki.MaxJoin)
}

// admit gives a certificate to whoever has a token.
func (n *node) admit(ctx context.Context, r pki.JoinRequest) (*pki.JoinResponse, error) {
	waiting, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	leads, err := n.Leader(waiting)
	if err != nil {
		return nil, fmt.Errorf("%w: try again", err)
	}
	if leads.Transport != nil {
		leader, err := n.raft.State().Node(leads.Name)
		if err != nil {
			return nil, err
		}
		return &pki.JoinResponse{Elsewhere: leader.Address}, nil
	}
	state, now := n.raft.State(), time.Now()
	csr, err := x509.ParseCertificateRequest(r.CSR)
	if err != nil {
		return nil, fmt.Errorf("the request for a certificate: %w", err)
	}
	hash, key := (pki.Token{Secret: r.Secret}).Hash(), pki.KeyOf(&x509.Certificate{RawSubjectPublicKeyInfo: csr.RawSubjectPublicKeyInfo})
	token, err := state.Token(hash, key, now)
	if err != nil {
		return nil, err
	}
	subject := pki.Subject{Role: token.Role, Name: token.User, UID: token.UID}
	if token.Role == pki.RoleNode {
		if r.Node == "" {
			return nil, errors.New("the token is for a node, which joins by it (avgpiped join), not for a user; an administrator makes one for a user with " +
				"avgpiped token --role submit --user NAME")
		}
		subject = pki.Subject{Role: token.Role, Name: r.Node}
	} else if r.Node != "" {
		return nil, fmt.Errorf("the token is for a user, of the role %s, not for a node", token.Role)
	}
	authority, err := n.authority()
	if err != nil {
		return nil, err
	}
	certificate, err := authority.Sign(r.CSR, subject, now) // before the token is spent: it may be refused
	if err != nil {
		return nil, err
	}
	var command cluster.Command = &cluster.SpendToken{Hash: hash, Key: key, At: now}
	if token.Role == pki.RoleNode {
		command = &cluster.JoinNode{Hash: hash, At: now, Node: cluster.Node{Name: r.Node, Address: r.Address, Version: r.Version, Key: key, Joined: now}}
	}
	if _, err := n.raft.Apply(ctx, command); err != nil {
		return nil, err
	}
	n.log.Info("let in", zap.String("name", subject.Name), zap.String("role", subject.Role), zap.String("address", r.Address))
	answer := &pki.JoinResponse{Certificate: certificate, Authority: state.Authority().Certificates, Cluster: state.Authority().Cluster, Role: subject.Role, Name: subject.Name}
	for _, node := range state.Nodes() {
		answer.Addresses = append(answer.Addresses, node.Address)
	}
	return answer, nil
}

// CreateToken implements server.Members.
func (n *node) CreateToken(ctx context.Context, role, user string, uid uint32, valid time.Duration, by server.Peer) (string, error) {
	authority := n.raft.State().Authority()
	if authority == nil {
		return "", cluster.ErrAlone
	}
	t, now := pki.NewToken(authority.Certificates[len(authority.Certificates)-1]), time.Now()
	_, err := n.raft.Apply(ctx, &cluster.AddToken{At: now, Token: cluster.Token{Hash: t.Hash(), Role: role, User: user, UID: uid, Expires: now.Add(valid), By: by.String()}})
	if err != nil {
		return "", err
	}
	return t.String(), nil
}
