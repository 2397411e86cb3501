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

// heldRows is how many queries, or keys, a block holds whose kernel keeps its sums in registers: HELD of kernels/attention_mma.cu, BLOCK_ROWS of
// kernels/attention_f32.cu.
const heldRows = 64

// forms are the names of a kernel that keeps its sums in registers: for operands of F32 and of BF16, with heads padded to 64 and to 128 elements.
type forms [2][2]string

func formsOf(kernel string) forms {
	return forms{{kernel + "_floats_64", kernel + "_floats_128"}, {kernel + "_64", kernel + "_128"}}
}

var heldAttention, heldQueries, heldKeys = formsOf("attention"), formsOf("attention_queries"), formsOf("attention_keys")

// of names the one for operands like q, with heads of s elements. It is "" for wider heads.
func (f *forms) of(q device.Mem, s int) string {
	if s > 128 {
		return ""
	}
	return f[truth(q.Type() == device.BF16)][truth(s > 64)]
}

// held runs it on a block for each heldRows of so many rows, in so many heads.
func (c *call) held(q device.Mem, heads, rows int) {
	threads := 128
	if q.Type() == device.F32 {
		threads = 256
	}
	c.on(heads*blocks(rows, heldRows), 1, threads)
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
	if kernel := heldAttention.of(q, h.S); kernel != "" {
		d.launch(kernel).mem(out).mem(saved).mem(q).mem(k).mem(v).heads(h).held(q, h.B*h.H, h.T)
		return
	}
	d.launch("attention").mem(out).mem(saved).mem(q).mem(k).typed(v).tiled(h).blocks(h.B * h.H * blocks(h.T, tilesOf(h).queries))
}

func (d *Device) attentionBackward(o *device.AttentionBackward) {
	h := headsOf(o.AttentionShape)
	if kernel := heldQueries.of(o.Q, h.S); kernel != "" {
		s, ok := d.scratchOf(o)
		if !ok {
			return
		}
		means := s.take(device.F32, h.Saved())
		d.launch(kernel).mem(o.DQ).mem(means).mem(o.DOut).mem(o.Q).mem(o.K).mem(o.V).mem(o.Out).mem(o.Saved).heads(h).
			held(o.Q, h.B*h.H, h.T)
		d.launch(heldKeys.of(o.Q, h.S)).mem(o.DK).mem(o.DV).mem(means).mem(o.DOut).mem(o.Q).mem(o.K).mem(o.V).mem(o.Saved).heads(h).
			held(o.Q, h.B*h.KV, h.T)
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
