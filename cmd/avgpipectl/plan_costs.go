package main

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/avgpipe/avgpipe/internal/nearest"
	"github.com/avgpipe/avgpipe/internal/strictyaml"
	"github.com/avgpipe/avgpipe/schedule"
)

// costsFile is what a costs file says. The costs have tags of their own.
type costsFile struct {
	Pull         string   `yaml:"pull" rule:"oneof=predicted|old|new|elastic"`
	ClipNorm     bool     `yaml:"clip_norm"`
	Unit         string   `yaml:"unit" default:"ms" rule:"oneof=s|ms|us"`
	Schedules    []string `yaml:"schedules"`
	Stages       int      `yaml:"stages" rule:"required min=1 max=65536"`
	MicroBatches int      `yaml:"micro_batches" rule:"required min=1 max=65536"`
	Chunks       int      `yaml:"chunks" rule:"min=1 max=65536"`
	Pipelines    int      `yaml:"pipelines" default:"1" rule:"min=1 max=65536"`
	Batches      int      `yaml:"batches" rule:"min=1 max=65536"`
	AverageEvery int      `yaml:"average_every" rule:"min=1 max=65536"`
	schedule.Costs
}

// costsSchema is what a costs file may have; a thousand stages, each value written out, are fewer bytes.
var costsSchema = strictyaml.SchemaOf[costsFile]("a costs file", 256<<10)

// traceUnits are the values of the key unit, in microseconds.
var traceUnits = map[string]float64{"s": 1e6, "ms": 1e3, "us": 1}

// parseCosts reads a costs file: source is its text, file its name for messages. The error is strictyaml.Problems: all that is wrong,
// each with its line.
func parseCosts(file string, source []byte) (*costsFile, error) {
	c, f := &costsFile{}, costsSchema.Read(file, source)
	costsSchema.SetDefaults(c)
	if f.Decode(c) {
		for i, name := range c.Schedules {
			if known := schedule.Names(); !slices.Contains(known, name) {
				f.Refuse(strictyaml.Item("schedules", i), nearest.Word(name, known), "schedule %q is unknown; known: %s", name, strings.Join(known, ", "))
			}
		}
		c.spread(f)
	}
	return c, f.Err()
}

// spread gives each stage, link and device its value, and checks all of them together.
func (c *costsFile) spread(f *strictyaml.Document) {
	count := map[string]int{"stage": c.Stages, "link": c.Stages - 1, "device": c.Stages}
	for _, k := range costsSchema.Fields {
		list := k.In(c)
		if k.Each == "" || list.IsNil() || c.Stages == 0 || f.Refused(k.Key) {
			continue
		}
		var err error
		switch values := list.Interface().(type) {
		case []float64:
			values, err = spread(values, "value", count[k.Each], k.Each)
			list.Set(reflect.ValueOf(values))
		case []int64:
			values, err = spread(values, "value", count[k.Each], k.Each)
			list.Set(reflect.ValueOf(values))
		}
		if err != nil {
			f.Refuse(k.Key, "", "%s has %v", k.Key, err)
		}
	}
	if f.Err() != nil {
		return
	}
	err := c.Validate(c.Stages)
	if value, ok := errors.AsType[*schedule.CostError](err); ok {
		f.Refuse(strictyaml.Item(value.Key, value.Index), "", "%v", value)
	} else if err != nil {
		f.Refuse("bandwidth", "", "%v", err)
	}
}
