package main

import (
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/chart"
)

// historyMetric is one that can be plotted.
type historyMetric struct {
	name, label string
	value       func(*api.HistoryPoint) *api.HistoryValue
}

var historyMetrics = []historyMetric{
	{"loss", "loss, ", func(p *api.HistoryPoint) *api.HistoryValue { return p.Loss }}, // what it is counted in follows
	{"lr", "learning rate", func(p *api.HistoryPoint) *api.HistoryValue { return p.LearningRate }},
	{"norm", "gradient norm", func(p *api.HistoryPoint) *api.HistoryValue { return p.GradientNorm }},
	{"tokens", "tokens per second", func(p *api.HistoryPoint) *api.HistoryValue { return p.TokensPerS }},
}

func metricNames() (names []string) {
	for _, m := range historyMetrics {
		names = append(names, m.name)
	}
	return names
}

// plot draws histories as text or as an image.
func (o *historyOptions) plot(w io.Writer, format string, all []api.History, width int, colors bool) error {
	metric := &historyMetrics[slices.Index(metricNames(), o.metric)]
	c := &chart.Chart{X: "optimizer steps", Y: metric.label}
	if metric.name == "loss" {
		c.Y += lossUnit(all[0].Task)
	}
	empty := true
	for i := range all {
		l := lineOf(&all[i], metric)
		empty = empty && len(l.Points)+len(l.Dots) == 0
		c.Lines = append(c.Lines, l)
	}
	if empty && format == formatText {
		_, err := fmt.Fprintf(w, "no %s is recorded%s\n", metric.name, whyEmpty(all, metric))
		return err
	}
	switch format {
	case "svg":
		return c.SVG(w)
	case "png":
		return c.PNG(w)
	}
	return c.Text(w, chart.TextStyle{Width: width, Height: o.height, Colors: colors})
}

// whyEmpty says why there is nothing to draw.
func whyEmpty(all []api.History, metric *historyMetric) string {
	for i := range all {
		if len(all[i].Points) > 0 && metric.name == "norm" {
			return ": the norm is computed of jobs with optimizer.clip_norm alone"
		}
	}
	return " yet"
}

// lineOf is a history as a curve.
func lineOf(h *api.History, metric *historyMetric) chart.Line {
	l := chart.Line{Name: h.ID + " " + h.Name}
	for i := range h.Points {
		p := &h.Points[i]
		if v := metric.value(p); v != nil {
			middle := (float64(p.First) + float64(p.Last)) / 2
			l.Points = append(l.Points, chart.Point{X: middle + 1, Y: v.Mean, Low: v.Min, High: v.Max}) // after so many steps
		}
	}
	if metric.name == "loss" {
		for _, e := range h.Evaluations {
			l.Dots = append(l.Dots, chart.Point{X: float64(e.Steps), Y: e.Loss})
		}
	}
	for _, m := range h.Commits {
		l.Ticks = append(l.Ticks, float64(m.Steps))
	}
	for i, m := range h.Starts {
		if i > 0 { // the first is that of the job
			l.Rules = append(l.Rules, float64(m.Steps))
		}
	}
	return l
}

// printHistoryCSV prints a line for everything that is recorded.
func printHistoryCSV(w io.Writer, all []api.History) error {
	out := csv.NewWriter(w)
	rows := [][]string{{
		"job", "kind", "first_step", "last_step", "round", "generation", "time", "loss", "loss_min", "loss_max",
		"learning_rate", "gradient_norm", "gradient_norm_min", "gradient_norm_max", "tokens_per_s",
	}}
	for i := range all {
		rows = append(rows, historyRows(&all[i])...)
	}
	return out.WriteAll(rows)
}

func historyRows(h *api.History) [][]string {
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	stamp := func(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }
	exact := func(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }
	three := func(v *api.HistoryValue) []string {
		if v == nil {
			return []string{"", "", ""}
		}
		return []string{exact(v.Mean), exact(v.Min), exact(v.Max)}
	}
	var rows [][]string
	for _, p := range h.Points {
		row := append([]string{h.ID, "step", number(p.First), number(p.Last), "", "", stamp(p.Time)}, three(p.Loss)...)
		row = append(row, three(p.LearningRate)[0])
		row = append(row, three(p.GradientNorm)...)
		rows = append(rows, append(row, three(p.TokensPerS)[0]))
	}
	mark := func(kind string, m api.HistoryMark, loss string) {
		row := []string{h.ID, kind, number(m.Steps), number(m.Steps), number(m.Round), number(m.Generation), stamp(m.Time), loss}
		rows = append(rows, append(row, make([]string, 7)...))
	}
	for _, e := range h.Evaluations {
		mark("evaluation", e.HistoryMark, exact(e.Loss))
	}
	for _, m := range h.Commits {
		mark("commit", m, "")
	}
	for _, m := range h.Starts {
		mark("start", m, "")
	}
	return rows
}
