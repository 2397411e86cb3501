package coordinator

import (
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/placer"
)

// TestALinkIsDueWhenItIsOldAndCarriesNoJob: unknown ones come first, and those that failed wait.
func TestALinkIsDueWhenItIsOldAndCarriesNoJob(t *testing.T) {
	now := time.Unix(1e9, 0)
	ago := func(d time.Duration) Link { return Link{placer.Link{BitsPerSecond: 1e9}, now.Add(-d)} }
	ab, ac, bc := pair("b", "a"), pair("a", "c"), pair("b", "c")
	for name, c := range map[string]struct {
		l     links
		carry map[[2]string]bool
		want  [2]string // none: nothing is due
	}{
		"nothing is known":             {links{}, nil, ab},
		"the first carries a job":      {links{}, map[[2]string]bool{ab: true}, ac},
		"all are known":                {links{known: map[[2]string]Link{ab: ago(0), ac: ago(0), bc: ago(linkAge - 1)}}, nil, [2]string{}},
		"one is old":                   {links{known: map[[2]string]Link{ab: ago(0), ac: ago(linkAge), bc: ago(0)}}, nil, ac},
		"one is old and carries a job": {links{known: map[[2]string]Link{ab: ago(0), ac: ago(linkAge), bc: ago(0)}}, map[[2]string]bool{ac: true}, [2]string{}},
		"an unknown one before an old": {links{known: map[[2]string]Link{ab: ago(linkAge), ac: ago(0)}}, nil, bc},
		"one has failed just now":      {links{known: map[[2]string]Link{ab: ago(0), ac: ago(0)}, failed: map[[2]string]time.Time{bc: now.Add(1 - linkRetry)}}, nil, [2]string{}},
		"one has failed some time ago": {links{known: map[[2]string]Link{ab: ago(0), ac: ago(0)}, failed: map[[2]string]time.Time{bc: now.Add(-linkRetry)}}, nil, bc},
	} {
		if got, ok := c.l.due(now, []string{"c", "a", "b"}, c.carry); got != c.want || ok != (c.want != [2]string{}) {
			t.Errorf("%s: %v is due, %v expected", name, got, c.want)
		}
	}
}

// TestNodesOfAboutTheSameSpeedAreEqual: measurements of one host differ by some.
func TestNodesOfAboutTheSameSpeedAreEqual(t *testing.T) {
	for _, c := range []struct{ gflops, here, least, most float64 }{
		{50, 50, 1, 1}, {54, 50, 1, 1}, {46, 50, 1, 1}, {0, 50, 0, 0}, {50, 0, 0, 0}, {100, 50, 1.7, 2.3}, {25, 50, 0.4, 0.6},
	} {
		if got := speedOf(c.gflops, c.here); got < c.least || got > c.most {
			t.Errorf("%v GFLOP/s where there are %v here: speed %v", c.gflops, c.here, got)
		}
	}
}
