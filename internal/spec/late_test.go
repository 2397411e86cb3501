package spec_test

import (
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// lateSpec is a job of two groups of two stages that leaves open how many layers are late.
func lateSpec(t *testing.T, set ...string) *spec.Spec {
	t.Helper()
	j, facts := parsed(t, refJob, 0, append([]string{"stages=2", "pipelines=2", "groups=2", "micro_batches=2", "averaging={method: sapipe}", "tuning=rules"}, set...)...)
	r, problems := spec.Resolve(j, facts, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s, err := spec.New(r, facts.Model, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// over is what lies between two groups of two stages, each stage on a node of its own.
func over(bits float64) (grounds []spec.Ground, links []spec.GroupLink) {
	l := placer.Link{BitsPerSecond: bits, RoundTrip: time.Microsecond}
	g := spec.Ground{Speeds: []float64{1, 1}, Links: []placer.Link{l}}
	return []spec.Ground{g, g}, []spec.GroupLink{{Name: "a-c", Link: l}, {Name: "b-d", Link: l}}
}

// TestLateLayersStayUnlessAStepGains: what a job had stays while no other number makes a step shorter by more than measurements scatter, and is chosen anew else.
func TestLateLayersStayUnlessAStepGains(t *testing.T) {
	s := lateSpec(t)
	if !s.LateOpen() || !strings.Contains(s.Averaging(), "stale_layers=auto") || s.Ages() != "" {
		t.Errorf("%q, %q", s.Averaging(), s.Ages())
	}
	grounds, links := over(1e15)
	fast := s.ChooseLate(grounds, links, nil)
	if fast.Layers != 0 {
		t.Errorf("over a fast link: %+v", fast)
	}
	if fewer := s.ChooseLate(grounds, links, &spec.Late{Layers: 2}); fewer.Layers != 0 {
		t.Errorf("none takes no longer than 2: %+v", fewer)
	}
	first := 1e12 // the fastest link, of those tried, over which some are late
	for ; fast.Layers == 0; first /= 2 {
		if first < 1e3 {
			t.Fatal("over no link is a layer late")
		}
		grounds, links = over(first)
		fast = s.ChooseLate(grounds, links, nil)
	}
	kept, slow := 0, 0
	for bits := 4 * first; bits > first; bits /= 1.005 {
		grounds, links = over(bits)
		fresh, was := s.ChooseLate(grounds, links, nil), s.ChooseLate(grounds, links, &spec.Late{})
		switch {
		case fresh.Layers > 0 && was.Layers == 0 && strings.Contains(was.Why, "as before"):
			kept++
		case was.Layers > 0 && was.Seconds > was.None/1.01:
			t.Errorf("%+v does not gain over none", was)
		case was.Layers > 0:
			slow++
		}
	}
	if kept == 0 || slow == 0 {
		t.Errorf("none late stayed so over %d links, and became some over %d", kept, slow)
	}
}

// TestLateLayersOfAPlacement: the spec of the workers has the number, the one that the job keeps does not, and both take the same memory.
func TestLateLayersOfAPlacement(t *testing.T) {
	s := lateSpec(t)
	for _, layers := range []int{0, 3} {
		placed := s.WithLate(&spec.Late{Layers: layers, Why: "stale_layers: so"})
		if int(placed.Job.Averaging.StaleLayers) != layers || placed.LateOpen() || placed.Laid() || placed.Admitted() != s || placed.HostBytes() != s.HostBytes() || s.HostBytes() == 0 {
			t.Errorf("%d late layers: %+v, %d bytes, admitted with %d", layers, placed.Job.Averaging, placed.HostBytes(), s.HostBytes())
		}
		if !strings.Contains(strings.Join(placed.Why, "\n"), "averaging.stale_layers: so") || len(placed.Why) != len(s.Why)+1 {
			t.Errorf("why: %q", placed.Why)
		}
		if again := placed.WithLate(&spec.Late{Layers: 1}); again.Job.Averaging.StaleLayers != 1 || again.Admitted() != s {
			t.Errorf("chosen again: %+v", again.Job.Averaging)
		}
	}
}

// TestOneGroupHasNoLateLayers where the file leaves that open, and asgd, which cannot be predicted, goes with it; with several groups it does not.
func TestOneGroupHasNoLateLayers(t *testing.T) {
	s := lateSpec(t, "groups=1", "optimizer.name=asgd")
	if s.LateOpen() || !strings.Contains(s.Averaging(), "stale_layers=0") || !strings.Contains(strings.Join(s.Why, "\n"), "averaging.stale_layers auto: none, as with allreduce") {
		t.Errorf("%q: %q", s.Averaging(), s.Why)
	}
	j, facts := parsed(t, refJob, 0, "stages=2", "pipelines=2", "groups=2", "micro_batches=2", "averaging={method: sapipe}", "optimizer.name=asgd")
	if _, problems := spec.Resolve(j, facts, nil); len(problems) != 1 || problems[0].Key != "optimizer.name" {
		t.Errorf("asgd with layers that may be late: %v", problems)
	}
}
