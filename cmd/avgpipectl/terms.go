package main

import (
	"fmt"
	"strconv"

	"github.com/avgpipe/avgpipe/internal/api"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/tuner"
)

// printLinks prints what crosses each link in a batch of one pipeline and what one message takes, predicted and observed.
func printLinks(p *page, c *tuner.Candidate, observed *tuner.Measurement) {
	var predicted, seen []tuner.LinkTerms
	if c != nil {
		predicted = c.Predicted.Links
	}
	if observed != nil {
		seen = observed.Links
	}
	var t table
	t.add("LINK", "", "MESSAGE", "BYTES OF A BATCH")
	for k := range max(len(predicted), len(seen)) {
		between := fmt.Sprintf("%d-%d", k, k+1)
		if k < len(predicted) {
			t.add(between, "predicted", words.Seconds(predicted[k].MessageSeconds), size(predicted[k].Bytes))
		}
		if k < len(seen) {
			t.add(between, "observed", unlessNone(seen[k].MessageSeconds), size(seen[k].Bytes))
		}
	}
	p.below(&t)
}

// unlessNone prints seconds that were observed.
func unlessNone(seconds float64) string {
	if seconds <= 0 {
		return "-"
	}
	return words.Seconds(seconds)
}

// printMemory prints what each stage holds, by what it is for. What is observed is taken of the
// devices, so it lacks messages and what else the worker process holds in the host's memory.
func printMemory(p *page, c *tuner.Candidate, observed *tuner.Measurement) {
	var predicted, seen []tuner.StageTerms
	if c != nil {
		predicted = c.Predicted.Stages
	}
	if observed != nil {
		seen = observed.Stages
	}
	var t table
	t.add("MEMORY", "", "WEIGHTS", "GRADIENTS", "STATE", "ACTIVATIONS", "CENTER", "ON DEVICE", "MESSAGES", "PROCESS")
	row := func(k int, what string, m tuner.Memory) {
		if m.Total() > 0 {
			t.add(strconv.Itoa(k), what, size(m.Weights), size(m.Gradients), size(m.State), size(m.Activations), size(m.Center),
				size(m.OnDevice()), size(m.Boundaries), size(m.Host))
		}
	}
	for k := range max(len(predicted), len(seen)) {
		if k < len(predicted) {
			row(k, "predicted", predicted[k].Memory)
		}
		if k < len(seen) {
			row(k, "observed", seen[k].Memory)
		}
	}
	p.below(&t)
}

// printLinkStatus prints what messages between stages take, each way, where any were waited for.
func printLinkStatus(p *page, links []api.LinkStatus) {
	var t table
	t.add("LINK", "MESSAGE", "DOWN", "UP")
	for _, l := range links {
		if l.DownS != nil || l.UpS != nil {
			t.add(fmt.Sprintf("%d-%d", l.Link, l.Link+1), size(l.MessageBytes), waited(l.DownS), waited(l.UpS))
		}
	}
	p.below(&t)
}

// waited prints what a message took; none that somebody waited for is "-".
func waited(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	return words.Seconds(*seconds)
}
