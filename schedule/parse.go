package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Parse reads a plan in the grammar that String prints: one line a device, cells such as F0, B0, I0, W0 and U0 separated by
// blanks, with the stage before the letter (2F0) where it is not the line's number and the version of the weights behind
// the micro-batch (F5@1) where it is not 0. Extra blanks and blank lines mean nothing.
//
// Commas separate cells as well. Nothing between two commas is an idle step, which a plan does not record. So the compute-only CSV
// files of PyTorch's pipeline schedules are plans, one line a rank.
//
// The first bad cell is an error of type *PlanError. Parse knows the grammar only; Check proves that the plan can run.
func Parse(text string) (Plan, error) {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return nil, errors.New("schedule: plan is empty: want one line a device, such as \"F0 F1 B0 B1\"")
	}
	rows := make([][]string, len(lines))
	for k, line := range lines {
		rows[k] = strings.FieldsFunc(line, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
	}
	plan := make(Plan, len(rows))
	for k, cells := range rows {
		if len(cells) == 0 {
			return nil, malformed(rows, k, 0, "the device has no work; write its cells, such as \"F0 B0\"")
		}
		plan[k] = make([]Op, len(cells))
		for i, cell := range cells {
			op, fault := parseOp(cell, k)
			if fault != "" {
				return nil, malformed(rows, k, i, fault)
			}
			plan[k][i] = op
		}
	}
	return plan, nil
}

// parseOp reads one cell of device d, or says what is wrong with it and what it should have been.
func parseOp(cell string, d int) (Op, string) {
	quoted := strconv.QuoteToASCII(clip(cell, 16))
	op := Op{Stage: d}
	rest := strings.TrimLeft(cell, "0123456789")
	if digits := cell[:len(cell)-len(rest)]; digits != "" {
		n, fault := parseNumber(digits)
		if fault != "" {
			return Op{}, fmt.Sprintf("%s: stage %s", quoted, fault)
		}
		op.Stage = n
	}
	if rest == "" {
		return Op{}, quoted + ": no kind; want a letter and a micro-batch, such as F" + clip(cell, 16)
	}
	if isTransfer(rest) {
		return Op{}, quoted + ": a plan has no messages, shards or overlaps, they follow from it; write the compute-only form, with F, B, I and W alone"
	}
	kind := strings.IndexByte(kindLetters, rest[0])
	if kind < 0 {
		if upper := strings.ToUpper(rest); strings.IndexByte(kindLetters, upper[0]) >= 0 {
			return Op{}, fmt.Sprintf("%s: kinds are capital letters; write %s", quoted, clip(cell[:len(cell)-len(rest)]+upper, 16))
		}
		return Op{}, quoted + ": unknown kind; want F (forward), B (backward), I (input half), W (weight half) or U (update)"
	}
	op.Kind = Kind(kind)
	number, version, versioned := strings.Cut(rest[1:], "@")
	if number == "" {
		return Op{}, fmt.Sprintf("%s: no micro-batch; want its number after the letter, such as %s0", quoted, clip(cell, 16))
	}
	var fault string
	if op.Micro, fault = parseNumber(number); fault != "" {
		return Op{}, fmt.Sprintf("%s: micro-batch %s", quoted, fault)
	}
	if !versioned {
		return op, ""
	}
	if op.Version, fault = parseNumber(version); fault != "" {
		return Op{}, fmt.Sprintf("%s: version %s", quoted, fault)
	}
	if op.Version == 0 || op.Kind != Forward {
		return Op{}, fmt.Sprintf("%s: only a forward has a version, and not 0; write %v", quoted, Op{Kind: op.Kind, Micro: op.Micro})
	}
	return op, ""
}

// isTransfer reports whether a cell, without its stage, is one of PyTorch's cells other than compute.
func isTransfer(cell string) bool {
	for _, name := range []string{"SEND_", "RECV_", "UNSHARD", "RESHARD", "REDUCE_GRAD", "("} {
		if strings.HasPrefix(cell, name) {
			return true
		}
	}
	return false
}

// parseNumber reads digits, or says what is wrong with them.
func parseNumber(digits string) (int, string) {
	n, err := strconv.ParseUint(digits, 10, 31)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return 0, fmt.Sprintf("number too large; want at most %d", 1<<31-1)
	case err != nil:
		return 0, "is not a number; want digits only"
	case len(digits) > 1 && digits[0] == '0':
		return 0, fmt.Sprintf("has a leading zero; write %d", n)
	}
	return int(n), ""
}
