package ref

import "github.com/avgpipe/avgpipe/stage/device"

// dropout runs device.Dropout.
func (d *Device) dropout(y, x device.Mem, o device.DropoutMask) {
	threshold, scale := o.Derived()
	for r := range o.Rows {
		first := uint64(o.First + r/o.Share*o.Columns)
		var draws [4]uint32
		for c := range o.Columns {
			at := first + uint64(c)
			if c == 0 || at%4 == 0 {
				draws = device.Draws(o.Key, at/4)
			}
			dropElement(y, x, r*o.Columns+c, draws[at%4] < threshold, scale)
		}
	}
}

func dropElement(y, x device.Mem, i int, drop bool, scale float32) {
	if y.Type() == device.BF16 {
		v := uint16(0)
		if !drop {
			v = device.RoundBF16(device.WidenBF16(x.BF16()[i]) * scale)
		}
		y.BF16()[i] = v
		return
	}
	v := float32(0)
	if !drop {
		v = x.F32()[i] * scale
	}
	y.F32()[i] = v
}

// dropRows runs device.Dropout.
func (d *Device) dropRows(y, x, ids device.Mem, o device.DropoutMask) {
	threshold, scale := o.Derived()
	for r, id := range ids.I32() {
		factor := scale
		if device.Draws(o.Key, uint64(id)/4)[id%4] < threshold {
			factor = 0
		}
		for c := r * o.Columns; c < (r+1)*o.Columns; c++ {
			y.F32()[c] = factor * x.F32()[c]
		}
	}
}
