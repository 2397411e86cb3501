package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/words"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// costsFile is what a costs file says.
type costsFile struct {
	stages, microBatches, chunks     int
	pipelines, batches, averageEvery int
	awaitRound, exchangeNorm         bool
	unit                             string
	schedules                        []string
	costs                            schedule.Costs
}

// A costs file has at most so many bytes (a thousand stages, each value written out, are less), and counts are no larger.
const (
	capCostsBytes = 256 << 10
	mostCount     = 1 << 16
)

// traceUnits are the values of the key unit, in microseconds.
var traceUnits = map[string]float64{"s": 1e6, "ms": 1e3, "us": 1}

// list says how many values a key has: one for each stage, or for all of them, and so on.
type list uint8

const (
	perStage list = iota
	perLink
	perDevice
)

// costsKeys are the lists of a costs file, in the order in which the help names them.
var costsKeys = []struct {
	key   string
	count list
	times func(*schedule.Costs) *[]float64 // or
	bytes func(*schedule.Costs) *[]int64
}{
	{"forward", perStage, func(c *schedule.Costs) *[]float64 { return &c.Forward }, nil},
	{"backward", perStage, func(c *schedule.Costs) *[]float64 { return &c.Backward }, nil},
	{"backward_input", perStage, func(c *schedule.Costs) *[]float64 { return &c.BackwardInput }, nil},
	{"backward_weight", perStage, func(c *schedule.Costs) *[]float64 { return &c.BackwardWeight }, nil},
	{"update", perStage, func(c *schedule.Costs) *[]float64 { return &c.Update }, nil},
	{"average", perStage, func(c *schedule.Costs) *[]float64 { return &c.Average }, nil},
	{"latency", perLink, func(c *schedule.Costs) *[]float64 { return &c.Link }, nil},
	{"bandwidth", perLink, func(c *schedule.Costs) *[]float64 { return &c.Bandwidth }, nil},
	{"message_bytes", perLink, nil, func(c *schedule.Costs) *[]int64 { return &c.MessageBytes }},
	{"activation_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.ActivationBytes }},
	{"half_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.HalfBytes }},
	{"weight_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.WeightBytes }},
	{"gradient_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.GradientBytes }},
	{"state_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.StateBytes }},
	{"center_bytes", perStage, nil, func(c *schedule.Costs) *[]int64 { return &c.CenterBytes }},
	{"utilisation", perDevice, func(c *schedule.Costs) *[]float64 { return &c.Utilisation }, nil},
	{"capacity_bytes", perDevice, nil, func(c *schedule.Costs) *[]int64 { return &c.CapacityBytes }},
}

// costsCounts are the whole numbers of a costs file.
var costsCounts = []struct {
	key   string
	value func(*costsFile) *int
	least int
}{
	{"stages", func(c *costsFile) *int { return &c.stages }, 1},
	{"micro_batches", func(c *costsFile) *int { return &c.microBatches }, 1},
	{"chunks", func(c *costsFile) *int { return &c.chunks }, 1},
	{"pipelines", func(c *costsFile) *int { return &c.pipelines }, 1},
	{"batches", func(c *costsFile) *int { return &c.batches }, 1},
	{"average_every", func(c *costsFile) *int { return &c.averageEvery }, 1},
}

// costsParser reads a costs file.
type costsParser struct{ *job.Flat }

// parseCosts reads a costs file: source is its text, file its name for messages. The error is job.Problems: all that is wrong,
// each with its line.
func parseCosts(file string, source []byte) (*costsFile, error) {
	p := costsParser{job.ReadFlat(file, source, "a costs file", capCostsBytes, knownCosts())}
	c := &costsFile{}
	if p.Err() == nil {
		if p.counts(c); p.Err() == nil { // they say how many values lists have
			p.lists(c)
		}
		p.words(c)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

func knownCosts() []string {
	var keys []string
	for _, c := range costsCounts {
		keys = append(keys, c.key)
	}
	keys = append(keys, "pull", "clip_norm", "unit", "schedules")
	for _, k := range costsKeys {
		keys = append(keys, k.key)
	}
	return keys
}

// counts reads the whole numbers.
func (p *costsParser) counts(c *costsFile) {
	for _, count := range costsCounts {
		value, found := p.Value(count.key)
		if !found {
			if count.key == "stages" || count.key == "micro_batches" {
				p.Refuse(count.key, "", "%s is missing; write its number, such as %s: 4", count.key, count.key)
			}
			continue
		}
		n, err := strconv.Atoi(value.Text)
		if err != nil || n < count.least || n > mostCount {
			p.Refuse(count.key, "", "%s is %s; want a whole number, %d to %d", count.key, said(value), count.least, mostCount)
			continue
		}
		*count.value(c) = n
	}
}

// words reads the words and the schedules.
func (p *costsParser) words(c *costsFile) {
	c.unit = p.word("unit", "s", "ms", "us")
	c.awaitRound = p.word("pull", "predicted", "old", "new", "elastic") == "new"
	c.exchangeNorm = p.word("clip_norm", "true", "false") == "true"
	value, found := p.Value("schedules")
	if !found {
		return
	}
	if value.Items == nil {
		p.Refuse("schedules", "", "schedules is no list; want names, such as [gpipe, 1f1b, afp]")
		return
	}
	for _, item := range value.Items {
		name := item.Text
		if !slices.Contains(schedule.Names(), name) {
			p.Refuse(item.Key, nearest.Word(name, schedule.Names()), "schedule %q is unknown; known: %s", name, strings.Join(schedule.Names(), ", "))
		}
		c.schedules = append(c.schedules, name)
	}
}

// word reads a key that has one of a few values; "" where the file does not have it.
func (p *costsParser) word(key string, valid ...string) string {
	value, found := p.Value(key)
	if !found {
		return ""
	}
	if !slices.Contains(valid, value.Text) {
		last := len(valid) - 1
		p.Refuse(key, "", "%s %q; want %s or %s", key, value.Text, strings.Join(valid[:last], ", "), valid[last])
	}
	return value.Text
}

// lists reads the times and bytes.
func (p *costsParser) lists(c *costsFile) {
	for _, k := range costsKeys {
		value, found := p.Value(k.key)
		if !found {
			if k.key == "forward" || k.key == "backward" {
				p.Refuse(k.key, "", "%s is missing; write its time, one for all stages or a list with one a stage", k.key)
			}
			continue
		}
		n, unit := c.stages, "stage"
		switch k.count {
		case perLink:
			n, unit = c.stages-1, "link"
		case perDevice:
			unit = "device"
		case perStage:
		}
		values, ok := p.list(k.key, value, n, unit)
		if !ok {
			continue
		}
		if k.times != nil {
			*k.times(&c.costs) = values
			continue
		}
		bytes := make([]int64, len(values))
		for i, v := range values {
			bytes[i] = int64(v)
		}
		*k.bytes(&c.costs) = bytes
	}
	if p.Err() != nil {
		return
	}
	if err := c.costs.Validate(c.stages); err != nil {
		p.Refuse("bandwidth", "", "%v", err) // all else has been checked value by value
	}
}

// list reads n values, or one for all of them.
func (p *costsParser) list(key string, value job.Value, n int, unit string) ([]float64, bool) {
	items := []job.Value{value}
	if value.Items != nil {
		if items = value.Items; len(items) != n {
			p.Refuse(key, "", "%s has %s for %s; want one for all, or one a %s", key, words.Count(len(items), "value"), words.Count(n, unit), unit)
			return nil, false
		}
	}
	values := make([]float64, n)
	good := true
	for i, item := range items {
		v, message := costsValue(key, item)
		if message != "" {
			p.Refuse(item.Key, "", "%s", message)
			good = false
		}
		if len(items) == n {
			values[i] = v
			continue
		}
		for j := range values {
			values[j] = v
		}
	}
	return values, good
}

// costsValue reads a value, or says what is wrong with it.
func costsValue(key string, value job.Value) (float64, string) {
	text := said(value)
	v, err := strconv.ParseFloat(text, 64)
	bytes := strings.HasSuffix(key, "_bytes")
	switch {
	case err != nil || math.IsNaN(v) || math.IsInf(v, 0) || v < 0:
		want := "a time, 0 or more"
		if bytes {
			want = "a number of bytes, 0 or more"
		} else if key == "bandwidth" {
			want = "bytes a unit of time, or 0 for a link without limit"
		}
		return 0, fmt.Sprintf("%s is %s; want %s", key, text, want)
	case bytes && (v != math.Trunc(v) || v >= 1<<53):
		return 0, fmt.Sprintf("%s is %s; want a whole number of bytes", key, text)
	case key == "utilisation" && (v <= 0 || v > 1):
		return 0, fmt.Sprintf("utilisation is %s; want the share of a device that one op uses, above 0 and at most 1", text)
	}
	return v, ""
}

// said is a value as it is written, or what it is.
func said(v job.Value) string {
	if v.Plain {
		return v.Text
	}
	return v.Found
}
