package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/elastic"
	"github.com/avgpipe/avgpipe/internal/wire"
	"github.com/avgpipe/avgpipe/stage"
)

// testedElements are at most those of a segment: several cut a stage of these tests.
const testedElements = 4

// meeting pairs the ends of links between groups, whichever comes first.
type meeting struct {
	mu    sync.Mutex
	pairs map[meetingKey]*[2]wire.End
}

type meetingKey struct {
	link  wire.Link
	group int // that listens
}

func (m *meeting) end(l wire.Link, group int, upper bool, s wire.Spec) (wire.End, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k := meetingKey{l, group}
	if m.pairs[k] == nil {
		a, b, err := wire.NewPair(s)
		if err != nil {
			return nil, err
		}
		m.pairs[k] = &[2]wire.End{a, b}
	}
	if upper {
		return m.pairs[k][1], nil
	}
	return m.pairs[k][0], nil
}

// inGroups makes a run of each group, and of each part of the stages, which reach each other.
func inGroups(groups [][]int, parts [][]int, like func() *run) (all []*run) {
	m := &meeting{pairs: map[meetingKey]*[2]wire.End{}}
	for group := range groups {
		for _, part := range parts {
			r := like()
			change := r.change
			r.local = part
			r.change = func(c *Config) {
				c.Groups, c.Group, c.SegmentElements = groups, group, testedElements
				c.Connect = func(_ context.Context, l wire.Link, upper bool, s wire.Spec) (wire.End, error) {
					return m.end(l, group, upper, s)
				}
				c.Publish = func(_ context.Context, l wire.Link, to int, s wire.Spec) (wire.End, error) {
					return m.end(l, to, false, s)
				}
				if change != nil {
					change(c)
				}
			}
			all = append(all, r)
		}
	}
	return all
}

// trainAll trains all runs at the same time.
func trainAll(t *testing.T, all []*run) {
	t.Helper()
	running, ctx := errgroup.WithContext(t.Context())
	for _, r := range all {
		g, err := New(r.config(t))
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() error {
			defer r.collect(g)
			return g.Run(ctx)
		})
	}
	if err := running.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestGroupsOfPipelinesComputeTheSequentialModelToTheBit: every copy of the center, and every pipeline, wherever it trains.
func TestGroupsOfPipelinesComputeTheSequentialModelToTheBit(t *testing.T) {
	for name, groups := range map[string][][]int{
		"two of one": {{0}, {1}}, "two of two": {{0, 1}, {2, 3}}, "uneven, not in order": {{2, 0}, {1}, {3}}, "three of one": {{0}, {1}, {2}},
	} {
		for _, by := range averagings {
			for _, parts := range [][][]int{{nil}, {{0}, {1, 2}}} {
				t.Run(fmt.Sprintf("%s/%s/%d processes each", name, by, len(parts)), func(t *testing.T) {
					t.Parallel()
					n := 0
					for _, g := range groups {
						n += len(g)
					}
					all := inGroups(groups, parts, func() *run {
						return &run{
							schedule: "afp", stages: 3, pipelines: n, micros: 3, rounds: 7, clip: 0.05, tied: 2, by: by, tau: tauOf(by, 1+n%2),
							jitter: 100 * time.Microsecond,
						}
					})
					trainAll(t, all)
					want := all[0].sequential(t)
					steps := 0
					for _, r := range all {
						r.compare(t, want)
						steps += len(r.losses)
					}
					if steps != n*7*all[0].tau {
						t.Errorf("%d steps were reported, want %d", steps, n*7*all[0].tau)
					}
				})
			}
		}
	}
}

// TestRoundedMessagesComputeTheSequentialModelToTheBit: what is rounded is the same wherever pipelines train, and int8 adds to each message what rounding left out of the last, also
// after a resume from any round.
func TestRoundedMessagesComputeTheSequentialModelToTheBit(t *testing.T) {
	for _, precision := range []elastic.Precision{elastic.BFloat16, elastic.Int8} {
		for _, by := range []string{"allreduce", "predicted", "new", "diloco", "streaming-diloco 2", "streaming-diloco 3", "pipesgd after 3", "sapipe 3 local_prev_sync outer_adaptive"} {
			t.Run(fmt.Sprintf("%s/%s", precision, by), func(t *testing.T) {
				t.Parallel()
				like := func() *run {
					return &run{schedule: "afp", stages: 2, pipelines: 3, micros: 2, rounds: 7, clip: 0.05, tied: 2, by: by, precision: precision, groups: 2}
				}
				exact := like()
				exact.precision = ""
				unrounded := exact.sequential(t)
				for _, groups := range [][][]int{{{0}, {1, 2}}, {{2, 0}, {1}}} {
					all := inGroups(groups, [][]int{nil}, like)
					want := all[0].sequential(t)
					if slices.Equal(want.centers[0], unrounded.centers[0]) {
						t.Fatal("nothing was rounded")
					}
					snapshotAll(t, all, want)
					for at := uint64(1); at < 7; at++ {
						again := inGroups(groups, [][]int{nil}, like)
						for i, r := range again {
							change := r.change
							r.change = func(c *Config) {
								change(c)
								c.StartRound = at
								for k := range c.Stages {
									c.Stages[k].Restore = all[i].snaps[at][c.Stages[k].Index]
								}
							}
							r.prepare = func(f *fake, _ int) { f.params.Zero(); f.momentum[0] = 5 } // what is not restored shows
						}
						trainAll(t, again)
						for _, r := range again {
							r.compare(t, want)
						}
					}
				}
			})
		}
	}
}

// snapshotAll trains all runs at the same time, with a snapshot of every round.
func snapshotAll(t *testing.T, all []*run, want *sequential) {
	t.Helper()
	groups := make([]*Group, len(all))
	for i, r := range all {
		change := r.change
		r.change = func(c *Config) {
			change(c)
			c.Events.OnStarted = func() {
				for round := uint64(1); round <= c.FinalRound; round++ {
					if earliest, ok := groups[i].Commit(round, false); !ok {
						t.Errorf("round %d refused, earliest %d", round, earliest)
					}
				}
			}
		}
		var err error
		if groups[i], err = New(r.config(t)); err != nil {
			t.Fatal(err)
		}
	}
	running, ctx := errgroup.WithContext(t.Context())
	for i, g := range groups {
		running.Go(func() error {
			defer all[i].collect(g)
			return g.Run(ctx)
		})
	}
	if err := running.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		r.compare(t, want)
	}
}

// TestSnapshotsOfGroupsAreConsistentCuts: each group delivers its pipelines, and the same center; together they are what one group delivers.
func TestSnapshotsOfGroupsAreConsistentCuts(t *testing.T) {
	for _, by := range averagings {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			all := inGroups([][]int{{0, 2}, {1}}, [][]int{nil}, func() *run {
				return &run{schedule: "1f1b", stages: 2, pipelines: 3, micros: 3, rounds: 6, clip: 0.05, by: by, jitter: 50 * time.Microsecond}
			})
			var trained []*Group
			for _, r := range all {
				change := r.change
				var g *Group
				r.change = func(c *Config) {
					change(c)
					c.Events.OnStarted = func() {
						for round := uint64(1); round <= 6; round++ {
							if earliest, ok := g.Commit(round, false); !ok {
								t.Errorf("round %d refused, earliest %d", round, earliest)
							}
						}
					}
				}
				var err error
				if g, err = New(r.config(t)); err != nil {
					t.Fatal(err)
				}
				trained = append(trained, g)
			}
			running, ctx := errgroup.WithContext(t.Context())
			for _, g := range trained {
				running.Go(func() error { return g.Run(ctx) })
			}
			if err := running.Wait(); err != nil {
				t.Fatal(err)
			}
			for round := uint64(1); round <= 6; round++ {
				s := (&run{schedule: "1f1b", stages: 2, pipelines: 3, micros: 3, rounds: round, clip: 0.05, by: by}).sequential(t)
				for k := range 2 {
					a, b := all[0].snaps[round][k], all[1].snaps[round][k]
					if a == nil || b == nil || len(a.Pipelines) != 2 || len(b.Pipelines) != 1 {
						t.Fatalf("round %d, stage %d: %+v and %+v", round, k, a, b)
					}
					compareSnapshot(t, &Snapshot{Round: a.Round, Count: a.Count, Center: a.Center, State: a.State, Pipelines: []PipelineState{a.Pipelines[0], b.Pipelines[0], a.Pipelines[1]}}, s, k, round)
					if !slices.Equal(a.Center, b.Center) || !slices.EqualFunc(a.State, b.State, slices.Equal) {
						t.Errorf("round %d, stage %d: centers %v and %v, kept %v and %v", round, k, a.Center, b.Center, a.State, b.State)
					}
				}
			}
		})
	}
}

// TestGroupsResumeFromASnapshotOfOneGroup, and compute what one that never stopped computes.
func TestGroupsResumeFromASnapshotOfOneGroup(t *testing.T) {
	const at = 3
	like := func() *run {
		return &run{schedule: "afp", stages: 2, pipelines: 3, micros: 2, rounds: 8, clip: 0.05, by: "predicted", jitter: 50 * time.Microsecond}
	}
	r := like()
	var g *Group
	r.change = func(c *Config) { c.Events.OnStarted = func() { g.Commit(at, false) } }
	g, err := New(r.config(t))
	if err == nil {
		err = g.Run(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	all := inGroups([][]int{{1}, {0, 2}}, [][]int{nil}, func() *run {
		again := like()
		again.change = func(c *Config) {
			c.StartRound = at
			for k := range c.Stages {
				c.Stages[k].Restore = r.snaps[at][c.Stages[k].Index]
			}
		}
		again.prepare = func(f *fake, _ int) { f.params.Zero(); f.momentum[0] = 5 } // what is not restored shows
		return again
	})
	trainAll(t, all)
	want := r.sequential(t)
	for _, r := range all {
		r.compare(t, want)
	}
}

// TestAGroupThatFailsEndsTheOthers: nobody waits for a message that does not come. Whether the other group notices first where it receives or where it sends is up to chance.
func TestAGroupThatFailsEndsTheOthers(t *testing.T) {
	broken := errors.New("the device of group 1 is gone")
	all := inGroups([][]int{{0}, {1}}, [][]int{nil}, func() *run {
		r := &run{schedule: "afp", stages: 2, pipelines: 2, micros: 2, rounds: 1000, clip: 0.05}
		r.prepare = func(f *fake, p int) {
			if p == 1 {
				ops := 0
				f.faults = func(string, stage.Micro) error {
					if ops++; ops > 100 {
						return broken
					}
					return nil
				}
			}
		}
		return r
	})
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, r := range all {
		g, err := New(r.config(t))
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { errs[i] = g.Run(t.Context()) })
	}
	running.Wait()
	if !errors.Is(errs[1], broken) || errs[0] == nil || !strings.Contains(errs[0].Error(), "link failed: ") {
		t.Errorf("the groups ended with %v and %v", errs[0], errs[1])
	}
}

// TestGroupsThatAreNoPartition are refused.
func TestGroupsThatAreNoPartition(t *testing.T) {
	for _, groups := range [][][]int{{{0}}, {{0, 1}, {1}}, {{0}, {1, 2}}, {{0, 1}, {}}} {
		r := &run{schedule: "afp", stages: 2, pipelines: 2, micros: 2, rounds: 1, change: func(c *Config) { c.Groups, c.Group = groups, 1 }}
		if _, err := New(r.config(t)); err == nil {
			t.Errorf("%v: accepted", groups)
		}
	}
}

// TestGroupsEndAtTheRoundThatTheFirstOneAccepts: wherever the others are when it does, none is past that round, though nobody else asks them. They are
// asked as a coordinator asks, at a moment of its own.
func TestGroupsEndAtTheRoundThatTheFirstOneAccepts(t *testing.T) {
	for _, by := range averagings {
		for _, at := range []uint64{1, 4, 9} {
			t.Run(fmt.Sprintf("%s/%d", by, at), func(t *testing.T) {
				t.Parallel()
				all := inGroups([][]int{{0, 1}, {2}, {3}}, [][]int{nil}, func() *run {
					return &run{schedule: "afp", stages: 2, pipelines: 4, micros: 2, rounds: 1000, clip: 0.05, by: by, jitter: 50 * time.Microsecond}
				})
				groups, ended := make([]*Group, len(all)), make([]uint64, len(all))
				var stop sync.Once
				for i, r := range all {
					change := r.change
					r.change = func(c *Config) {
						change(c)
						c.Events.OnFinished = func(round uint64) { ended[i] = round }
						if i > 0 {
							return
						}
						c.Events.OnRound = func(_ int, round uint64) {
							if round < at {
								return
							}
							stop.Do(func() {
								for ok := false; !ok; { // what it offers may be over when it is named
									round, ok = groups[0].Commit(round, true)
								}
							})
						}
					}
				}
				for i, r := range all {
					var err error
					if groups[i], err = New(r.config(t)); err != nil {
						t.Fatal(err)
					}
				}
				running, ctx := errgroup.WithContext(t.Context())
				for i, r := range all {
					running.Go(func() error {
						defer r.collect(groups[i])
						return groups[i].Run(ctx)
					})
				}
				if err := running.Wait(); err != nil {
					t.Fatal(err)
				}
				for i, round := range ended {
					if round != ended[0] || round < at || round >= 1000 {
						t.Errorf("group %d ended at round %d, the first one at %d, asked in round %d", i, round, ended[0], at)
					}
				}
			})
		}
	}
}
