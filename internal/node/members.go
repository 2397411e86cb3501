package node

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
	"github.com/avgpipe/avgpipe/internal/coordinator"
	"github.com/avgpipe/avgpipe/internal/pki"
	"github.com/avgpipe/avgpipe/internal/server"
)

func (n *node) Nodes(context.Context) ([]api.NodeStatus, error) {
	jobs, published := map[string][]string{}, n.coordinator().Published()
	for id, v := range published.Jobs {
		for _, name := range v.Nodes {
			jobs[name] = append(jobs[name], id)
		}
	}
	self := n.self()
	if n.member == nil {
		self.Role, self.Jobs = api.RoleLeader, append(self.Jobs, jobs[n.id]...)
		return []api.NodeStatus{self}, nil
	}
	members, err := n.raft.Members()
	if err != nil {
		return nil, err
	}
	voters, leader, now, heard := raftlog.Voters(members), n.raft.Leader(), time.Now(), n.member.gossip.members()
	all := []api.NodeStatus{}
	for _, node := range n.raft.State().Nodes() {
		s := self
		if node.Name != n.id {
			s = n.other(node.Name, heard[node.Name], now)
			s.ID, s.Address, s.Version = node.Name, node.Address, cmp.Or(s.Version, node.Version)
		}
		s.Role, s.Leader = api.RoleNonVoter, node.Name == leader
		if slices.Contains(voters, node.Name) {
			s.Role = api.RoleVoter
		}
		if s.Leader {
			s.Role = api.RoleLeader
		}
		s.Jobs = slices.Sorted(slices.Values(append([]string{}, jobs[node.Name]...)))
		s.Reason, s.Links = cmp.Or(node.Reason, s.Reason), linksOf(published.Links, node.Name, now)
		if node.Draining {
			s.Alone = ids(n.onlyOn(node.Name))
		}
		if node.Draining && s.State == api.NodeAlive {
			s.State = api.NodeDraining
		}
		all = append(all, s)
	}
	if n.Leads() {
		settleDrained(all)
	}
	return all, nil
}

// settleDrained says of nodes that are being drained whether they are: nothing runs there any more, and what only they have of jobs is copied, unless no
// other node takes copies. It says for which copies it waits.
func settleDrained(all []api.NodeStatus) {
	takes := slices.ContainsFunc(all, func(s api.NodeStatus) bool { return s.State == api.NodeAlive })
	for i := range all {
		s := &all[i]
		if len(s.Alone) > 0 {
			then := "these are being copied to other nodes"
			if !takes {
				then = "no other node takes copies now"
			}
			s.Reason += fmt.Sprintf("; only it has shards of the last committed rounds of jobs %s: %s", strings.Join(s.Alone, ", "), then)
		}
		if s.State == api.NodeDraining && len(s.Jobs) == 0 && (len(s.Alone) == 0 || !takes) {
			s.State = api.NodeDrained
		}
	}
}

// ids are those of jobs.
func ids(jobs []*cluster.Job) (all []string) {
	for _, j := range jobs {
		all = append(all, j.ID)
	}
	return all
}

// linksOf are the links of a node of which something is known but that they are there, by the other node.
func linksOf(known map[[2]string]coordinator.Link, name string, now time.Time) (all []api.NodeLink) {
	for ends, l := range known {
		if slices.Contains(ends[:], name) && !l.Assumed {
			other := ends[0]
			if other == name {
				other = ends[1]
			}
			all = append(all, api.NodeLink{Node: other, BitsPerS: l.BitsPerSecond, AtLeast: l.AtLeast, RoundTripS: l.RoundTrip.Seconds(), AgeS: now.Sub(l.At).Seconds()})
		}
	}
	slices.SortFunc(all, func(a, b api.NodeLink) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// Drain implements server.Members.
func (n *node) Drain(ctx context.Context, name, reason string, by server.Peer) ([]api.NodeStatus, error) {
	text := by.String() + " drains it"
	if reason != "" {
		text += ": " + reason
	}
	return n.changeNode(ctx, "drain", name, &cluster.DrainNode{Name: name, Reason: text, By: by.String()})
}

// Undrain implements server.Members.
func (n *node) Undrain(ctx context.Context, name string, _ server.Peer) ([]api.NodeStatus, error) {
	return n.changeNode(ctx, "resume", name, &cluster.ResumeNode{Name: name})
}

func (n *node) changeNode(ctx context.Context, verb, name string, c cluster.Command) ([]api.NodeStatus, error) {
	if err := n.mustHave(verb, name); err != nil {
		return nil, err
	}
	if _, err := n.raft.Apply(ctx, c); err != nil {
		return nil, fmt.Errorf("%s node %s: %w", verb, name, err)
	}
	return n.Nodes(ctx)
}

// mustHave refuses a name that no node has.
func (n *node) mustHave(verb, name string) error {
	state := n.raft.State()
	if state.Authority() == nil {
		return api.Errorf(http.StatusConflict, "%s node %s: %v", verb, name, cluster.ErrAlone)
	}
	if _, err := state.Node(name); err != nil {
		return api.Errorf(http.StatusNotFound, "%s node %s: there is no such node; avgpipectl nodes lists them", verb, name)
	}
	return nil
}

// RemoveNode implements server.Members.
func (n *node) RemoveNode(ctx context.Context, name string, force bool, by server.Peer) ([]api.NodeStatus, error) {
	if err := n.mustHave("remove", name); err != nil {
		return nil, err
	}
	all, err := n.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(s api.NodeStatus) bool { return s.ID == name })
	if i < 0 {
		return nil, api.Errorf(http.StatusNotFound, "remove node %s: there is no such node", name)
	}
	why := notRemovable(all, &all[i], force)
	if why == "" && !force {
		why = n.losesWith(name)
	}
	if why != "" {
		return nil, api.Errorf(http.StatusConflict, "remove node %s: %s", name, why)
	}
	if _, err := n.raft.Apply(ctx, &cluster.RemoveNode{Name: name, Reason: by.String() + " asked for it"}); err != nil {
		return nil, fmt.Errorf("remove node %s: %w", name, err)
	}
	if err := n.configureRaft(ctx); err != nil {
		n.log.Warn("the node that was removed takes part in Raft still; this is tried again", zap.String("member", name), zap.Error(err))
	}
	return n.Nodes(ctx)
}

// notRemovable says why a node cannot be removed; "" where it can.
func notRemovable(all []api.NodeStatus, s *api.NodeStatus, force bool) string {
	if s.Leader {
		return "it leads: stop its daemon, so that another node leads, and ask again"
	}
	if s.Role == api.RoleVoter {
		voters, alive := 0, 0
		for i := range all {
			if v := &all[i]; v.ID != s.ID && (v.Role == api.RoleVoter || v.Leader) {
				if voters++; v.State != api.NodeDown && v.State != api.NodeSuspect {
					alive++
				}
			}
		}
		if 2*alive <= voters {
			return fmt.Sprintf("it votes, and without it %d of %d voters answer, which is no majority: bring others back first", alive, voters)
		}
	}
	switch {
	case force:
		return ""
	case len(s.Jobs) > 0:
		return fmt.Sprintf("it works on jobs %v: drain it first, or say --force", s.Jobs)
	case s.State == api.NodeAlive:
		return "it is alive: drain it first (avgpipectl nodes drain), or say --force"
	}
	return ""
}

// losesWith says which jobs' models go with a node; "" where there is none.
func (n *node) losesWith(name string) string {
	var jobs []string
	for _, j := range n.onlyOn(name) {
		jobs = append(jobs, fmt.Sprintf("%s (%s)", j.ID, j.Name))
	}
	if len(jobs) == 0 {
		return ""
	}
	return fmt.Sprintf("only it has shards of the last committed rounds of jobs %s, which would be lost: bring it up and drain it with --wait, which has them copied "+
		"to other nodes; or say --force", strings.Join(jobs, ", "))
}

// onlyOn are the jobs of whose last committed round, which is in no bucket, a node alone has a shard.
func (n *node) onlyOn(name string) []*cluster.Job {
	return slices.DeleteFunc(onlyOn(n.raft.State(), name), func(j *cluster.Job) bool {
		s, err := n.coordinator().Spec(j)
		if err != nil {
			return false
		}
		store := n.archives.describe(j, s)
		return store != nil && store.Round >= j.CommittedRound()
	})
}

// onlyOn are the jobs of whose last committed round a node has a shard that no other member has.
func onlyOn(state *cluster.State, name string) (all []*cluster.Job) {
	elsewhere := func(node string) bool {
		_, err := state.Node(node)
		return node != name && err == nil
	}
	for _, j := range state.Jobs() {
		last := j.LastCommitted()
		if last != nil && slices.ContainsFunc(last.Shards, func(s cluster.ShardRef) bool {
			return slices.Contains(s.Nodes, name) && !slices.ContainsFunc(s.Nodes, elsewhere)
		}) {
			all = append(all, j)
		}
	}
	return all
}

// RenewClient implements server.Members.
func (n *node) RenewClient(_ context.Context, csr []byte, by server.Peer) (api.RenewResponse, error) {
	if by.Name == "" || by.Role == "" {
		return api.RenewResponse{}, api.Errorf(http.StatusConflict, "renew a certificate: you ask without one")
	}
	authority, err := n.authority()
	if err != nil {
		return api.RenewResponse{}, err
	}
	der, err := authority.Sign(csr, pki.Subject{Role: string(by.Role), Name: by.Name, UID: by.UID}, time.Now())
	if err != nil {
		return api.RenewResponse{}, api.Errorf(http.StatusBadRequest, "%v", err)
	}
	out := api.RenewResponse{
		Certificate: string(pki.EncodeCertificates(der)), Authority: string(pki.EncodeCertificates(n.raft.State().Authority().Certificates...)), Addresses: []string{},
	}
	for _, node := range n.raft.State().Nodes() {
		out.Addresses = append(out.Addresses, node.Address)
	}
	return out, nil
}
