package cluster

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Bounds of what the state holds of a cluster's members.
const (
	MaxNodes  = 1024
	MaxTokens = 1000

	keyBytes        = 32 // of a SHA-256
	maxNameBytes    = 256
	maxAddressBytes = 300
	maxReasonBytes  = 4 << 10
	maxCertificates = 8
	maxCertificate  = 16 << 10 // bytes
)

// keptExpired is how long a token that has expired is remembered, so that whoever uses it is told that it has. Where tokens are at their
// bound, none is.
const keptExpired = 24 * time.Hour

// TokenNode is the role of a token that makes a node a member. With any other role it gives a user a certificate.
const TokenNode = "node"

// Node is a member of the cluster.
type Node struct {
	Name    string    `json:"name"`
	Address string    `json:"address"` // HOST:PORT, where the others reach it
	Version string    `json:"version"` // of its program, as it last said
	Key     []byte    `json:"key"`     // SHA-256 of its public key (SubjectPublicKeyInfo, DER)
	Joined  time.Time `json:"joined"`  // by the clock of the proposer
	// Draining says that nothing new is placed on it.
	Draining bool   `json:"draining,omitempty"`
	Reason   string `json:"reason,omitempty"` // why it is drained, for people
	By       string `json:"by,omitempty"`     // who drains it, for people
}

// Authority is what the cluster trusts.
type Authority struct {
	Cluster      string   `json:"cluster"`      // its id
	Certificates [][]byte `json:"certificates"` // DER, the newest last
	GossipKey    []byte   `json:"gossip_key"`   // of gossip's datagrams
}

// Token lets somebody become a member, or get a user's certificate, once.
type Token struct {
	Hash    []byte    `json:"hash"` // SHA-256 of its secret
	Role    string    `json:"role"` // TokenNode, or a user's role
	User    string    `json:"user,omitempty"`
	UID     uint32    `json:"uid,omitempty"`
	Expires time.Time `json:"expires"`
	By      string    `json:"by,omitempty"` // who made it, for people
	// Spent is the SHA-256 of the public key that it was used for; nil: it was not used.
	Spent []byte `json:"spent,omitempty"`
}

// Errors of members and tokens; test with errors.Is.
var (
	ErrAlone        = errors.New("this node is not one of a cluster: avgpiped init begins one")
	ErrCluster      = errors.New("this state belongs to another cluster")
	ErrNoNode       = errors.New("no such node: avgpipectl nodes lists them")
	ErrLastNode     = errors.New("it is the only node: a cluster keeps one")
	ErrNodeName     = errors.New("a node of that name has another key: choose another name, or remove that node first")
	ErrNodeKey      = errors.New("another node has that key: remove it first, or join with a fresh state directory")
	ErrNodeAddress  = errors.New("another node has that address: set advertise to one of this node's own, or remove that node first")
	ErrTooMany      = errors.New("the cluster is full")
	ErrTokenUnknown = errors.New("the token is unknown: copy it whole, or have a new one made by avgpiped token")
	ErrTokenExpired = errors.New("the token has expired: have a new one made by avgpiped token")
	ErrTokenUsed    = errors.New("the token was used already: have a new one made by avgpiped token")
	ErrTokenRole    = errors.New("the token is for something else")
)

// Authority is what the cluster trusts, or nil of a node that is alone.
func (s *State) Authority() *Authority { return s.authority }

// Node returns a member, or an error that wraps ErrNoNode.
func (s *State) Node(name string) (*Node, error) {
	n, ok := s.nodes[name]
	if !ok {
		return nil, fmt.Errorf("node %q: %w", name, ErrNoNode)
	}
	return n, nil
}

// Nodes are the members, by name. A node that is alone has none. The slice is shared, also with other states that have the same members.
func (s *State) Nodes() []*Node {
	return s.nodeOrder.of(s.nodes, func(a, b *Node) int { return cmp.Compare(a.Name, b.Name) })
}

// Tokens are those that are remembered, by hash.
func (s *State) Tokens() []*Token {
	return slices.SortedFunc(maps.Values(s.tokens), func(a, b *Token) int { return bytes.Compare(a.Hash, b.Hash) })
}

// Token returns a token that can be used at a time for a key, or an error that wraps ErrTokenUnknown, ErrTokenExpired or ErrTokenUsed. One
// that was used for that key already is returned as well: the answer may have been lost.
func (s *State) Token(hash, key []byte, at time.Time) (*Token, error) {
	t := s.tokens[string(hash)]
	switch {
	case t == nil:
		return nil, ErrTokenUnknown
	case t.Spent != nil && bytes.Equal(t.Spent, key):
		return t, nil
	case t.Spent != nil:
		return nil, ErrTokenUsed
	case !at.Before(t.Expires):
		return nil, fmt.Errorf("%w; it was valid until %s, and it is %s by the clock of the node that leads",
			ErrTokenExpired, t.Expires.Format(time.RFC3339), at.UTC().Format(time.RFC3339))
	}
	return t, nil
}

// Validate reports the first thing that does not fit.
func (n *Node) Validate() error {
	if !nameFits(n.Name) {
		return fmt.Errorf("node %q: its name has 1 to %d bytes of printable UTF-8 without spaces", n.Name, maxNameBytes)
	}
	host, port, err := net.SplitHostPort(n.Address)
	number, portErr := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || portErr != nil || number == 0 || !nameFits(host) || len(n.Address) > maxAddressBytes:
		return fmt.Errorf("node %s: address %q: want HOST:PORT, such as 192.0.2.7:7700", n.Name, n.Address)
	case net.ParseIP(host).IsUnspecified():
		return fmt.Errorf("node %s: address %s is every address of its host: set advertise to the one where others reach it", n.Name, n.Address)
	case len(n.Key) != keyBytes:
		return fmt.Errorf("node %s: a key of %d bytes; want the %d of a SHA-256", n.Name, len(n.Key), keyBytes)
	case len(n.Version) > maxNameBytes || len(n.Reason) > maxReasonBytes || len(n.By) > maxNameBytes:
		return fmt.Errorf("node %s: version, reason and by have %d, %d and %d bytes; at most %d, %d and %d",
			n.Name, len(n.Version), len(n.Reason), len(n.By), maxNameBytes, maxReasonBytes, maxNameBytes)
	}
	return nil
}

// nameFits reports whether a text can be a name: printable, without spaces, and short.
func nameFits(name string) bool {
	return name != "" && len(name) <= maxNameBytes && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return !strconv.IsPrint(r) || r == ' ' })
}

// Validate reports the first thing that does not fit.
func (a *Authority) Validate() error {
	if !nameFits(a.Cluster) || len(a.Certificates) == 0 || len(a.Certificates) > maxCertificates {
		return fmt.Errorf("authority of cluster %q with %d certificates: want an id and 1 to %d certificates", a.Cluster, len(a.Certificates), maxCertificates)
	}
	for i, c := range a.Certificates {
		if len(c) == 0 || len(c) > maxCertificate {
			return fmt.Errorf("authority of cluster %s: certificate %d has %d bytes; want 1 to %d", a.Cluster, i, len(c), maxCertificate)
		}
	}
	if n := len(a.GossipKey); n != 16 && n != 24 && n != 32 {
		return fmt.Errorf("authority of cluster %s: a gossip key of %d bytes; want 16, 24 or 32", a.Cluster, n)
	}
	return nil
}

// Validate reports the first thing that does not fit.
func (t *Token) Validate() error {
	switch {
	case len(t.Hash) != keyBytes || (t.Spent != nil && len(t.Spent) != keyBytes):
		return fmt.Errorf("token: a hash of %d bytes, spent for a key of %d; want the %d of a SHA-256", len(t.Hash), len(t.Spent), keyBytes)
	case !nameFits(t.Role) || len(t.By) > maxNameBytes || t.Expires.IsZero():
		return fmt.Errorf("token with role %q, made by %q, that expires at %v: it needs a role and a time, and by has at most %d bytes", t.Role, t.By, t.Expires, maxNameBytes)
	case (t.Role == TokenNode) != (t.User == "") || t.User != "" && !nameFits(t.User):
		return fmt.Errorf("token with role %s for user %q: those of nodes name no user, the others a short name without spaces", t.Role, t.User)
	}
	return nil
}
