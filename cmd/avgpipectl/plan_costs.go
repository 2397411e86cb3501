package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/job"
	"github.com/avgpipe/avgpipe/schedule"
)

// costsFile is what a costs file says.
type costsFile struct {
	stages, microBatches, chunks int
	load                         schedule.Load
	unit                         string
	schedules                    []string
	costs                        schedule.Costs
}

// A costs file has at most so many bytes (a thousand stages, each value written out, are less), and counts are no larger.
const (
	capCostsBytes = 256 << 10
	mostCount     = 1 << 16
)

// traceUnits are the values of the key unit, in microseconds.
var traceUnits = map[string]float64{"s": 1e6, "ms": 1e3, "us": 1}

// costsList is a key of a costs file that has a value for each stage, link or device, or one for all of them.
type costsList struct {
	key, unit string
	times     *[]float64 // or
	bytes     *[]int64
}

// lists are in the order in which the help names them.
func (c *costsFile) lists() []costsList {
	k := &c.costs
	return []costsList{
		{"forward", "stage", &k.Forward, nil},
		{"backward", "stage", &k.Backward, nil},
		{"backward_input", "stage", &k.BackwardInput, nil},
		{"backward_weight", "stage", &k.BackwardWeight, nil},
		{"update", "stage", &k.Update, nil},
		{"average", "stage", &k.Average, nil},
		{"latency", "link", &k.Link, nil},
		{"bandwidth", "link", &k.Bandwidth, nil},
		{"message_bytes", "link", nil, &k.MessageBytes},
		{"activation_bytes", "stage", nil, &k.ActivationBytes},
		{"half_bytes", "stage", nil, &k.HalfBytes},
		{"weight_bytes", "stage", nil, &k.WeightBytes},
		{"gradient_bytes", "stage", nil, &k.GradientBytes},
		{"state_bytes", "stage", nil, &k.StateBytes},
		{"center_bytes", "stage", nil, &k.CenterBytes},
		{"utilisation", "device", &k.Utilisation, nil},
		{"capacity_bytes", "device", nil, &k.CapacityBytes},
	}
}

// costsCount is a key of a costs file that has a whole number.
type costsCount struct {
	key    string
	value  *int
	needed bool
}

func (c *costsFile) counts() []costsCount {
	return []costsCount{
		{"stages", &c.stages, true},
		{"micro_batches", &c.microBatches, true},
		{"chunks", &c.chunks, false},
		{"pipelines", &c.load.Pipelines, false},
		{"batches", &c.load.Batches, false},
		{"average_every", &c.load.AverageEvery, false},
	}
}

// keys are those that a costs file may have.
func (c *costsFile) keys() []string {
	keys := []string{"pull", "clip_norm", "unit", "schedules"}
	for _, k := range c.counts() {
		keys = append(keys, k.key)
	}
	for _, k := range c.lists() {
		keys = append(keys, k.key)
	}
	return keys
}

// parseCosts reads a costs file: source is its text, file its name for messages. The error is job.Problems: all that is wrong,
// each with its line.
func parseCosts(file string, source []byte) (*costsFile, error) {
	c := &costsFile{unit: "ms", load: schedule.Load{Pipelines: 1}}
	f := job.ReadFlat(file, source, "a costs file", capCostsBytes, c.keys())
	if f.Err() == nil {
		if c.readCounts(f); f.Err() == nil { // they say how many values lists have
			c.readLists(f)
		}
		c.readWords(f)
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *costsFile) readCounts(f *job.Flat) {
	for _, k := range c.counts() {
		value, found := f.Value(k.key)
		if !found {
			if k.needed {
				f.Refuse(k.key, "", "%s is missing; write its number, such as %s: 4", k.key, k.key)
			}
			continue
		}
		n, err := strconv.Atoi(value.Text)
		if err != nil || n < 1 || n > mostCount {
			f.Refuse(k.key, "", "%s is %s; want a whole number, 1 to %d", k.key, said(value), mostCount)
			continue
		}
		*k.value = n
	}
}

// readWords reads the words and the schedules.
func (c *costsFile) readWords(f *job.Flat) {
	word := func(key string, valid ...string) string {
		value, found := f.Value(key)
		if found && !slices.Contains(valid, value.Text) {
			last := len(valid) - 1
			f.Refuse(key, "", "%s %q; want %s or %s", key, value.Text, strings.Join(valid[:last], ", "), valid[last])
		}
		return value.Text
	}
	if unit := word("unit", "s", "ms", "us"); unit != "" {
		c.unit = unit
	}
	c.load.AwaitRound = word("pull", "predicted", "old", "new", "elastic") == "new"
	c.load.ExchangeNorm = word("clip_norm", "true", "false") == "true"
	value, found := f.Value("schedules")
	if found && value.Items == nil {
		f.Refuse("schedules", "", "schedules is no list; want names, such as [gpipe, 1f1b, afp]")
	}
	for _, item := range value.Items {
		name := item.Text
		if !slices.Contains(schedule.Names(), name) {
			f.Refuse(item.Key, nearest.Word(name, schedule.Names()), "schedule %q is unknown; known: %s", name, strings.Join(schedule.Names(), ", "))
		}
		c.schedules = append(c.schedules, name)
	}
}

// readLists reads the times and bytes.
func (c *costsFile) readLists(f *job.Flat) {
	for _, k := range c.lists() {
		value, found := f.Value(k.key)
		if !found {
			if k.key == "forward" || k.key == "backward" {
				f.Refuse(k.key, "", "%s is missing; write its time, one for all stages or a list with one a stage", k.key)
			}
			continue
		}
		n := c.stages
		if k.unit == "link" {
			n--
		}
		items := []job.Value{value}
		if value.Items != nil {
			items = value.Items
		}
		var times []float64
		var bytes []int64
		for _, item := range items {
			v, message := costsValue(k.key, item)
			if message != "" {
				f.Refuse(item.Key, "", "%s", message)
			}
			times, bytes = append(times, v), append(bytes, int64(v))
		}
		var err error
		if k.times != nil {
			*k.times, err = spread(times, "value", n, k.unit)
		} else {
			*k.bytes, err = spread(bytes, "value", n, k.unit)
		}
		if err != nil {
			f.Refuse(k.key, "", "%s has %v", k.key, err)
		}
	}
	if f.Err() != nil {
		return
	}
	if err := c.costs.Validate(c.stages); err != nil {
		f.Refuse("bandwidth", "", "%v", err) // all else has been checked value by value
	}
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
