package pipeline

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestOtherLayersAreLateAfterARound: those that are late no more have their gradients in flight applied, each once, those that begin to be apply none in the first step, and the others go on; to
// the bit as it is written out, also across another resume, and in groups.
func TestOtherLayersAreLateAfterARound(t *testing.T) {
	all := []string{"local", "none", "prev_sync diag after 2", "local_prev_sync outer_adaptive", "local after 6"}
	if raced {
		all = all[3:4]
	}
	for _, rules := range all {
		for _, c := range [][2]int{{3, 5}, {5, 3}, {4, 1}, {3, 0}, {0, 3}, {99, 0}, {0, 99}, {99, 2}, {2, 99}} {
			t.Run(fmt.Sprintf("%s %d to %d", rules, c[0], c[1]), func(t *testing.T) {
				t.Parallel()
				changed(t, fmt.Sprintf("sapipe %d %s", c[0], rules), fmt.Sprintf("sapipe %d %s", c[1], rules))
			})
		}
	}
}

func changed(t *testing.T, was, by string) {
	const at, again, end = 4, 7, 9
	like := func(by string, rounds uint64) *run {
		return &run{schedule: "afp", stages: 3, pipelines: 2, micros: 2, rounds: rounds, clip: 0.05, tied: 2, by: by, jitter: 50 * time.Microsecond}
	}
	var g *Group
	commit := func(r *run, round uint64) {
		change := r.change
		r.change = func(c *Config) {
			if change != nil {
				change(c)
			}
			c.Events.OnStarted = func() { g.Commit(round, false) }
		}
		var err error
		if g, err = New(r.config(t)); err != nil {
			t.Fatal(err)
		}
		if err := g.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.collect(g)
	}
	resume := func(r *run, from map[int]*Snapshot) {
		change := r.change
		r.change = func(c *Config) {
			if change != nil {
				change(c)
			}
			c.StartRound = from[0].Round
			for k := range c.Stages {
				c.Stages[k].Restore = begins(from[k], r.method().Needs())
			}
		}
		r.prepare = func(f *fake, _ int) { f.params.Zero(); f.momentum[0] = 5 } // what is not restored shows
	}
	first, second, third := like(was, at), like(by, end), like(by, end)
	commit(first, at)
	resume(second, first.snaps[at])
	commit(second, again)
	resume(third, second.snaps[again])
	third.train(t)
	second.was, second.at = was, at
	whole := second.sequential(t)
	second.compare(t, whole)
	third.compare(t, whole)
	groups := inGroups([][]int{{1}, {0}}, [][]int{nil}, func() *run { return like(by, end) })
	for _, r := range groups {
		resume(r, first.snaps[at])
	}
	trainAll(t, groups)
	for _, r := range groups {
		r.compare(t, whole)
	}
	if len(second.losses) == 0 || slices.Equal(second.fakes[[2]int{0, 0}].params, first.fakes[[2]int{0, 0}].params) {
		t.Error("nothing was trained")
	}
}
