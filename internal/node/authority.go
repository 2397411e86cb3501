package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/pki"
)

const (
	joinAgain  = time.Second      // the pause between attempts to join
	othersWait = 5 * time.Second  // how long each node may take to say that the cluster has begun
	tokenValid = 10 * time.Minute // of one that whoever holds the authority's key has made for itself
)

// InitAuthority is Init with an authority that was made before. A state directory that is a node of that authority's cluster stays as it is. It begins
// no second cluster where a node of the authority's answers at one of the addresses.
func InitAuthority(ctx context.Context, state, name string, a *pki.Authority, others []string) (id string, err error) {
	if is, err := memberOf(state, name, a); is || err != nil {
		return a.Cluster(), err
	}
	remote, err := administrator(a, nil)
	if err != nil {
		return "", err
	}
	for _, address := range others {
		asking, cancel := context.WithTimeout(ctx, othersWait)
		c, err := (&tls.Dialer{NetDialer: &net.Dialer{}, Config: remote.Config()}).DialContext(asking, "tcp", address)
		cancel()
		if err == nil {
			return "", errors.Join(fmt.Errorf("the cluster has begun: a node of it answers at %s, and the state directory %s is of none: join it (avgpiped join)", address, state), c.Close())
		}
	}
	return initWith(state, name, a)
}

// JoinAuthority is Join without a token: whoever holds the authority's key has the cluster make one. A state directory that is a node of the
// authority's cluster stays as it is.
func JoinAuthority(ctx context.Context, state, name, advertise, version string, a *pki.Authority, addresses []string) (id string, err error) {
	if is, err := memberOf(state, name, a); is || err != nil {
		return a.Cluster(), err
	}
	token, err := askToken(ctx, a, addresses)
	if err != nil {
		return "", err
	}
	return Join(ctx, state, name, advertise, version, token, addresses)
}

// Patiently joins again and again while no node lets it in, until one does, it is refused, or the time is over: a first node may be starting still.
func Patiently(ctx context.Context, wait time.Duration, join func(context.Context) (string, error)) (id string, err error) {
	end := time.Now().Add(wait)
	for {
		id, err = join(ctx)
		if _, silent := errors.AsType[*unanswered](err); !silent || time.Until(end) <= 0 {
			return id, err
		}
		if sleep(ctx, min(joinAgain, time.Until(end))); ctx.Err() != nil {
			return "", errors.Join(err, context.Cause(ctx))
		}
	}
}

// unanswered is why no node of a cluster could be asked.
type unanswered struct{ error }

func (u *unanswered) Unwrap() error { return u.error }

// memberOf reports whether a state directory is that of a node of the authority's cluster, and refuses one of another cluster or of another name.
func memberOf(state, name string, a *pki.Authority) (bool, error) {
	if !pki.IsMember(pkiDir(state)) {
		return false, nil
	}
	identity, err := pki.Open(pkiDir(state))
	switch {
	case err != nil:
		return false, err
	case !identity.Trusts(a):
		return false, fmt.Errorf("the state directory %s belongs to a node of another cluster than %s: take the authority of that one, or another directory", state, a.Cluster())
	case name != "" && name != identity.Name():
		return false, renamed(state, identity.Name(), name)
	}
	return true, nil
}

// administrator is how whoever holds the authority's key asks nodes.
func administrator(a *pki.Authority, addresses []string) (*api.Remote, error) {
	uid := os.Getuid()
	key, certificate, err := a.Issue(pki.Subject{Role: pki.RoleAdmin, Name: "authority", UID: uint32(uid)}, time.Now()) //nolint:gosec // of 32 bits
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("the administrator's certificate: %w", err)
	}
	trusted := x509.NewCertPool()
	trusted.AddCert(a.Certificate)
	return &api.Remote{Name: a.Cluster(), Addresses: addresses, Certificate: pair, Authority: trusted}, nil
}

// askToken has the cluster make a token for a node.
func askToken(ctx context.Context, a *pki.Authority, addresses []string) (string, error) {
	remote, err := administrator(a, addresses)
	if err != nil {
		return "", err
	}
	client := api.NewRemoteClient(*remote)
	defer client.Close()
	answer, err := client.Token(ctx, api.TokenRequest{Role: pki.RoleNode, ValidS: tokenValid.Seconds()})
	if err != nil {
		return "", &unanswered{fmt.Errorf("have a token made: %w", err)}
	}
	return answer.Token, nil
}
