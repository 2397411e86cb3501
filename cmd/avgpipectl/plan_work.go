package main

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/schedule"
)

// checkMemory refuses simulations that take more memory than there is, before anything is made: of the named schedules, one after the
// other, each of which takes so many times its simulation. It says how many micro-batches fit.
func checkMemory(names []string, times int64, r schedule.Request, load schedule.Load, available int64) error {
	for _, name := range names {
		takes := func(microBatches int) int64 {
			r.MicroBatches = microBatches
			return times * schedule.Bytes(name, r, load)
		}
		if takes(r.MicroBatches) <= available {
			continue
		}
		asked, takesMost := r.MicroBatches, takes(r.MicroBatches)
		fix := "fewer stages, pipelines or batches"
		if fit := sort.Search(asked, func(m int) bool { return takes(m+1) > available }); fit > 0 {
			fix = words.Count(fit, "micro-batch") + " at most, or another schedule"
		}
		return fmt.Errorf("the simulation of %s, %s on %s, takes about %s of memory, found %s free; want %s", name,
			words.Count(asked, "micro-batch"), words.Count(r.Devices, "stage"), words.Bytes(takesMost), words.Bytes(available), fix)
	}
	return nil
}

// What is done is shown from so long on, and on a terminal so often.
const (
	barAfter = time.Second
	barEvery = 100 * time.Millisecond
)

// working is what a simulation asks whether to go on: no longer than the user wants. It shows how far that is, of several schedules
// after so many of them.
func (p *progress) working(c *call, name string, before, of int) func(ran, all int) error {
	return func(ran, all int) error {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		every := barEvery
		if p.width == 0 {
			every = lineEvery
		}
		if p.printed.IsZero() {
			p.printed = time.Now().Add(barAfter - every)
		}
		if time.Since(p.printed) < every {
			return nil
		}
		p.printed = time.Now()
		text := "simulating " + name
		if of > 1 {
			text += fmt.Sprintf(", %d of %d", before+1, of)
		}
		done := float64(ran) / float64(max(all, 1))
		if p.width == 0 {
			p.say(fmt.Sprintf("%s: %.0f%%", text, math.Floor(100*done)))
			return nil
		}
		return p.bar(func(width int) string { return words.Clip(text, width) }, done)
	}
}

// erase removes the bar.
func (p *progress) erase() {
	if p.width > 0 && !p.printed.IsZero() {
		fmt.Fprint(p.out, "\r\x1b[K") //nolint:errcheck // what follows finds out
	}
}
