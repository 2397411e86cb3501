package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
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

// parseCosts reads a costs file: source is its text, file its name for messages. The error is strictyaml.Problems: all that is wrong,
// each with its line.
func parseCosts(file string, source []byte) (*costsFile, error) {
	c := &costsFile{unit: "ms", load: schedule.Load{Pipelines: 1}}
	f := strictyaml.Read(file, source, strictyaml.Format{Name: "a costs file", MaxBytes: capCostsBytes, Keys: c.keys()})
	if f.CheckKeys(); f.Empty() {
		f.Refuse("", "", "the file is empty; a costs file is a mapping of keys to values: %s", strings.Join(c.keys(), ", "))
	}
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

func (c *costsFile) readCounts(f *strictyaml.Document) {
	for _, k := range c.counts() {
		value := f.Value(k.key)
		if value == nil {
			if k.needed {
				f.Refuse(k.key, "", "%s is missing; write its number, such as %s: 4", k.key, k.key)
			}
			continue
		}
		n, err := strconv.Atoi(value.Scalar)
		if err != nil || n < 1 || n > mostCount {
			f.Refuse(k.key, "", "%s is %s; want a whole number, 1 to %d", k.key, said(value), mostCount)
			continue
		}
		*k.value = n
	}
}

// readWords reads the words and the schedules.
func (c *costsFile) readWords(f *strictyaml.Document) {
	word := func(key string, valid ...string) string {
		value := f.Value(key)
		if value == nil {
			return ""
		}
		if !slices.Contains(valid, value.Scalar) {
			last, near := len(valid)-1, ""
			if len(value.Scalar) > 1 { // any letter is near any other
				near = nearest.Word(value.Scalar, valid)
			}
			f.Refuse(key, near, "%s %q; want %s or %s", key, value.Scalar, strings.Join(valid[:last], ", "), valid[last])
		}
		return value.Scalar
	}
	if unit := word("unit", "s", "ms", "us"); unit != "" {
		c.unit = unit
	}
	c.load.AwaitRound = word("pull", "predicted", "old", "new", "elastic") == "new"
	c.load.ExchangeNorm = word("clip_norm", "true", "false") == "true"
	value := f.Value("schedules")
	switch {
	case value == nil:
		return
	case value.Items == nil:
		f.Refuse("schedules", "", "schedules is no list; want names, such as [gpipe, 1f1b, afp]")
	}
	for _, item := range value.Items {
		name := item.Scalar
		if !slices.Contains(schedule.Names(), name) {
			f.Refuse(item.Key, nearest.Word(name, schedule.Names()), "schedule %q is unknown; known: %s", name, strings.Join(schedule.Names(), ", "))
		}
		c.schedules = append(c.schedules, name)
	}
}

// readLists reads the times and bytes.
func (c *costsFile) readLists(f *strictyaml.Document) {
	for _, k := range c.lists() {
		value := f.Value(k.key)
		if value == nil {
			if k.key == "forward" || k.key == "backward" {
				f.Refuse(k.key, "", "%s is missing; write its time, one for all stages or a list with one a stage", k.key)
			}
			continue
		}
		n := c.stages
		if k.unit == "link" {
			n--
		}
		items := []*strictyaml.Node{value}
		if value.Items != nil {
			items = value.Items
		}
		var times []float64
		var bytes []int64
		for _, item := range items {
			v, message, near := costsValue(k.key, item)
			if message != "" {
				f.Refuse(item.Key, near, "%s", message)
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

// costsValue reads a value, or says what is wrong with it and what is nearest.
func costsValue(key string, value *strictyaml.Node) (v float64, message, near string) {
	text := said(value)
	v, err := strconv.ParseFloat(text, 64)
	finite := err == nil && !math.IsNaN(v) && !math.IsInf(v, 0) && v >= 0
	want, good := "a time, 0 or more", finite
	switch {
	case strings.HasSuffix(key, "_bytes"):
		if want = "a number of bytes, 0 or more"; finite {
			want, good = "a whole number of bytes", v == math.Trunc(v) && v < 1<<53
		}
	case key == "bandwidth":
		want = "bytes a unit of time, or 0 for a link without limit"
	case key == "utilisation":
		want, good = "the share of a device that one op uses, above 0 and at most 1", finite && v > 0 && v <= 1
		if share, percent := strings.CutSuffix(text, "%"); percent {
			if x, err := strconv.ParseFloat(share, 64); err == nil && x > 0 && x <= 100 {
				near = strconv.FormatFloat(x/100, 'g', -1, 64)
			}
		}
	case finite && !schedule.Timely(v):
		want, good = fmt.Sprintf("0, or a time from %v to %v: choose another unit", schedule.LeastTime, schedule.MostTime), false
	}
	if good {
		return v, "", ""
	}
	return 0, fmt.Sprintf("%s is %s; want %s", key, text, want), near
}

// said is a value as it is written, or what it is.
func said(v *strictyaml.Node) string {
	if v.Plain() {
		return v.Scalar
	}
	return v.Found()
}
