package raftlog

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// server is a node of Raft's configuration, as autopilot judges it.
type server struct {
	name              string
	voter, leader     bool
	healthy           bool          // it is alive, follows the node that leads, and is not far behind
	lasting           time.Duration // since it is healthy, or is not
	stable, gone      bool          // it is healthy for long enough to vote; it is dead for long enough to be replaced
	draining, unready bool          // it gets no vote: nothing new is placed there; it did not take what a voter needs
}

// wantedVoters are how many of so many nodes vote: with two, the loss of either would stop both if both did.
func wantedVoters(nodes int) int {
	switch {
	case nodes >= 5:
		return 5
	case nodes >= 3:
		return 3
	}
	return 1
}

// chooseVoters returns the node that is to vote next, or the one that is to vote no more, and why; "" where all is well. A voter that is gone is
// replaced: another one votes first, and only then does it lose its vote, where those that are healthy stay a majority.
func chooseVoters(servers []server) (promote, demote, why string) {
	wanted, voters, healthy := wantedVoters(len(servers)), 0, 0
	var spare, gone, excess *server
	better := slices.SortedFunc(slices.Values(servers), func(a, b server) int { // the longest first
		return cmp.Or(cmp.Compare(b.lasting, a.lasting), cmp.Compare(a.name, b.name))
	})
	for i := range better {
		s := &better[i]
		switch {
		case s.voter:
			voters++
			if s.healthy || s.leader {
				healthy++
			}
			if s.gone && !s.leader && gone == nil {
				gone = s
			}
			if !s.leader && (excess == nil || !excess.draining) { // the newest, or one that is drained
				excess = s
			}
		case s.stable && !s.draining && !s.unready && spare == nil:
			spare = s
		}
	}
	switch {
	case spare != nil && voters < wanted:
		return spare.name, "", fmt.Sprintf("%d of %d nodes vote, and %d are to", voters, len(servers), wanted)
	case spare != nil && gone != nil && voters == wanted:
		return spare.name, "", fmt.Sprintf("voter %s is gone for %v", gone.name, gone.lasting.Round(time.Second))
	case voters <= wanted:
	case gone != nil && 2*healthy > voters-1:
		return "", gone.name, fmt.Sprintf("it is gone for %v, and %d others vote", gone.lasting.Round(time.Second), voters-1)
	case excess != nil && healthy == voters:
		return "", excess.name, fmt.Sprintf("%d of %d nodes vote, and %d are to", voters, len(servers), wanted)
	}
	return "", "", ""
}
