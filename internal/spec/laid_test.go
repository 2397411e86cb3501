package spec_test

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/placer"
	"github.com/avgpipe/avgpipe/internal/spec"
)

// deepSpec is a job of two stages of a model of 12 blocks.
func deepSpec(t *testing.T, set ...string) *spec.Spec {
	t.Helper()
	j, facts := parsed(t, strings.Replace(refJob, "n_layer: 2", "n_layer: 12", 1), 0, set...)
	found, problems := spec.Resolve(j, facts, nil)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s, err := spec.New(found, facts.Model, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func laid(t *testing.T, s *spec.Spec, g spec.Ground) *spec.Laid {
	t.Helper()
	v, err := s.Survey()
	if err != nil {
		t.Fatal(err)
	}
	l, err := v.Lay(g, 0)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var oneNode = spec.Ground{Speeds: []float64{1, 1}, Links: []placer.Link{{}}}

func TestANodeOfHalfTheSpeedGetsHalfOfTheWork(t *testing.T) {
	s := deepSpec(t)
	even := laid(t, s, oneNode)
	l := laid(t, s, spec.Ground{Speeds: []float64{1, 0.5}, Links: []placer.Link{{}}})
	share := func(l *spec.Laid) float64 { return float64(l.Layout.Split[0][1]) }
	if ratio := share(l) / share(even); ratio < 1.2 || ratio > 1.5 {
		t.Errorf("cut into %v where both are as fast, and into %v", even.Layout.Split, l.Layout.Split)
	}
	if c := l.Layout.Costs; math.Max(c.Forward[0]/c.Forward[1], c.Forward[1]/c.Forward[0]) > 1.35 {
		t.Errorf("stages take %v", c.Forward)
	}
	over := s.Over(l)
	plan, _, err := over.Plan()
	if err != nil || plan.Stages() != 2 || !reflect.DeepEqual(over.Split(), l.Layout.Split) {
		t.Errorf("%v: %v", over.Split(), err)
	}
	if a, b := s.StageBytes(), over.StageBytes(); b[0] <= a[0] || b[1] >= a[1] {
		t.Errorf("stages take %v bytes, and with more layers in the first one %v", a, b)
	}
	// What it costs on devices of speed 1 is asked of the job as it was admitted, wherever it is now; so it can be laid anew.
	before, _, _ := s.Price()
	after, _, _ := over.Price()
	if again := laid(t, over, oneNode); !reflect.DeepEqual(before, after) || !reflect.DeepEqual(again, even) {
		t.Errorf("costs %v, then %v; cuts %v, then %v", before, after, even.Layout.Split, again.Layout.Split)
	}
}

// A prediction over two nodes has what their link takes, and who leads next generates the same plan of what was kept.
func TestAJobIsPredictedForItsLinks(t *testing.T) {
	s := deepSpec(t, "schedule=afp", "micro_batches=8")
	link := placer.Link{BitsPerSecond: 1e8, RoundTrip: 100 * time.Millisecond}
	l := laid(t, s, spec.Ground{Speeds: []float64{1, 1}, Links: []placer.Link{link}})
	terms := l.Predicted.Links[0]
	if want := 0.05 + 8*float64(terms.Bytes)/(2*8)/1e8; math.Abs(terms.MessageSeconds-want) > 1e-9 || terms.Bytes == 0 {
		t.Errorf("%+v, want %v s a message", terms, want)
	}
	if near := laid(t, s, oneNode); l.Predicted.BatchSeconds < near.Predicted.BatchSeconds+0.05 {
		t.Errorf("a batch over a link takes %v s, within a node %v s", l.Predicted.BatchSeconds, near.Predicted.BatchSeconds)
	}
	plan, _, err := s.Over(l).Plan()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	var kept spec.Laid
	if err := json.Unmarshal(text, &kept); err != nil {
		t.Fatal(err)
	}
	again, _, err := s.Over(&kept).Plan()
	alone, _, _ := s.Over(laid(t, s, oneNode)).Plan()
	if err != nil || !reflect.DeepEqual(plan, again) || reflect.DeepEqual(plan, alone) {
		t.Errorf("the plan over the link\n%v\nof what was kept (%v)\n%v\nwithin a node\n%v", plan, err, again, alone)
	}
}

func TestWhatCannotBeLaidSaysWhy(t *testing.T) {
	v, err := deepSpec(t).Survey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Lay(spec.Ground{Speeds: []float64{1}}, 0); err == nil || !strings.Contains(err.Error(), "1 devices with 0 links for 2 stages") {
		t.Error(err)
	}
	open := *deepSpec(t)
	open.Job.Pipelines = 0
	if _, err := open.Survey(); err == nil || !strings.Contains(err.Error(), "its counts are open") {
		t.Error(err)
	}
}

// A job that goes on with other counts is no longer what was laid over its nodes.
func TestOtherCountsAreOfTheJobAsItWasAdmitted(t *testing.T) {
	s := deepSpec(t)
	over := s.Over(laid(t, s, spec.Ground{Speeds: []float64{1, 0.5}, Links: []placer.Link{{}}}))
	want, problems := s.Recount(spec.Counts{Pipelines: 1}, spec.Facts{Cores: 2})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	got, problems := over.Recount(spec.Counts{Pipelines: 1}, spec.Facts{Cores: 2})
	if len(problems) > 0 || got.Laid() || !reflect.DeepEqual(got.Split(), want.Split()) {
		t.Errorf("recounted, the job is cut into %v, want %v: %v", got.Split(), want.Split(), problems)
	}
}
