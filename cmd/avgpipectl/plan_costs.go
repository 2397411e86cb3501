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
	unit, pull, clipNorm         string
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

// costsKey is a key of a costs file. read refuses what does not fit.
type costsKey struct {
	name    string
	missing string // what to write, of a key that must be there
	read    func(f *strictyaml.Document, v *strictyaml.Node)
}

// keys are in the order in which they are read: the number of stages says how many values lists have.
func (c *costsFile) keys() []costsKey {
	k := &c.costs
	needed := func(missing string, k costsKey) costsKey {
		k.missing = missing
		return k
	}
	const time = "its time, one for all stages or a list with one a stage"
	return []costsKey{
		wordKey("pull", &c.pull, "predicted", "old", "new", "elastic"),
		wordKey("clip_norm", &c.clipNorm, "true", "false"),
		wordKey("unit", &c.unit, "s", "ms", "us"),
		{name: "schedules", read: c.readSchedules},
		needed("its number, such as stages: 4", countKey("stages", &c.stages)),
		needed("its number, such as micro_batches: 4", countKey("micro_batches", &c.microBatches)),
		countKey("chunks", &c.chunks),
		countKey("pipelines", &c.load.Pipelines),
		countKey("batches", &c.load.Batches),
		countKey("average_every", &c.load.AverageEvery),
		needed(time, listKey(c, "forward", "stage", noTime, &k.Forward)),
		needed(time, listKey(c, "backward", "stage", noTime, &k.Backward)),
		listKey(c, "backward_input", "stage", noTime, &k.BackwardInput),
		listKey(c, "backward_weight", "stage", noTime, &k.BackwardWeight),
		listKey(c, "update", "stage", noTime, &k.Update),
		listKey(c, "average", "stage", noTime, &k.Average),
		listKey(c, "latency", "link", noTime, &k.Link),
		listKey(c, "bandwidth", "link", noBandwidth, &k.Bandwidth),
		listKey(c, "message_bytes", "link", noBytes, &k.MessageBytes),
		listKey(c, "activation_bytes", "stage", noBytes, &k.ActivationBytes),
		listKey(c, "half_bytes", "stage", noBytes, &k.HalfBytes),
		listKey(c, "weight_bytes", "stage", noBytes, &k.WeightBytes),
		listKey(c, "gradient_bytes", "stage", noBytes, &k.GradientBytes),
		listKey(c, "state_bytes", "stage", noBytes, &k.StateBytes),
		listKey(c, "center_bytes", "stage", noBytes, &k.CenterBytes),
		listKey(c, "utilisation", "device", noShare, &k.Utilisation),
		listKey(c, "capacity_bytes", "device", noBytes, &k.CapacityBytes),
	}
}

// parseCosts reads a costs file: source is its text, file its name for messages. The error is strictyaml.Problems: all that is wrong,
// each with its line.
func parseCosts(file string, source []byte) (*costsFile, error) {
	c := &costsFile{unit: "ms", load: schedule.Load{Pipelines: 1}}
	keys := c.keys()
	var names []string
	for _, k := range keys {
		names = append(names, k.name)
	}
	f := strictyaml.Read(file, source, strictyaml.Format{Name: "a costs file", MaxBytes: capCostsBytes, Keys: names})
	if f.CheckKeys(); f.Empty() {
		f.Refuse("", "", "the file is empty; a costs file is a mapping of keys to values: %s", strings.Join(names, ", "))
	}
	if err := f.Err(); err != nil {
		return nil, err
	}
	for _, k := range keys {
		if v := f.Value(k.name); v != nil {
			k.read(f, v)
		} else if k.missing != "" {
			f.Refuse(k.name, "", "%s is missing; write %s", k.name, k.missing)
		}
	}
	c.load.AwaitRound, c.load.ExchangeNorm = c.pull == "new", c.clipNorm == "true"
	if f.Err() == nil {
		if err := c.costs.Validate(c.stages); err != nil {
			f.Refuse("bandwidth", "", "%v", err) // all else has been checked value by value
		}
	}
	return c, f.Err()
}

// wordKey is a key whose value is one of some words.
func wordKey(name string, to *string, valid ...string) costsKey {
	return costsKey{name: name, read: func(f *strictyaml.Document, v *strictyaml.Node) {
		if *to = v.Scalar; !slices.Contains(valid, *to) {
			last, near := len(valid)-1, ""
			if len(*to) > 1 { // any letter is near any other
				near = nearest.Word(*to, valid)
			}
			f.Refuse(name, near, "%s %q; want %s or %s", name, *to, strings.Join(valid[:last], ", "), valid[last])
		}
	}}
}

// countKey is a key whose value is a whole number.
func countKey(name string, to *int) costsKey {
	return costsKey{name: name, read: func(f *strictyaml.Document, v *strictyaml.Node) {
		n, err := strconv.Atoi(v.Scalar)
		if err != nil || n < 1 || n > mostCount {
			f.Refuse(name, "", "%s is %s; want a whole number, 1 to %d", name, said(v), mostCount)
			return
		}
		*to = n
	}}
}

func (c *costsFile) readSchedules(f *strictyaml.Document, v *strictyaml.Node) {
	if v.Items == nil {
		f.Refuse(v.Key, "", "schedules is no list; want names, such as [gpipe, 1f1b, afp]")
	}
	for _, item := range v.Items {
		if !slices.Contains(schedule.Names(), item.Scalar) {
			f.Refuse(item.Key, nearest.Word(item.Scalar, schedule.Names()), "schedule %q is unknown; known: %s", item.Scalar, strings.Join(schedule.Names(), ", "))
		}
		c.schedules = append(c.schedules, item.Scalar)
	}
}

// listKey is a key that has a value for each stage, link or device, or one for all of them. wants says what is wanted instead of a value
// that does not fit.
func listKey[T float64 | int64](c *costsFile, name, unit string, wants func(float64) string, to *[]T) costsKey {
	return costsKey{name: name, read: func(f *strictyaml.Document, v *strictyaml.Node) {
		n := c.stages
		if unit == "link" {
			n--
		}
		items := v.Items
		if items == nil {
			items = []*strictyaml.Node{v}
		}
		var values []T
		for _, item := range items {
			x, err := strconv.ParseFloat(said(item), 64)
			if err != nil {
				x = math.NaN()
			}
			if want := wants(x); want != "" {
				f.Refuse(item.Key, "", "%s is %s; want %s", name, said(item), want)
				continue
			}
			values = append(values, T(x))
		}
		if len(values) < len(items) || c.stages == 0 {
			return // it has been told
		}
		var err error
		if *to, err = spread(values, "value", n, unit); err != nil {
			f.Refuse(name, "", "%s has %v", name, err)
		}
	}}
}

// positive reports whether a value is a finite number, 0 or more.
func positive(v float64) bool { return v >= 0 && !math.IsInf(v, 1) }

func noTime(v float64) string {
	switch {
	case !positive(v):
		return "a time, 0 or more"
	case !schedule.Timely(v):
		return fmt.Sprintf("0, or a time from %v to %v: choose another unit", schedule.LeastTime, schedule.MostTime)
	}
	return ""
}

func noBandwidth(v float64) string {
	if !positive(v) {
		return "bytes a unit of time, or 0 for a link without limit"
	}
	return ""
}

func noBytes(v float64) string {
	switch {
	case !positive(v):
		return "a number of bytes, 0 or more"
	case v != math.Trunc(v) || v >= 1<<53:
		return "a whole number of bytes"
	}
	return ""
}

func noShare(v float64) string {
	if !positive(v) || v == 0 || v > 1 {
		return "the share of a device that one op uses, above 0 and at most 1"
	}
	return ""
}

// said is a value as it is written, or what it is.
func said(v *strictyaml.Node) string {
	if v.Plain() {
		return v.Scalar
	}
	return v.Found()
}
