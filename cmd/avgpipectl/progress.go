package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/schollz/progressbar/v3"

	"github.com/avgpipe/avgpipe/internal/api"
)

// display shows a job's statuses as they come.
type display interface {
	show(s api.JobStatus) error
	say(message string) // something beside the job's status
	finish() error
}

// jsonDisplay prints one status per line.
type jsonDisplay struct{ out io.Writer }

func (d jsonDisplay) show(s api.JobStatus) error { return printLine(d.out, s) }
func (d jsonDisplay) say(string)                 {}
func (d jsonDisplay) finish() error              { return nil }

// lineEvery is how often a line is printed for progress alone.
const lineEvery = 5 * time.Second

// lineDisplay prints lines: whenever the job's state, generation or evaluation changes, and for progress now and then.
type lineDisplay struct {
	out     io.Writer
	now     func() time.Time
	last    api.JobStatus
	printed time.Time
}

func (d *lineDisplay) show(s api.JobStatus) error {
	changed := s.State != d.last.State || s.Generation != d.last.Generation || s.EvalRound != d.last.EvalRound || tuningStep(s) != tuningStep(d.last)
	if !changed && d.now().Sub(d.printed) < lineEvery {
		return nil
	}
	why := ""
	if (s.State != d.last.State || s.Generation != d.last.Generation) && s.Tuning == nil { // the progress of a tuning is its reason
		why = ": " + s.Reason
	}
	d.last, d.printed = s, d.now()
	_, err := fmt.Fprintf(d.out, "%s %s%s\n", s.State, progress(s), why)
	return err
}

// tuningStep is what a tuning measures; "" when there is none.
func tuningStep(s api.JobStatus) string {
	if s.Tuning == nil {
		return ""
	}
	return s.Tuning.Text
}

func (d *lineDisplay) say(message string) { fmt.Fprintln(d.out, message) } //nolint:errcheck // the next show finds out

func (d *lineDisplay) finish() error { return nil }

// progress says how far a job is: step, losses, speed, time left, last committed round.
func progress(s api.JobStatus) string { return progressWithin(s, 1<<20) }

// part is a part of a progress text. Of a text that is too long, the parts of the highest rank go first.
type part struct {
	rank int
	text string
}

// progressWithin is a progress text of at most so many columns. The time left goes last.
func progressWithin(s api.JobStatus, width int) string {
	if s.Tuning != nil {
		return clip(tuningText(s.Tuning), width)
	}
	parts := []part{
		{1, fmt.Sprintf("step %d/%s", s.Step, known(s.Steps))}, {6, fmt.Sprintf("sample %d/%s", s.SamplesSeen, known(s.BudgetSamples))},
	}
	if s.Loss != nil {
		parts = append(parts, part{2, fmt.Sprintf("loss %.3f", *s.Loss)})
	}
	if s.EvalLoss != nil {
		parts = append(parts, part{3, fmt.Sprintf("eval %.3f", *s.EvalLoss)})
	}
	if s.Accuracy != nil {
		parts = append(parts, part{4, fmt.Sprintf("accuracy %.1f%%", 100**s.Accuracy)})
	}
	if s.TokensPerS > 0 {
		parts = append(parts, part{5, thousands(s.TokensPerS) + " " + speedUnit(s)})
	}
	if s.ETAS != nil {
		parts = append(parts, part{0, seconds(s.ETAS) + " left"})
	}
	if s.CommittedRound > 0 {
		parts = append(parts, part{7, fmt.Sprintf("round %d committed", s.CommittedRound)})
	}
	for {
		var texts []string
		for _, p := range parts {
			texts = append(texts, p.text)
		}
		text := strings.Join(texts, ", ")
		if utf8.RuneCountInString(text) <= width || len(parts) == 1 {
			return clip(text, width)
		}
		last := slices.MaxFunc(parts, func(a, b part) int { return cmp.Compare(a.rank, b.rank) })
		parts = slices.DeleteFunc(parts, func(p part) bool { return p == last })
	}
}

// known prints a part of the budget, which the data may be needed to tell.
func known(n uint64) string {
	if n == 0 {
		return "?"
	}
	return strconv.FormatUint(n, 10)
}

// barUnits is how finely the bar counts.
const barUnits = 1000

// barDisplay draws a progress bar on a terminal.
type barDisplay struct {
	out  io.Writer
	bar  *progressbar.ProgressBar
	text int // columns left of the bar
	rest int // columns of the bar and around it
	last api.JobStatus
}

func newBarDisplay(out io.Writer, width int) *barDisplay {
	const rest = 14 // columns for the percentage, the ends of the bar and the spaces
	length := max(2, min(30, width/6))
	return &barDisplay{out: out, text: max(1, width-length-rest), rest: length + rest, bar: progressbar.NewOptions(barUnits,
		progressbar.OptionSetWriter(out),
		progressbar.OptionSetWidth(length),
		progressbar.OptionSetPredictTime(false),
		progressbar.OptionSetElapsedTime(false),
		progressbar.OptionUseANSICodes(true),
		progressbar.OptionSetRenderBlankState(false),
	)}
}

func (d *barDisplay) show(s api.JobStatus) error {
	if s.State != d.last.State || s.Generation != d.last.Generation {
		d.say(fmt.Sprintf("job %s %s: %s", s.ID, paint(string(s.State)), s.Reason))
	}
	d.last = s
	if width, ok := terminal(d.out); ok { // it may have been resized
		d.text = max(1, width-d.rest)
	}
	return d.set(progressWithin(s, d.text), fraction(s))
}

// set draws the bar with a text and a part of it done.
func (d *barDisplay) set(text string, done float64) error {
	d.bar.Describe(clip(text, d.text))
	return d.bar.Set(int(barUnits * done))
}

// fraction is how much of a job is done: of its time when that is known, since it may end before its steps do.
func fraction(s api.JobStatus) float64 {
	switch {
	case s.Tuning != nil:
		return tuned(s.Tuning)
	case s.State == api.Done:
		return 1
	case s.ETAS != nil && s.ElapsedS+*s.ETAS > 0:
		return s.ElapsedS / (s.ElapsedS + *s.ETAS)
	case s.Steps > 0:
		return min(float64(s.Step)/float64(s.Steps), 1)
	}
	return 0
}

func (d *barDisplay) say(message string) {
	if d.bar.Clear() == nil {
		fmt.Fprintln(d.out, message) //nolint:errcheck // the next show finds out
	}
}

func (d *barDisplay) finish() error {
	_, err := fmt.Fprintln(d.out)
	return err
}
