package cluster

import (
	"bytes"
	"fmt"
	"maps"
	"time"
)

// BeginCluster makes the node that was alone the first one of a cluster. The same once more changes nothing.
type BeginCluster struct {
	Authority Authority `json:"authority"`
	Node      Node      `json:"node"`
}

func (c *BeginCluster) apply(s *State) (string, error) {
	if err := c.Authority.Validate(); err != nil {
		return "", err
	}
	if a := s.authority; a != nil {
		if a.Cluster != c.Authority.Cluster {
			return "", fmt.Errorf("cluster %s: %w, %s", c.Authority.Cluster, ErrCluster, a.Cluster)
		}
		return "", nil
	}
	s.authority = &c.Authority
	return "", s.setNode(c.Node)
}

// setNode makes a node a member, or changes one, unless its key or address is another's.
func (s *State) setNode(n Node) error {
	if err := n.Validate(); err != nil {
		return err
	}
	for _, other := range s.Nodes() {
		switch {
		case other.Name == n.Name:
		case bytes.Equal(other.Key, n.Key):
			return fmt.Errorf("node %s: node %s: %w", n.Name, other.Name, ErrNodeKey)
		case other.Address == n.Address:
			return fmt.Errorf("node %s at %s: node %s: %w", n.Name, n.Address, other.Name, ErrNodeAddress)
		}
	}
	if s.nodes[n.Name] == nil && len(s.nodes) >= MaxNodes {
		return fmt.Errorf("node %s: %w: it has %d nodes; remove one first", n.Name, ErrTooMany, len(s.nodes))
	}
	n.Joined = n.Joined.UTC()
	s.nodes, s.nodeOrder = maps.Clone(s.nodes), &order[*Node]{}
	s.nodes[n.Name] = &n
	return nil
}

// editNode has change edit a copy of a member, which takes its place.
func (s *State) editNode(name string, change func(n *Node)) error {
	old, err := s.Node(name)
	if err != nil {
		return err
	}
	n := *old
	change(&n)
	return s.setNode(n)
}

// AddToken makes a token known. Those that have expired are forgotten.
type AddToken struct {
	Token Token     `json:"token"`
	At    time.Time `json:"at"` // the proposer's clock
}

func (c *AddToken) apply(s *State) (string, error) {
	t := &c.Token
	t.Expires = t.Expires.UTC()
	switch {
	case s.authority == nil:
		return "", ErrAlone
	case t.Validate() != nil:
		return "", t.Validate()
	case !c.At.Before(t.Expires):
		return "", fmt.Errorf("token made at %s that expires at %s: %w", c.At.UTC().Format(time.RFC3339), t.Expires.Format(time.RFC3339), ErrTokenExpired)
	case s.tokens[string(t.Hash)] != nil:
		return "", fmt.Errorf("token: there is one with that hash: %w", ErrTokenUsed)
	}
	kept := keptExpired
	if len(s.tokens) >= MaxTokens {
		kept = 0
	}
	s.tokens = maps.Clone(s.tokens)
	maps.DeleteFunc(s.tokens, func(_ string, old *Token) bool { return !c.At.Before(old.Expires.Add(kept)) })
	if len(s.tokens) >= MaxTokens {
		return "", fmt.Errorf("token: %w: %d tokens have not expired yet; wait, and let new ones expire sooner", ErrTooMany, len(s.tokens))
	}
	s.tokens[string(t.Hash)] = t
	return "", nil
}

// spend uses a token for a key. Once more for the same key changes nothing.
func (s *State) spend(hash, key []byte, at time.Time) (*Token, error) {
	if len(key) != keyBytes {
		return nil, fmt.Errorf("token: spent for a key of %d bytes; want the %d of a SHA-256", len(key), keyBytes)
	}
	t, err := s.Token(hash, key, at)
	if err != nil {
		return nil, err
	}
	spent := *t
	spent.Spent = key
	s.tokens = maps.Clone(s.tokens)
	s.tokens[string(hash)] = &spent
	return t, nil
}

// JoinNode makes a node a member, by a token. The same once more, with the same key, changes nothing but what the node says of itself; after
// RemoveNode it takes another token.
type JoinNode struct {
	Hash []byte    `json:"hash"` // of the token
	Node Node      `json:"node"`
	At   time.Time `json:"at"` // the proposer's clock
}

func (c *JoinNode) apply(s *State) (string, error) {
	if s.authority == nil {
		return "", ErrAlone
	}
	n := c.Node
	if err := n.Validate(); err != nil {
		return "", err
	}
	t, err := s.spend(c.Hash, n.Key, c.At)
	if err != nil {
		return "", fmt.Errorf("node %s: %w", n.Name, err)
	}
	old := s.nodes[n.Name]
	switch {
	case t.Role != TokenNode:
		return "", fmt.Errorf("node %s: %w: it gives user %s a certificate with the role %s; make one with avgpiped token", n.Name, ErrTokenRole, t.User, t.Role)
	case old != nil && !bytes.Equal(old.Key, n.Key):
		return "", fmt.Errorf("node %s: %w", n.Name, ErrNodeName)
	case old == nil && t.Spent != nil:
		return "", fmt.Errorf("node %s, which was removed since it joined: %w", n.Name, ErrTokenUsed)
	case old != nil:
		n.Joined, n.Draining, n.Reason, n.By = old.Joined, old.Draining, old.Reason, old.By
	default:
		n.Joined, n.Draining, n.Reason, n.By = c.At, false, "", ""
	}
	return "", s.setNode(n)
}

// SpendToken uses a token for a user's certificate.
type SpendToken struct {
	Hash []byte    `json:"hash"`
	Key  []byte    `json:"key"` // SHA-256 of the certificate's public key
	At   time.Time `json:"at"`  // the proposer's clock
}

func (c *SpendToken) apply(s *State) (string, error) {
	if s.authority == nil {
		return "", ErrAlone
	}
	t, err := s.spend(c.Hash, c.Key, c.At)
	if err == nil && t.Role == TokenNode {
		err = fmt.Errorf("%w: it makes a node a member; make one for a user with avgpiped token --role", ErrTokenRole)
	}
	return "", err
}

// UpdateNode changes what a member says of itself. What is empty stays.
type UpdateNode struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"`
	Version string `json:"version,omitempty"`
	Key     []byte `json:"key,omitempty"`
}

func (c *UpdateNode) apply(s *State) (string, error) {
	return "", s.editNode(c.Name, func(n *Node) {
		if c.Address != "" {
			n.Address = c.Address
		}
		if c.Version != "" {
			n.Version = c.Version
		}
		if len(c.Key) > 0 {
			n.Key = c.Key
		}
	})
}

// DrainNode has nothing new placed on a member, and what is there placed elsewhere. Once more changes the reason.
type DrainNode struct {
	Name   string `json:"name"`
	Reason string `json:"reason"`
	By     string `json:"by,omitempty"` // who, for people
}

func (c *DrainNode) apply(s *State) (string, error) {
	return "", s.editNode(c.Name, func(n *Node) { n.Draining, n.Reason, n.By = true, c.Reason, c.By })
}

// ResumeNode ends a DrainNode. Of a member that is not drained it changes nothing.
type ResumeNode struct {
	Name string `json:"name"`
}

func (c *ResumeNode) apply(s *State) (string, error) {
	return "", s.editNode(c.Name, func(n *Node) { n.Draining, n.Reason, n.By = false, "", "" })
}

// RemoveNode ends a membership: the others refuse the node's key from then on.
type RemoveNode struct {
	Name   string `json:"name"`
	Reason string `json:"reason"` // for people who read the log
}

func (c *RemoveNode) apply(s *State) (string, error) {
	if _, err := s.Node(c.Name); err != nil {
		return "", err
	}
	if len(s.nodes) == 1 {
		return "", fmt.Errorf("node %s: %w", c.Name, ErrLastNode)
	}
	s.nodes, s.nodeOrder = maps.Clone(s.nodes), &order[*Node]{}
	delete(s.nodes, c.Name)
	return "", nil
}
