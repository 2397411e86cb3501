package pipeline

import (
	"slices"
	"testing"

	"github.com/avgpipe/avgpipe/elastic"
)

// TestAPipelineThatJoinsGoesOnAsTheOthers where gradients are exchanged: with their optimizer's state, so that all stay equal.
func TestAPipelineThatJoinsGoesOnAsTheOthers(t *testing.T) {
	for _, by := range []string{"allreduce", "pipesgd"} {
		two := &run{schedule: "afp", stages: 2, pipelines: 2, micros: 2, rounds: 3, clip: 0.05, by: by}
		var g *Group
		two.change = func(c *Config) { c.Events.OnStarted = func() { g.Commit(3, false) } }
		g, err := New(two.config(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		three := &run{schedule: "afp", stages: 2, pipelines: 3, micros: 2, rounds: 6, clip: 0.05, by: by}
		three.change = func(c *Config) {
			c.StartRound = 3
			for k := range c.Stages {
				c.Stages[k].Restore = two.snaps[3][k]
			}
		}
		three.train(t)
		for k := range 2 {
			first, joined := three.fakes[[2]int{0, k}], three.fakes[[2]int{2, k}]
			if !slices.Equal(first.params, joined.params) || !slices.Equal(first.momentum, joined.momentum) {
				t.Errorf("%s, stage %d: the weights are %v and %v, the momentum %v and %v", by, k, first.params, joined.params, first.momentum, joined.momentum)
			}
		}
	}
}

// TestLateGradientsBeginAfterARoundThatHasNone, as one of a single pipeline: the first step from there applies nothing, and the second the gradients of the first.
func TestLateGradientsBeginAfterARoundThatHasNone(t *testing.T) {
	for _, by := range []string{"pipesgd", "sapipe 99 local", "sapipe 99 local_prev_sync"} {
		one := &run{schedule: "afp", stages: 2, pipelines: 1, micros: 2, rounds: 3, clip: 0.05, by: by}
		var g *Group
		one.change = func(c *Config) { c.Events.OnStarted = func() { g.Commit(3, false) } }
		g, err := New(one.config(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		after := map[uint64]*run{}
		for _, last := range []uint64{4, 5} {
			two := &run{schedule: "afp", stages: 2, pipelines: 2, micros: 2, rounds: last, clip: 0.05, by: by}
			two.change = func(c *Config) {
				c.StartRound = 3
				for k := range c.Stages {
					c.Stages[k].Restore = begins(one.snaps[3][k], two.method().Needs())
				}
				c.Events.OnStarted = func() { g.Commit(last, false) }
			}
			if g, err = New(two.config(t)); err != nil {
				t.Fatal(err)
			}
			if err := g.Run(t.Context()); err != nil {
				t.Fatal(err)
			}
			after[last] = two
		}
		for k := range 2 {
			then, first, second := one.fakes[[2]int{0, k}], after[4].fakes[[2]int{1, k}], after[5].fakes[[2]int{1, k}]
			if !slices.Equal(first.params, then.params) || !slices.Equal(first.momentum, then.momentum) {
				t.Errorf("%s, stage %d: a step without a gradient made %v of the weights %v", by, k, first.params, then.params)
			}
			if slices.Equal(second.params, then.params) {
				t.Errorf("%s, stage %d: the second step changed nothing", by, k)
			}
			if got := after[5].snaps[5][k].Pipelines[0].Updates; got != 5 {
				t.Errorf("%s, stage %d: %d updates are applied or in flight after 5 steps", by, k, got)
			}
		}
	}
}

// begins is a snapshot as a worker restores it for a method of such needs, of which it may have nothing.
func begins(s *Snapshot, needs elastic.Needs) *Snapshot {
	c := *s
	c.Pipelines = slices.Clone(s.Pipelines)
	c.State = slices.Clone(s.State[:min(len(s.State), needs.Restores(s.InFlight))])
	for len(c.State) < needs.Keeps() {
		c.State = append(c.State, make([]float32, len(s.Center)))
	}
	for i := range c.Pipelines {
		p := &c.Pipelines[i]
		if needs.Predicts && p.Predicted == nil {
			p.Predicted = p.Parameters
		}
		if needs.Earlier && p.Message == nil {
			p.Message = make([]float32, len(s.Center))
		}
	}
	return &c
}
