package server

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"
	"sync"

	"github.com/avgpipe/avgpipe/internal/api"
)

// right says who may use a route, in words for the description of the API. Every route declares one.
type right string

const (
	anyone    right = "Whoever may open the socket, or has a certificate."
	submitter right = "Whoever may open the socket, or has a certificate with the role submit or admin."
	owner     right = "The owner of the job, and administrators. A certificate with the role view may only read."
	admin     right = "Administrators."
)

// rights decide who may do what. On a unix socket root and the daemon's own user are administrators, and so are the members of a group;
// elsewhere the certificate says it.
type rights struct{ adminGroup string }

// administers reports whether a user is an administrator.
func (a rights) administers(p Peer) bool {
	if p.Role != "" {
		return p.Role == Admin
	}
	if p.UID == 0 || int(p.UID) == os.Geteuid() {
		return true
	}
	group, err := user.LookupGroup(a.adminGroup)
	if err != nil { // there is no such group, so nobody is in it
		return false
	}
	id, err := strconv.ParseUint(group.Gid, 10, 32)
	return err == nil && slices.Contains(p.GIDs, uint32(id))
}

// owns reports whether a user may do everything with a job.
func (a rights) owns(p Peer, s *api.JobStatus) bool {
	return p.UID == s.OwnerUID || a.administers(p)
}

// forbidden refuses somebody who does not own a job, and says who may and how to become one of them.
func (a rights) forbidden(p Peer, s *api.JobStatus) error {
	return api.Errorf(http.StatusForbidden, "job %s (%s) belongs to %s and you are %s: only its owner, root and members of the group %s may read, "+
		"export or cancel it; %s",
		s.ID, s.Name, describeUser(s.Owner, s.OwnerUID), p, a.adminGroup, a.join(p))
}

// join says how a user becomes an administrator.
func (a rights) join(p Peer) string {
	if p.Role != "" {
		return "your certificate has the role " + string(p.Role) + ": an administrator makes a token for another (avgpiped token --role admin)"
	}
	return fmt.Sprintf("to become a member: sudo usermod -aG %s %s, then log in again", a.adminGroup, UserName(p.UID))
}

// guard answers only those who have the right. The handler behind it gets a job by its id.
func (h *handler) guard(need right, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h.permit(need, r); err != nil {
			h.refuse(w, r, err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func (h *handler) permit(need right, r *http.Request) error {
	if need == anyone && r.TLS == nil {
		return nil // also of the port of metrics, where nobody is known
	}
	peer, err := peerFrom(r.Context())
	if err != nil {
		return api.Errorf(http.StatusForbidden, "%s %s: who asks is not known: %v", r.Method, r.URL.Path, err)
	}
	if read := r.Method == http.MethodGet || r.Method == http.MethodHead; !read && peer.Role == Viewer && r.URL.Path != api.PathCertificate {
		return api.Errorf(http.StatusForbidden, "%s %s: your certificate, of %s, has the role view, which may only read; %s", r.Method, r.URL.Path, peer, h.rights.join(peer))
	}
	switch need {
	case anyone, submitter:
		return nil
	case admin:
		if !h.rights.administers(peer) {
			return api.Errorf(http.StatusForbidden, "%s %s: you are %s, and only root and members of the group %s may do this; %s",
				r.Method, r.URL.Path, peer, h.rights.adminGroup, h.rights.join(peer))
		}
		return nil
	case owner:
		s, err := h.backend.Job(r.Context(), r.PathValue("job"))
		if err != nil {
			return err
		}
		if !h.rights.owns(peer, &s) {
			return h.rights.forbidden(peer, &s)
		}
		r.SetPathValue("job", s.ID) // a name may become another job's
		return nil
	}
	return fmt.Errorf("%s %s: the route does not declare who may use it", r.Method, r.URL.Path)
}

// visible is what a user may see of a list of jobs.
func (h *handler) visible(r *http.Request, jobs []api.JobStatus) []api.JobStatus {
	peer, err := peerFrom(r.Context())
	seen := make([]api.JobStatus, len(jobs)) // JSON: [], not null
	for i := range jobs {
		if seen[i] = jobs[i]; err != nil || !h.rights.owns(peer, &jobs[i]) {
			seen[i] = jobs[i].Public()
		}
	}
	return seen
}

// String names the user for people: "ada (uid 1000)".
func (p Peer) String() string { return describeUser(p.userName(), p.UID) }

func (p Peer) userName() string { return cmp.Or(p.Name, UserName(p.UID)) }

func describeUser(name string, uid uint32) string {
	if name == strconv.FormatUint(uint64(uid), 10) {
		return "uid " + name
	}
	return fmt.Sprintf("%s (uid %d)", name, uid)
}

// userNames remembers names, by user id: a status is asked for often, and a directory of users may be far.
var userNames sync.Map

// UserName returns the name of a user, its number where it has none.
func UserName(uid uint32) string {
	if name, ok := userNames.Load(uid); ok {
		return name.(string) //nolint:forcetypeassert,errcheck // only strings are stored
	}
	name := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(name); err == nil {
		name = u.Username
		userNames.Store(uid, name)
	}
	return name
}
