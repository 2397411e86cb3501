package membership

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
)

// The datagrams: a byte of the versions of the protocols between nodes that the sender speaks, and AES-GCM with a random nonce before it. What is not in a datagram is authenticated with it: the cluster,
// and the node that it is for. Streams have TLS.
const (
	oldestBits = 6
	maxOldest  = 1<<oldestBits - 1
	maxNewer   = 3
	sealBytes  = 1 + 12 + 16 // more than what is sealed
	maxPacket  = 1400        // bytes of a datagram; networks carry 1,500 with the headers
)

// Why a datagram is dropped; test with errors.Is.
var (
	ErrPacket = errors.New("it is no datagram of gossip, or of another major version of avgpiped")
	ErrKey    = errors.New("it is sealed with another key, for another cluster or node, or damaged")
)

// sealer seals and opens datagrams. Its methods may be called concurrently.
type sealer struct {
	aead           cipher.AEAD
	cluster        string
	oldest, newest int
}

// speaks is the byte of versions: the oldest in its lower bits, and how many newer ones there are.
func speaks(oldest, newest int) byte { return byte(oldest | (newest-oldest)<<oldestBits) }

// newSealer makes that of a List.
func newSealer(c Config) (*sealer, error) {
	block, err := aes.NewCipher(c.Key)
	if err != nil {
		return nil, fmt.Errorf("the key of gossip: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("the key of gossip: %w", err)
	}
	return &sealer{aead, c.Cluster, c.Oldest, c.Newest}, nil
}

// bound is what is authenticated beside the datagram.
func (s *sealer) bound(to string) []byte {
	return append(append([]byte(s.cluster), 0), to...)
}

// seal returns the datagram that carries plain to a node.
func (s *sealer) seal(plain []byte, to string) []byte {
	out := make([]byte, 1, sealBytes+len(plain))
	out[0] = speaks(s.oldest, s.newest)
	return s.aead.Seal(out, nil, plain, s.bound(to))
}

// open returns what a datagram for a node carries.
func (s *sealer) open(packet []byte, to string) ([]byte, error) {
	if len(packet) <= sealBytes || len(packet) > maxPacket {
		return nil, fmt.Errorf("%w: %d bytes", ErrPacket, len(packet))
	}
	oldest := int(packet[0] & maxOldest)
	if newest := oldest + int(packet[0]>>oldestBits); newest < s.oldest || oldest > s.newest {
		return nil, fmt.Errorf("%w: it is of versions %d to %d, this node of %d to %d", ErrPacket, oldest, newest, s.oldest, s.newest)
	}
	plain, err := s.aead.Open(nil, nil, packet[1:], s.bound(to))
	if err != nil {
		return nil, ErrKey
	}
	return plain, nil
}
