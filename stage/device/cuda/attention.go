//go:build cuda && cgo && linux && amd64

package cuda

import (
	"github.com/avgpipe/avgpipe/stage/device"
)

// heads is what the kernels of attention are told of shapes: SHAPE of kernels/attention.cu.
type heads struct {
	device.AttentionShape
	keys, past                 int
	keySample, keyHead, keyRow int // elements from one to the next
	queriesOfTile, keysOfATile int
	queryTiles, keyTiles       int
}

// The elements, and the rows, that tiles of queries and of keys hold at most.
const (
	queryFloats, mostQueries = 1024, 16
	keyFloats, mostKeys      = 2048, 32
)

// narrow reports whether heads of s elements fit a tile.
func narrow(s int) bool { return s <= queryFloats }

// tiled cuts queries and keys to tiles.
func tiled(h heads) heads {
	h.queriesOfTile, h.keysOfATile = min(mostQueries, queryFloats/h.S), min(mostKeys, keyFloats/h.S)
	h.queryTiles, h.keyTiles = blocks(h.T, h.queriesOfTile), blocks(h.keys, h.keysOfATile)
	return h
}

// headsOf are those of attention without a cache.
func headsOf(a device.AttentionShape) heads {
	a = a.WithDefaults()
	return tiled(heads{AttentionShape: a, keys: a.T, keySample: a.T * a.KVStride, keyHead: a.S, keyRow: a.KVStride})
}

// heads are the arguments that describe shapes.
func (c *call) heads(h heads) *call {
	threshold, scale := h.Dropout.Derived()
	return c.int(h.H).int(h.KV).int(h.T).int(h.keys).int(h.past).int(h.S).int(h.QStride).int(h.keySample).int(h.keyHead).int(h.keyRow).
		flag(h.Bidirectional).int(h.Window).mem(h.Mask).now(h.Dropout.Key, uint64(h.Dropout.First)).bits(uint64(threshold)).float(scale).
		int(h.queriesOfTile).int(h.keysOfATile)
}

func (d *Device) attention(o *device.Attention) {
	h := headsOf(o.AttentionShape)
	d.launch("attention").mem(o.Out).mem(o.Saved).mem(o.Q).mem(o.K).typed(o.V).heads(h).blocks(h.B * h.H * h.queryTiles)
}

func (d *Device) attentionBackward(o *device.AttentionBackward) {
	h := headsOf(o.AttentionShape)
	brain := o.Q.Type() == device.BF16
	d.launch("attention_backward_queries").mem(o.DQ).mem(o.DOut).mem(o.Q).mem(o.K).mem(o.V).mem(o.Out).mem(o.Saved).flag(brain).heads(h).
		blocks(h.B * h.H * h.queryTiles)
	d.launch("attention_backward_keys").mem(o.DK).mem(o.DV).mem(o.DOut).mem(o.Q).mem(o.K).mem(o.V).mem(o.Out).mem(o.Saved).flag(brain).heads(h).
		blocks(h.B * h.KV * h.keyTiles)
}

func (d *Device) cacheAppend(o *device.CacheAppend) {
	n := o.B * o.T * o.KV * o.S
	d.launch("cache_append").mem(o.Cache).typed(o.X).int(o.T).int(o.KV).int(o.S).int(o.Stride).int(o.Capacity).int(o.Past).int(n).each(n)
}

func (d *Device) cachedAttention(o *device.CachedAttention) {
	h := tiled(heads{
		AttentionShape: device.AttentionShape{B: o.B, T: o.T, H: o.H, KV: o.KV, S: o.S, QStride: o.QStride, Window: o.Window},
		keys:           o.Past + o.T, past: o.Past, keySample: o.KV * o.Capacity * o.S, keyHead: o.Capacity * o.S, keyRow: o.S,
	})
	d.launch("attention").mem(o.Out).mem(device.Mem{}).mem(o.Q).mem(o.K).typed(o.V).heads(h).blocks(h.B * h.H * h.queryTiles)
}

func (d *Device) rotate(o *device.Rotate) {
	table, ok := d.table(o.Rotation)
	if !ok {
		return
	}
	n := o.Y.Len() / 2
	d.launch("rotate").mem(o.Y).typed(o.X).mem(table.Slice(o.Past*o.S, o.T*o.S)).int(o.T).int(o.Heads).int(o.S).flag(o.Inverse).int(n).each(n)
}

// table is the device's copy of the table of a rotation, from position 0 on. It is false where there is no memory for it.
func (d *Device) table(o device.Rotation) (device.Mem, bool) {
	o.T, o.Past = o.Past+o.T, 0
	table := d.rotations.Table(o)
	m, ok := d.tables[&table[0]]
	if ok {
		return m, true
	}
	m, err := d.Alloc(device.F32, len(table))
	if err != nil {
		d.check("rotary positions", err)
		return m, false
	}
	d.Upload(m, device.FloatBytes(table))
	d.tables[&table[0]] = m
	return m, true
}
