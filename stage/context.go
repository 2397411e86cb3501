package stage

import (
	"errors"
	"fmt"
	"math"

	"github.com/avgpipe/avgpipe/stage/device"
	"github.com/avgpipe/avgpipe/stage/layer"
	"github.com/avgpipe/avgpipe/stage/model"
	"github.com/avgpipe/avgpipe/stage/program"
)

// Context is the past of sequences that a stage continues, as many as it has samples: the keys and values that attention keeps, the states of
// recurrent layers. Its passes compute only the positions that are new.
type Context struct {
	stage    *Computed
	capacity int // positions; math.MaxInt where a state of one size holds any number
	asked    int // positions that attention has room for
	past     int
	kept     device.Mem
	arena    device.Mem // of the longest pass so far
	ids      device.Mem // where the device does not see the host's memory
	logits   device.Mem
	memory   program.Memory
	passes   map[pass]program.Passes
}

// pass is what a program of a context is made for: so many positions of each sample, with or without others before them.
type pass struct {
	positions int
	first     bool
}

// continuation makes the program of a pass.
func (c Config) continuation(p pass, capacity int) (*layer.Context, program.Passes) {
	x := &layer.Context{Capacity: capacity, First: p.first}
	size := c.size()
	size.T = p.positions
	return x, layer.Run{Layers: c.layers(), Size: size}.Continuation(x)
}

// checkContext reports why a stage cannot continue sequences.
func (c Config) checkContext(positions int) error {
	switch m := c.Model; {
	case !c.ForwardOnly || !c.first() || !c.last():
		return errors.New("only a ForwardOnly stage of all layers continues sequences")
	case m.Task != model.Language:
		return fmt.Errorf("a %s model, of the task %s, continues no sequence; one of the task %s is needed", m.Family, m.Task, model.Language)
	case positions < 1 || positions > m.Sequence():
		return fmt.Errorf("%d positions; the model takes 1 to %d", positions, m.Sequence())
	}
	return nil
}

// keptWords is the float32 that a context keeps.
func keptWords(x *layer.Context) (words int) {
	for _, m := range x.Kept {
		words += layer.Padded(layer.WordsOf(m.Type(), m.Len()))
	}
	return words
}

// ContextBytes is the device memory of a context of so many positions whose longest pass has so many of them.
func (c Config) ContextBytes(positions, longest int) (int64, error) {
	if err := c.Validate(); err != nil {
		return 0, err
	}
	c = c.withDefaults()
	if err := c.checkContext(positions); err != nil {
		return 0, fmt.Errorf("%s: context: %w", c.what(), err)
	}
	x, p := c.continuation(pass{longest, true}, positions)
	_, next := c.continuation(pass{1, false}, positions)
	words := max(keptWords(x), 1) + max(floats(max(p.Arena, next.Arena)), 1)
	if !c.Device.Host() {
		words += c.Samples * (longest + c.Model.Vocabulary())
	}
	bytes := words * device.F32.Bytes()
	for _, planner := range device.PlannersOf(c.Device) {
		bytes += planner.Workspace(next.Forward.Ops())
	}
	return int64(bytes), nil
}

// NewContext makes an empty context. positions is the longest that a sequence gets; of a recurrent model it may get any length.
func (c *Computed) NewContext(positions int) (*Context, error) {
	if err := c.config.checkContext(positions); err != nil {
		return nil, fmt.Errorf("%s: context: %w", c.config.what(), err)
	}
	x := &Context{stage: c, capacity: positions, asked: positions, passes: map[pass]program.Passes{}}
	kept, next := c.config.continuation(pass{1, false}, positions)
	if err := c.prepare(next.Forward.Ops()); err != nil {
		return nil, err
	}
	if !kept.Bounded {
		x.capacity = math.MaxInt
	}
	if err := x.alloc(&x.kept, "what is kept of past positions", device.F32, keptWords(kept)); err != nil {
		return nil, err
	}
	x.memory.External = make([]device.Mem, layer.Parameters, layer.Parameters+len(c.tensors)+len(kept.Kept))
	x.memory.External = append(x.memory.External, c.role(weight)...)
	cut := cutter{mem: x.kept}
	for _, m := range kept.Kept {
		x.memory.External = append(x.memory.External, cut.take(layer.WordsOf(m.Type(), m.Len())))
	}
	return x, nil
}

// alloc gives m at least n elements: as they are, or new ones.
func (x *Context) alloc(m *device.Mem, what string, t device.Type, n int) (err error) {
	if n = max(n, 1); !m.Absent() && m.Len() >= n {
		return nil
	}
	x.stage.dev.Free(*m)
	if *m, err = x.stage.dev.Alloc(t, n); err != nil {
		return fmt.Errorf("%s: context: allocate %s: %w", x.stage.config.what(), what, err)
	}
	return nil
}

// Room is how many positions more the context holds.
func (x *Context) Room() int { return x.capacity - x.past }

// Clear forgets all positions.
func (x *Context) Clear() { x.past = 0 }

// Close frees the context's memory; the stage's stays.
func (x *Context) Close() {
	for _, m := range []device.Mem{x.kept, x.arena, x.ids, x.logits} {
		x.stage.dev.Free(m)
	}
	*x = Context{stage: x.stage}
}

// Advance adds positions to each sequence, as many as ids (B,T) has, and writes the logits after the last of them, (B,V).
func (x *Context) Advance(ids []int32, logits []float32) error {
	c := x.stage
	fail := func(err error) error {
		return fmt.Errorf("%s: continue after %d positions: %w", c.config.what(), x.past, err)
	}
	samples := c.config.Samples
	t := len(ids) / samples
	switch {
	case len(ids) == 0 || len(ids)%samples != 0:
		return fail(fmt.Errorf("%d ids for %d sequences, expected as many for each", len(ids), samples))
	case t > x.Room():
		return fail(fmt.Errorf("%d more, and %d fit; clear the context", t, x.Room()))
	case len(logits) != samples*c.config.Model.Vocabulary():
		return fail(fmt.Errorf("room for %d logits, expected %d", len(logits), samples*c.config.Model.Vocabulary()))
	}
	if err := checkPort(c.passes.in[0], ids, t); err != nil {
		return fail(err)
	}
	p, err := x.program(t)
	if err != nil {
		return err
	}
	c.begin(device.ForwardWork)
	c.refresh()
	out := OnHost(device.FloatBytes(logits))
	if err := x.enter(ids, out); err != nil {
		return err
	}
	p.Run(c.dev, &x.memory, device.Args{Past: x.past})
	c.leave(out, x.logits)
	if err := c.dev.Synchronize(); err != nil {
		return fail(err)
	}
	x.past += t
	return nil
}

// program is that of a pass of t positions, with the work space for it.
func (x *Context) program(t int) (_ *program.Program, err error) {
	key := pass{t, x.past == 0}
	p, made := x.passes[key]
	if !made {
		_, p = x.stage.config.continuation(key, x.asked)
		x.passes[key] = p
	}
	err = x.alloc(&x.arena, "a pass", device.F32, floats(p.Arena))
	x.memory.Arena = x.arena
	return p.Forward, err
}

// enter brings the ids to the device and says where the logits go.
func (x *Context) enter(ids []int32, out Boundary) error {
	c, own := x.stage, device.Mem{}
	if !c.host {
		if err := errors.Join(x.alloc(&x.ids, "ids", device.I32, len(ids)), x.alloc(&x.logits, "logits", device.F32, floats(out.Bytes()))); err != nil {
			return err
		}
		own = x.ids.Slice(0, len(ids))
	}
	x.memory.External[layer.Input] = c.enter(own, OnHost(device.IntBytes(ids)), c.passes.in)
	x.memory.External[layer.Output] = c.window(x.logits, out, c.passes.out)
	return nil
}
