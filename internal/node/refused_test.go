package node

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/cluster/raftlog"
)

func TestStandingSaysWhoIsNoMember(t *testing.T) {
	members := []raftlog.Member{{Name: "a"}, {Name: "b"}}
	for _, c := range []struct {
		id       string
		members  []raftlog.Member
		refusing []string
		want     string
	}{
		{"a", members, nil, "no node leads"},
		{"c", nil, nil, "no node leads"}, // it has joined, and nobody has told it of the others
		{"c", members, nil, "node c was removed from the cluster, whose nodes are a, b: ask one of them"},
		{"a", members, []string{"b"}, "the certificate of node a is refused by b, whose audit.log says why"},
	} {
		if err := standing(c.id, "/state", c.members, c.refusing); !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestRefusalsAreForgottenByAnAnswer(t *testing.T) {
	var r refusals
	refused := errors.New("read: remote error: tls: bad certificate")
	r.note("b", refused)
	r.note("a", refused)
	r.note("a", errors.New("connection reset by peer")) // it says nothing of the certificate
	if got := r.addresses(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("refused by %q", got)
	}
	r.note("b", nil)
	if got := r.addresses(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("refused by %q after b has answered", got)
	}
}
