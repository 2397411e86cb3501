package ref

import "github.com/avgpipe/avgpipe/stage/device"

// Embed implements device.Device.
func (d *Device) Embed(out, tokens, positions, ids device.Mem, b, t, width int) {
	device.CheckEmbed("Embed", out, tokens, positions, ids, b, t, width)
	outs, table := out.F32(), tokens.F32()
	if positions.Absent() {
		for row, id := range ids.I32() {
			copy(outs[row*width:(row+1)*width], table[int(id)*width:])
		}
		return
	}
	places := positions.F32()
	for row, id := range ids.I32() {
		at := row % t * width
		token, place := table[int(id)*width:][:width], places[at:at+width]
		for c := range width {
			outs[row*width+c] = token[c] + place[c]
		}
	}
}

// EmbedBackward implements device.Device.
func (d *Device) EmbedBackward(dtokens, dpositions, dout, ids device.Mem, b, t, width int) {
	device.CheckEmbed("EmbedBackward", dout, dtokens, dpositions, ids, b, t, width)
	table := dtokens.F32()
	for row, id := range ids.I32() {
		g := dout.F32()[row*width:][:width]
		add(table[int(id)*width:][:width], g)
		if !dpositions.Absent() {
			add(dpositions.F32()[row%t*width:][:width], g)
		}
	}
}

func add(y, x []float32) {
	for i, v := range x {
		y[i] += v
	}
}
