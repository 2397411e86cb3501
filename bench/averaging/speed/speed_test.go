package main

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/bench/internal/report"
	"github.com/avgpipe/avgpipe/job"
)

func TestMethodsAreNamesWithSettings(t *testing.T) {
	m, err := methodOf("sapipe:stale_layers=5:prediction=none")
	if err != nil || m.String() != "sapipe stale_layers=5 prediction=none" || m.section() != "{method: sapipe, stale_layers: 5, prediction: none}" {
		t.Errorf("%v, %s, %v", m, m.section(), err)
	}
	if m, err = methodOf("diloco:tau=16"); err != nil || m.tau != 16 {
		t.Errorf("tau %d, %v; expected 16", m.tau, err)
	}
	if m, err = methodOf("ddp:bucket=4"); err != nil || m.bucket != 4 {
		t.Errorf("bucket %v, %v; expected 4", m.bucket, err)
	}
	for text, says := range map[string]string{
		"sapip": "no method", "sapipe:5": "expected KEY=VALUE", "elastic:tau=0": "above 0", "elastic:tau=x": "invalid syntax", "none:tau=2": "no setting of it", "ddp:tau=2": "no setting of it",
	} {
		if _, err := methodOf(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; expected an error that says %q", text, err, says)
		}
	}
}

func TestJobsOfAllMethodsAreJobFiles(t *testing.T) {
	s := setting{replicas: 2, layers: 2, width: 16, heads: 2, sequence: 16, vocabulary: 256, batch: 2, small: 1}
	for _, dictated := range []time.Duration{0, 100 * time.Millisecond} {
		s.dictated = dictated
		priced, err := s.priced()
		if err != nil {
			t.Fatal(err)
		}
		if dictated > 0 && (priced.batch != 1 || priced.backwardFLOPs <= priced.forwardFLOPs) {
			t.Errorf("batch %d, %v and %v FLOPs; expected the small batch, and a backward that has more of them", priced.batch, priced.forwardFLOPs, priced.backwardFLOPs)
		}
		for _, text := range []string{none, "allreduce", "pipesgd", "sapipe:stale_layers=2", "elastic:tau=8", "localsgd:tau=8", "diloco:tau=16"} {
			m, err := methodOf(text)
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := job.Parse("speed.yaml", []byte(priced.source(m)), nil, job.Environment{}); err != nil {
				t.Errorf("%s: %v", text, err)
			}
		}
	}
}

// TestAWindowIsWholeRoundsAfterTheWarmUp: a step that ends a round takes longer than one that does not.
func TestAWindowIsWholeRoundsAfterTheWarmUp(t *testing.T) {
	var seen sightings
	at := time.Duration(0)
	for step := uint64(1); step <= 13; step++ {
		at += 100 * time.Millisecond
		if step%4 == 0 {
			at += time.Second
		}
		seen.see(at, step)
		seen.see(at+time.Millisecond, step) // seen again
	}
	w := window{warmup: 3, least: 4, tau: 4, lasts: time.Second}
	if w.first() != 4 || w.began(seen[:3]) || !w.began(seen[:4]) {
		t.Errorf("the window begins after step %d", w.first())
	}
	seconds, steps, ok := w.measure(seen)
	if !ok || steps != 8 || math.Abs(seconds-0.35) > 1e-9 {
		t.Errorf("%v s a step over %d steps, %v; expected 0.35 s over 8", seconds, steps, ok)
	}
	for what, short := range map[string]sightings{"nothing": nil, "no whole round": seen[:7]} {
		if _, _, ok := w.measure(short); ok {
			t.Errorf("%s is measured", what)
		}
	}
	for what, longer := range map[string]window{"time": {warmup: 3, least: 4, tau: 4, lasts: time.Minute}, "steps": {warmup: 3, least: 9, tau: 4, lasts: time.Second}} {
		if _, _, ok := longer.measure(seen); ok {
			t.Errorf("too little %s is measured", what)
		}
	}
}

// TestAWindowBeginsAtTheEndOfARoundThatWasSeen: a step may pass between two looks.
func TestAWindowBeginsAtTheEndOfARoundThatWasSeen(t *testing.T) {
	seen := sightings{{1 * time.Second, 3}, {2 * time.Second, 5}, {3 * time.Second, 6}, {5 * time.Second, 8}, {6 * time.Second, 9}}
	seconds, steps, ok := window{warmup: 4, least: 2, tau: 2, lasts: time.Second}.measure(seen)
	if !ok || steps != 2 || seconds != 1 {
		t.Errorf("%v s a step over %d steps, %v; expected 1 s over 2", seconds, steps, ok)
	}
}

// measured are the readings of methods whose steps take so many seconds, in two repeats of which the machine is half as fast in the second.
func measured(t *testing.T, steps map[string]float64) (methods []method, readings [][]reading) {
	t.Helper()
	for _, text := range []string{none, "ddp", "ddp:bucket=4", "allreduce", "sapipe:stale_layers=5", "elastic:tau=8", "diloco:tau=16"} {
		m, err := methodOf(text)
		if err != nil {
			t.Fatal(err)
		}
		step := steps[m.name]
		if m.bucket == 4 {
			step *= 0.8
		}
		methods = append(methods, m)
		readings = append(readings, []reading{{step: step, alone: 0.1, sent: 1e6}, {step: 2 * step, alone: 0.1, sent: 1e6}})
	}
	return methods, readings
}

func TestRatiosAreOfReadingsOfOneRepeat(t *testing.T) {
	s := setting{replicas: 2, link: 0.1, batch: 4, sequence: 64}
	methods, readings := measured(t, map[string]float64{none: 0.1, ddp: 0.25, "allreduce": 0.2, "sapipe": 0.1, "elastic": 0.08, "diloco": 0.05})
	all := compare(s, methods, readings)
	by := map[string]measurement{}
	for _, m := range all {
		by[m.Method+" "+m.Settings] = m
	}
	near := func(what string, got *float64, want float64) {
		t.Helper()
		if got == nil || math.Abs(*got-want) > 1e-9 {
			t.Errorf("%s is %v, expected %v", what, got, want)
		}
	}
	near("allreduce over ddp", by["allreduce "].OverDDP, 1) // the faster bucket
	near("sapipe over allreduce", by["sapipe stale_layers=5"].OverAllReduce, 2)
	near("diloco over ddp", by["diloco tau=16"].OverDDP, 4)
	near("communication of allreduce", by["allreduce "].Communication, 0.5)
	near("communication of ddp", by["ddp "].Communication, 1-0.1/0.375)
	if m := by["allreduce "]; math.Abs(m.TokensPerS-2*4*64/0.3) > 1e-9 || math.Abs(m.LinkUsed-8e6/0.3/1e8) > 1e-9 {
		t.Errorf("%v tokens/s, %v of the link", m.TokensPerS, m.LinkUsed)
	}
	if m := by["none "]; m.Communication != nil {
		t.Errorf("communication of none is %v", *m.Communication)
	}
	figures := judge(s, all)
	var names []string
	for _, f := range figures {
		names = append(names, f.Metric)
	}
	if want := []string{
		"allreduce over ddp, " + s.String(), "sapipe over allreduce, " + s.String(), "elastic over ddp, " + s.String(), "diloco over ddp, " + s.String(),
	}; !slices.Equal(names, want) {
		t.Errorf("figures are %q, expected %q", names, want)
	}
	if f := figures[3]; f.Value != *by["diloco tau=16"].OverDDP || f.Bar != updatesBar {
		t.Errorf("%+v", f)
	}
}

// TestBarsHoldWhereTheyAreSaidTo: SAPipe's where communication is about half of a step, those of updates on slow links.
func TestBarsHoldWhereTheyAreSaidTo(t *testing.T) {
	methods, readings := measured(t, map[string]float64{none: 0.1, ddp: 0.12, "allreduce": 0.11, "sapipe": 0.1, "elastic": 0.1, "diloco": 0.1})
	s := setting{replicas: 4, link: 10, batch: 4, sequence: 64}
	figures := judge(s, compare(s, methods, readings))
	if len(figures) != 1 || figures[0].Metric != "allreduce over ddp, "+s.String() {
		t.Errorf("figures are %+v", figures)
	}
	only := methods[3:4]
	if figures := judge(s, compare(s, only, readings[3:4])); figures != nil {
		t.Errorf("without the peer there are %+v", figures)
	}
	if err := report.Report(&strings.Builder{}, &strings.Builder{}, figures...); err != nil {
		t.Error(err)
	}
}

func TestAChartOfEachNumberOfReplicas(t *testing.T) {
	methods, readings := measured(t, map[string]float64{none: 0.1, ddp: 0.25, "allreduce": 0.2, "sapipe": 0.1, "elastic": 0.08, "diloco": 0.05})
	var all []measurement
	for _, replicas := range []int{2, 4} {
		for _, link := range []float64{10, 1, 0.1} {
			s := setting{replicas: replicas, link: link, dictated: 150 * time.Millisecond}
			all = append(all, compare(s, methods, readings)...)
		}
	}
	of := charts(all)
	c := of["dictated-4"]
	if len(of) != 2 || c == nil || len(c.Lines) != len(methods)-1 {
		t.Fatalf("charts are %+v", of)
	}
	last := c.Lines[len(c.Lines)-1]
	if last.Name != "diloco tau=16" || len(last.Points) != 3 || math.Abs(last.Points[0].X+1) > 1e-9 || last.Points[2].X != 1 || last.Points[0].Y != 4 {
		t.Errorf("%+v", last)
	}
}
