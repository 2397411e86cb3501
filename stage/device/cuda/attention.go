//go:build cuda && cgo && linux && amd64

package cuda

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// heads is what the kernels of attention are told of shapes: SHAPE of kernels/attention.cu.
type heads struct {
	device.AttentionShape
	keys, past                 int
	keySample, keyHead, keyRow int // elements from one to the next
}

// The elements, and the rows, that tiles of queries and of keys hold at most, where products are in float.
const (
	queryFloats, mostQueries = 1024, 16
	keyFloats, mostKeys      = 2048, 32
)

// narrow reports whether heads of s elements fit a tile.
func narrow(s int) bool { return s <= queryFloats }

// tiles are how many queries and keys a block has at once.
type tiles struct{ queries, keys int }

func tilesOf(h heads) tiles {
	return tiles{min(mostQueries, queryFloats/h.S), min(mostKeys, keyFloats/h.S)}
}

// Blocks that multiply by matrix units hold so many queries, or keys, and have so many threads: HELD and WARPS of kernels/attention_mma.cu.
const (
	heldRows    = 64
	heldThreads = 128
)

// byMatrixUnits names the form of a kernel for operands of BF16, by the width that heads are padded to. It is "" where there is none.
func byMatrixUnits(kernel string, q device.Mem, s int) string {
	switch {
	case q.Type() != device.BF16 || s > 128:
		return ""
	case s > 64:
		return kernel + "_128"
	}
	return kernel + "_64"
}

// headsOf are those of attention without a cache.
func headsOf(a device.AttentionShape) heads {
	a = a.WithDefaults()
	return heads{AttentionShape: a, keys: a.T, keySample: a.T * a.KVStride, keyHead: a.S, keyRow: a.KVStride}
}

// heads are the arguments that describe shapes.
func (c *call) heads(h heads) *call {
	threshold, scale := h.Dropout.Derived()
	return c.int(h.H).int(h.KV).int(h.T).int(h.keys).int(h.past).int(h.S).int(h.QStride).int(h.keySample).int(h.keyHead).int(h.keyRow).
		flag(h.Bidirectional).int(h.Window).mem(h.Mask).now(h.Dropout.Key, uint64(h.Dropout.First)).bits(uint64(threshold)).float(scale)
}

// tiled are the arguments that describe shapes to kernels without matrix units.
func (c *call) tiled(h heads) *call {
	t := tilesOf(h)
	return c.heads(h).int(t.queries).int(t.keys)
}

func (d *Device) attention(o *device.Attention) {
	d.attend(o.Out, o.Saved, o.Q, o.K, o.V, headsOf(o.AttentionShape))
}

func (d *Device) attend(out, saved, q, k, v device.Mem, h heads) {
	if kernel := byMatrixUnits("attention", q, h.S); kernel != "" {
		d.launch(kernel).mem(out).mem(saved).mem(q).mem(k).mem(v).heads(h).on(h.B*h.H*blocks(h.T, heldRows), 1, heldThreads)
		return
	}
	d.launch("attention").mem(out).mem(saved).mem(q).mem(k).typed(v).tiled(h).blocks(h.B * h.H * blocks(h.T, tilesOf(h).queries))
}

func (d *Device) attentionBackward(o *device.AttentionBackward) {
	h := headsOf(o.AttentionShape)
	if kernel := byMatrixUnits("attention_queries", o.Q, h.S); kernel != "" {
		s, ok := d.scratchOf(o)
		if !ok {
			return
		}
		means := s.take(device.F32, h.Saved())
		d.launch(kernel).mem(o.DQ).mem(means).mem(o.DOut).mem(o.Q).mem(o.K).mem(o.V).mem(o.Out).mem(o.Saved).heads(h).
			on(h.B*h.H*blocks(h.T, heldRows), 1, heldThreads)
		d.launch(byMatrixUnits("attention_keys", o.Q, h.S)).mem(o.DK).mem(o.DV).mem(means).mem(o.DOut).mem(o.Q).mem(o.K).mem(o.V).mem(o.Saved).heads(h).
			on(h.B*h.KV*blocks(h.T, heldRows), 1, heldThreads)
		return
	}
	brain, t := o.Q.Type() == device.BF16, tilesOf(h)
	d.launch("attention_backward_queries").mem(o.DQ).mem(o.DOut).mem(o.Q).mem(o.K).mem(o.V).mem(o.Out).mem(o.Saved).flag(brain).tiled(h).
		blocks(h.B * h.H * blocks(h.T, t.queries))
	d.launch("attention_backward_keys").mem(o.DK).mem(o.DV).mem(o.DOut).mem(o.Q).mem(o.K).mem(o.V).mem(o.Out).mem(o.Saved).flag(brain).tiled(h).
		blocks(h.B * h.KV * blocks(h.T, t.keys))
}

func (d *Device) cacheAppend(o *device.CacheAppend) {
	n := o.B * o.T * o.KV * o.S
	d.launch("cache_append").mem(o.Cache).typed(o.X).int(o.T).int(o.KV).int(o.S).int(o.Stride).int(o.Capacity).int(o.Past).int(n).each(n)
}

func (d *Device) cachedAttention(o *device.CachedAttention) {
	d.attend(o.Out, device.Mem{}, o.Q, o.K, o.V, heads{
		AttentionShape: device.AttentionShape{B: o.B, T: o.T, H: o.H, KV: o.KV, S: o.S, QStride: o.QStride, Window: o.Window},
		keys:           o.Past + o.T, past: o.Past, keySample: o.KV * o.Capacity * o.S, keyHead: o.Capacity * o.S, keyRow: o.S,
	})
}

func (d *Device) rotate(o *device.Rotate) {
	table, err := d.table(o.Rotation)
	if err != nil {
		d.check("run Rotate", err)
		return
	}
	n := o.Y.Len() / 2
	d.launch("rotate").mem(o.Y).typed(o.X).mem(table.Slice(o.Past*o.S, o.T*o.S)).int(o.T).int(o.Heads).int(o.S).flag(o.Inverse).int(n).each(n)
}

// table is the device's copy of the table of a rotation, from position 0 on.
func (d *Device) table(o device.Rotation) (device.Mem, error) {
	o.T, o.Past = o.Past+o.T, 0
	table := d.rotations.Table(o)
	m, ok := d.tables[&table[0]]
	if ok {
		return m, nil
	}
	m, err := d.Alloc(device.F32, len(table))
	if err != nil {
		return m, fmt.Errorf("a table of rotary positions: %w", err)
	}
	d.Upload(m, device.FloatBytes(table))
	d.tables[&table[0]] = m
	return m, nil
}
