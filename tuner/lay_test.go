package tuner

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/schedule"
)

// only is a space in which nothing is left to choose but the cut.
func only(p *Profile, pipelines, micro int) Space {
	return Space{
		Batch: 8, Targets: []Target{{Devices: len(p.Devices), Threads: 1, Profile: p}}, Pipelines: []int{pipelines}, MicroBatches: []int{micro},
		Schedules: []string{"1f1b"}, Recompute: []string{"none"}, AverageEvery: 1,
	}
}

func TestADeviceOfHalfTheSpeedGetsHalfOfTheLayers(t *testing.T) {
	p := profileOf(9, 2)
	p.Devices[1].Slowdown = 2
	c, err := only(p, 1, 4).Lay(0) // more tries find that the first stage may have more, while the pipeline fills
	if err != nil || !reflect.DeepEqual(c.Split, [][2]int{{0, 6}, {6, 9}}) {
		t.Fatalf("%+v, %v: want 6 layers and 3", c, err)
	}
}

// A slow link is crossed where little crosses it; a fast one beside it, anywhere.
func TestASlowLinkIsCrossedWhereLittleCrosses(t *testing.T) {
	for slow, want := range [][][2]int{{{0, 2}, {2, 6}, {6, 9}}, {{0, 3}, {3, 7}, {7, 9}}} {
		p := profileOf(9, 3)
		for i := range p.Layers {
			p.Layers[i].OutputBytes = 1e6
		}
		p.Layers[1].OutputBytes, p.Layers[6].OutputBytes = 1e3, 1e3 // behind layer 1, and behind 6
		p.Links[slow].SecondsPerByte = 1e-7                         // 0.2 s for a message of 2 samples, of which a layer takes 7.5 ms
		c, err := only(p, 1, 4).Lay(100)
		if err != nil || c.Split[slow][1] != want[slow][1] {
			t.Errorf("link %d is slow: %v, %v; want a cut behind layer %d there", slow, c, err, want[slow][1]-1)
		}
	}
}

// TestNoCutIsMuchBetter holds cuts over devices of different speeds and links of different bandwidths against all others, by what the simulator says
// of each.
func TestNoCutIsMuchBetter(t *testing.T) {
	worst := 0.0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 5))
		p := profileOf(12, 2+r.IntN(3))
		for i := range p.Layers {
			p.Layers[i].OutputBytes = math.Pow(10, 3+3*r.Float64())
		}
		for d := range p.Devices {
			p.Devices[d].Slowdown = 0.5 + 1.5*r.Float64()
		}
		for d := range p.Links {
			p.Links[d] = Link{LatencySeconds: 1e-3 * r.Float64(), SecondsPerByte: math.Pow(10, -7-2*r.Float64())}
		}
		s := only(p, 1+r.IntN(2), 4)
		c, err := s.Lay(100)
		if err != nil {
			t.Fatal(err)
		}
		best := math.Inf(1)
		all(nil, 0, len(p.Layers), len(p.Devices), func(split [][2]int) {
			other := *c
			other.Split = split
			plan, _, err := schedule.Generate("1f1b", schedule.Request{Devices: c.Devices, MicroBatches: c.MicroBatches})
			if err == nil {
				err = Predict(s, &other, plan)
			}
			if err != nil {
				t.Fatal(err)
			}
			best = min(best, other.Predicted.BatchSeconds)
		})
		worst = max(worst, c.Predicted.BatchSeconds/best-1)
	}
	t.Logf("the worst of 40 cuts takes %.1f%% longer than the best that there is", 100*worst)
	if worst > 0.05 {
		t.Errorf("a cut takes %.1f%% longer than the best that there is", 100*worst)
	}
}

func TestWhatIsNotAllGivenIsNotLaidOut(t *testing.T) {
	s := only(profileOf(4, 2), 1, 4)
	s.Schedules = []string{"1f1b", "gpipe"}
	if _, err := s.Lay(100); err == nil || !strings.Contains(err.Error(), "2 schedules: want one of each") {
		t.Error(err)
	}
	s = only(profileOf(4, 2), 1, 4)
	s.Targets[0].Profile.HostBytes = 1
	if _, err := s.Lay(100); err == nil || !strings.Contains(err.Error(), "lack") {
		t.Error(err)
	}
}
