package ref

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Embed implements device.Device.
func (d *Device) Embed(out, tokens, positions, ids device.Mem, b, t, width int) {
	needEmbed("Embed", out, tokens, positions, ids, b, t, width)
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
	needEmbed("EmbedBackward", dout, dtokens, dpositions, ids, b, t, width)
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

// needEmbed panics unless the operands of an embedding fit each other and every id lies in the table.
func needEmbed(op string, out, tokens, positions, ids device.Mem, b, t, width int) {
	if width < 1 || tokens.Len()%width != 0 {
		panic(fmt.Sprintf("device: %s: tokens has %d f32, expected a multiple of the width %d", op, tokens.Len(), width))
	}
	device.Need(op, "out", out, device.F32, b*t*width)
	device.NeedAtLeast(op, "tokens", tokens, device.F32, width)
	device.NeedAtLeast(op, "positions", positions, device.F32, t*width)
	device.Need(op, "ids", ids, device.I32, b*t)
	device.NeedIDs(op, "ids", ids.I32(), 0, tokens.Len()/width)
}
