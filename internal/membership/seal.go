package membership

import (
	"crypto/aes"
	"crypto/cipher"
	"errors"
	"fmt"
)

// The datagrams: a byte of the format, and AES-GCM with a random nonce before it. What is not in a datagram is authenticated with it: the cluster,
// and the node that it is for. Streams have TLS.
const (
	sealFormat = 1
	sealBytes  = 1 + 12 + 16 // more than what is sealed
	maxPacket  = 1400        // bytes of a datagram; networks carry 1,500 with the headers
)

// Why a datagram is dropped; test with errors.Is.
var (
	ErrPacket = errors.New("it is no datagram of gossip, or of another version")
	ErrKey    = errors.New("it is sealed with another key, for another cluster or node, or damaged")
)

// sealer seals and opens datagrams. Its methods may be called concurrently.
type sealer struct {
	aead    cipher.AEAD
	cluster string
}

func newSealer(key []byte, cluster string) (*sealer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("the key of gossip: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, fmt.Errorf("the key of gossip: %w", err)
	}
	return &sealer{aead, cluster}, nil
}

// bound is what is authenticated beside the datagram.
func (s *sealer) bound(to string) []byte {
	return append(append([]byte(s.cluster), 0), to...)
}

// seal returns the datagram that carries plain to a node.
func (s *sealer) seal(plain []byte, to string) []byte {
	out := make([]byte, 1, sealBytes+len(plain))
	out[0] = sealFormat
	return s.aead.Seal(out, nil, plain, s.bound(to))
}

// open returns what a datagram for a node carries.
func (s *sealer) open(packet []byte, to string) ([]byte, error) {
	if len(packet) <= sealBytes || len(packet) > maxPacket || packet[0] != sealFormat {
		return nil, fmt.Errorf("%w: %d bytes", ErrPacket, len(packet))
	}
	plain, err := s.aead.Open(nil, nil, packet[1:], s.bound(to))
	if err != nil {
		return nil, ErrKey
	}
	return plain, nil
}
