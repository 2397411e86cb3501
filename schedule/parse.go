package schedule

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Parse reads a plan in the grammar that String prints: one line a stage, cells such as F0, B0, I0 and W0 separated by
// blanks. Extra blanks and blank lines mean nothing. The first bad cell is an error of type *PlanError. Parse knows the
// grammar only; Check proves that the plan can run.
func Parse(text string) (Plan, error) {
	var lines []string
	for line := range strings.Lines(text) {
		if strings.TrimSpace(line) != "" {
			lines = append(lines, line)
		}
	}
	return parseStages(lines)
}

// parseStages reads one stage a line.
func parseStages(lines []string) (Plan, error) {
	if len(lines) == 0 {
		return nil, errors.New("schedule: plan is empty: want one line a stage, such as \"F0 F1 B0 B1\"")
	}
	rows := make([][]string, len(lines))
	for k, line := range lines {
		rows[k] = strings.Fields(line)
	}
	plan := make(Plan, len(rows))
	for k, cells := range rows {
		if len(cells) == 0 {
			return nil, malformed(rows, k, 0, "the stage has no work; write its cells, such as \"F0 B0\"")
		}
		plan[k] = make([]Op, len(cells))
		for i, cell := range cells {
			op, fault := parseOp(cell)
			if fault != "" {
				return nil, malformed(rows, k, i, fault)
			}
			plan[k][i] = op
		}
	}
	return plan, nil
}

// parseOp reads one cell, or says what is wrong with it and what it should have been.
func parseOp(cell string) (Op, string) {
	quoted := strconv.QuoteToASCII(clip(cell, 16))
	kind := strings.IndexByte(kindLetters, cell[0])
	if kind < 0 {
		if upper := strings.ToUpper(cell); strings.IndexByte(kindLetters, upper[0]) >= 0 {
			return Op{}, fmt.Sprintf("%s: kinds are capital letters; write %s", quoted, clip(upper, 16))
		}
		return Op{}, quoted + ": unknown kind; want F (forward), B (backward), I (input half) or W (weight half)"
	}
	number := cell[1:]
	if number == "" {
		return Op{}, fmt.Sprintf("%s: no micro-batch; want its number after the letter, such as %s0", quoted, cell)
	}
	micro, err := strconv.ParseUint(number, 10, 31)
	switch {
	case errors.Is(err, strconv.ErrRange):
		return Op{}, fmt.Sprintf("%s: micro-batch number too large; want at most %d", quoted, 1<<31-1)
	case err != nil:
		return Op{}, fmt.Sprintf("%s: bad micro-batch number; want digits only after %c", quoted, cell[0])
	case len(number) > 1 && number[0] == '0':
		return Op{}, fmt.Sprintf("%s: leading zero; write %c%d", quoted, cell[0], micro)
	}
	return Op{Kind: Kind(kind), Micro: int(micro)}, ""
}
