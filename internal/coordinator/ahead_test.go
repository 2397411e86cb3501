package coordinator

import (
	"testing"
	"time"
)

// TestACommitIsNamedInTime, however long a cluster takes to tell workers of it and however fast they train: a margin of 300 ms was too little for one that was busy, and no round was
// ever committed. On one that is quick, a commit is named no farther ahead than the margin.
func TestACommitIsNamedInTime(t *testing.T) {
	for _, speed := range []float64{2, 100, 10000} { // rounds a second
		for _, takes := range []time.Duration{10 * time.Millisecond, 400 * time.Millisecond, 3 * time.Second, 20 * time.Second} {
			g := newGeneration()
			g.rounds = []sighting{{epoch, 0}, {epoch.Add(time.Second), uint64(speed)}}
			at := time.Duration(0)
			possible := func() uint64 { return uint64(at.Seconds()*speed) + 1 }
			for commit := range 20 {
				known := possible()
				at += 250 * time.Millisecond // a status is as old as that
				for tries := 0; ; tries++ {
					named := known + g.ahead()
					if most := 2*uint64(takes.Seconds()*speed) + 2; g.ahead() > max(g.within(margin), most) {
						t.Errorf("%v rounds a second, told in %v: commit %d is named %d rounds ahead", speed, takes, commit, g.ahead())
					}
					at += takes
					known = possible()
					if named >= known {
						g.agree(known)
						break
					}
					g.refuse(named, known)
					if tries == 3 {
						t.Fatalf("%v rounds a second, told in %v: commit %d is named too late %d times, at last %d rounds ahead", speed, takes, commit, tries+1, g.ahead())
					}
				}
				at += time.Second
			}
		}
	}
}
