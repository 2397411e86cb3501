package main

import (
	"fmt"
	"slices"
	"strings"
)

// method is a way to train on several devices.
type method struct {
	name string
	// schedule of the pipeline; "" for data parallelism, and auto where tuning chooses it.
	schedule string
	// side is whose samples it takes to a target. All synchronous methods take the same steps of the same batches.
	side string
	// published: it is one of those that AvgPipe was compared with by its authors.
	published bool
	chunks    int // stages on each device
}

// The sides: methods of one side need the same samples.
const (
	synchronous  = "synchronous"
	pipeDream    = "pipedream"
	pipeDream2BW = "pipedream-2bw"
	averaged     = "avgpipe"
	// averagedPipeDream is avgpipe over pipelines that step after each micro-batch, as pipedream's do. That changes what is computed, so tuning never chooses it: a user does, with a number of pipelines.
	averagedPipeDream = "avgpipe-pipedream"
)

const dataParallel = "data-parallel"

var methods = []method{
	{dataParallel, "", synchronous, true, 1},
	{"gpipe", "gpipe", synchronous, true, 1},
	{"1f1b", "1f1b", synchronous, true, 1},
	{pipeDream, pipeDream, pipeDream, true, 1},
	{pipeDream2BW, pipeDream2BW, pipeDream2BW, true, 1},
	{"interleaved", "interleaved", synchronous, false, 2},
	{"zb-h1", "zb-h1", synchronous, false, 1},
	{"zb-h2", "zb-h2", synchronous, false, 1},
	{averaged, "auto", averaged, false, 1},
	{averagedPipeDream, pipeDream, averagedPipeDream, false, 1},
}

// methodOf finds a method by its name.
func methodOf(name string) (method, error) {
	at := slices.IndexFunc(methods, func(m method) bool { return m.name == name })
	if at < 0 {
		var names []string
		for _, m := range methods {
			names = append(names, m.name)
		}
		return method{}, fmt.Errorf("no method %q; there are %s", name, strings.Join(names, ", "))
	}
	return methods[at], nil
}

// updates reports whether the method steps inside of a batch, so that what it computes depends on the number of stages.
func (m method) updates() bool { return m.schedule == pipeDream || m.schedule == pipeDream2BW }

// averages reports whether the method trains several pipelines, as a peer does not.
func (m method) averages() bool { return m.side == averaged || m.side == averagedPipeDream }

// scheduleOf is the schedule of a side that has one.
func scheduleOf(side string) string {
	if side == averagedPipeDream {
		return pipeDream
	}
	return side
}

// runsOn reports whether the pipeline never drains, as published: one that has nobody to average with.
func (m method) runsOn() bool { return m.updates() && !m.averages() }

// lies reports whether runs of the side depend on the number of devices.
func lies(side string) bool {
	return side == pipeDream || side == pipeDream2BW || side == averagedPipeDream
}
