package mux

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestNamesOfVersions(t *testing.T) {
	v := Versions{1, 3}
	if got := v.Names(ProtocolRaft); !slices.Equal(got, []string{"avgpipe-raft/3", "avgpipe-raft/2", "avgpipe-raft"}) {
		t.Error(got)
	}
	if got := v.Names("http/1.1"); !slices.Equal(got, []string{"http/1.1"}) {
		t.Error(got)
	}
	for name, want := range map[string]int{
		"avgpipe-raft": 1, "avgpipe-link/12": 12, "avgpipe-raft/1": 0, "avgpipe-raft/": 0, "avgpipe-raft/02": 0, "avgpipe-raft/-2": 0, "http/1.1": 0, "h2": 0, "": 0, "avgpipe": 0,
	} {
		if p, got := Protocol(name); got != want || want == 0 && p != name {
			t.Errorf("%q is %q in version %d, want %d", name, p, got, want)
		}
	}
}

func TestWhoIsOfAnotherMajorVersion(t *testing.T) {
	v := Versions{2, 3}
	for _, offered := range [][]string{nil, {"smtp"}, {"avgpipe-raft/2"}, {"avgpipe-raft/4", "avgpipe-raft/3"}, {"avgpipe-raft/9", "h2"}} {
		if err := v.foreign(offered); err != nil {
			t.Errorf("%q: %v", offered, err)
		}
	}
	for text, offered := range map[string][]string{
		"version 1 of avgpipe-raft, this node 2 to 3": {"avgpipe-raft"}, "version 4 to 5 of avgpipe-agent, this": {"avgpipe-agent/5", "avgpipe-agent/4"},
	} {
		if err := v.foreign(offered); !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), text) {
			t.Errorf("%q: %v", offered, err)
		}
	}
}
