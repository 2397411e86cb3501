package main

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
)

// progress shows how far a job or a tuning is: on a terminal a bar that is drawn in its place again, else lines.
type progress struct {
	out     io.Writer
	width   int // of the terminal; 0: it is none
	last    api.JobStatus
	printed time.Time // the last line
}

func newProgress(out io.Writer) *progress {
	p := &progress{out: out}
	p.width, _ = terminal(out)
	return p
}

// lineEvery is how often a line is printed for progress alone.
const lineEvery = 5 * time.Second

// status shows a job's status: what is new about its state in a line, the rest in the bar, or in lines now and then.
func (p *progress) status(s api.JobStatus) error {
	entered := s.State != p.last.State || s.Generation != p.last.Generation
	changed := entered || s.EvalRound != p.last.EvalRound || tuningStep(s) != tuningStep(p.last)
	p.last = s
	switch {
	case p.width > 0 && entered:
		p.say(fmt.Sprintf("job %s %s: %s", s.ID, paint(string(s.State)), s.Reason))
		fallthrough
	case p.width > 0:
		return p.bar(func(width int) string { return progressText(s, width) }, fraction(s))
	case !changed && time.Since(p.printed) < lineEvery:
		return nil
	}
	p.printed = time.Now()
	why := ""
	if entered && s.Tuning == nil { // the progress of a tuning is its reason
		why = ": " + s.Reason
	}
	_, err := fmt.Fprintf(p.out, "%s %s%s\n", s.State, progressText(s, 1<<20), why)
	return err
}

// bar draws a text that says how far something is, how much is done, and a bar of a sixth of the columns over what was drawn before.
func (p *progress) bar(text func(width int) string, done float64) error {
	if width, ok := terminal(p.out); ok { // it may have been resized
		p.width = width
	}
	const around = 9 // "  45% |...|"
	length := max(2, min(30, p.width/6))
	full := min(int(float64(length)*done), length)
	_, err := fmt.Fprintf(p.out, "\r\x1b[K%s %3.0f%% |%-*s|", text(max(1, p.width-length-around)), 100*done, length, strings.Repeat("█", full))
	return err
}

// say prints a line, in the place of the bar.
func (p *progress) say(line string) {
	if p.width > 0 {
		line = "\r\x1b[K" + line
	}
	fmt.Fprintln(p.out, line) //nolint:errcheck // the next status finds out
}

// finish leaves the bar where it is.
func (p *progress) finish() error {
	if p.width == 0 {
		return nil
	}
	_, err := fmt.Fprintln(p.out)
	return err
}

// fraction is how much of a job is done: of its time when that is known, since it may end before its steps do.
func fraction(s api.JobStatus) float64 {
	switch {
	case s.Tuning != nil:
		return min(float64(s.Tuning.Done)/float64(max(s.Tuning.Total, 1)), 1)
	case s.State == api.Done:
		return 1
	case s.ETAS != nil && s.ElapsedS+*s.ETAS > 0:
		return s.ElapsedS / (s.ElapsedS + *s.ETAS)
	case s.Steps > 0:
		return min(float64(s.Step)/float64(s.Steps), 1)
	}
	return 0
}

// tuningStep is what a tuning measures; "" when there is none.
func tuningStep(s api.JobStatus) string {
	if s.Tuning == nil {
		return ""
	}
	return tuningText(s.Tuning)
}

// tuningText says how far a tuning is.
func tuningText(p *api.TuneProgress) string {
	if p.Total == 0 {
		return cmp.Or(p.Text, "starting")
	}
	return fmt.Sprintf("step %d of %d: %s", min(p.Done+1, p.Total), p.Total, p.Text)
}

// progressText says how far a job is in at most so many columns: what matters most comes first, and what finds no room is left out.
func progressText(s api.JobStatus, width int) string {
	if s.Tuning != nil {
		return words.Clip(tuningText(s.Tuning), width)
	}
	text := ""
	add := func(there bool, format string, args ...any) {
		part := fmt.Sprintf(format, args...)
		if text != "" {
			part = text + ", " + part
		}
		if there && utf8.RuneCountInString(part) <= width {
			text = part
		}
	}
	add(s.ETAS != nil, "%s left", seconds(s.ETAS))
	add(true, "step %d/%s", s.Step, known(s.Steps))
	add(s.Loss != nil, "loss %s", number(s.Loss, "%.3f"))
	add(s.EvalLoss != nil, "eval %s", number(s.EvalLoss, "%.3f"))
	if s.Accuracy != nil {
		add(true, "accuracy %.1f%%", 100**s.Accuracy)
	}
	add(s.TokensPerS > 0, "%s %s", words.Number(s.TokensPerS), speedUnit(s))
	add(true, "sample %d/%s", s.SamplesSeen, known(s.BudgetSamples))
	add(s.CommittedRound > 0, "round %d committed", s.CommittedRound)
	return text
}

// known prints a part of the budget, which the data may be needed to tell.
func known(n uint64) string {
	if n == 0 {
		return "?"
	}
	return strconv.FormatUint(n, 10)
}
