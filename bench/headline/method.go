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

// updates reports whether the method steps inside of a batch, so that a longer batch only drains the pipeline less often.
func (m method) updates() bool { return m.side == pipeDream || m.side == pipeDream2BW }
