package mux

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Spoken are the versions of the protocols between nodes that this program speaks. Whoever changes what a node of the newest version would take
// wrongly raises Newest, and sends what is new where that was negotiated alone. Oldest is the one before, so that the nodes of a cluster are updated
// one after the other; a node whose versions have none in common with those of another is of another major version, and the two refuse each other.
var Spoken = Versions{Oldest: 1, Newest: 1}

// Versions are those of the protocols between nodes that a program speaks.
type Versions struct{ Oldest, Newest int }

// Or is v, or another where v is not set.
func (v Versions) Or(other Versions) Versions { return cmp.Or(v, other) }

func (v Versions) String() string {
	if v.Oldest == v.Newest {
		return strconv.Itoa(v.Newest)
	}
	return fmt.Sprintf("%d to %d", v.Oldest, v.Newest)
}

// Names are those of a protocol in these versions, as TLS negotiates them, the best first. That of version 1 has no number, and neither has a protocol that
// is not one between nodes.
func (v Versions) Names(protocol string) (all []string) {
	if _, version := Protocol(protocol); version == 0 {
		return []string{protocol}
	}
	for n := v.Newest; n >= v.Oldest; n-- {
		name := protocol
		if n > 1 {
			name += "/" + strconv.Itoa(n)
		}
		all = append(all, name)
	}
	return all
}

// Protocol is what a name of TLS stands for: a protocol between nodes and its version, or one of others, of which the version is 0.
func Protocol(name string) (protocol string, version int) {
	protocol, number, found := strings.Cut(name, "/")
	if !slices.Contains([]string{ProtocolRaft, ProtocolGossip, ProtocolAgent, ProtocolJoin, ProtocolNode, ProtocolLink}, protocol) {
		return name, 0
	}
	if !found {
		return protocol, 1
	}
	version, err := strconv.Atoi(number)
	if err != nil || version < 2 || strconv.Itoa(version) != number {
		return name, 0
	}
	return protocol, version
}

// ErrVersion is wrapped where a connection is refused since it is of a node of another major version; test with errors.Is.
var ErrVersion = errors.New("it is a node of another major version of avgpiped: install one that speaks one of these")

// foreign is why nothing was negotiated with whoever offers these protocols; nil where it is not for their versions.
func (v Versions) foreign(offered []string) error {
	protocol, other := "", Versions{}
	for _, name := range offered {
		p, version := Protocol(name)
		switch {
		case version == 0 || v.Oldest <= version && version <= v.Newest:
			return nil
		case protocol == "":
			protocol, other = p, Versions{version, version}
		}
		other = Versions{min(other.Oldest, version), max(other.Newest, version)}
	}
	if protocol == "" {
		return nil
	}
	return fmt.Errorf("it speaks version %s of %s, this node %s: %w", other, protocol, v, ErrVersion)
}
