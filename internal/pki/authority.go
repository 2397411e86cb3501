// Package pki makes and checks the certificates of a cluster: an authority signs those of its nodes and of its users, who are let in by
// tokens that can be used once.
//
//	authority, err := pki.NewAuthority("c1", time.Now())
//	key, csr, err := pki.NewKey()
//	der, err := authority.Sign(csr, pki.Subject{Role: pki.RoleNode, Name: "n1"}, time.Now())
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/checkpoint"
)

// The roles of certificates.
const (
	RoleNode   = "node"
	RoleAdmin  = "admin"
	RoleSubmit = "submit"
	RoleView   = "view"
)

// Roles are those that a certificate may have.
var Roles = []string{RoleNode, RoleAdmin, RoleSubmit, RoleView}

// How long certificates are valid, from a little before they are made, for clocks that differ. The end of a node's is no means to keep it out: the
// others refuse the key of a node that was removed at once. So it is long, for hosts that are switched off. A user's cannot be taken back.
const (
	authorityFor = 10 * 365 * 24 * time.Hour
	nodeFor      = 365 * 24 * time.Hour
	userFor      = 90 * 24 * time.Hour
	clockSkew    = time.Hour
)

// Subject is who a certificate is for.
type Subject struct {
	Role string
	Name string // of the node, or of the user
	UID  uint32 // of a user
}

// mostInName is how many characters the name of a subject may have, as X.509 bounds them.
const mostInName = 64

// nameable reports whether a subject may have a name: letters and digits of any script, and ._@-. A regular expression of such classes that
// counts takes every process of the daemon some milliseconds to start.
func nameable(name string) bool {
	n := utf8.RuneCountInString(name)
	return n > 0 && n <= mostInName && !strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsNumber(r) && !strings.ContainsRune("._@-", r)
	})
}

// Validate reports a role or a name that no certificate may have.
func (s Subject) Validate() error {
	switch {
	case !slices.Contains(Roles, s.Role):
		return fmt.Errorf("the role %q: allowed are %s", s.Role, strings.Join(Roles, ", "))
	case !nameable(s.Name):
		return fmt.Errorf("the name %q: want up to 64 letters, digits, dots, dashes, underscores and @", s.Name)
	case s.UID == 0 && (s.Role == RoleSubmit || s.Role == RoleView):
		return fmt.Errorf("%s of the role %s has the id of root: only an administrator may", s.Name, s.Role)
	}
	return nil
}

// SubjectOf reads who a certificate is for.
func SubjectOf(c *x509.Certificate) (Subject, error) {
	s := Subject{Name: c.Subject.CommonName}
	if len(c.Subject.Organization) != 1 {
		return s, fmt.Errorf("the certificate of %q has %d roles; want one", s.Name, len(c.Subject.Organization))
	}
	s.Role = c.Subject.Organization[0]
	for _, u := range c.URIs {
		if u.Scheme == "avgpipe" && u.Host == "uid" {
			uid, err := strconv.ParseUint(strings.TrimPrefix(u.Path, "/"), 10, 32)
			if err != nil {
				return s, fmt.Errorf("the certificate of %q has the user id %q", s.Name, u)
			}
			s.UID = uint32(uid)
		}
	}
	return s, s.Validate()
}

// KeyOf is the SHA-256 of a certificate's public key.
func KeyOf(c *x509.Certificate) []byte {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return sum[:]
}

// Authority signs certificates.
type Authority struct {
	Certificate *x509.Certificate
	key         crypto.Signer
}

// NewAuthority makes the authority of a cluster.
func NewAuthority(cluster string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: clusterPrefix + cluster}, NotBefore: now.Add(-clockSkew), NotAfter: now.Add(authorityFor),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	c, err := x509.ParseCertificate(der)
	return &Authority{c, key}, err
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}

// MarshalKey is the private key in PEM, for other voters.
func (a *Authority) MarshalKey() ([]byte, error) { return marshalKey(a.key) }

// OpenAuthority makes an authority of its certificate (DER) and its key (PEM).
func OpenAuthority(certificate, key []byte) (*Authority, error) {
	c, err := x509.ParseCertificate(certificate)
	if err != nil {
		return nil, fmt.Errorf("the authority's certificate: %w", err)
	}
	signer, err := parseKey(key)
	if err != nil {
		return nil, fmt.Errorf("the authority's key: %w", err)
	}
	if public, ok := signer.Public().(*ecdsa.PublicKey); !ok || !public.Equal(c.PublicKey) {
		return nil, errors.New("the authority's key is not that of its certificate")
	}
	return &Authority{c, signer}, nil
}

// Sign makes a certificate for the key of a request (DER). What else the request says is not looked at.
func (a *Authority) Sign(csr []byte, s Subject, now time.Time) ([]byte, error) {
	if err := s.Validate(); err != nil {
		return nil, fmt.Errorf("sign a certificate: %w", err)
	}
	if len(csr) > maxDER {
		return nil, fmt.Errorf("sign a certificate of %s: a request of %d bytes; at most %d", s.Name, len(csr), maxDER)
	}
	request, err := x509.ParseCertificateRequest(csr)
	if err == nil {
		err = request.CheckSignature()
	}
	if err != nil {
		return nil, fmt.Errorf("sign a certificate of %s: the request: %w", s.Name, err)
	}
	if public, ok := request.PublicKey.(*ecdsa.PublicKey); !ok || public.Curve != elliptic.P256() {
		return nil, fmt.Errorf("sign a certificate of %s: the key is a %T; want one of ECDSA with P-256", s.Name, request.PublicKey)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: s.Name, Organization: []string{s.Role}},
		NotBefore: now.Add(-clockSkew), NotAfter: now.Add(userFor), KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if s.Role == RoleNode {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		// A certificate that is made while this clock is ahead is good at once when that is set right: a node without one is shut out, and cannot have another made.
		// A user's is not, and can: it could not be taken back.
		template.NotBefore, template.NotAfter = a.Certificate.NotBefore, now.Add(nodeFor)
	} else {
		template.URIs = []*url.URL{{Scheme: "avgpipe", Host: "uid", Path: "/" + strconv.FormatUint(uint64(s.UID), 10)}}
	}
	if end := a.Certificate.NotAfter; end.Before(template.NotAfter) {
		template.NotAfter = end
	}
	if !now.Before(template.NotAfter) {
		return nil, fmt.Errorf("sign a certificate of %s: the authority's own: %w on %s", s.Name, ErrExpired, template.NotAfter.Format(time.RFC3339))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.Certificate, request.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign a certificate of %s: %w", s.Name, err)
	}
	return der, nil
}

// NewKey makes a private key, in PEM, and a request for its certificate, DER.
func NewKey() (key, csr []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	if key, err = marshalKey(private); err != nil {
		return nil, nil, err
	}
	csr, err = request(private)
	return key, csr, err
}

// request makes a request for the certificate of a key.
func request(key crypto.Signer) ([]byte, error) {
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fmt.Errorf("make a request for a certificate: %w", err)
	}
	return csr, nil
}

// Request makes a request for the certificate of a key in PEM.
func Request(key []byte) ([]byte, error) {
	signer, err := parseKey(key)
	if err != nil {
		return nil, err
	}
	return request(signer)
}

func marshalKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parseKey(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("it is no PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("decode a key: %w", err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key is a %T, which signs nothing", key)
	}
	return signer, nil
}

// EncodeCertificates is certificates (DER) in PEM.
func EncodeCertificates(all ...[]byte) (text []byte) {
	for _, der := range all {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	return text
}

// authorityKeyFile is below the directory of a node that may vote.
const authorityKeyFile = "authority.key"

// WriteAuthorityKey keeps the authority's key, PEM, in a node's directory.
func WriteAuthorityKey(dir string, key []byte) error {
	return checkpoint.WriteFile(filepath.Join(dir, authorityKeyFile), key, 0o600)
}

// ReadAuthorityKey returns it. An error wraps fs.ErrNotExist where the node has none.
func ReadAuthorityKey(dir string) ([]byte, error) {
	key, err := readSecret(filepath.Join(dir, authorityKeyFile))
	if err != nil {
		return nil, fmt.Errorf("read the authority's key: %w", err)
	}
	return key, nil
}
