package pki

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/mux"
)

// PathJoin is where whoever has a token asks, over mux.ProtocolJoin.
const PathJoin = "/join"

// MaxJoin bounds a request to join and its answer, bytes.
const MaxJoin = 256 << 10

// joinTimeout bounds one attempt.
const joinTimeout = 30 * time.Second

// JoinRequest asks for a certificate. Of a node it also says where that is.
type JoinRequest struct {
	Secret  []byte `json:"secret"` // of the token
	CSR     []byte `json:"csr"`    // DER
	Node    string `json:"node,omitempty"`
	Address string `json:"address,omitempty"`
	Version string `json:"version,omitempty"`

	// Speaks are the versions of the protocols between nodes. Default: mux.Spoken.
	Speaks mux.Versions `json:"-"`
}

// JoinResponse answers it. Exactly one of Certificate, Elsewhere and Error is set.
type JoinResponse struct {
	Certificate []byte   `json:"certificate,omitempty"` // DER
	Authority   [][]byte `json:"authority,omitempty"`   // DER, the newest last
	Cluster     string   `json:"cluster,omitempty"`
	Role        string   `json:"role,omitempty"`
	Name        string   `json:"name,omitempty"`
	Addresses   []string `json:"addresses,omitempty"` // of the nodes
	Elsewhere   string   `json:"elsewhere,omitempty"` // the address of the node that leads
	Error       string   `json:"error,omitempty"`
}

// JoinError says that a node refuses to let somebody in.
type JoinError struct{ Address, Reason string }

func (e *JoinError) Error() string { return fmt.Sprintf("%s refuses: %s", e.Address, e.Reason) }

// Join asks the node at an address for a certificate, and the one that it names as the leader. Whoever answers proves that it has a
// certificate of the token's authority, before the token's secret is sent.
func Join(ctx context.Context, address string, t Token, r JoinRequest) (*JoinResponse, error) {
	r.Secret = t.Secret
	for range 3 {
		answer, err := join(ctx, address, t, r)
		switch {
		case Foreign(err): // no other try helps
			return nil, &JoinError{address, Explain(err).Error()}
		case err != nil:
			return nil, fmt.Errorf("join by %s: %w", address, Explain(err))
		case answer.Error != "":
			return nil, &JoinError{address, answer.Error}
		case answer.Elsewhere != "":
			address = answer.Elsewhere
			continue
		}
		return answer, checkJoin(t, answer)
	}
	return nil, errors.New("join: every node names another one as the one that leads; try again")
}

// checkJoin refuses an answer whose certificate is not of its authority.
func checkJoin(t Token, answer *JoinResponse) error {
	var authority []*x509.Certificate
	for _, der := range answer.Authority {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return fmt.Errorf("join: the authority's certificate: %w", err)
		}
		authority = append(authority, c)
	}
	if !slices.ContainsFunc(authority, t.Matches) {
		return fmt.Errorf("join: the authority that came is not that of the token: %w", ErrOtherCluster)
	}
	c, err := x509.ParseCertificate(answer.Certificate)
	if err == nil {
		err = check(c, authority, x509.ExtKeyUsageClientAuth, time.Now())
	}
	if err != nil {
		return fmt.Errorf("join: the certificate that came: %w", err)
	}
	return nil
}

func join(ctx context.Context, address string, t Token, r JoinRequest) (*JoinResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: cmp.Or(r.Speaks, mux.Spoken).Names(mux.ProtocolJoin),
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies, by the token
		VerifyConnection:   t.verify,
	}}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "tcp", address)
	}}
	defer transport.CloseIdleConnections()
	body, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode the request: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://join"+PathJoin, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(io.LimitReader(response.Body, MaxJoin))
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	return readJoin(response.Status, response.StatusCode == http.StatusOK, text)
}

// readJoin reads an answer.
func readJoin(status string, ok bool, text []byte) (*JoinResponse, error) {
	var answer JoinResponse
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, fmt.Errorf("%s: the answer is no JSON: %w", status, err)
	}
	if !ok && answer.Error == "" {
		return nil, fmt.Errorf("%s: %s", status, text)
	}
	return &answer, nil
}

// verify checks that whoever answers is a node of the authority that the token names.
func (t Token) verify(s tls.ConnectionState) error {
	for _, c := range s.PeerCertificates[1:] {
		if !t.Matches(c) {
			continue
		}
		if err := check(s.PeerCertificates[0], []*x509.Certificate{c}, x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
			return fmt.Errorf("whoever answers: %w", err)
		}
		if subject, err := SubjectOf(s.PeerCertificates[0]); err != nil || subject.Role != RoleNode {
			return errors.Join(fmt.Errorf("whoever answers is %s of the role %s, no node", subject.Name, subject.Role), err)
		}
		return nil
	}
	return fmt.Errorf("whoever answers is of another cluster than the token: %w: take the address of a node of the cluster that made the token", ErrOtherCluster)
}

// Matches reports whether a certificate is that of the token's authority.
func (t Token) Matches(c *x509.Certificate) bool {
	sum := sha256.Sum256(c.Raw)
	return subtle.ConstantTimeCompare(sum[:], t.Authority[:]) == 1
}
