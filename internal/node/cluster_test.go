package node_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/envtest"
	"github.com/avgpipe/avgpipe/internal/node"
	"github.com/avgpipe/avgpipe/internal/node/nodetest"
	"github.com/avgpipe/avgpipe/internal/pki"
)

// host is a node of a cluster of a test.
type host struct {
	*nodetest.Daemon
	name, address string
	spawned       bool // its daemon is a process of its own
	change        func(*node.Config)
}

// start starts the daemon of a node.
func (h *host) start(t *testing.T, dir string) {
	t.Helper()
	if h.spawned {
		h.Daemon = nodetest.Spawn(t, dir, h.address)
		return
	}
	h.Daemon = nodetest.Start(t, dir, func(c *node.Config) {
		c.NodeID, c.Listen, c.SpeedCommand = h.name, h.address, []string{"echo", `{"gflops": 50}`}
		if h.change != nil {
			h.change(c)
		}
	})
}

// form makes a cluster of nodes n1, n2, ..., of which some have a daemon that can be killed.
func form(t *testing.T, count int, spawned ...string) []*host {
	t.Helper()
	return formWith(t, count, nil, spawned...)
}

// formWith does so with a change of the configuration of those that have no such daemon; nil: none.
func formWith(t *testing.T, count int, change func(*node.Config), spawned ...string) []*host {
	t.Helper()
	first := &host{name: "n1", address: envtest.FreeAddress(t), change: change, spawned: slices.Contains(spawned, "n1")}
	dir := nodetest.StateDir(t)
	if _, err := node.Init(dir, first.name); err != nil {
		t.Fatal(err)
	}
	first.start(t, dir)
	all := []*host{first}
	for i := 1; i < count; i++ {
		h := &host{name: "n" + string(rune('1'+i)), address: envtest.FreeAddress(t), change: change}
		h.spawned = slices.Contains(spawned, h.name)
		dir := nodetest.StateDir(t)
		once := token(t, first, "node")
		nodetest.Eventually(t, h.name+" joins", func() bool { // a busy host may have lost its leader
			_, err := node.Join(t.Context(), dir, h.name, h.address, "test", once, []string{all[i-1].address})
			return err == nil
		})
		h.start(t, dir)
		all = append(all, h)
	}
	voters := 1
	if count >= 3 {
		voters = 3
	}
	nodetest.Eventually(t, "all nodes are there", func() bool {
		nodes, err := first.Client.Nodes(t.Context())
		if err != nil {
			return false
		}
		alive, vote := 0, 0
		for _, n := range nodes {
			if n.State == api.NodeAlive {
				alive++
			}
			if n.Role != api.RoleNonVoter {
				vote++
			}
		}
		return len(nodes) == count && alive == count && vote == voters
	})
	return all
}

// token asks a daemon for a token.
func token(t *testing.T, h *host, role string) string {
	t.Helper()
	r := api.TokenRequest{Role: role, ValidS: 600}
	if role != "node" {
		r.User, r.UID = "ada", 1000
	}
	var text string
	nodetest.Eventually(t, h.name+" gives a token", func() bool {
		answer, err := h.Client.Token(t.Context(), r)
		text = answer.Token
		return err == nil
	})
	return text
}

// leader returns the node that leads, and the others.
func leader(t *testing.T, all []*host) (*host, []*host) {
	t.Helper()
	var found *host
	var others []*host
	nodetest.Eventually(t, "one node leads", func() bool {
		found, others = nil, nil
		for _, h := range all {
			if nodes, err := h.Client.Nodes(t.Context()); err == nil {
				for _, n := range nodes {
					if n.Leader && n.ID == h.name {
						found = h
					}
				}
			}
		}
		return found != nil
	})
	for _, h := range all {
		if h != found {
			others = append(others, h)
		}
	}
	return found, others
}

func TestThreeNodesAreOneCluster(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	_, others := leader(t, all)
	id := others[0].Submit(t, nodetest.Job(t, others[0].Dir, "long", 1e6)) // at a node that does not lead
	s := others[1].Until(t, id, "commits", committed)
	if s.Name != "long" || s.OwnerUID != uint32(os.Getuid()) {
		t.Errorf("%+v", s)
	}
	others[0].Cancel(t, id)
	others[0].Until(t, id, "ends", ended)
	for _, h := range all { // wherever its files are
		if names := modelFiles(t, h.Daemon, id); len(names) != 2 {
			t.Errorf("%s exports %v", h.name, names)
		}
		if past, err := h.Client.History(t.Context(), id, api.HistoryRequest{}); err != nil || past.ID != id {
			t.Errorf("%s: the history %+v, %v", h.name, past, err)
		}
		if err := h.Client.Logs(t.Context(), id, api.LogRequest{}, func([]byte) error { return nil }); err != nil {
			t.Errorf("%s: the log: %v", h.name, err)
		}
	}
}

func TestAnotherNodeLeads(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	first, others := leader(t, all)
	job := strings.Replace(nodetest.Job(t, others[0].Dir, "long", 1e6), "commit_every: 10", "commit_every: 10, replicas: 2", 1)
	id := others[0].Submit(t, job)
	before := others[0].Until(t, id, "commits", committed)
	first.Stop(t) // with a worker, as a rule: the job goes on elsewhere from what others keep
	second, rest := leader(t, others)
	after := rest[0].Until(t, id, "commits further", func(s api.JobStatus) bool { return s.CommittedRound > before.CommittedRound })
	if after.Generation > 1 && !strings.Contains(after.Reason, "resumed from round") {
		t.Errorf("generation %d: %s", after.Generation, after.Reason)
	}
	nodetest.Eventually(t, "the node that is gone is down", func() bool {
		nodes, err := rest[0].Client.Nodes(t.Context())
		if err != nil {
			return false
		}
		for _, n := range nodes {
			if n.ID == first.name {
				return n.State == api.NodeDown
			}
		}
		return false
	})
	if _, err := second.Client.RemoveNode(t.Context(), second.name, true); err == nil || !strings.Contains(err.Error(), "it leads") {
		t.Errorf("the node that leads is removed: %v", err)
	}
	first.start(t, first.Dir)
	nodetest.Eventually(t, "it is back", func() bool {
		nodes, err := first.Client.Nodes(t.Context())
		if err != nil {
			return false
		}
		for _, n := range nodes {
			if n.ID == first.name {
				return n.State == api.NodeAlive
			}
		}
		return false
	})
}

func TestWithoutQuorumReadsAreOldAndChangesRefused(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	id := all[2].Submit(t, nodetest.Job(t, all[2].Dir, "good", 20))
	all[2].Until(t, id, "ends", ended)
	all[0].Stop(t)
	all[1].Stop(t)
	age := time.Duration(0)
	client := api.NewClient(nodetest.Socket(all[2].Dir))
	defer client.Close()
	client.OnAge(func(a time.Duration, _ string) { age = a })
	nodetest.Eventually(t, "what is read is old", func() bool {
		jobs, err := client.Jobs(t.Context())
		return err == nil && len(jobs) == 1 && age > 0
	})
	if _, err := client.Drain(t.Context(), "n1", api.DrainRequest{}); err == nil || !strings.Contains(err.Error(), "no node that leads can be reached") {
		t.Errorf("a change without a leader: %v", err)
	}
	for _, h := range all[:2] {
		h.start(t, h.Dir)
	}
	leader(t, all)
}

// TestANodeThatWasRemovedLearnsIt: one that runs, and one that was away.
func TestANodeThatWasRemovedLearnsIt(t *testing.T) {
	t.Parallel()
	all := form(t, 4)
	lead, others := leader(t, all)
	running, away := others[0], others[1]
	away.Stop(t)
	for _, h := range []*host{running, away} {
		nodetest.Eventually(t, h.name+" is removed", func() bool {
			nodes, err := lead.Client.RemoveNode(t.Context(), h.name, true)
			return err == nil && !slices.ContainsFunc(nodes, func(n api.NodeStatus) bool { return n.ID == h.name })
		})
	}
	away.start(t, away.Dir)
	for h, says := range map[*host]string{running: "node " + running.name + " was removed from the cluster", away: "the certificate of node " + away.name + " is refused by "} {
		client := api.NewClient(nodetest.Socket(h.Dir))
		defer client.Close()
		why := ""
		client.OnAge(func(_ time.Duration, text string) { why = text })
		nodetest.Eventually(t, h.name+" knows it", func() bool {
			_, err := client.Nodes(t.Context())
			if err != nil { // it was started since, and nobody knows how old what it has is
				return h == away && strings.Contains(err.Error(), says)
			}
			return h == running && strings.Contains(why, says)
		})
		if h == away {
			continue
		}
		// To ask again would not help, so nobody is told to.
		_, err := client.Drain(t.Context(), "n1", api.DrainRequest{})
		if refused, ok := errors.AsType[*api.Error](err); !ok || refused.Status != http.StatusConflict || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "ask again") {
			t.Errorf("what the leader is needed for: %v", err)
		}
	}
}

func TestWhoMayNotJoinIsRefusedAndWrittenDown(t *testing.T) {
	t.Parallel()
	all := form(t, 1)
	first := all[0]
	used := token(t, first, "node")
	join := func(name, token string) error {
		_, err := node.Join(t.Context(), nodetest.StateDir(t), name, envtest.FreeAddress(t), "test", token, []string{first.address})
		return err
	}
	if err := join("n2", used); err != nil {
		t.Fatal(err)
	}
	other := form(t, 1)
	late, err := first.Client.Token(t.Context(), api.TokenRequest{Role: "node", ValidS: 1})
	if err != nil {
		t.Fatal(err)
	}
	over := time.Now().Add(time.Second)
	nodetest.Eventually(t, "a token expires", func() bool { return time.Now().After(over) })
	for what, c := range map[string]struct{ name, token, want string }{
		"a used token":            {"n3", used, "used already"},
		"an expired token":        {"n3", late.Token, "has expired"},
		"a user's token":          {"n3", token(t, first, "submit"), "not for a node"},
		"another cluster's token": {"n3", token(t, other[0], "node"), "another cluster"},
		"a name that is taken":    {"n1", token(t, first, "node"), "another key"},
		"no token":                {"n3", "hello", "no token"},
	} {
		if err := join(c.name, c.token); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", what, err, c.want)
		}
	}
	if err := loginBy(t, first, token(t, first, "node")); err == nil || !strings.Contains(err.Error(), "the token is for a node, which joins by it (avgpiped join)") {
		t.Errorf("a user logs in by a node's token: %v", err)
	}
	first.Stop(t)
	text, err := os.ReadFile(filepath.Join(first.Dir, "audit.log"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"operation":"token"`, `"operation":"join","object":"n2"`, "used already", "has expired", "not for a node", "another key"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the audit log lacks %s:\n%s", want, text)
		}
	}
	if _, err := node.Init(first.Dir, ""); err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a member is made the first of another cluster: %v", err)
	}
	// Its port is taken.
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", first.address)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := nodetest.Config(first.Dir, os.Stderr)
	c.NodeID, c.Listen = first.name, first.address
	if err := node.Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "address already in use: another daemon, or another program, has the port: stop that one, or set listen to another") {
		t.Errorf("on a port that is taken: %v", err)
	}
	if text := audits(t, first); !strings.Contains(text, `"operation":"listen","object":"`+first.address+`","error":"`) {
		t.Errorf("the audit log does not say that the port is taken:\n%s", text)
	}
}

func TestALoneDaemonBecomesTheFirstOfACluster(t *testing.T) {
	t.Parallel()
	h := &host{name: "test", address: envtest.FreeAddress(t)}
	h.Daemon = nodetest.Start(t, nodetest.StateDir(t))
	id := h.Submit(t, nodetest.Job(t, h.Dir, "good", 20))
	h.Until(t, id, "ends", ended)
	h.Stop(t)
	if _, err := node.Init(h.Dir, ""); err != nil {
		t.Fatal(err)
	}
	h.start(t, h.Dir)
	token(t, h, "node")
	h.Until(t, id, "is known", ended)
	h.Stop(t)
	h.start(t, h.Dir)
	token(t, h, "node")
}

// loginBy asks for a user's certificate by a token.
func loginBy(t *testing.T, h *host, text string) error {
	t.Helper()
	parsed, err := pki.ParseToken(text)
	if err != nil {
		t.Fatal(err)
	}
	_, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	_, err = pki.Join(t.Context(), h.address, parsed, pki.JoinRequest{CSR: csr})
	return err
}

// login returns a client with a certificate of a role, which asks over the network.
func login(t *testing.T, h *host, role string) *api.Client {
	t.Helper()
	parsed, err := pki.ParseToken(token(t, h, role))
	if err != nil {
		t.Fatal(err)
	}
	key, csr, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := pki.Join(t.Context(), h.address, parsed, pki.JoinRequest{CSR: csr})
	if err != nil {
		t.Fatal(err)
	}
	r := api.Remote{Name: "test", Addresses: []string{h.address}, Authority: x509.NewCertPool()}
	r.Authority.AppendCertsFromPEM(pki.EncodeCertificates(answer.Authority...))
	if r.Certificate, err = tls.X509KeyPair(pki.EncodeCertificates(answer.Certificate), key); err != nil {
		t.Fatal(err)
	}
	c := api.NewRemoteClient(r)
	t.Cleanup(c.Close)
	request := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: csr}))
	if renewed, err := c.Renew(t.Context(), request); err != nil || !strings.Contains(renewed.Certificate, "BEGIN CERTIFICATE") {
		t.Errorf("the certificate of %s is not renewed: %v", role, err)
	}
	return c
}

func TestUsersAskOverTheNetwork(t *testing.T) {
	t.Parallel()
	all := form(t, 3)
	_, others := leader(t, all)
	at := others[0] // it passes everything on
	view, admin := login(t, at, "view"), login(t, at, "admin")
	id := at.Submit(t, nodetest.Job(t, at.Dir, "long", 1e6))
	at.Until(t, id, "commits", committed)
	if jobs, err := view.Jobs(t.Context()); err != nil || len(jobs) != 1 || !jobs[0].Restricted {
		t.Errorf("a viewer sees %+v, %v", jobs, err)
	}
	if _, err := view.Cancel(t.Context(), id); err == nil || !strings.Contains(err.Error(), "may only read") {
		t.Errorf("a viewer cancels: %v", err)
	}
	if _, err := view.Drain(t.Context(), "n1", api.DrainRequest{}); err == nil || !strings.Contains(err.Error(), "may only read") {
		t.Errorf("a viewer drains: %v", err)
	}
	steps := 0
	_, err := admin.Watch(t.Context(), id, func(api.JobStatus) { // a stream, through another node
		if steps++; steps == 2 {
			if _, err := admin.Cancel(t.Context(), id); err != nil {
				t.Error(err)
			}
		}
	})
	if err != nil || steps < 2 {
		t.Errorf("%d statuses, %v", steps, err)
	}
	for _, h := range all {
		h.Stop(t)
	}
	text := audits(t, all...)
	for _, want := range []string{ // of the node that was asked, and of the one that leads
		`"operation":"drain","object":"/v1/nodes/n1/drain","status":403,"error":"POST /v1/nodes/n1/drain: your certificate, of ada (uid 1000), has the role view`,
		`"role":"view","from":"`, `"via":"` + at.name + `","operation":"cancel","object":"/v1/jobs/` + id + `/cancel","status":403`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the audit logs lack %s:\n%s", want, text)
		}
	}
}
