package spec_test

import (
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/internal/spec"
)

// tauSpec is a job of two groups of two stages whose tau is left open.
func tauSpec(t *testing.T, set ...string) *spec.Spec {
	t.Helper()
	return lateSpec(t, append([]string{"averaging={method: elastic, tau: auto, tau_most: 16}", "train.steps=4000"}, set...)...)
}

// between is over, with fast links in the groups.
func between(bits float64) (grounds []spec.Ground, links []spec.GroupLink) {
	grounds, _ = over(1e15)
	_, links = over(bits)
	return grounds, links
}

// TestTauIsTheFewestStepsThatHideAnExchange of those that the file and the budget allow: the slower the link, the more.
func TestTauIsTheFewestStepsThatHideAnExchange(t *testing.T) {
	s := tauSpec(t)
	if !s.TauOpen() || s.Job.Averaging.Tau != 1 || !strings.Contains(s.Averaging(), "horizon=auto tau=auto, 1 to 16,") || !strings.Contains(strings.Join(s.Why, "\n"), "averaging.tau auto: from 1 to 16, chosen where the job is placed") {
		t.Errorf("%q: %q", s.Averaging(), s.Why)
	}
	last, within := 1, 0
	for bits := 1e15; bits > 1; bits /= 2 {
		grounds, links := between(bits)
		c := s.ChooseTau(grounds, links, nil)
		hides := c.Exchange+c.Average <= float64(c.Steps)*c.Compute
		fewer := c.Steps > 1 && c.Exchange+c.Average <= float64(c.Steps-1)*c.Compute
		if c.Steps < last || fewer || !hides && c.Steps < 16 || c.Seconds > c.Least || !strings.Contains(c.Why, "over the link a-c with ") {
			t.Fatalf("after tau %d, over %g bit/s: %+v", last, bits, c)
		}
		if c.Steps > 1 && c.Steps < 16 {
			within++
		}
		last = c.Steps
	}
	if last != 16 || within == 0 {
		t.Errorf("over the slowest link tau %d, and between the bounds over %d links", last, within)
	}
	grounds, links := between(1)
	if c := tauSpec(t, "train.steps=96").ChooseTau(grounds, links, nil); c.Steps != 12 { // 48 of each pipeline, in 4 rounds
		t.Errorf("of a small budget: %+v", c)
	}
	if c := tauSpec(t, "averaging={method: diloco, tau: auto}").ChooseTau(grounds, links, nil); c.Steps != 64 {
		t.Errorf("diloco: %+v", c)
	}
	grounds, links = between(1e15)
	if c := tauSpec(t, "averaging={method: diloco, tau: auto}").ChooseTau(grounds, links, nil); c.Steps != 32 {
		t.Errorf("diloco over a fast link: %+v", c)
	}
	if c := s.ChooseTau(grounds, links, &spec.Tau{Steps: 7}); c.Steps != 7 || !strings.Contains(c.Why, "as in the rounds that are committed") {
		t.Errorf("with rounds: %+v", c)
	}
	if c := tauSpec(t, "groups=1").ChooseTau(nil, nil, nil); c.Steps != 1 || !strings.Contains(c.Why, "one group") {
		t.Errorf("one group: %+v", c)
	}
}

// TestTauOfAPlacement: the spec of the workers has the number, with what depends on it, and the one that the job keeps does not.
func TestTauOfAPlacement(t *testing.T) {
	s := tauSpec(t, "train.steps=100")
	placed := s.WithTau(&spec.Tau{Steps: 7, Why: "tau: so"})
	a := placed.Job.Averaging
	if a.Tau != 7 || placed.TauOpen() || placed.Laid() || placed.Admitted() != s || placed.HostBytes() != s.HostBytes() || !s.TauOpen() {
		t.Errorf("%+v, %d bytes, admitted with %d", a, placed.HostBytes(), s.HostBytes())
	}
	if got := placed.Averaging(); !strings.Contains(got, "horizon=1 tau=7") { // 1.5 with a tau of 1
		t.Error(got)
	}
	if s.Budget.Steps != 50 || placed.Budget.Steps != 56 || placed.Budget.Samples != 56*s.Budget.Samples/50 {
		t.Errorf("budget %+v, admitted with %+v", placed.Budget, s.Budget)
	}
	if !strings.Contains(strings.Join(placed.Why, "\n"), "averaging.tau: so") || len(placed.Why) != len(s.Why)+1 {
		t.Errorf("why: %q", placed.Why)
	}
	text, err := spec.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	again, err := spec.Decode(s.Job.Name, text, nil)
	if err != nil || !again.TauOpen() || again.Job.Averaging != s.Job.Averaging {
		t.Errorf("read again: %v, %+v", err, again)
	}
	fewer, problems := s.Recount(spec.Counts{Pipelines: 1, Groups: 1}, spec.Facts{})
	if len(problems) > 0 || !fewer.TauOpen() { // its rounds are counted by what was chosen
		t.Errorf("with one group: %v, %+v", problems, fewer)
	}
}

// TestTauThatCannotBeChosenIsRefused, with what may be written instead.
func TestTauThatCannotBeChosenIsRefused(t *testing.T) {
	for _, c := range []struct {
		key, nearest, want string
		set                []string
	}{
		{"averaging.tau", "1", "exchanges gradients in every step; want tau: 1, or a method that exchanges updates", []string{"averaging={method: allreduce, tau: auto}"}},
		{"averaging.tau_most", "32", "tau_most is 8: of this job, with method diloco, at least 32 are chosen; want tau_most: 32 or more", []string{"averaging={method: diloco, tau: auto, tau_most: 8}", "train.steps=4000"}},
		{"averaging.tau_most", "25", "at least 25 are chosen", []string{"averaging={method: diloco, tau: auto, tau_most: 8}", "train.steps=200"}},
		{"averaging.tau", "1", "averaging.tau is auto, and the schedule pipedream-2bw steps the optimizer inside of a batch", []string{"averaging={tau: auto}", "schedule=pipedream-2bw"}},
	} {
		j, facts := parsed(t, refJob, 0, append([]string{"stages=2", "pipelines=2", "groups=2", "micro_batches=2", "tuning=rules"}, c.set...)...)
		_, problems := spec.Resolve(j, facts, nil)
		if len(problems) == 0 || problems[0].Key != c.key || problems[0].Nearest != c.nearest || !strings.Contains(problems[0].Message, c.want) {
			t.Errorf("%q: %+v, want %q", c.set, problems, c.want)
		}
	}
}
