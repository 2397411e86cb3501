package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// summary is what all trials found.
type summary struct {
	Trials  int       `json:"trials"`
	Passed  int       `json:"passed"`
	Seconds float64   `json:"seconds"`
	Faults  []tally   `json:"faults"`
	Failed  []failure `json:"failed"`
}

// tally is what became of the trials with one fault.
type tally struct {
	Name    string `json:"name"`
	Does    string `json:"does"`
	Trials  int    `json:"trials"`
	Passed  int    `json:"passed"`
	Skipped bool   `json:"skipped"` // it needs root
}

// failure is a trial that failed.
type failure struct {
	Seed   uint64 `json:"seed"`
	Plan   string `json:"plan"`
	Error  string `json:"error"`
	Repeat string `json:"repeat"`
}

// campaign runs all trials and prints what they found. The code is 1 when one failed.
func campaign(ctx context.Context, o options, table []fault, mounts bool) (code int, err error) {
	began := time.Now()
	references, err := undisturbed(ctx, o)
	if err != nil {
		return 0, err
	}
	s := newSummary(table, mounts)
	seeds := seedsOf(o)
	s.Trials = len(seeds)
	next := make(chan uint64)
	var running sync.WaitGroup
	var mu sync.Mutex
	for range o.parallel {
		running.Go(func() {
			for seed := range next {
				p := draw(seed, table, mounts)
				err := trial(ctx, o, p, mounts, references)
				mu.Lock()
				if ctx.Err() == nil {
					s.count(&p, err, o.repeat(seed))
					s.progress(began, err)
				}
				mu.Unlock()
			}
		})
	}
	for _, seed := range seeds {
		select {
		case next <- seed:
		case <-ctx.Done():
		}
	}
	close(next)
	running.Wait()
	s.Seconds = time.Since(began).Seconds()
	if ctx.Err() != nil {
		return 0, errors.New("interrupted")
	}
	if err := s.print(o); err != nil {
		return 0, err
	}
	return min(len(s.Failed), 1), nil
}

// seedsOf are the trials' seeds.
func seedsOf(o options) []uint64 {
	seeds := make([]uint64, o.trials)
	for i := range seeds {
		seeds[i] = max(o.seed, 1) + uint64(i)
	}
	if o.seed == 0 && len(seeds) > 0 {
		seeds[len(seeds)-1] = uint64(rand.Uint32())
	}
	return seeds
}

// undisturbed runs each kind of job without faults.
func undisturbed(ctx context.Context, o options) (map[string]result, error) {
	results := map[string]result{}
	for i := range kinds {
		k := &kinds[i]
		if k.tuned {
			results[k.name] = results[kinds[0].name] // what it leaves open does not change its bits
			continue
		}
		w, err := newTestbed(0, false, func(string) {})
		if err != nil {
			return nil, err
		}
		running, end := context.WithCancel(ctx)
		w.daemon = supervise(running, o.program, w.config(), w.log())
		results[k.name], err = w.reference(ctx, k)
		if err = errors.Join(err, w.end(ctx, end)); err != nil {
			return nil, errors.Join(fmt.Errorf("undisturbed %s: %w", k.name, err), w.save(o.keep, err), w.remove())
		}
		if err := w.remove(); err != nil {
			return nil, err
		}
	}
	return results, nil
}

// reference runs one job to its end.
func (w *testbed) reference(ctx context.Context, k *kind) (result, error) {
	if err := w.answers(ctx); err != nil {
		return result{}, err
	}
	id, err := w.submit(ctx, k)
	if err != nil {
		return result{}, err
	}
	err = poll(ctx, jobBound, "the end of the job", func() bool {
		s, err := w.client.Job(ctx, id)
		return err == nil && s.State.Ended()
	})
	if err != nil {
		return result{}, err
	}
	return w.outcome(ctx, id)
}

func newSummary(table []fault, mounts bool) *summary {
	s := &summary{Faults: make([]tally, len(table)), Failed: []failure{}}
	for i, f := range table {
		s.Faults[i] = tally{Name: f.name, Does: f.does, Skipped: f.mounts && !mounts}
	}
	return s
}

// count takes in how a trial ended.
func (s *summary) count(p *plan, err error, repeat string) {
	seen := map[string]bool{}
	for _, e := range p.events {
		seen[e.fault.name] = true
	}
	for i := range s.Faults {
		if t := &s.Faults[i]; seen[t.Name] {
			t.Trials++
			if err == nil {
				t.Passed++
			}
		}
	}
	if err == nil {
		s.Passed++
		return
	}
	s.Failed = append(s.Failed, failure{Seed: p.seed, Plan: p.String(), Error: err.Error(), Repeat: repeat})
}

// repeat is the command that runs one trial again.
func (o options) repeat(seed uint64) string {
	command := fmt.Sprintf("make chaos-local SEED=%d TRIALS=1", seed)
	if o.faults != "" {
		command += " FAULTS=" + o.faults
	}
	return command
}

// progress says how far it is, in a line that is written over on a terminal, and what the last trial failed with.
func (s *summary) progress(began time.Time, err error) {
	if err != nil {
		f := s.Failed[len(s.Failed)-1]
		fmt.Fprintf(os.Stderr, "FAILED %s (%s)\n  %s\n", f.Repeat, f.Plan, strings.ReplaceAll(f.Error, "\n", "\n  "))
	}
	done, end := s.Passed+len(s.Failed), "\n"
	if done < s.Trials && done%25 != 0 {
		if end = "\r"; !term.IsTerminal(int(os.Stderr.Fd())) {
			return
		}
	}
	fmt.Fprintf(os.Stderr, "%d of %d trials, %d failed, %.0f s%s", done, s.Trials, len(s.Failed), time.Since(began).Seconds(), end)
}

// print prints the summary to the standard output.
func (s *summary) print(o options) error {
	switch o.output {
	case "json":
		return json.NewEncoder(os.Stdout).Encode(s)
	case "figure":
		return report.Report(os.Stdout, os.Stderr, report.Figure{
			Bench: "chaos", Metric: "trials that end as if undisturbed", Value: float64(s.Passed) / float64(s.Trials), Unit: "of 1", Bar: 1, Aim: 1,
			Conditions: map[string]any{"trials": s.Trials, "failed": s.Failed},
		})
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "FAULT\tTRIALS\tPASSED\tWHAT HAPPENS") //nolint:errcheck // Flush reports it
	for _, t := range s.Faults {
		if t.Skipped {
			fmt.Fprintf(table, "%s\t-\tskipped\t%s; needs root\n", t.Name, t.Does) //nolint:errcheck // as above
			continue
		}
		fmt.Fprintf(table, "%s\t%d\t%d\t%s\n", t.Name, t.Trials, t.Passed, t.Does) //nolint:errcheck // as above
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Printf("%d trials, %d passed, in %.0f s\n", s.Trials, s.Passed, s.Seconds)
	for _, f := range s.Failed {
		fmt.Printf("failed: %s (%s)\n", f.Repeat, f.Plan)
	}
	if len(s.Failed) > 0 {
		fmt.Printf("their logs are in %s\n", o.keep)
	}
	return nil
}
