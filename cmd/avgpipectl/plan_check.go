package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
)

// maxPlanFileBytes bounds a plan that is read: 8 million ops.
const maxPlanFileBytes = 1 << 26

func newPlanCheckCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Prove a plan that you wrote",
		Long: `Prove a plan that you wrote, as a job with "schedule: file:FILE" is proved when it is submitted: all work once and in
an order that makes sense, links that deliver in order, no deadlock, as many stages on each device. FILE is - for the standard input.

A plan has a line a device, of cells separated by blanks or commas: F0 is the forward of micro-batch 0, B0 its backward,
I0 and W0 the halves of one (for the inputs, and later for the weights), U0 an optimizer step after micro-batch 0. 2F0
is the forward of stage 2; without a number a line is its own stage. F5@1 reads the weights after one step of the plan.
Empty cells mean nothing, so the compute-only CSV files of PyTorch's schedules are plans.

Prints what the plan holds at most: per stage, the micro-batches between their forward and their backward (in flight) and
between the halves of it (halves), the versions of its weights, and by how many steps its gradients are late; per
link, messages on their way (sent down, sent up). The json output has the same under devices, stages and links, and the plan as grid.

Exit codes: 0 the plan can run, 2 it cannot: the first fault is named and marked in the grid.`,
		Example: `  avgpipectl plan check plan.txt
  avgpipectl plan show --schedule zb-v --stages 4 --micro-batches 8 -o json | jq -r .grid[] | avgpipectl plan check -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := runPlanCheck(cmd.InOrStdin(), cmd.OutOrStdout(), args, output); err != nil {
				return fmt.Errorf("plan check: %w", &usageError{err})
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "text", "`FORMAT`: one of "+strings.Join(planCheckOutputs, ", "))
	return cmd
}

var planCheckOutputs = []string{"text", "json"}

// planProof is what `plan check` finds.
type planProof struct {
	MicroBatches int           `json:"micro_batches"`
	Updates      int           `json:"updates"` // optimizer steps inside of the batch
	Grid         schedule.Plan `json:"grid"`
	Devices      []planDevice  `json:"devices"`
	Stages       []planStage   `json:"stages"`
	Links        []planLink    `json:"links"` // of stage k and the next; null where counting them would take too long
}

type planDevice struct {
	InFlight int `json:"pinned"` // micro-batches, counted on each of its stages
	Warmup   int `json:"warmup"` // forwards before the first backward
}

type planStage struct {
	Device   int `json:"device"`
	InFlight int `json:"pinned"`   // micro-batches
	Halves   int `json:"halves"`   // micro-batches between the halves of their backward
	Versions int `json:"versions"` // of its weights
	Delay    int `json:"delay"`    // of its gradients, in updates
}

type planLink struct {
	Down int `json:"down"` // messages on their way to the next stage
	Up   int `json:"up"`   // and from it
}

// runPlanCheck proves the plan in the file that args name. All its errors are bad input.
func runPlanCheck(in io.Reader, out io.Writer, args []string, output string) error {
	if output != "text" && output != "json" {
		return notOneOf("--output", output, planCheckOutputs)
	}
	if len(args) != 1 {
		return fmt.Errorf("%d files; want one: avgpipectl plan check FILE", len(args))
	}
	plan, err := readPlanFile(args[0], in)
	if err != nil {
		return err
	}
	proof := proofOf(plan)
	if output == "json" {
		return printJSON(out, proof)
	}
	return proof.print(out, args[0])
}

// readPlanFile reads a plan that can run from a file, or from in where the path is -.
func readPlanFile(path string, in io.Reader) (schedule.Plan, error) {
	const hint = "want a plan of fewer micro-batches"
	var text []byte
	var err error
	if path == "-" {
		text, err = readAll(in, path, maxPlanFileBytes, hint)
	} else {
		text, err = readFile(path, maxPlanFileBytes, hint)
	}
	if err != nil {
		return nil, err
	}
	plan, err := schedule.Prove(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return plan, nil
}

// mostVisited bounds the ops that are visited to count messages on their way: some seconds. Where device s is not just stage s, each
// device takes a pass over them all.
const mostVisited = 1 << 27

func proofOf(plan schedule.Plan) planProof {
	proof := planProof{MicroBatches: plan.MicroBatches(), Updates: plan.Updates(), Grid: plan}
	inFlight, warmup := schedule.InFlight(plan), schedule.Warmup(plan)
	for d := range plan {
		proof.Devices = append(proof.Devices, planDevice{InFlight: inFlight[d], Warmup: warmup[d]})
	}
	perStage, halves := schedule.InFlightByStage(plan), schedule.HalvesByStage(plan)
	versions, delay := schedule.VersionsByStage(plan), schedule.GradientDelay(plan)
	inOrder := true // stage s on device s
	for s, d := range plan.Placement() {
		inOrder = inOrder && s == d
		proof.Stages = append(proof.Stages, planStage{Device: d, InFlight: perStage[s], Halves: halves[s], Versions: versions[s], Delay: delay[s]})
	}
	if inOrder || len(plan)*plan.Ops() <= mostVisited {
		proof.Links = []planLink{}
		for _, peak := range schedule.LinkDepths(plan) {
			proof.Links = append(proof.Links, planLink{Down: peak.Forward, Up: peak.Backward})
		}
	}
	return proof
}

func (p planProof) print(out io.Writer, path string) error {
	steps := "one optimizer step, after the batch"
	if p.Updates > 0 {
		steps = words.Count(p.Updates, "optimizer step") + ", inside of the batch"
	}
	var text, table strings.Builder
	fmt.Fprintf(&text, "%s: ok: %s, %s, %s; %s\n\n", path,
		words.Count(len(p.Devices), "device"), words.Count(len(p.Stages), "stage"), words.Count(p.MicroBatches, "micro-batch"), steps)
	table.WriteString("stage\tdevice\tin flight\thalves\tversions\tdelay\tsent down\tsent up\t\n")
	for s, stage := range p.Stages {
		down, up := "-", "-"
		if s < len(p.Links) {
			down = strconv.Itoa(p.Links[s].Down)
		}
		if s > 0 && p.Links != nil {
			up = strconv.Itoa(p.Links[s-1].Up)
		}
		fmt.Fprintf(&table, "%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\t\n", s, stage.Device, stage.InFlight, stage.Halves, stage.Versions, stage.Delay, down, up)
	}
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, err := io.WriteString(w, table.String())
	if err = errors.Join(err, w.Flush()); err != nil {
		return err
	}
	if p.Links == nil {
		text.WriteString("messages on their way are not counted: that takes too long for a plan of so many devices whose stages are not in order\n")
	}
	for d, device := range p.Devices {
		fmt.Fprintf(&text, "device %d has %d in flight after a warm-up of %d\n", d, device.InFlight, device.Warmup)
	}
	_, err = io.WriteString(out, text.String())
	return err
}
