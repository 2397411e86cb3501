package main

import (
	"fmt"
	"strings"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
	"github.com/avgpipe/avgpipe/tuner"
)

// printDryRun prints what a job would be.
func printDryRun(p *page, d *api.DryRun) {
	var t table
	t.add("job", d.Name+" would be admitted; nothing was started or stored")
	shape := jobShape(d.Stages, d.Pipelines, d.MicroBatches, d.Schedule)
	if words := recomputes(d.Recompute); words != "" {
		shape += ", " + words
	}
	t.add("shape", shape)
	t.add("averaging", d.Averaging)
	budget := d.Budget + ": how many samples that is, is known once the data are open"
	if d.BudgetSamples > 0 {
		budget = fmt.Sprintf("%s: %d samples, %d steps of each pipeline", d.Budget, d.BudgetSamples, d.Steps)
	}
	t.add("budget", budget)
	t.add("tuning", d.Tuning)
	if d.Report != nil && d.Report.Estimate != nil {
		e := d.Report.Estimate
		t.add("time", fmt.Sprintf("about %s of training, by %s", words.Seconds(e.JobSeconds), e.Basis))
	}
	for _, why := range d.Why {
		t.add("why", why)
	}
	for _, w := range d.Warnings {
		t.add("warning", w)
	}
	p.table(&t)
	if drawing := drawDryRun(d, p.drawingWidth()); drawing != "" {
		p.printf("\n%s\n", drawing)
	}
	if d.Report == nil {
		p.printf("\nthere is no estimate of a plan that a file gives; avgpipectl plan compare simulates it\n")
		return
	}
	printTerms(p, &d.Report.Chosen, nil)
}

// drawDryRun draws the plan, with the expected times where there are any.
func drawDryRun(d *api.DryRun, width int) string {
	plan, err := schedule.Parse(strings.Join(d.Plan, "\n"))
	if err != nil || len(d.Plan) == 0 || plan.Ops() > mostDrawnOps {
		return ""
	}
	costs, unit, scale := schedule.Uniform(plan.Stages(), 1, 2, 0), "forwards, a backward being two", 1.0
	if r := d.Report; r != nil && fits(&r.Chosen, plan) {
		costs, unit, scale = r.Chosen.Costs, "milliseconds", 1e3
	}
	return drawPlan(plan, costs, width, unit, scale)
}

// fits reports whether the costs of a candidate are those of the stages of a plan.
func fits(c *tuner.Candidate, plan schedule.Plan) bool {
	return len(c.Costs.Forward) == plan.Stages() && c.MicroBatches == plan.MicroBatches()
}
