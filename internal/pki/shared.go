package pki

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// clusterPrefix is before the cluster's id in the name of its authority.
const clusterPrefix = "avgpipe cluster "

// Cluster is the id of the cluster that the authority is of.
func (a *Authority) Cluster() string {
	return strings.TrimPrefix(a.Certificate.Subject.CommonName, clusterPrefix)
}

// NewCluster is a new cluster's id.
func NewCluster() string {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// MakeAuthority makes an authority of a cluster that is yet to begin, and keeps its certificate and its key in a directory, which is made where it is
// missing. One that has either file is refused.
func MakeAuthority(dir string, now time.Time) (*Authority, error) {
	a, err := NewAuthority(NewCluster(), now)
	if err != nil {
		return nil, err
	}
	key, err := a.MarshalKey()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep the authority: %w", err)
	}
	for _, name := range []string{authorityKeyFile, authorityFile} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			return nil, errors.Join(fmt.Errorf("%s is there: an authority is made once; take another directory", path), err)
		}
	}
	if err := WriteAuthorityKey(dir, key); err != nil {
		return nil, err
	}
	return a, checkpoint.WriteFile(filepath.Join(dir, authorityFile), EncodeCertificates(a.Certificate.Raw), 0o644)
}

// ReadAuthority reads what MakeAuthority wrote, or what somebody mounted in its place: unlike a node's own key, the files may be links, and their group
// may read them.
func ReadAuthority(dir string) (*Authority, error) {
	key, err := readShared(filepath.Join(dir, authorityKeyFile), 0o007)
	var text []byte
	if err == nil {
		text, err = readShared(filepath.Join(dir, authorityFile), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("read the authority: %w", err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("read the authority: %s is no PEM", filepath.Join(dir, authorityFile))
	}
	a, err := OpenAuthority(block.Bytes, key)
	if err != nil {
		return nil, fmt.Errorf("read the authority in %s: %w", dir, err)
	}
	if !a.Certificate.IsCA || !strings.HasPrefix(a.Certificate.Subject.CommonName, clusterPrefix) {
		return nil, fmt.Errorf("read the authority in %s: the certificate is of %q, which is no authority of a cluster: have one made by avgpiped authority", dir, a.Certificate.Subject.CommonName)
	}
	return a, nil
}

// readShared reads a file that may be a link, and refuses one that has any of these permissions.
func readShared(path string, not fs.FileMode) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > maxDER:
		return nil, fmt.Errorf("%s: mode %v, %d bytes; want a regular file of at most %d", path, info.Mode(), info.Size(), maxDER)
	case info.Mode().Perm()&not != 0:
		return nil, fmt.Errorf("%s has mode %v: everybody can read the key; have another one made, or chmod o-rwx where nobody has", path, info.Mode().Perm())
	}
	return os.ReadFile(path)
}

// Issue makes a key and its certificate: key and certificate in PEM, as crypto/tls reads them.
func (a *Authority) Issue(s Subject, now time.Time) (key, certificate []byte, err error) {
	key, csr, err := NewKey()
	if err != nil {
		return nil, nil, err
	}
	der, err := a.Sign(csr, s, now)
	if err != nil {
		return nil, nil, err
	}
	return key, EncodeCertificates(der, a.Certificate.Raw), nil
}

// Trusts reports whether the identity's authority is this one.
func (i *Identity) Trusts(a *Authority) bool {
	for _, c := range i.Authority() {
		if c.Equal(a.Certificate) {
			return true
		}
	}
	return false
}
