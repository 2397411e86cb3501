package main

import (
	"strings"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
)

func TestPlanOfADrill(t *testing.T) {
	d, err := parseDrill("drill.yaml", []byte(`version: 1
steps:
- after round 40 run ssh b pkill -f worker for good
- after round 80 run ./cut b for 1.5s then ./heal b
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []drillStep{
		{text: "after round 40 run ssh b pkill -f worker for good", round: 40, run: "ssh b pkill -f worker for good"},
		{text: "after round 80 run ./cut b for 1.5s then ./heal b", round: 80, run: "./cut b", lasts: 1500 * time.Millisecond, undo: "./heal b"},
	}
	for i, s := range d.Steps {
		if s != want[i] {
			t.Errorf("%+v, want %+v", s, want[i])
		}
	}
	for text, want := range map[string]string{
		"version: 1\nsteps: [kill b]\n":                                         "after round 40 run",
		"version: 1\nsteps: []\n":                                               "steps",
		"version: 1\nstep: [after round 1 run x]\n":                             "nearest: steps",
		"version: 2\nsteps: [after round 1 run x]\n":                            "version",
		"version: 1\nsteps: [after round 9 run x, after round 3 run y]\n":       "order of their rounds",
		"version: 1\nsteps: [after round 99999999999999999999 run x]\n":         "after round 40 run",
		"version: 1\nsteps: [after round 1 run x for 99999999999999m then y]\n": "after round 40 run",
	} {
		if _, err := parseDrill("drill.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestJudge: steps at 0.1 s each, and a fault after a second that costs 2 seconds and 5 steps.
func TestJudge(t *testing.T) {
	var seen []sight
	at := func(s float64, step, generation uint64, state api.State) {
		seen = append(seen, sight{at: duration(s), step: step, round: step, committed: 5, generation: generation, state: state})
	}
	at(0.05, 0, 1, api.Starting)
	for i := range 10 {
		at(0.5+0.1*float64(i), uint64(i+1), 1, api.Running)
	}
	at(2, 10, 1, api.Running)
	at(2.5, 5, 2, api.Starting) // what is durable
	at(3, 5, 2, api.Running)
	at(3.4, 11, 2, api.Running)
	at(4, 20, 2, api.Done)
	at(9, 20, 2, api.Done)
	events := []drillEvent{{AtS: 1.45}, {AtS: 3.5}, {AtS: 5}}
	judge(events, seen)
	near := func(v *float64, want float64) bool { return v != nil && *v > want-0.01 && *v < want+0.01 }
	if e := events[0]; !near(e.PauseS, 1.95) || !near(e.UsualS, 0.1) || e.Redone != 5 || e.Workers != 1 {
		t.Errorf("%+v, pause %s, usually %s", e, number(e.PauseS, "%g"), number(e.UsualS, "%g"))
	}
	if e := events[1]; !near(e.PauseS, 0.5) || e.Redone != 0 || e.Workers != 0 {
		t.Errorf("%+v", e)
	}
	if e := events[2]; e.PauseS != nil { // it had ended
		t.Errorf("%+v, pause %s", e, number(e.PauseS, "%g"))
	}
}
