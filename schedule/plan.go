package schedule

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Kind says what an Op does.
type Kind uint8

// The kinds of work.
const (
	Forward        Kind = iota // F: forward of a micro-batch
	Backward                   // B: whole backward
	BackwardInput              // I: the input-gradient half of a backward
	BackwardWeight             // W: the weight-gradient half, after I
	Update                     // U: optimizer step with the gradients of the micro-batches up to Op.Micro, those of earlier updates left out
)

// kindLetters[k] is the grammar's letter of Kind k.
const kindLetters = "FBIWU"

// String is the letter of the kind in the plan grammar, and A for averaging, which drawings have beside it.
func (k Kind) String() string {
	const letters = kindLetters + "A"
	if int(k) >= len(letters) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return letters[k : k+1]
}

// Op is one unit of a device's work on one stage.
type Op struct {
	Kind  Kind
	Stage int // 0-based, of all stages of the pipeline: 0 is the input side
	Micro int // 0-based; counted on from batch to batch where the plan is of several
	// Version, of a Forward, is how many of the plan's updates the weights have seen that it reads; the backward of the same
	// micro-batch reads the same ones. 0 in a plan without updates, and in ops of other kinds.
	Version int
}

// String is the op's cell in the plan grammar, without its stage: "F0", "F5@1".
func (o Op) String() string { return string(o.appendCell(nil, false)) }

func (o Op) appendCell(b []byte, withStage bool) []byte {
	if withStage {
		b = strconv.AppendInt(b, int64(o.Stage), 10)
	}
	b = append(b, o.Kind.String()...)
	if o.Micro >= 0 { // else it ends a batch
		b = strconv.AppendInt(b, int64(o.Micro), 10)
	}
	if o.Version != 0 {
		b = append(b, '@')
		b = strconv.AppendInt(b, int64(o.Version), 10)
	}
	return b
}

// Plan is the order of work for one batch, or for several without a drain between (see Batches): Plan[d] is what device d (0-based) executes, first to last. Every stage lives on one
// device. Where device d has stage d and no other, cells print without their stage: "F0"; else with it: "2F0".
//
// A plan without updates (synchronous) leaves the one optimizer step to the end of the batch.
type Plan [][]Op

// Stages is the number of stages: one more than the largest that an op names.
func (p Plan) Stages() int {
	last := -1
	for _, ops := range p {
		for _, op := range ops {
			last = max(last, op.Stage)
		}
	}
	return last + 1
}

// MicroBatches is the number of micro-batches: one more than the largest that a forward names. Check proves that all are there.
func (p Plan) MicroBatches() int {
	last := -1
	for _, ops := range p {
		for _, op := range ops {
			if op.Kind == Forward {
				last = max(last, op.Micro)
			}
		}
	}
	return last + 1
}

// Placement is the device of each stage, -1 for one that no device has. Check proves that there is exactly one.
func (p Plan) Placement() []int {
	devices := make([]int, p.Stages())
	for s := range devices {
		devices[s] = -1
	}
	for d, ops := range p {
		for _, op := range ops {
			devices[op.Stage] = d
		}
	}
	return devices
}

// Updates is how many optimizer steps the plan itself takes on each stage; 0 for a synchronous plan.
func (p Plan) Updates() int {
	n := 0
	if len(p) > 0 && len(p[0]) > 0 {
		for _, op := range p[0] {
			if op.Kind == Update && op.Stage == p[0][0].Stage {
				n++
			}
		}
	}
	return n
}

// plain reports whether device d has stage d and no other, for every d.
func (p Plan) plain() bool {
	for d, ops := range p {
		for _, op := range ops {
			if op.Stage != d {
				return false
			}
		}
	}
	return true
}

// String prints the plan in its grammar: one line a device, cells separated by one blank.
func (p Plan) String() string { return strings.Join(p.Lines(), "\n") }

// Lines is the plan in its grammar, one string a device.
func (p Plan) Lines() []string {
	withStage := !p.plain()
	lines := make([]string, len(p))
	for d, ops := range p {
		lines[d] = formatRow(ops, withStage)
	}
	return lines
}

func formatRow(ops []Op, withStage bool) string {
	b := make([]byte, 0, 4*len(ops))
	for i, op := range ops {
		if i > 0 {
			b = append(b, ' ')
		}
		b = op.appendCell(b, withStage)
	}
	return string(b)
}

// label is the op's cell as the plan prints it.
func (p Plan) label(op Op) string { return string(op.appendCell(nil, !p.plain())) }

// Ops is the number of ops of all devices.
func (p Plan) Ops() int {
	n := 0
	for _, ops := range p {
		n += len(ops)
	}
	return n
}

// MarshalJSON prints the plan as an array of strings, one a device: ["F0 F1 B0 B1", "F0 B0 F1 B1"].
func (p Plan) MarshalJSON() ([]byte, error) { return json.Marshal(p.Lines()) }
