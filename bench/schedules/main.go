// Schedules measures the simulator, holds afp to its promises, and draws what AvgPipe argues with. See README.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

// part is one of the things that this program measures.
type part struct {
	name string
	run  func(options) ([]report.Figure, error)
}

// parts are all of them, in the order in which they run.
var parts = []part{
	{"simulator", measureSimulator},
	{"afp", holdAFP},
	{"figures", drawFigures},
}

// options are the flags.
type options struct {
	figures string // directory of the images
}

func main() {
	var o options
	flag.StringVar(&o.figures, "figures", "bench/schedules/figures", "`DIRECTORY` that the images are written to")
	only := flag.String("parts", strings.Join(names(), ","), "`PARTS` to run, separated by commas")
	report.Main("schedules", func(context.Context) ([]report.Figure, error) { return run(o, strings.Split(*only, ",")) })
}

func names() []string {
	var all []string
	for _, p := range parts {
		all = append(all, p.name)
	}
	return all
}

func run(o options, only []string) (figures []report.Figure, err error) {
	for _, name := range only {
		if !slices.Contains(names(), name) {
			return nil, fmt.Errorf("-parts: %q is unknown; want some of %s", name, strings.Join(names(), ","))
		}
	}
	for _, p := range parts {
		if !slices.Contains(only, p.name) {
			continue
		}
		found, err := p.run(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
		figures = append(figures, found...)
	}
	return figures, nil
}
