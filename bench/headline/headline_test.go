package main

import (
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/avgpipe/avgpipe/job"
)

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*max(1, math.Abs(want)) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// A pipeline fills and drains once a batch where links take no time: M + K - 1 forwards and backwards, and a step.
func TestAFlushedBatchTakesItsClosedForm(t *testing.T) {
	for _, name := range []string{"gpipe", "1f1b"} {
		for _, devices := range []int{2, 4, 8} {
			for _, micros := range []int{4, 8} {
				got, err := setting{devices: devices}.period(name, 1, 1, micros)
				if err != nil {
					t.Fatal(err)
				}
				near(t, name, got, float64(micros+devices-1)*(forward+backward)+update)
			}
		}
	}
}

// PipeDream without a drain keeps all devices busy where links take no time, and waits for each message where they do: a stage has as many
// micro-batches in flight as there are stages from it on, so that K of them take the way down and up, every link twice.
func TestAnUndrainedPipelineWaitsForLinksOnly(t *testing.T) {
	for _, c := range []struct {
		s    setting
		want float64 // of a micro-batch
	}{
		{setting{4, 0}, forward + backward + update},
		{setting{4, 1.5}, (4*(forward+backward) + 2*3*1.5 + update) / 4},
	} {
		got, err := c.s.undrained(pipeDream, 8)
		if err != nil {
			t.Fatal(err)
		}
		if got/8 < c.want*0.97 || got/8 > c.want*1.03 {
			t.Errorf("%v: a micro-batch takes %v, want %v", c.s, got/8, c.want)
		}
	}
}

func TestWhatIsChosenIsNoSlowerThanOnePipeline(t *testing.T) {
	for _, s := range []setting{{2, 0}, {4, 0}, {4, 0.5}, {4, 1.5}, {8, 1.5}} {
		c, err := s.choose(4)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range choosable {
			one, err := s.period(name, 1, 1, 4)
			if err != nil {
				t.Fatal(err)
			}
			if float64(c.pipelines)/c.period < 1/one*0.98 {
				t.Errorf("%v: %+v is slower than one pipeline of %s, whose batch takes %v", s, c, name, one)
			}
		}
		if bound := 4 * (forward + backward) * float64(c.pipelines); c.period < bound {
			t.Errorf("%v: %+v takes less than the devices are busy for, %v", s, c, bound)
		}
	}
}

func TestReplicasWaitForWhatTheBackwardDoesNotHide(t *testing.T) {
	s := setting{devices: 4, link: 0.5}
	compute := 2*4*(forward+backward) + 4*update
	for _, c := range []struct {
		weights, want float64 // want beyond the computing
	}{
		{0, 0},
		{1, 2. * 3 / 4 * 0.5 / 8}, // all but the last layer's is hidden
		{100, 8./8 + 2.*3/4*100*0.5 - 4*backward}, // from the first layer's gradients on the links are full
	} {
		got, err := s.replicated(exchange{c.weights, 8}, 8)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "the step", got, compute+c.want)
	}
	if _, err := s.replicated(exchange{1, 8}, 6); err == nil {
		t.Error("6 micro-batches are shared by 4 replicas")
	}
}

func TestSamplesToATargetAreBetweenTwoEvaluations(t *testing.T) {
	q := quality{Samples: []int{0, 100, 200, 300}, Loss: []float64{5, 3, 3.5, 1.5}}
	for _, c := range []struct {
		target, want float64
		reached      bool
	}{{6, 0, true}, {4, 50, true}, {3, 100, true}, {2.5, 250, true}, {1, 0, false}} {
		got, reached := q.samplesTo(c.target)
		if reached != c.reached {
			t.Errorf("target %v reached: %v", c.target, reached)
		}
		near(t, "samples", got, c.want)
	}
}

func TestASideNeedsTheSamplesOfItsBestRate(t *testing.T) {
	run := func(side string, devices, seed int, rate float64, last int, loss float64) quality {
		return quality{Model: "m", Side: side, Devices: devices, Pipelines: 1, Micros: 8, Rate: rate, Seed: seed, Samples: []int{0, last}, Loss: []float64{5, loss}}
	}
	all := []quality{
		run(synchronous, 1, 1, 0.1, 100, 1), run(synchronous, 1, 2, 0.1, 300, 1),
		run(synchronous, 1, 1, 0.2, 50, 1), run(synchronous, 1, 2, 0.2, 50, 4), // one seed does not get there
		run(synchronous, 1, 1, 0.3, 250, 1), run(synchronous, 1, 2, 0.3, 250, 1),
		run(pipeDream, 4, 1, 0.1, 80, 1),
	}
	samples, rate, found := need(all, "m", synchronous, 8, 1, 8, 1)
	if !found || rate != 0.1 {
		t.Errorf("rate %v, found %v", rate, found)
	}
	near(t, "samples", samples, 200)
	if _, _, found := need(all, "m", pipeDream, 8, 1, 8, 1); found {
		t.Error("staleness of four stages stands for that of eight")
	}
	if _, _, found := need(all, "m", synchronous, 8, 1, 8, 0.5); found {
		t.Error("a target that nobody reached was reached")
	}
}

func TestOnlyTheRunsThatAreNamedAreMade(t *testing.T) {
	w, err := workloadOf("bert")
	if err != nil {
		t.Fatal(err)
	}
	o := options{devices: []int{4}, links: []float64{0}, micros: []int{4, 16}, shares: []int{4}, updating: 32, updatingShares: []int{4}, given: []int{2}, seeds: []int{1, 2}}
	o.runs = regexp.MustCompile(`^bert synchronous .*M=16 .*lr=0.001 seed=2$`)
	all, err := o.wanted(w)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) != 1 || all[0].Side != synchronous || all[0].Micros != 16 || all[0].Rate != 1e-3 || all[0].Seed != 2 {
		t.Errorf("%+v are made; want the one that is named", all)
	}
	o.runs = nil
	// Rates of a model, times seeds: two synchronous batches, avgpipe, both methods that step inside of a batch, and avgpipe over one of them.
	want := 2 * (2*len(w.rates) + len(w.rates) + len(w.rates) + 2*len(w.single))
	if all, err = o.wanted(w); err != nil || len(all) != want {
		t.Errorf("%d runs are made where none is named, want %d (%v)", len(all), want, err)
	}
}

func TestACombinationTakesTheRunThatTuningChose(t *testing.T) {
	run := func(pipelines, last int) quality {
		return quality{Model: "m", Side: averaged, Devices: 1, Pipelines: pipelines, Micros: 2, Micro: 4, Rate: 0.1, Seed: 1, Samples: []int{0, last}, Loss: []float64{5, 1}}
	}
	all := []quality{run(2, 100), run(4, 300)}
	got, reached := recordedSamples(all, run(4, 0), 1)
	if near(t, "samples", got, 300); !reached {
		t.Error("the recorded run reached the target")
	}
	if _, reached := recordedSamples(all, run(3, 0), 1); reached {
		t.Error("another number of pipelines stands for three")
	}
}

// A pipeline that runs on across batches drains less often; over many of them it takes what one takes that never drains.
func TestRunningOnAcrossBatchesNearsThatOfNoDrain(t *testing.T) {
	s := setting{devices: 4, link: 0.5}
	never, err := s.undrained(pipeDream, 32)
	if err != nil {
		t.Fatal(err)
	}
	before := math.Inf(1)
	for _, batches := range []int{1, 2, 8, 32} {
		got, err := s.across(pipeDream, 1, 1, 32, batches)
		if err != nil {
			t.Fatal(err)
		}
		if got >= before || got < never*0.999 {
			t.Errorf("across %d batches one takes %v, before %v, never drained %v", batches, got, before, never)
		}
		before = got
	}
	if before > never*1.01 {
		t.Errorf("across 32 batches one takes %v, never drained %v", before, never)
	}
}

// A record that ended at the early target is kept beside one that went on: the curve of the longer one has both targets.
func TestTheLongestRunOfAKeyCounts(t *testing.T) {
	w := workload{name: "m", targets: []float64{3, 1}, budget: 1000}
	run := func(rate float64, samples []int, loss []float64) quality {
		return quality{Model: "m", Side: synchronous, Devices: 1, Pipelines: 1, Micros: 4, Micro: 4, Rate: rate, Seed: 1, Samples: samples, Loss: loss}
	}
	short, long := run(0.1, []int{0, 100}, []float64{5, 3}), run(0.1, []int{0, 100, 300}, []float64{5, 3, 1})
	other, spent := run(0.2, []int{0, 100}, []float64{5, 2}), run(0.3, []int{0, 992}, []float64{5, 4})
	all := longest([]quality{short, other, long, spent})
	if len(all) != 3 || len(all[0].Samples) != 3 || all[1].Rate != 0.2 || all[2].Rate != 0.3 {
		t.Fatalf("%+v", all)
	}
	for _, c := range []struct {
		target, samples, rate float64
	}{{w.first(), 100.0 * 2 / 3, 0.2}, {w.last(), 300, 0.1}} {
		samples, rate, found := need(all, "m", synchronous, 1, 1, 4, c.target)
		if near(t, "samples", samples, c.samples); !found || rate != c.rate {
			t.Errorf("target %v: rate %v, found %v", c.target, rate, found)
		}
	}
	for _, c := range []struct {
		quality
		want bool
	}{{short, false}, {other, false}, {long, true}, {spent, true}, {quality{}, false}} {
		if c.goneTo(w) != c.want {
			t.Errorf("%s with samples %v: has gone to the last target or the budget: %v", c.key(), c.Samples, !c.want)
		}
	}
}

func TestCountsAreThoseAMethodChoosesFrom(t *testing.T) {
	o := options{micros: []int{4, 6}, shares: []int{1, 2}, updating: 32, updatingShares: []int{4, 8}, given: []int{2, 4}}
	for _, c := range []struct {
		method string
		want   [][2]int // pipelines, micro-batches
	}{
		{dataParallel, [][2]int{{1, 4}}}, // six are no multiple of four replicas
		{"1f1b", [][2]int{{1, 4}, {1, 6}}},
		{pipeDream, [][2]int{{1, 32}}},
		{averaged, [][2]int{{0, 1}, {0, 2}}},
		{averagedPipeDream, [][2]int{{2, 4}, {2, 8}, {4, 4}, {4, 8}}},
	} {
		m, err := methodOf(c.method)
		if err != nil {
			t.Fatal(err)
		}
		var got [][2]int
		for _, x := range o.counts(m, setting{devices: 4}) {
			got = append(got, [2]int{x.pipelines, x.micros})
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s has %v, want %v", c.method, got, c.want)
		}
	}
}

// Each model weighs as much in the mean of all as it has settings; only a target that is judged has figures with bars.
func TestGainsAreShownAtBothTargets(t *testing.T) {
	one := configuration{method: methods[2], setting: setting{devices: 4}, pipelines: 1, micros: 4}
	own := configuration{method: methods[8], setting: setting{devices: 4}, pipelines: 2, micros: 4}
	own.schedule = "1f1b"
	var all []compared
	for _, c := range []struct{ target, peer, own float64 }{{3, 100, 200}, {1, 400, 100}} {
		all = append(all, compared{
			workload: workload{name: "m", targets: []float64{3, 1}}, target: c.target, setting: one.setting,
			all: []outcome{{configuration: one, samples: 1, throughput: 1, time: c.peer}, {configuration: own, samples: 1, throughput: 1, time: c.own}},
		})
	}
	for i, want := range []float64{0.5, 4} {
		figures, err := gains(all, moments[i], averaged, true)
		if err != nil {
			t.Fatal(err)
		}
		if len(figures) != 3 {
			t.Fatalf("%d figures, want the setting's, the model's and that of all", len(figures))
		}
		for _, f := range figures {
			near(t, f.Metric, f.Value, want)
		}
	}
	judged, err := allGains(all)
	if err != nil {
		t.Fatal(err)
	}
	if len(judged) != 6 {
		t.Fatalf("%d figures have bars, want three over each kind of peer", len(judged))
	}
	for _, f := range judged {
		if !strings.HasPrefix(f.Metric, "time to the late target") || f.Bar == 0 {
			t.Errorf("%s has the bar %v", f.Metric, f.Bar)
		}
		near(t, f.Metric, f.Value, 4)
	}
}

func TestAGainIsTheProductOfItsParts(t *testing.T) {
	own := outcome{throughput: 0.3, samples: 1100}
	own.time = own.samples / own.throughput
	peer := outcome{throughput: 0.15, samples: 1000}
	peer.time = peer.samples / peer.throughput
	p := gain(own, peer, 0.32, 0.24)
	near(t, "the gain", p.bubble*p.overlap*p.samples, peer.time/own.time)
	near(t, "the bubble", p.bubble, 0.32/0.24)
}

func TestRecordsAreReadBack(t *testing.T) {
	dir := t.TempDir()
	want := []quality{{Model: "a", Rate: 1e-3, Samples: []int{0, 1}, Loss: []float64{2, 1}}, {Model: "b"}}
	if all, err := records[quality](dir, qualityFile); err != nil || all != nil {
		t.Fatalf("of no file: %v, %v", all, err)
	}
	for _, q := range want {
		if err := add(dir, qualityFile, q); err != nil {
			t.Fatal(err)
		}
	}
	got, err := records[quality](dir, qualityFile)
	if err != nil || len(got) != 2 || got[0].key() != want[0].key() || got[0].Loss[1] != 1 || got[1].key() != want[1].key() {
		t.Fatalf("%+v, %v", got, err)
	}
	if err := os.WriteFile(filepath.Join(dir, speedFile), []byte("{}\n{torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := records[speed](dir, speedFile); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a torn line: %v", err)
	}
}

func TestJobFilesParse(t *testing.T) {
	for _, w := range workloads {
		path := w.file("jobs")
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := job.Parse(path, source, nil, job.Environment{}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}
