package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// summary is what all trials found.
type summary struct {
	mu      sync.Mutex
	tallies map[string]*tally // by fault
	ended   map[string]int    // jobs, by what was expected of how they ended
	shrunk  int               // of them, those that had to end with fewer groups or stages
	trials  int
	failed  []string // of each trial: how to repeat it, and what it did
}

// tally is what became of the trials with one fault.
type tally struct {
	Trials int `json:"trials"`
	Passed int `json:"passed"`
}

// campaign runs all trials and says what they found. A trial that failed is an error.
func campaign(ctx context.Context, o options, from setting) ([]report.Figure, error) {
	began := time.Now()
	references, err := undisturbed(ctx, o, from.kinds)
	if err != nil {
		return nil, err
	}
	s := &summary{tallies: map[string]*tally{}, ended: map[string]int{}}
	for _, f := range from.faults {
		s.tallies[f.name] = &tally{}
	}
	var running errgroup.Group
	running.SetLimit(o.parallel)
	for i := range o.trials {
		seed := max(o.seed, 1) + uint64(i)
		if o.seed == 0 && i == o.trials-1 {
			seed = uint64(rand.Uint32())
		}
		running.Go(func() error {
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			p := draw(seed, from, o.inside)
			jobs, err := trial(ctx, o, p, references)
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			s.count(o, &p, jobs, err)
			return nil
		})
	}
	if err := running.Wait(); err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "%d trials, %d failed, in %.0f s\n", s.trials, len(s.failed), time.Since(began).Seconds())
	if err := s.print(from.faults, o.inside); err != nil {
		return nil, err
	}
	figure := report.Figure{
		Metric: "trials that end as if undisturbed", Value: float64(s.trials-len(s.failed)) / float64(s.trials), Unit: "of 1", Bar: 1, Aim: 1,
		Conditions: map[string]any{"trials": s.trials, "failed": s.failed, "faults": s.tallies, "jobs": s.ended, "jobs_that_lost_a_host": s.shrunk},
	}
	if len(s.failed) > 0 {
		err = fmt.Errorf("%d trials failed; their directories are in %s:\n%s", len(s.failed), o.keep, strings.Join(s.failed, "\n"))
	}
	return []report.Figure{figure}, err
}

// undisturbed runs each kind of job without faults.
func undisturbed(ctx context.Context, o options, kinds []kind) (map[string]*outcome, error) {
	results := map[string]*outcome{}
	for i := range kinds {
		k := &kinds[i]
		if k.tuned {
			results[k.name] = results[kinds[0].name] // what it leaves open does not change its bits
		} else if _, err := trial(ctx, o, plan{kinds: []*kind{k}}, results); err != nil {
			return nil, fmt.Errorf("undisturbed %s: %w", k.name, err)
		}
	}
	return results, nil
}

// count takes in how a trial ended, and says how far the campaign is.
func (s *summary) count(o options, p *plan, jobs []*trialJob, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trials++
	did := []string{p.String()}
	for _, j := range jobs {
		s.ended[cmp.Or(j.expected, "nothing: the trial failed before")]++
		if j.shrinks {
			s.shrunk++
		}
		if j.ended != "" {
			did = append(did, j.ended)
		}
	}
	line := strings.Join(did, "; ")
	for name := range p.faults() {
		s.tallies[name].Trials++
		if err == nil {
			s.tallies[name].Passed++
		}
	}
	if err != nil {
		repeat := fmt.Sprintf("make %s SEED=%d TRIALS=1", target(o), p.seed)
		if o.faults != "" {
			repeat += " FAULTS=" + o.faults
		}
		s.failed = append(s.failed, repeat+" ("+line+")")
		fmt.Fprintf(os.Stderr, "FAILED %s (%s)\n  %s\n", repeat, line, strings.ReplaceAll(err.Error(), "\n", "\n  "))
	}
	if s.trials%25 == 0 {
		fmt.Fprintf(os.Stderr, "%d of %d trials, %d failed\n", s.trials, o.trials, len(s.failed))
	}
}

// target is that of the Makefile.
func target(o options) string {
	switch {
	case o.hosts > 1:
		return "chaos"
	case o.modules:
		return "chaos-python"
	}
	return "chaos-local"
}

// print prints a row for each fault.
func (s *summary) print(table []fault, mounts bool) error {
	rows := tabwriter.NewWriter(os.Stderr, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "FAULT\tTRIALS\tPASSED\tWHAT HAPPENS") //nolint:errcheck // Flush reports it
	for _, f := range table {
		t, skipped := s.tallies[f.name], ""
		if f.root() && !mounts {
			skipped = "; skipped, since it needs root"
		}
		fmt.Fprintf(rows, "%s\t%d\t%d\t%s%s\n", f.name, t.Trials, t.Passed, f.does, skipped) //nolint:errcheck // as above
	}
	fmt.Fprintln(rows, "\nJOBS\tTHAT HAD TO END WITH") //nolint:errcheck // as above
	for _, name := range slices.Sorted(maps.Keys(s.ended)) {
		fmt.Fprintf(rows, "%d\t%s\n", s.ended[name], name) //nolint:errcheck // as above
	}
	fmt.Fprintf(rows, "%d\tfewer groups or stages, since a host was away for good while they trained\n", s.shrunk) //nolint:errcheck // as above
	return rows.Flush()
}
