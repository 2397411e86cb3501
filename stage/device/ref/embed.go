package ref

import "github.com/avgpipe/avgpipe/stage/device"

// Embed implements device.Device.
func (d *Device) Embed(out, tokens, positions, ids device.Mem, b, t, width int) {
	device.CheckEmbed("Embed", out, tokens, positions, ids, b, t, width)
	outs, table, places := out.F32(), tokens.F32(), positions.F32()
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
	douts, table, places := dout.F32(), dtokens.F32(), dpositions.F32()
	for row, id := range ids.I32() {
		at := row % t * width
		token, place := table[int(id)*width:][:width], places[at:at+width]
		for c, g := range douts[row*width : (row+1)*width] {
			token[c] += g
			place[c] += g
		}
	}
}
