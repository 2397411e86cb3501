package ref

import "github.com/avgpipe/avgpipe/stage/device"

// dropout runs device.Dropout.
func (d *Device) dropout(o *device.Dropout) {
	ys := d.result(0, o.Y)
	copy(ys, d.read(1, o.X))
	for r := range o.Rows {
		row := ys[r*o.Columns:][:o.Columns]
		if o.IDs.Absent() {
			dropRow(row, o.DropoutMask, o.First+r/o.Share*o.Columns)
			continue
		}
		threshold, factor := o.Derived()
		if id := uint64(o.IDs.I32()[r]); device.Draws(o.Key, id/4)[id%4] < threshold {
			factor = 0
		}
		for c := range row {
			row[c] *= factor
		}
	}
	d.finish(0, o.Y)
}

// dropRow drops elements of a row, the first of which has draw number first.
func dropRow(row []float32, o device.DropoutMask, first int) {
	threshold, scale := o.Derived()
	var draws [4]uint32
	for j := range row {
		at := uint64(first + j)
		if j == 0 || at%4 == 0 {
			draws = device.Draws(o.Key, at/4)
		}
		if draws[at%4] < threshold {
			row[j] = 0
		} else {
			row[j] *= scale
		}
	}
}
