package coordinator

import (
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/worker/control"
)

// TestAGenerationEndsForWhatTellsMost: workers whose peer is gone fail as well, and may be seen to do so before it.
func TestAGenerationEndsForWhatTellsMost(t *testing.T) {
	full := &obstacle.Obstacle{Kind: obstacle.Space, Text: "the disk is full"}
	link, crash := &control.Event{Kind: control.FailedNow, Error: "a link is closed"}, (*control.Event)(nil)
	for name, c := range map[string]struct {
		first, second *control.Event // of a, which is seen to end first, and b
		told          bool           // b was, once a had ended
		cause         string
		deaths        int
		permanent     bool
		holdAt        string
	}{
		"the first":       {first: link, second: link, cause: "a: a link is closed", deaths: 1},
		"one that died":   {first: link, second: crash, told: true, cause: "a: a link is closed", deaths: 1},
		"an obstacle":     {first: link, second: &control.Event{Kind: control.FailedNow, Error: "no space", Obstacle: full}, cause: "b: no space", holdAt: "b"},
		"what would last": {first: link, second: &control.Event{Kind: control.FailedNow, Error: "NaN", Permanent: true}, cause: "b: NaN", deaths: 1, permanent: true},
	} {
		a, b := agent.Process{Node: "a"}, agent.Process{Node: "b"}
		o := &observed{generation: newGeneration(&worker{process: a, phase: training}, &worker{process: b, phase: training})}
		see := func(p agent.Process, failure *control.Event, seconds int64, code int) {
			if failure != nil {
				o.take(o.find(p), agent.Event{Worker: failure}, time.Unix(seconds, 0))
			}
			o.take(o.find(p), agent.Event{Exit: &agent.Exit{Code: code, Known: true, How: "it crashed"}}, time.Unix(seconds, 0))
		}
		see(a, c.first, 1, 1)
		if o.cause != "" || o.deaths > 0 {
			t.Errorf("%s: %q while b lives", name, o.cause)
		}
		code := 1
		if c.told {
			o.abort(time.Unix(1, 0))
			code = control.ExitDone
		}
		see(b, c.second, 2, code)
		if o.cause != c.cause || o.deaths != c.deaths || o.permanent != c.permanent {
			t.Errorf("%s: %q, %d deaths, permanent %v; want %q, %d, %v", name, o.cause, o.deaths, o.permanent, c.cause, c.deaths, c.permanent)
		}
		if o.waits() != (c.holdAt != "") || o.waits() && o.hold.node != c.holdAt {
			t.Errorf("%s: waits for %+v, want on %q", name, o.hold, c.holdAt)
		}
	}
}

// TestWorkersThatHaveEndedAreNotAskedAgain: the pause after an act that failed is for workers that live.
func TestWorkersThatHaveEndedAreNotAskedAgain(t *testing.T) {
	for _, last := range []choice{abortWorkers, killWorkers, postCommit} {
		a, b := agent.Process{Node: "a"}, agent.Process{Node: "b"}
		o := &observed{generation: newGeneration(&worker{process: a, phase: training}, &worker{process: b, phase: training}), choice: last}
		o.notBefore = time.Unix(10, 0)
		exit := agent.Event{Exit: &agent.Exit{Code: 1, Known: true, How: "it crashed"}}
		o.take(o.find(a), exit, time.Unix(1, 0))
		if o.ended() || o.notBefore.IsZero() {
			t.Errorf("after choice %v nothing is left to do while a worker lives", last)
		}
		o.take(o.find(b), exit, time.Unix(2, 0))
		if over := last != postCommit; o.ended() != over || o.notBefore.IsZero() != over {
			t.Errorf("after choice %v and the end of both: ended %v, nothing before %v", last, o.ended(), o.notBefore)
		}
	}
}

// TestAJobIsWhereItsSlowestWorkerIs: what they say together takes the whole job's numbers from the worker with the last stage.
func TestAJobIsWhereItsSlowestWorkerIs(t *testing.T) {
	loss := 2.5
	said := func(stage int, round uint64, loss *float64) *control.Status {
		return &control.Status{Final: 90, NextCommit: round + 1, Progress: api.JobStatus{
			Round: round, Step: 2 * round, SamplesSeen: 8 * round, Loss: loss,
			StageStatus: []api.StageStatus{{Stage: stage}}, LinkStatus: []api.LinkStatus{{Link: stage}},
		}}
	}
	if s := joined([]*worker{{}, {}}); s != nil {
		t.Errorf("nobody has said anything, together %+v", s)
	}
	s := joined([]*worker{{status: said(1, 12, &loss)}, {status: said(0, 10, nil), final: 40}, {}})
	p := s.Progress
	if p.Round != 10 || p.Step != 20 || p.SamplesSeen != 80 || p.Loss != &loss || s.Final != 40 || s.NextCommit != 13 {
		t.Errorf("together %+v", s)
	}
	if len(p.StageStatus) != 2 || p.StageStatus[0].Stage != 0 || len(p.LinkStatus) != 2 || p.LinkStatus[1].Link != 1 {
		t.Errorf("stages %+v, links %+v", p.StageStatus, p.LinkStatus)
	}
}
