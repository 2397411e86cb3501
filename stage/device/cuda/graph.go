//go:build cuda && cgo && linux && amd64

package cuda

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/device/cuda/driver"
)

// graph is a pass on operands at some places: one launch, once it was captured.
type graph struct {
	pass       *device.Pass
	places     []device.Mem
	fresh      bool
	executable driver.Graph
	used       int // the run that used it last
}

// mostGraphs is how many a device keeps. A stage has one for each of its slots, forward and backward, and some for its updates.
const mostGraphs = 256

// graphs are the passes that ran lately, and the numbers of the one in progress. Captured launches read numbers that change from a block of device
// memory, which is written before each launch: all passes use the same, since they run one after the other.
type graphs struct {
	known     []*graph
	runs      int
	block     cu.DevicePtr
	numbers   []uint64
	refused   error // the first failure of the capture in progress
	takes     bool  // the operation in progress has numbers that change
	gathering bool  // it launches nothing: only its numbers are taken
}

// mostNumbers is how many of 8 bytes the block holds. Passes that have more run operation by operation.
const mostNumbers = 16 << 10

// take is where the numbers lie that a launch will find; 0 where they do not change.
func (g *graphs) take(numbers []uint64) uint64 {
	if !g.takes {
		return 0
	}
	at := uint64(g.block) + 8*uint64(len(g.numbers))
	g.numbers = append(g.numbers, numbers...)
	return at
}

// find is the graph of a pass on operands where they are now; nil if there is none, and then there is one that was not captured.
func (g *graphs) find(p *device.Pass) *graph {
	g.runs++
	for _, known := range g.known {
		if known.pass == p && known.fresh == p.Fresh && slices.Equal(known.places, p.Places) {
			known.used = g.runs
			return known
		}
	}
	if len(g.known) == mostGraphs {
		oldest := slices.MinFunc(g.known, func(a, b *graph) int { return a.used - b.used })
		_ = g.forget(func(known *graph) bool { return known == oldest }) // a driver that fails says so at the launch, too
	}
	g.known = append(g.known, &graph{pass: p, places: slices.Clone(p.Places), fresh: p.Fresh, used: g.runs})
	return nil
}

// forget destroys graphs. What runs of them runs to its end.
func (g *graphs) forget(which func(*graph) bool) (err error) {
	g.known = slices.DeleteFunc(g.known, func(known *graph) bool {
		if !which(known) {
			return false
		}
		if failed := known.executable.Destroy(); err == nil {
			err = failed
		}
		return true
	})
	return err
}

// touches reports whether operands of the graph lie in an allocation.
func (g *graph) touches(m device.Mem) bool {
	at, _ := m.Symbol()
	return slices.ContainsFunc(g.places, func(p device.Mem) bool {
		base, _ := p.Symbol()
		return base == at
	})
}

// Replay implements device.Replayer. The first time that a pass runs at some places its operations run one by one, and make what they need beside
// their operands. The second time they are captured. From then on they are one launch.
func (d *Device) Replay(p *device.Pass) {
	d.enter()
	defer d.leave()
	var g *graph
	if d.launches == Graphs && len(p.Ops) > 1 {
		g = d.graphs.find(p)
	}
	if g == nil || !d.gather(p) {
		for _, op := range p.Ops {
			d.Do(op)
		}
		return
	}
	if g.executable == (driver.Graph{}) {
		if err := d.capture(g, p); err != nil {
			d.check(fmt.Sprintf("capture a pass of %d operations", len(p.Ops)), err)
			return
		}
	}
	d.mu.Lock()
	for _, op := range p.Ops {
		d.history.add(reflect.TypeOf(op))
	}
	d.mu.Unlock()
	if n := d.graphs.numbers; len(n) > 0 {
		d.upload(d.graphs.block, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(n))), 8*len(n)))
	}
	d.check("launch a pass", g.executable.Launch(unsafe.Pointer(d.stream.C())))
}

// gather takes the numbers of a pass that change, and is false where they are too many.
func (d *Device) gather(p *device.Pass) bool {
	g := &d.graphs
	g.numbers, g.takes, g.gathering = g.numbers[:0], true, true
	for _, op := range p.Changing {
		operations[reflect.TypeOf(op)](d, op)
	}
	g.takes, g.gathering = false, false
	return len(g.numbers) <= mostNumbers
}

// capture makes a graph of the launches of a pass. They find their numbers where gather puts them.
func (d *Device) capture(g *graph, p *device.Pass) error {
	if err := driver.BeginCapture(unsafe.Pointer(d.stream.C())); err != nil {
		return err
	}
	d.mu.Lock()
	d.capturing, d.graphs.refused = true, nil
	d.mu.Unlock()
	changing := p.Changing
	d.graphs.numbers = d.graphs.numbers[:0]
	for _, op := range p.Ops {
		if d.graphs.takes = len(changing) > 0 && changing[0] == op; d.graphs.takes {
			changing = changing[1:]
		}
		operations[reflect.TypeOf(op)](d, op)
	}
	d.graphs.takes = false
	executable, err := driver.EndCapture(unsafe.Pointer(d.stream.C()))
	d.mu.Lock()
	defer d.mu.Unlock()
	d.capturing = false
	if d.graphs.refused != nil {
		return errors.Join(d.graphs.refused, executable.Destroy())
	}
	g.executable = executable
	return err
}
