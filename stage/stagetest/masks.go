package stagetest

import (
	"fmt"

	"github.com/avgpipe/avgpipe/stage/device"
)

// Masks is a device that notes what the passes on it drop out: the factor of each element, 0 or 1/(1-rate), of each mask once,
// in the order in which the forward draws them. Another implementation that is given them computes the same values.
type Masks struct {
	device.Device
	Drawn [][]float32
	known map[string]bool
}

// NewMasks notes the masks of passes on a device whose memory is the host's.
func NewMasks(d device.Device) *Masks { return &Masks{Device: d, known: map[string]bool{}} }

// note keeps a mask of n elements, of which element i draws number(i).
func (m *Masks) note(d device.DropoutMask, n int, number func(i int) int) {
	name := fmt.Sprint(d.Key, d.First, n)
	if d.Rate == 0 || m.known[name] {
		return
	}
	m.known[name] = true
	threshold, scale := d.Derived()
	mask := make([]float32, n)
	for i := range mask {
		at := uint64(number(i))
		if device.Draws(d.Key, at/4)[at%4] >= threshold {
			mask[i] = scale
		}
	}
	m.Drawn = append(m.Drawn, mask)
}

// Do implements device.Device. The mask of rows has an element for each row, that of attention is (B,H,T,T).
func (m *Masks) Do(op device.Op) {
	switch o := op.(type) {
	case *device.Dropout:
		if o.IDs.Absent() {
			m.note(o.DropoutMask, o.X.Len(), func(i int) int { return o.First + i/o.Columns/o.Share*o.Columns + i%o.Columns })
		} else {
			m.note(o.DropoutMask, o.Rows, func(i int) int { return int(o.IDs.I32()[i]) })
		}
	case *device.Attention:
		m.note(o.Dropout, o.B*o.H*o.T*o.T, func(i int) int { return o.Dropout.First + i })
	}
	m.Device.Do(op)
}
