package pki

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
	"github.com/avgpipe/avgpipe/internal/mux"
)

// The files of a node's directory.
const (
	nodeKeyFile   = "node.key"
	nodeCertFile  = "node.crt"
	authorityFile = "authority.crt"
)

// WriteIdentity keeps the key (PEM), the certificate and the authority's certificates (DER, the newest last) of a node in its directory, which is
// made where it is missing. The certificate comes last: with it the node is a member.
func WriteIdentity(dir string, key, certificate []byte, authority ...[]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("keep the node's certificate: %w", err)
	}
	err := checkpoint.WriteFile(filepath.Join(dir, nodeKeyFile), key, 0o600)
	if err == nil {
		err = checkpoint.WriteFile(filepath.Join(dir, authorityFile), EncodeCertificates(authority...), 0o644)
	}
	if err == nil {
		err = checkpoint.WriteFile(filepath.Join(dir, nodeCertFile), EncodeCertificates(certificate), 0o644)
	}
	if err != nil {
		return fmt.Errorf("keep the node's certificate: %w", err)
	}
	return nil
}

// IsMember reports whether a directory is that of a node of a cluster.
func IsMember(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, nodeCertFile))
	return err == nil
}

// Identity is a node, as others know it by its certificate. Its methods may be called concurrently.
type Identity struct {
	files  Files
	speaks mux.Versions
	held   atomic.Pointer[held]
	member atomic.Pointer[func(name string, key []byte) error]
}

// held is what the directory holds.
type held struct {
	certificate tls.Certificate // with the authority's behind it
	authority   []*x509.Certificate
	subject     Subject
}

// Files are the paths of a node's certificate, of its key and of the authority's certificates, in PEM.
type Files struct{ Certificate, Key, Authority string }

// FilesOf are those of a node's directory.
func FilesOf(dir string) Files {
	return Files{filepath.Join(dir, nodeCertFile), filepath.Join(dir, nodeKeyFile), filepath.Join(dir, authorityFile)}
}

// Open reads a node's directory.
func Open(dir string) (*Identity, error) { return OpenFiles(FilesOf(dir)) }

// OpenFiles reads a node's files.
func OpenFiles(f Files) (*Identity, error) {
	i := &Identity{files: f, speaks: mux.Spoken}
	return i, i.Reload()
}

// Speak sets the versions of the protocols between nodes, before the identity is used. Without it they are mux.Spoken.
func (i *Identity) Speak(v mux.Versions) { i.speaks = v }

// SetMember sets what says whether a node that has a certificate is a member; nil where it is. Until it is called all are.
func (i *Identity) SetMember(member func(name string, key []byte) error) { i.member.Store(&member) }

// Reload reads the files again, which another process may have renewed. After an error what was read before stays in use.
func (i *Identity) Reload() error {
	key, err := readSecret(i.files.Key)
	var own []byte
	if err == nil {
		own, err = os.ReadFile(i.files.Certificate)
	}
	var pair tls.Certificate
	if err == nil {
		pair, err = tls.X509KeyPair(own, key)
	}
	if err != nil {
		return fmt.Errorf("read the node's certificate and its key in %s: %w; restore them, or remove the node from the cluster and let it join again",
			filepath.Dir(i.files.Certificate), err)
	}
	h := &held{certificate: pair}
	if h.subject, err = SubjectOf(pair.Leaf); err == nil && h.subject.Role != RoleNode {
		err = fmt.Errorf("it has the role %s", h.subject.Role)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", i.files.Certificate, err)
	}
	text, err := os.ReadFile(i.files.Authority)
	if err != nil {
		return fmt.Errorf("read the authority's certificate: %w", err)
	}
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", i.files.Authority, err)
		}
		h.authority = append(h.authority, c)
		h.certificate.Certificate = append(h.certificate.Certificate, c.Raw)
	}
	if len(h.authority) == 0 {
		return fmt.Errorf("%s: there is no certificate in it", i.files.Authority)
	}
	if err := check(pair.Leaf, h.authority, x509.ExtKeyUsageServerAuth, pair.Leaf.NotBefore); err != nil { // one that has expired is renewed
		return fmt.Errorf("%s: %w", i.files.Certificate, err)
	}
	i.held.Store(h)
	return nil
}

// Name is the node's.
func (i *Identity) Name() string { return i.held.Load().subject.Name }

// Key is the SHA-256 of its public key.
func (i *Identity) Key() []byte { return KeyOf(i.held.Load().certificate.Leaf) }

// Authority are the authority's certificates, the newest last.
func (i *Identity) Authority() []*x509.Certificate { return i.held.Load().authority }

// Expires is when the certificate does, and RenewAt when two thirds of its time are over.
func (i *Identity) Expires() time.Time { return i.held.Load().certificate.Leaf.NotAfter }

// RenewAt is when the certificate is to be renewed.
func (i *Identity) RenewAt() time.Time { return RenewAt(i.held.Load().certificate.Leaf) }

// RenewAt is when two thirds of the time of a certificate are over. That of a node was made some time after it begins to be valid.
func RenewAt(c *x509.Certificate) time.Time {
	if s, err := SubjectOf(c); err == nil && s.Role == RoleNode && c.NotAfter.Sub(c.NotBefore) > nodeFor {
		return c.NotAfter.Add(-nodeFor / 3)
	}
	return c.NotBefore.Add(c.NotAfter.Sub(c.NotBefore) * 2 / 3)
}

// Request makes a request (DER) for another certificate of the same key.
func (i *Identity) Request() ([]byte, error) {
	key, err := os.ReadFile(i.files.Key)
	if err != nil {
		return nil, fmt.Errorf("renew the node's certificate: %w", err)
	}
	return Request(key)
}

// Renew keeps and uses another certificate (DER), and the authority's. Connections that there are stay.
func (i *Identity) Renew(certificate []byte, authority ...[]byte) error {
	key, err := os.ReadFile(i.files.Key)
	if err == nil {
		err = i.checkNew(certificate, authority)
	}
	if err == nil {
		err = WriteIdentity(filepath.Dir(i.files.Certificate), key, certificate, authority...)
	}
	if err != nil {
		return fmt.Errorf("renew the node's certificate: %w", err)
	}
	return i.Reload()
}

// checkNew refuses a certificate that is not this node's, or not of its authority.
func (i *Identity) checkNew(certificate []byte, authority [][]byte) error {
	c, err := x509.ParseCertificate(certificate)
	if err != nil {
		return err
	}
	var trusted []*x509.Certificate
	for _, der := range authority {
		a, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("the authority's certificate: %w", err)
		}
		trusted = append(trusted, a)
	}
	s, err := SubjectOf(c)
	switch {
	case err != nil:
		return err
	case len(trusted) == 0:
		return errors.New("it came without the authority's certificate")
	case s != i.held.Load().subject || !bytes.Equal(KeyOf(c), i.Key()):
		return fmt.Errorf("the new one is of %s %s with the key %x, this is node %s with the key %x: %w", s.Role, s.Name, KeyOf(c)[:4], i.Name(), i.Key()[:4], ErrOtherNode)
	}
	if err := check(c, trusted, x509.ExtKeyUsageServerAuth, time.Now()); err != nil { // the clock of who signed it is wrong, or this one: the old one may be good
		return fmt.Errorf("the new one is not taken: %w", err)
	}
	return nil
}

// ServerTLS is how the node answers: whoever connects shows a certificate of the authority with a role that the protocol is for. Only those who
// join have none.
func (i *Identity) ServerTLS() *tls.Config {
	var all []string
	for _, p := range []string{mux.ProtocolRaft, mux.ProtocolGossip, mux.ProtocolAgent, mux.ProtocolNode} {
		all = append(all, i.speaks.Names(p)...)
	}
	all = append(all, "h2", "http/1.1")
	base := func() *tls.Config {
		return &tls.Config{
			MinVersion: tls.VersionTLS13, NextProtos: all, SessionTicketsDisabled: true,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &i.held.Load().certificate, nil },
		}
	}
	out := base()
	out.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		c := base()
		if len(hello.SupportedProtos) > 0 && !slices.ContainsFunc(hello.SupportedProtos, func(name string) bool { return !is(name, mux.ProtocolJoin) }) {
			c.NextProtos = i.speaks.Names(mux.ProtocolJoin)
			return c, nil
		}
		c.ClientAuth = tls.RequireAnyClientCert
		c.VerifyConnection = func(s tls.ConnectionState) error { return i.checkClient(s) }
		return c, nil
	}
	return out
}

// is reports whether a name of TLS stands for a protocol, in any version.
func is(name, protocol string) bool {
	p, _ := mux.Protocol(name)
	return p == protocol
}

// LinkTLS is how a worker of the node answers those of other nodes.
func (i *Identity) LinkTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: i.speaks.Names(mux.ProtocolLink), SessionTicketsDisabled: true, ClientAuth: tls.RequireAnyClientCert,
		GetCertificate:   func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &i.held.Load().certificate, nil },
		VerifyConnection: func(s tls.ConnectionState) error { return i.checkClient(s) },
	}
}

// checkClient refuses who may not connect.
func (i *Identity) checkClient(s tls.ConnectionState) error {
	subject, err := i.verify(s, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return err
	}
	switch protocol, _ := mux.Protocol(s.NegotiatedProtocol); protocol {
	case "h2", "http/1.1", "": // none is HTTP/1.1
	case mux.ProtocolRaft, mux.ProtocolGossip, mux.ProtocolAgent, mux.ProtocolNode, mux.ProtocolLink:
		if subject.Role != RoleNode {
			return fmt.Errorf("the certificate of %s has the role %s: %w: %s is for nodes", subject.Name, subject.Role, ErrRole, s.NegotiatedProtocol)
		}
	default:
		return fmt.Errorf("%s asks for no protocol that there is", subject.Name)
	}
	return nil
}

// verify checks the chain of a certificate, and that a node is a member.
func (i *Identity) verify(s tls.ConnectionState, usage x509.ExtKeyUsage) (Subject, error) {
	if len(s.PeerCertificates) == 0 {
		return Subject{}, errors.New("there is no certificate")
	}
	c := s.PeerCertificates[0]
	if err := check(c, i.held.Load().authority, usage, time.Now()); err != nil {
		return Subject{}, err
	}
	subject, err := SubjectOf(c)
	if err == nil && subject.Role == RoleNode {
		if member := i.member.Load(); member != nil {
			err = (*member)(subject.Name, KeyOf(c))
		}
	}
	return subject, err
}

// ClientTLS is how the node asks another one for a protocol. Where the other's name is given, it must be that one.
func (i *Identity) ClientTLS(protocol, node string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: i.speaks.Names(protocol), ServerName: node,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &i.held.Load().certificate, nil },
		InsecureSkipVerify:   true, //nolint:gosec // VerifyConnection verifies, by the node's name
		VerifyConnection: func(s tls.ConnectionState) error {
			h := i.held.Load()
			if err := check(h.certificate.Leaf, h.authority, x509.ExtKeyUsageClientAuth, time.Now()); err != nil {
				return fmt.Errorf("this node's own: %w", err) // the other end would only send an alert
			}
			subject, err := i.verify(s, x509.ExtKeyUsageServerAuth)
			switch {
			case err != nil:
				return err
			case subject.Role != RoleNode:
				return fmt.Errorf("%s answers, of the role %s: %w: a node was expected", subject.Name, subject.Role, ErrRole)
			case node != "" && subject.Name != node:
				return fmt.Errorf("node %s answers; want node %s: %w", subject.Name, node, ErrOtherNode)
			case !is(s.NegotiatedProtocol, protocol):
				return fmt.Errorf("%s does not speak %s", subject.Name, protocol)
			}
			return nil
		},
	}
}

// Dial connects to a node for a protocol.
func (i *Identity) Dial(ctx context.Context, protocol, node, address string) (*tls.Conn, error) {
	c, err := (&tls.Dialer{Config: i.ClientTLS(protocol, node)}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("connect to node %s at %s: %w", node, address, Explain(err))
	}
	return c.(*tls.Conn), nil //nolint:errcheck,forcetypeassert // as documented of tls.Dialer
}
