package ref

import "github.com/avgpipe/avgpipe/stage/device"

// cacheAppend runs device.CacheAppend.
func (d *Device) cacheAppend(o *device.CacheAppend) {
	for b := range o.B {
		for t := range o.T {
			for head := range o.KV {
				to := ((b*o.KV+head)*o.Capacity + o.Past + t) * o.S
				from := (b*o.T+t)*o.Stride + head*o.S
				copy(device.HostBytes(o.Cache.Slice(to, o.S)), device.HostBytes(o.X.Slice(from, o.S)))
			}
		}
	}
}

// cachedAttention runs device.CachedAttention, with the arithmetic of attention.
func (d *Device) cachedAttention(o *device.CachedAttention) {
	qs, ks, vs, outs := d.read(0, o.Q), d.read(1, o.K), d.read(2, o.V), d.result(3, o.Out)
	d.scores = grow(d.scores, o.Past+o.T)
	for b := range o.B {
		for h := range o.H {
			cached := (b*o.KV + h/(o.H/o.KV)) * o.Capacity * o.S
			k, v := head{ks[cached:], o.S, o.S}, head{vs[cached:], o.S, o.S}
			for t := range o.T {
				row := b*o.T + t
				p := d.scores[:o.Past+t+1]
				scoreRow(p, qs[row*o.QStride+h*o.S:][:o.S], k, o.First(o.Past+t), nil)
				softmax(p)
				weighRow(outs[(row*o.H+h)*o.S:][:o.S], p, v)
			}
		}
	}
	d.finish(3, o.Out)
}
