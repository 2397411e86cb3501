package server

import (
	"encoding/pem"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

// tokenLongest is how long a token may wait to be used.
const tokenLongest = 30 * 24 * time.Hour

// memberRoutes are the operations on nodes, and on who is let in.
func (h *handler) memberRoutes() []route {
	const node = api.PathNodes + "/{node}"
	b := h.backend
	return []route{
		fromBody(route{
			method: http.MethodPost, path: api.PathTokens, name: "token", who: admin, does: "Make a token, with which somebody is let in once.", status: http.StatusCreated,
		}, h.token),
		fromBody(route{
			method: http.MethodPost, path: api.PathCertificate, name: "renew", who: anyone, does: "Make another certificate for whoever asks with one.",
		}, func(q *http.Request, r api.RenewRequest, peer Peer) (none api.RenewResponse, err error) {
			block, _ := pem.Decode([]byte(r.CSR))
			if block == nil {
				return none, api.Errorf(http.StatusBadRequest, "%s %s: the request for a certificate (csr) is no PEM", q.Method, q.URL.Path)
			}
			return b.RenewClient(q.Context(), block.Bytes, peer)
		}),
		fromBody(route{
			method: http.MethodPost, path: node + "/drain", name: "drain", who: admin, does: "Place nothing new on a node, and send the nodes.",
		}, func(q *http.Request, r api.DrainRequest, peer Peer) ([]api.NodeStatus, error) {
			return b.Drain(q.Context(), q.PathValue("node"), r.Reason, peer)
		}),
		byPeer(route{
			method: http.MethodPost, path: node + "/resume", name: "undrain", who: admin, does: "Place jobs on a node that was drained again, and send the nodes.",
		}, "node", b.Undrain),
		answering(route{
			method: http.MethodDelete, path: node, name: "removeNode", who: admin, does: "End the membership of a node, and send the others.",
			query: []parameter{{"force", "1: also of one that is alive, works on jobs, or alone has shards of a job's last committed round", ""}},
		}, func(q *http.Request) ([]api.NodeStatus, error) {
			peer, err := peerFrom(q.Context())
			if err != nil {
				return nil, err
			}
			force := q.URL.Query().Get("force")
			if force != "" && force != "1" {
				return nil, api.Errorf(http.StatusBadRequest, "%s %s: force=%q; allowed is 1, or nothing", q.Method, q.URL.Path, force)
			}
			return b.RemoveNode(q.Context(), q.PathValue("node"), force == "1", peer)
		}),
	}
}

// token makes a token.
func (h *handler) token(q *http.Request, r api.TokenRequest, peer Peer) (none api.TokenResponse, err error) {
	valid := time.Duration(r.ValidS * float64(time.Second))
	switch {
	case !slices.Contains([]string{roleNode, string(Viewer), string(Submitter), string(Admin)}, r.Role):
		return none, api.Errorf(http.StatusBadRequest, "a token for the role %q; allowed are node, admin, submit and view", r.Role)
	case math.IsNaN(r.ValidS) || r.ValidS < 1 || r.ValidS > tokenLongest.Seconds():
		return none, api.Errorf(http.StatusBadRequest, "a token that can be used for %g s; allowed are 1 s to %v", r.ValidS, tokenLongest)
	case (r.Role == roleNode) != (r.User == ""):
		return none, api.Errorf(http.StatusBadRequest, "a token for the role %s and the user %q: a node's names no user, the others do", r.Role, r.User)
	case r.UID == 0 && (r.Role == string(Viewer) || r.Role == string(Submitter)):
		return none, api.Errorf(http.StatusBadRequest, "a token for %s with the id of root: only an administrator may have it; say the user's id", r.User)
	}
	text, err := h.backend.CreateToken(q.Context(), r.Role, r.User, r.UID, valid, peer)
	if err != nil {
		return none, api.Errorf(http.StatusConflict, "make a token: %v", err)
	}
	return api.TokenResponse{Token: text}, nil
}
