// Schedules measures the simulator, holds afp to its promises, and draws what AvgPipe argues with. See README.md.
package main

import (
	"context"
	"flag"

	"github.com/avgpipe/avgpipe/bench/internal/report"
)

func main() {
	figures := flag.String("figures", "bench/schedules/figures", "`DIRECTORY` that the images are written to")
	named := flag.String("parts", "simulator,afp,figures", "`PARTS` to run, separated by commas")
	report.Main("schedules", func(ctx context.Context) ([]report.Figure, error) {
		return report.Parts(ctx, *named,
			report.Part{Name: "simulator", Measure: measureSimulator},
			report.Part{Name: "afp", Measure: holdAFP},
			report.Part{Name: "figures", Measure: func(context.Context) ([]report.Figure, error) { return drawFigures(*figures) }})
	})
}
