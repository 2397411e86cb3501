package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/avgpipe/avgpipe/internal/envtest"
)

// start runs r in the background; stop ends it and checks its error.
func start(t *testing.T, r *run) (g *Group, stop func(want error)) {
	t.Helper()
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	stop = func(want error) {
		t.Helper()
		cancel()
		if err := envtest.Receive(t, "the group ends", done); !errors.Is(err, want) {
			t.Errorf("Run: %v, want %v", err, want)
		}
	}
	return g, stop
}

func (r *run) delivered(round uint64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.snaps[round])
}

func TestCommitWithStopEndsTrainingAfterTheRound(t *testing.T) {
	r := endless(nil)
	r.jitter = 20 * time.Microsecond
	finished := make(chan uint64, 1)
	r.change = func(c *Config) {
		c.Linger = true
		c.Events.OnFinished = func(round uint64) { finished <- round }
	}
	g, stop := start(t, r)
	round, accepted := uint64(0), false
	envtest.Eventually(t, "the group stops", func() bool { // a round or two ahead, as the coordinator does
		round = g.Earliest() + 2
		_, accepted = g.Commit(round, true)
		return accepted
	})
	if final := envtest.Receive(t, "training ends", finished); final != round || g.Final() != round {
		t.Errorf("finished round %d, Final %d, want %d", final, g.Final(), round)
	}
	envtest.Eventually(t, "three parts are delivered", func() bool { return r.delivered(round) == 3 })
	stop(nil)
	r.collect(g)
	r.rounds = round
	want := r.sequential(t)
	r.compare(t, want)
	for k := range r.stages {
		compareSnapshot(t, r.snaps[round][k], want, k, round)
	}
}

func TestARoundThatAPipelineHasLeftIsRefusedWithTheEarliest(t *testing.T) {
	r := endless(nil)
	g, stop := start(t, r)
	envtest.Eventually(t, "round 5 is over", func() bool { return g.Earliest() > 5 })
	for _, ends := range []bool{false, true} {
		earliest, accepted := g.Commit(3, ends)
		if accepted || earliest <= 3 {
			t.Errorf("Commit of a past round: %d, %v", earliest, accepted)
		}
	}
	if earliest, accepted := g.Commit(1<<30, false); !accepted || earliest <= 3 || earliest >= 1<<30 {
		t.Errorf("Commit of a round to come: %d, %v", earliest, accepted)
	}
	if earliest, accepted := g.Commit(1<<41, false); accepted {
		t.Errorf("a round beyond the last was accepted, earliest %d", earliest)
	}
	stop(context.Canceled)
	if n := r.delivered(3); n != 0 {
		t.Errorf("%d parts of a refused round were delivered", n)
	}
}

func TestTheFinalRoundCanBeSnapshottedAfterTraining(t *testing.T) {
	for _, pipelines := range []int{1, 2} {
		finished := make(chan uint64, 1)
		r := &run{schedule: "afp", stages: 2, pipelines: pipelines, micros: 3, rounds: 5, clip: 0.05, change: func(c *Config) {
			c.Linger = true
			c.Events.OnFinished = func(round uint64) { finished <- round }
		}}
		g, stop := start(t, r)
		envtest.Receive(t, "training ends", finished)
		if earliest, accepted := g.Commit(4, false); accepted || earliest != 5 {
			t.Errorf("round 4 after the end: %d, %v, want earliest 5", earliest, accepted)
		}
		for range 2 { // as often as one likes
			r.mu.Lock()
			clear(r.snaps)
			r.mu.Unlock()
			if earliest, accepted := g.Commit(5, false); !accepted {
				t.Fatalf("the final round was refused, earliest %d", earliest)
			}
			envtest.Eventually(t, "both parts of the final round are delivered", func() bool { return r.delivered(5) == 2 })
		}
		stop(nil)
		s := r.sequential(t)
		for k := range 2 {
			compareSnapshot(t, r.snaps[5][k], s, k, 5)
		}
	}
}

// TestTheFinalRoundIsPromisedWhilePipelinesArrive asks for it when one pipeline rests and the other is still on its way.
func TestTheFinalRoundIsPromisedWhilePipelinesArrive(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{})
	var once sync.Once
	r := &run{schedule: "afp", stages: 1, pipelines: 2, micros: 2, rounds: 2}
	r.change = func(c *Config) {
		c.Stages[0].Source = func(p int) Source { return gatedSource{data{p}, p, hold, held, &once} }
	}
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- g.Run(t.Context()) }()
	envtest.Receive(t, "the last batch is asked for", held)
	envtest.Eventually(t, "one pipeline rests", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		_, ok := r.losses[[2]uint64{0, 1}]
		return ok
	})
	envtest.Eventually(t, "the final round is promised", func() bool { _, ok := g.Commit(2, false); return ok })
	close(hold)
	if err := envtest.Receive(t, "the group ends", done); err != nil {
		t.Fatal(err)
	}
	compareSnapshot(t, r.snaps[2][0], r.sequential(t), 0, 2)
}

// gatedSource holds the last batch of pipeline 1 until hold is closed.
type gatedSource struct {
	data
	pipeline   int
	hold, held chan struct{}
	once       *sync.Once
}

func (s gatedSource) Fill(step uint64, micro int, input, labels []byte) error {
	if s.pipeline == 1 && step == 1 {
		s.once.Do(func() { close(s.held) })
		<-s.hold
	}
	return s.data.Fill(step, micro, input, labels)
}

// TestASlowConsumerOfSnapshotsDelaysNoTraining blocks the consumer until the run is over. The second snapshot is then read by
// nobody but whoever is about to change its vectors.
func TestASlowConsumerOfSnapshotsDelaysNoTraining(t *testing.T) {
	for _, pipelines := range []int{1, 2} {
		for _, by := range averagings {
			t.Run(fmt.Sprintf("%s_N%d", by, pipelines), func(t *testing.T) { slowConsumer(t, pipelines, by) })
		}
	}
}

func slowConsumer(t *testing.T, pipelines int, by string) {
	release := make(chan struct{})
	r := &run{schedule: "1f1b", stages: 2, pipelines: pipelines, micros: 2, rounds: 40, clip: 0.05, by: by}
	var g *Group
	r.change = func(c *Config) {
		take := c.Events.OnSnapshot
		c.Events.OnSnapshot = func(s *Snapshot) { <-release; take(s) }
		c.Events.OnStarted = func() {
			for _, round := range []uint64{3, 5} {
				if _, ok := g.Commit(round, false); !ok {
					t.Errorf("round %d was refused", round)
				}
			}
		}
		c.Events.OnFinished = func(uint64) { close(release) }
	}
	g, err := New(r.config(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, round := range []uint64{3, 5} {
		r.rounds = round
		s := r.sequential(t)
		for k := range 2 {
			compareSnapshot(t, r.snaps[round][k], s, k, round)
		}
	}
}

func TestCommitBeforeTheStagesExistIsRefused(t *testing.T) {
	g, err := New(endless(nil).config(t))
	if err != nil {
		t.Fatal(err)
	}
	if earliest, accepted := g.Commit(1, false); accepted || earliest != 1 {
		t.Errorf("Commit: %d, %v, want a refusal with round 1", earliest, accepted)
	}
}
