package coordinator

import (
	"maps"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/agent"
	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/cluster"
	"github.com/avgpipe/avgpipe/internal/obstacle"
	"github.com/avgpipe/avgpipe/internal/placer"
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

// Of a link between two nodes, each says what arrives at it, and the lower one how its connection does.
func TestLinksBetweenNodesAreWhatBothEndsSay(t *testing.T) {
	down, up, other := 0.03, 0.05, 0.001
	s := joined([]*worker{
		{status: &control.Status{Progress: api.JobStatus{
			StageStatus: []api.StageStatus{{Stage: 1}, {Stage: 2}}, LinkStatus: []api.LinkStatus{{Link: 0, DownS: &down}, {Link: 1, DownS: &other, UpS: &other}},
		}}},
		{status: &control.Status{Progress: api.JobStatus{
			StageStatus: []api.StageStatus{{Stage: 0}}, LinkStatus: []api.LinkStatus{{Link: 0, MessageBytes: 8, UpS: &up, Network: &api.NetworkStatus{Peer: "b"}}},
		}}},
	})
	if all := s.Progress.LinkStatus; len(all) != 2 || all[0].DownS != &down || all[0].UpS != &up || all[0].Network == nil || all[1].DownS != &other {
		t.Errorf("links are %+v", all)
	}
}

// TestTrafficShowsWhatLinksCarryAtLeast, while a job keeps them from being measured.
func TestTrafficShowsWhatLinksCarryAtLeast(t *testing.T) {
	j := &cluster.Job{Placement: []byte(`[{"stage":0,"node":"b"},{"stage":1,"node":"a"},{"stage":2,"node":"a"}]`)}
	seen := func(bytes int64, seconds, roundTrip float64) []api.LinkStatus {
		down, up := seconds+0.002, seconds-0.002 // by clocks that are seen wrong
		return []api.LinkStatus{
			{Link: 0, MessageBytes: bytes, DownS: &down, UpS: &up, Network: &api.NetworkStatus{RoundTripS: roundTrip}},
			{Link: 1, MessageBytes: 1 << 40, DownS: &down, UpS: &up}, // inside of a node
		}
	}
	p, c := pair("a", "b"), &Coordinator{host: &process{}}
	c.ways.known = map[[2]string]Link{}
	for _, step := range []struct {
		name  string
		links []api.LinkStatus
		want  placer.Link
	}{
		{"little is sent over a link that nobody has measured", seen(1000, 0.01, 0.0005), placer.Link{BitsPerSecond: 1e9, RoundTrip: 500 * time.Microsecond, Assumed: true}},
		{"a link carries more than is assumed", seen(10e6, 0.04, 0.0005), placer.Link{BitsPerSecond: 2e9, RoundTrip: 500 * time.Microsecond, AtLeast: true}},
		{"and less at times", seen(10e6, 0.4, 0.00051), placer.Link{BitsPerSecond: 2e9, RoundTrip: 500 * time.Microsecond, AtLeast: true}},
		{"its round trip becomes shorter", seen(10e6, 0.4, 0.0001), placer.Link{BitsPerSecond: 2e9, RoundTrip: 100 * time.Microsecond, AtLeast: true}},
	} {
		before := c.ways.known
		was := maps.Clone(before)
		c.noteTraffic(placementOf(j), step.links)
		if got := c.ways.known[p]; got.Link != step.want || len(c.ways.known) != 1 {
			t.Errorf("%s: %v of %v", step.name, got, c.ways.known)
		}
		if _, due := c.ways.due(time.Now(), []string{"a", "b"}, nil); !due {
			t.Errorf("%s: it is not to be measured once the job has gone", step.name)
		}
		if !maps.Equal(before, was) {
			t.Errorf("%s: published links were changed", step.name)
		}
	}
	c.ways.known[p] = Link{placer.Link{BitsPerSecond: 5e9, RoundTrip: 100 * time.Microsecond}, time.Now()}
	c.noteTraffic(placementOf(j), seen(10e6, 0.04, 0.0001))
	if got := c.ways.known[p]; got.BitsPerSecond != 5e9 || got.AtLeast {
		t.Errorf("what a job reached was taken for more than a measurement: %v", got)
	}
}
