package pipeline

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

// TestRoundsAreSynchronousWhilePipelinesAreTooFarFromTheCenter: with the bits of the plain form at the same distances, on every copy of the center, and in every round that is resumed. Each
// change is said once by each of them.
func TestRoundsAreSynchronousWhilePipelinesAreTooFarFromTheCenter(t *testing.T) {
	for _, by := range []string{"predicted within 0.01", "old within 0.01"} {
		for name, groups := range map[string][][]int{"one group": nil, "two groups": {{2, 0}, {1}}, "three groups": {{0}, {1}, {2}}} {
			t.Run(fmt.Sprintf("%s/%s", by, name), func(t *testing.T) {
				t.Parallel()
				var mu sync.Mutex
				said := map[int][]uint64{} // by stage: rounds
				count := max(1, len(groups))
				like := func() *run {
					r := &run{schedule: "afp", stages: 3, pipelines: 3, micros: 2, rounds: 12, clip: 0.05, tied: 2, by: by, tau: 1, jitter: 20 * time.Microsecond}
					r.change = func(c *Config) {
						c.Events.OnDrift = func(d DriftReport) {
							mu.Lock()
							defer mu.Unlock()
							said[d.Stage] = append(said[d.Stage], d.Round)
							if changes := len(said[d.Stage]); d.Synchronous != ((changes-1)/count%2 == 0) {
								t.Errorf("change %d: %+v", changes, d)
							}
						}
					}
					return r
				}
				all := []*run{like()}
				if groups != nil {
					all = inGroups(groups, [][]int{nil}, like)
				}
				want := all[0].sequential(t)
				snapshotAll(t, all, want)
				for k := range all[0].stages {
					if k == 2 && len(want.changes[k]) < 2 { // the others move less
						t.Errorf("stage %d: rounds never change back and forth (%v): the bound tests nothing", k, want.changes[k])
					}
					var each []uint64
					for _, round := range want.changes[k] {
						each = append(each, slices.Repeat([]uint64{round}, count)...)
					}
					slices.Sort(said[k])
					if !slices.Equal(said[k], each) {
						t.Errorf("stage %d: timing changes after rounds %v, want %v", k, said[k], each)
					}
				}
				for at := uint64(6); at < 12; at++ {
					again := []*run{like()}
					if groups != nil {
						again = inGroups(groups, [][]int{nil}, like)
					}
					for i, r := range again {
						resume(r, all[i], at)
						r.change = quiet(r.change)
					}
					trainAll(t, again)
					for _, r := range again {
						r.compare(t, want)
					}
				}
			})
		}
	}
}

// resume has a run go on from a round of another.
func resume(r, from *run, at uint64) {
	change := r.change
	r.change = func(c *Config) {
		change(c)
		c.StartRound = at
		for k := range c.Stages {
			c.Stages[k].Restore = from.snaps[at][c.Stages[k].Index]
		}
	}
}

// quiet drops what a run tells of drift.
func quiet(change func(*Config)) func(*Config) {
	return func(c *Config) {
		change(c)
		c.Events.OnDrift = nil
	}
}
