package schedule

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Kind says what an Op computes.
type Kind uint8

// The kinds of work on one micro-batch.
const (
	Forward        Kind = iota // F: forward
	Backward                   // B: whole backward
	BackwardInput              // I: the input-gradient half of a backward
	BackwardWeight             // W: the weight-gradient half, after I
)

// kindLetters[k] is the grammar's letter of Kind k.
const kindLetters = "FBIW"

// String is the letter of the kind in the plan grammar.
func (k Kind) String() string {
	if int(k) >= len(kindLetters) {
		return fmt.Sprintf("Kind(%d)", uint8(k))
	}
	return kindLetters[k : k+1]
}

// Op is one unit of compute: a micro-batch's forward or backward, whole or half.
type Op struct {
	Kind  Kind
	Micro int // 0-based
}

// String is the op's cell in the plan grammar: "F0".
func (o Op) String() string { return o.Kind.String() + strconv.Itoa(o.Micro) }

// Plan is the order of work for one batch: Plan[k] is what stage k (0-based, 0 is the input side) executes, first to last.
type Plan [][]Op

// String prints the plan in its grammar: one line a stage, cells separated by one blank.
func (p Plan) String() string { return strings.Join(p.Lines(), "\n") }

// Lines is the plan in its grammar, one string a stage.
func (p Plan) Lines() []string {
	lines := make([]string, len(p))
	for k, ops := range p {
		lines[k] = formatStage(ops)
	}
	return lines
}

func formatStage(ops []Op) string {
	b := make([]byte, 0, 4*len(ops))
	for i, op := range ops {
		if i > 0 {
			b = append(b, ' ')
		}
		b = append(b, op.Kind.String()...)
		b = strconv.AppendInt(b, int64(op.Micro), 10)
	}
	return string(b)
}

// Ops is the number of ops of all stages.
func (p Plan) Ops() int {
	n := 0
	for _, ops := range p {
		n += len(ops)
	}
	return n
}

// MarshalText prints the plan as String does.
func (p Plan) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText parses the plan as Parse does.
func (p *Plan) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}

// MarshalJSON prints the plan as an array of strings, one a stage: ["F0 F1 B0 B1", "F0 B0 F1 B1"].
func (p Plan) MarshalJSON() ([]byte, error) { return json.Marshal(p.Lines()) }

// UnmarshalJSON parses what MarshalJSON prints.
func (p *Plan) UnmarshalJSON(data []byte) error {
	var lines []string
	if err := json.Unmarshal(data, &lines); err != nil {
		return fmt.Errorf("schedule: plan: want an array of strings, one a stage: %w", err)
	}
	parsed, err := parseStages(lines)
	if err != nil {
		return err
	}
	*p = parsed
	return nil
}
