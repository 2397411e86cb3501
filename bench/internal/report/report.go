// Package report prints what the programs under bench/ measured: one JSON line a figure for machines, and a table for people.
package report

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
)

// Figure is one measured number and what it must be.
type Figure struct {
	Bench      string         `json:"bench"`
	Metric     string         `json:"metric"`
	Value      float64        `json:"value"`
	Unit       string         `json:"unit"`
	Bar        float64        `json:"bar"`            // what must hold
	Aim        float64        `json:"aim"`            // what would be better
	AtMost     bool           `json:"at_most"`        // the value must not be above the bar; otherwise not below it
	Holds      bool           `json:"holds"`          // set by Report
	Void       string         `json:"void,omitempty"` // why it says nothing, so that it does not hold; "": it does
	Conditions map[string]any `json:"conditions"`
}

// holds compares the value with the bar. What was not measured is not a number, and holds nothing; nor does an infinite cost or gain. A cost below 0 is a
// value like others: the difference of two times, of which the second was the shorter.
func (f Figure) holds() bool {
	switch {
	case f.Void != "", math.IsNaN(f.Value), math.IsInf(f.Value, 0):
		return false
	case f.AtMost:
		return f.Value <= f.Bar
	}
	return f.Value >= f.Bar
}

// Main is the main function of a benchmark: it parses the flags, which the caller has defined, reports what measure found, and exits
// with 0 when it could measure. A signal ends ctx.
func Main(name string, measure func(ctx context.Context) ([]Figure, error)) {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	figures, err := measure(ctx)
	stop()
	for i := range figures {
		figures[i].Bench = name
	}
	if len(figures) > 0 {
		err = errors.Join(err, Report(os.Stdout, os.Stderr, figures...))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// Part is one of the things that a benchmark measures.
type Part struct {
	Name    string
	Measure func(ctx context.Context) ([]Figure, error)
}

// Parts measures those that are named, in their own order.
func Parts(ctx context.Context, named string, parts ...Part) (figures []Figure, err error) {
	var known []string
	for _, p := range parts {
		known = append(known, p.Name)
	}
	only := strings.Split(named, ",")
	for _, name := range only {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("-parts names %q; the parts are %s", name, strings.Join(known, ", "))
		}
	}
	for _, p := range parts {
		if !slices.Contains(only, p.Name) {
			continue
		}
		found, err := p.Measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Name, err)
		}
		figures = append(figures, found...)
	}
	return figures, nil
}

// Report prints figures: JSON lines to machine, a table to people.
func Report(machine, people io.Writer, figures ...Figure) error {
	lines := json.NewEncoder(machine)
	for i := range figures {
		f := &figures[i]
		f.Holds = f.holds()
		if err := lines.Encode(f); err != nil {
			return fmt.Errorf("write figure %s of %s: %w", f.Metric, f.Bench, err)
		}
	}
	table := tabwriter.NewWriter(people, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "metric\tvalue\tbar\taim\t") //nolint:errcheck // Flush returns it
	for _, f := range figures {
		side, verdict := ">=", "does not hold"
		if f.AtMost {
			side = "<="
		}
		if f.Holds {
			verdict = "holds"
		}
		if f.Void != "" {
			verdict = "void: " + f.Void
		}
		fmt.Fprintf(table, "%s\t%.4g %s\t%s %g\t%s %g\t%s\n", f.Metric, f.Value, f.Unit, side, f.Bar, side, f.Aim, verdict) //nolint:errcheck // Flush returns it
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// Median is the middle of values, or the mean of the two in the middle; 0 of none.
func Median(values []float64) float64 {
	v := slices.Clone(values)
	slices.Sort(v)
	n := len(v)
	if n == 0 {
		return 0
	}
	return (v[(n-1)/2] + v[n/2]) / 2
}
