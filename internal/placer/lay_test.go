package placer

import (
	"slices"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/schedule"
)

// TestWaysAreComparedAsTheyWouldBeCut: a fast and a slow node are as slow as the slow one with an even cut, and faster than a third node with a cut by their speeds.
func TestWaysAreComparedAsTheyWouldBeCut(t *testing.T) {
	fast, slow, both := node("a", 1), node("b", 1), node("c", 2)
	fast.Speed, slow.Speed, both.Speed = 1, 0.25, 0.5
	far := Link{BitsPerSecond: 1e9, RoundTrip: time.Second}
	links := Links{{"a", "b"}: {BitsPerSecond: 10e9, RoundTrip: 100 * time.Microsecond}, {"a", "c"}: far, {"b", "c"}: far}
	j := pipeline(t, 2, 1, 1000)
	if p, err := Place(j, []Node{fast, slow, both}, links); err != nil || on(p) != "c c" {
		t.Errorf("with an even cut: %s, %v", on(p), err)
	}
	var asked [][]float64
	j.Lay = func(speeds []float64, between []Link) (schedule.Plan, schedule.Costs, bool) {
		asked = append(asked, speeds)
		crosses := slices.Sorted(slices.Values(speeds))[0] != 0.5 || speeds[0] != speeds[1]
		if len(between) != 1 || crosses != (between[0].BitsPerSecond > 0) {
			t.Errorf("devices of speeds %v with the link %v", speeds, between)
		}
		sum := speeds[0] + speeds[1]
		c := schedule.Uniform(2, 0.008/sum, 0.012/sum, between[0].RoundTrip.Seconds()/2) // each has as much of the work as it is fast
		return j.Plan, c, true
	}
	p, err := Place(j, []Node{fast, slow, both}, links)
	if err != nil || on(p) != "a b" && on(p) != "b a" {
		t.Errorf("cut by speed: %s, %v", on(p), err)
	}
	if len(asked) == 0 {
		t.Error("nobody asked")
	}
}
