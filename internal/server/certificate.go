package server

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/access"
)

// maxPeer bounds the header that says who asks, bytes.
const maxPeer = 16 << 10

// peerOfTLS says who makes a request over TLS: the user whom the certificate names, whose chain and validity TLS has checked, or the one that a
// node says it asks for.
func peerOfTLS(r *http.Request) (Peer, error) {
	if len(r.TLS.PeerCertificates) == 0 {
		return Peer{}, errNoCertificate
	}
	c, passed := r.TLS.PeerCertificates[0], r.Header.Values(headerPeer)
	if slices.Equal(c.Subject.Organization, []string{roleNode}) {
		if len(passed) != 1 {
			return Peer{}, fmt.Errorf("the certificate is of node %s, which passes on what others ask and asks nothing itself", c.Subject.CommonName)
		}
		return passedPeer(c.Subject.CommonName, passed[0])
	}
	peer, err := peerOfCertificate(c)
	if err == nil && len(passed) > 0 {
		err = fmt.Errorf("the certificate of %s is no node's, and says that it asks for somebody else", peer)
	}
	peer.From = r.RemoteAddr
	return peer, err
}

// peerOfCertificate reads the certificate of a user.
func peerOfCertificate(c *x509.Certificate) (Peer, error) {
	if len(c.Subject.Organization) != 1 || !slices.Contains([]Role{Viewer, Submitter, Admin}, Role(c.Subject.Organization[0])) {
		return Peer{}, fmt.Errorf("the certificate has the role %q; allowed are %s, %s and %s", c.Subject.Organization, Viewer, Submitter, Admin)
	}
	peer := Peer{Name: c.Subject.CommonName, Role: Role(c.Subject.Organization[0])}
	uids := slices.DeleteFunc(slices.Clone(c.URIs), func(u *url.URL) bool { return u.Scheme != "avgpipe" || u.Host != "uid" })
	if len(uids) != 1 || peer.Name == "" {
		return Peer{}, fmt.Errorf("the certificate of %q names %d user ids (avgpipe://uid/N); want one", peer.Name, len(uids))
	}
	uid, err := strconv.ParseUint(strings.TrimPrefix(uids[0].Path, "/"), 10, 32)
	if err != nil {
		return Peer{}, fmt.Errorf("the certificate of %q has the user id %q: want a number", peer.Name, uids[0])
	}
	if uid == 0 && peer.Role != Admin {
		return Peer{}, fmt.Errorf("the certificate of %q has the id of root and the role %s: root's files would be open to it", peer.Name, peer.Role)
	}
	peer.UID = uint32(uid)
	return peer, nil
}

// withGroups adds the groups that this host knows of a user who asks over the network.
func (p Peer) withGroups() Peer {
	if p.Role == "" || len(p.GIDs) > 0 {
		return p
	}
	u, err := user.LookupId(strconv.FormatUint(uint64(p.UID), 10))
	if err != nil {
		return p // the user's files are still his
	}
	ids, err := u.GroupIds()
	if err != nil {
		ids = nil
	}
	for _, id := range append([]string{u.Gid}, ids...) {
		if gid, err := strconv.ParseUint(id, 10, 32); err == nil && !slices.Contains(p.GIDs, uint32(gid)) {
			p.GIDs = append(p.GIDs, uint32(gid))
		}
	}
	return p
}

// encode is a peer as another node is told it.
func (p Peer) encode() (string, error) {
	text, err := json.Marshal(p)
	if err == nil && base64.StdEncoding.EncodedLen(len(text)) > maxPeer {
		err = fmt.Errorf("%s has %d groups; other nodes are told of fewer", p, len(p.GIDs))
	}
	return base64.StdEncoding.EncodeToString(text), err
}

// passedPeer reads what a node says of who asks.
func passedPeer(node, header string) (Peer, error) {
	var p Peer
	if len(header) > maxPeer {
		return p, fmt.Errorf("node %s says who asks in %d bytes; at most %d", node, len(header), maxPeer)
	}
	text, err := base64.StdEncoding.DecodeString(header)
	if err == nil {
		err = json.Unmarshal(text, &p)
	}
	if err == nil && !slices.Contains([]Role{Viewer, Submitter, Admin}, p.Role) {
		err = fmt.Errorf("role %q", p.Role)
	}
	if err != nil {
		return Peer{}, fmt.Errorf("node %s says who asks, which cannot be read: %w", node, err)
	}
	p.Via = node
	return p, nil
}

// toPass is a peer as it is passed on: who asks on a unix socket is an administrator of all nodes, or submits.
func (a rights) toPass(p Peer) Peer {
	if p.Role == "" {
		p.Name, p.Role = p.userName(), Submitter
		if a.administers(Peer{User: access.User{UID: p.UID, GIDs: p.GIDs}}) {
			p.Role = Admin
		}
	}
	return p
}
