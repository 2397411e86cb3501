package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
)

// maxPlanFileBytes bounds a plan that is read: 8 million ops.
const maxPlanFileBytes = 1 << 26

func newPlanCheckCommand() *cobra.Command {
	return planVerb(&cobra.Command{
		Use:   "check FILE",
		Short: "Prove a plan that you wrote",
		Long: `Prove a plan that you wrote, as a job with "schedule: file:FILE" is proved when it is submitted: all work once and in
an order that makes sense, links that deliver in order, no deadlock, as many stages on each device. FILE is - for the standard input.

A plan has a line a device, of cells separated by blanks or commas: F0 is the forward of micro-batch 0, B0 its backward,
I0 and W0 the halves of one (for the inputs, and later for the weights), U0 an optimizer step after micro-batch 0. 2F0
is the forward of stage 2; without a number a line is its own stage. F5@1 reads the weights after one step of the plan.
Empty cells mean nothing, so the compute-only CSV files of PyTorch's schedules are plans.

Prints what the plan holds at most: per stage, the micro-batches between their forward and their backward (in flight) and
between the halves of it (halves), the versions of its weights, and by how many steps its gradients are late. A link never holds more
messages than the stage before it has micro-batches in flight. The json output has the same under devices and stages, and the plan as grid.

Exit codes: 0 the plan can run, 2 it cannot: the first fault is named and marked in the grid.`,
		Example: `  avgpipectl plan check plan.txt
  avgpipectl plan show --schedule zb-v --stages 4 --micro-batches 8 -o json | jq -r .grid[] | avgpipectl plan check -`,
	}, func(c *call) error {
		plan, err := c.readPlan(c.args[0])
		if err != nil {
			return err
		}
		proof := proofOf(plan)
		return c.show(proof, func(p *page) { proof.print(p, c.args[0]) })
	})
}

// planProof is what `plan check` finds, with what a plan holds at most.
type planProof struct {
	MicroBatches int           `json:"micro_batches"`
	Updates      int           `json:"updates"` // optimizer steps inside of the batch
	Grid         schedule.Plan `json:"grid"`
	// Devices have pinned, micro-batches in flight, counted on each of its stages, and warmup, forwards before the first backward.
	Devices []map[string]int `json:"devices"`
	// Stages have their device; pinned, and halves, micro-batches between the halves of their backward; versions of weights; and delay, of
	// gradients in updates.
	Stages []map[string]int `json:"stages"`
}

// readPlan reads a plan that can run.
func (c *call) readPlan(path string) (schedule.Plan, error) {
	text, err := c.read(path, "a plan", maxPlanFileBytes)
	if err != nil {
		return nil, err
	}
	plan, err := schedule.Prove(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return plan, nil
}

func proofOf(plan schedule.Plan) planProof {
	proof := planProof{MicroBatches: plan.MicroBatches(), Updates: plan.Updates(), Grid: plan}
	inFlight, warmup := schedule.InFlight(plan), schedule.Warmup(plan)
	for d := range plan {
		proof.Devices = append(proof.Devices, map[string]int{"pinned": inFlight[d], "warmup": warmup[d]})
	}
	perStage, halves := schedule.InFlightByStage(plan), schedule.HalvesByStage(plan)
	versions, delay := schedule.VersionsByStage(plan), schedule.GradientDelay(plan)
	for s, d := range plan.Placement() {
		proof.Stages = append(proof.Stages, map[string]int{
			"device": d, "pinned": perStage[s], "halves": halves[s], "versions": versions[s], "delay": delay[s],
		})
	}
	return proof
}

func (proof planProof) print(p *page, path string) {
	steps := "one optimizer step, after the batch"
	if proof.Updates > 0 {
		steps = words.Count(proof.Updates, "optimizer step") + ", inside of the batch"
	}
	p.printf("%s: ok: %s, %s, %s; %s\n\n", path,
		words.Count(len(proof.Devices), "device"), words.Count(len(proof.Stages), "stage"), words.Count(proof.MicroBatches, "micro-batch"), steps)
	t := table{narrow: []string{"device", "halves", "delay", "versions"}}
	t.add("stage", "device", "in flight", "halves", "versions", "delay")
	for s, stage := range proof.Stages {
		row := []string{strconv.Itoa(s)}
		for _, key := range []string{"device", "pinned", "halves", "versions", "delay"} {
			row = append(row, strconv.Itoa(stage[key]))
		}
		t.add(row...)
	}
	p.table(&t)
	for d, device := range proof.Devices {
		p.printf("device %d has %d in flight after a warm-up of %d\n", d, device["pinned"], device["warmup"])
	}
}
