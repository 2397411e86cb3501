package node

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
)

func TestStandingSaysWhoIsNoMember(t *testing.T) {
	members := []raftlog.Member{{Name: "a"}, {Name: "b"}}
	for _, c := range []struct {
		id       string
		members  []raftlog.Member
		refusing []string
		foreign  []string
		want     string
	}{
		{"a", members, nil, nil, "no node leads"},
		{"c", nil, nil, nil, "no node leads"}, // it has joined, and nobody has told it of the others
		{"c", members, nil, nil, "node c was removed from the cluster, whose nodes are a, b: ask one of them"},
		{"a", members, []string{"b"}, nil, "the certificate of node a is refused by b, whose audit.log says why"},
		{"a", members, nil, []string{"b", "c"}, "b, c run another major version of avgpiped than node a"},
	} {
		if err := standing(c.id, "/state", c.members, c.refusing, c.foreign); !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestANodeThatStoodStillWasNotWithoutALeader: it says nothing when it goes on, a warning once no node leads for a while, and an error, once, when that does not pass.
func TestANodeThatStoodStillWasNotWithoutALeader(t *testing.T) {
	now, removed := time.Now(), &removedError{"node a was removed"}
	var v vigil
	for i, c := range []struct {
		after time.Duration
		why   error
		want  string // "": nothing is said
	}{
		{standingEvery, nil, ""},
		{20 * time.Second, errLeaderless, ""}, // it stood still
		{standingEvery, errLeaderless, "warn"},
		{standingEvery, errLeaderless, ""},
		{20 * time.Second, errLeaderless, ""}, // once more
		{standingEvery, nil, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, "warn"},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, ""},
		{standingEvery, errLeaderless, "error"},
		{standingEvery, errLeaderless, ""},
		{standingEvery, removed, "error"},
		{standingEvery, removed, ""},
	} {
		now = now.Add(c.after)
		said := ""
		if say, level, _ := v.look(c.why, now); say {
			said = level.String()
		}
		if said != c.want {
			t.Errorf("look %d (%v, %v later): %q, expected %q", i, c.why, c.after, said, c.want)
		}
	}
}

func TestRefusalsAreForgottenByAnAnswer(t *testing.T) {
	var r refusals
	refused := errors.New("read: remote error: tls: bad certificate")
	r.note("b", refused)
	r.note("a", refused)
	r.note("a", errors.New("connection reset by peer")) // it says nothing of the certificate
	if got := r.addresses(itsCertificate); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("refused by %q", got)
	}
	r.note("b", nil)
	if got := r.addresses(itsCertificate); !slices.Equal(got, []string{"a"}) {
		t.Errorf("refused by %q after b has answered", got)
	}
	r.note("a", errors.New("connect: remote error: tls: no application protocol"))
	if got, version := r.addresses(itsCertificate), r.addresses(itsVersion); len(got) != 0 || !slices.Equal(version, []string{"a"}) {
		t.Errorf("refused by %q, and for its version by %q", got, version)
	}
}
