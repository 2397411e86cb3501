package ref

import "github.com/avgpipe/avgpipe/stage/device"

// embed runs device.Embed.
func (d *Device) embed(o *device.Embed) {
	width, table := o.Width(), o.Tokens.F32()
	for row, id := range o.IDs.I32() {
		out, token := o.Out.F32()[row*width:][:width], table[int(id)*width:][:width]
		if o.Add {
			add(out, token)
			continue
		}
		copy(out, token)
		if !o.Positions.Absent() {
			add(out, o.Positions.F32()[(o.Past+row%o.T)*width:][:width])
		}
	}
}

// embedBackward runs device.EmbedBackward.
func (d *Device) embedBackward(o *device.EmbedBackward) {
	width, table := o.Width(), o.DTokens.F32()
	for row, id := range o.IDs.I32() {
		g := o.DOut.F32()[row*width:][:width]
		add(table[int(id)*width:][:width], g)
		if !o.DPositions.Absent() {
			add(o.DPositions.F32()[row%o.T*width:][:width], g)
		}
	}
}

func add(y, x []float32) {
	for i, v := range x {
		y[i] += v
	}
}
