package shard

import (
	"encoding/hex"
	"fmt"
)

// Digest is the SHA-256 of a file, in 64 lower-case hexadecimal digits.
type Digest string

// ParseDigest checks that s is a digest.
func ParseDigest(s string) (Digest, error) {
	raw, err := hex.DecodeString(s)
	if err != nil || len(raw) != 32 || hex.EncodeToString(raw) != s {
		return "", fmt.Errorf("digest %q: expected 64 lower-case hexadecimal digits (SHA-256)", s)
	}
	return Digest(s), nil
}

// Cursor is where a pipeline stands in its data: the batches it has consumed.
type Cursor struct {
	Pipeline int    `json:"pipeline"`
	Step     uint64 `json:"step"`
}
