package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
)

// tokenPrefix starts a token's text, so that whoever finds one knows what it is.
const tokenPrefix = "avgpipe-"

const secretBytes = 24

// Token is what somebody is let in with, once. Its text also names the authority, so that whoever uses it knows whom to trust.
type Token struct {
	Secret    []byte
	Authority [sha256.Size]byte // SHA-256 of the authority's certificate
}

// NewToken makes a token of an authority, whose certificate is given (DER).
func NewToken(authority []byte) Token {
	t := Token{Secret: make([]byte, secretBytes), Authority: sha256.Sum256(authority)}
	_, _ = rand.Read(t.Secret) // never fails
	return t
}

// Hash is what the cluster knows of it.
func (t Token) Hash() []byte {
	sum := sha256.Sum256(t.Secret)
	return sum[:]
}

// String is the token's text.
func (t Token) String() string {
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(append([]byte{}, t.Secret...), t.Authority[:]...))
}

// ErrToken refuses what is no token; the error says why, without the text, which is secret.
var ErrToken = errors.New("this is no token: copy all of what avgpiped token printed, from " + tokenPrefix + " on")

// ParseToken reads a token's text.
func ParseToken(text string) (t Token, err error) {
	coded, ok := strings.CutPrefix(strings.TrimSpace(text), tokenPrefix)
	if !ok {
		return t, fmt.Errorf("%w: it does not start with %s", ErrToken, tokenPrefix)
	}
	if want := base64.RawURLEncoding.EncodedLen(secretBytes + sha256.Size); len(coded) != want {
		return t, fmt.Errorf("%w: %d characters follow, expected %d", ErrToken, len(coded), want)
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(coded)
	if err != nil || len(raw) != secretBytes+sha256.Size {
		return t, fmt.Errorf("%w: it has characters that are none of base64url", ErrToken)
	}
	t.Secret = raw[:secretBytes]
	copy(t.Authority[:], raw[secretBytes:])
	return t, nil
}
